"""A real server's life, and what clients, operators and devices do to it at any time."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.cli import main as command
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from .prompts import prompt
from .servers import START_SECONDS, Site, call, children_of, generate, snapshot

#: Rounds of up to 16 requests at once, and one of so many servers' lives.
ROUNDS = 40
ANSWER = 6
#: A guard against hanging, not a measure: a request waits for its pages for 20 s at most.
PATIENCE = 300
#: What a server's log has of a thread that hangs.
HUNG = "swift-tiers: the thread "
#: Characters of a server's log that are shown where something was wrong.
LOG_SHOWN = 20_000
#: Of a donor's pool.
DONORS_TOKENS = 4096

Conversation = tuple[list[int], list[int]]  # a prompt, and its answer

POLICIES = (
    ("restore.strategy", "load"), ("restore.strategy", "token-wise"), ("restore.strategy", "auto"),
    ("eviction", "lfu"), ("eviction", "lru"), ("write", "back"), ("write", "through"),
    ("ssd.throttle", "2MiB"), ("ssd.throttle", "1GiB"), ("restore_deadline", "50ms"), ("restore_deadline", "20s"),
)  # fmt: skip


def conversations(plain: Any, draw: random.Random) -> list[Conversation]:
    """Trees of conversations, each turn going on from a part of the answer before it."""
    found: list[Conversation] = []

    def grow(before: list[int], depth: int) -> None:
        prompt = before + draw.choices(range(1, 250), k=draw.choice((3, 20, 60, 130, 300)))
        (answer,) = plain.answers([prompt])
        found.append((prompt, answer))
        if depth < 4 and len(prompt) < 1500:
            for _ in range(draw.choice((1, 2))):
                grow(prompt + answer[: draw.randrange(ANSWER + 1)], depth + 1)

    for _ in range(4):
        grow(draw.choices(range(1, 250), k=draw.choice((1, 40, 200, 600))), 0)
    return found


def tiers_of_a_life(site: Site) -> dict[str, Any]:
    """So small that everything is evicted, and all that operators may change is there."""
    tiers = site.tiers(host="768KiB")
    tiers["bus"] |= {"control": True, "server": "life"}
    tiers["ssd"]["throttle"] = "1GiB"  # without one none can be set later
    tiers["policy"]["restore_deadline"] = "20s"
    return tiers


Happening = tuple[int, Callable[[], object]]  # how often, and what
Asking = tuple[int, Callable[[list[int], random.Random], None]]


class Life:
    """One server, and what has happened to it."""

    long = 200  # tokens of long answers

    def __init__(
        self, site: Site, server: Any, said: list[Conversation], draw: random.Random, config: dict[str, Any]
    ) -> None:
        """`config`: its tiers', in which a section is there where the tier is."""
        self.site, self.server, self.draw = site, server, draw
        self.prompts = [prompt for prompt, _ in said]
        self._right = {tuple(prompt): answer for prompt, answer in said}
        self.wrong: list[str] = []
        self.happened: Counter[str] = Counter()
        self.ending = False  # errors are what is to be expected
        self._capped = [tier for tier in ("host", "ssd") if tier in config]
        self._policies = [one for one in POLICIES if "ssd" in config or not one[0].startswith("ssd")]
        self.kinds: list[Asking] = [
            (12, self.ask), (2, self.leave), (1, self.ask_long), (1, self.ask_log_probabilities), (1, self.ask_thrice),
            (2, self.abort),
        ]  # fmt: skip
        self.others: list[Happening] = [
            (20, lambda: None),
            (2, self.flush_cache),
            (2, lambda: self.order("flush", self.draw.choice(("host", "host", "all")))),
            (2, lambda: self.order("cap-tier", self.draw.choice(self._capped), self.draw.choice(("64KiB", "400KiB")))),
            (3, lambda: [self.order("cap-tier", tier) for tier in self._capped]),
            (3, lambda: self.order("set-policy", *self.draw.choice(self._policies))),
        ]
        if "ssd" in config:
            self.others.append((1, self.damage))

    def __enter__(self) -> Self:
        """Begin what it lives beside."""
        return self

    def __exit__(self, *raised: object) -> None: ...

    def live(self, source: Sequence[str]) -> None:
        """`source`: tiers; something comes from one of them."""
        for number in range(ROUNDS):
            self.one_round()
            self._check()
            if number % 20 == 10:
                self.end_and_begin()
            elif number % 10 == 0:
                self.rest()
        self.rest()
        # What lends to it, or what is asked for it, may have begun anew just now.
        assert wait_for(lambda: (self.one_round(), self.came_from(source))[1] or None, PATIENCE), self.happened
        self._check()
        assert HUNG not in self.server.log.read_text(errors="replace"), "a thread hung"

    def _check(self) -> None:
        """Nothing was wrong. Else what its server has said is shown: a server that has ended says why there alone."""
        if self.wrong:
            print(self.server.log.read_text(errors="replace")[-LOG_SHOWN:])
        assert not self.wrong, (self.wrong, self.happened)

    # Clients

    def one_round(self) -> None:
        """Many clients ask, and meanwhile something else may happen."""
        clients = self._clients()
        ((_, other),) = self.draw.choices(self.others, weights=[weight for weight, _ in self.others])
        other()
        self._await(clients)

    def _clients(self) -> list[threading.Thread]:
        hot = self.draw.sample(self.prompts, k=self.draw.choice((3, 8, len(self.prompts))))
        weights, kinds = zip(*self.kinds, strict=True)
        chosen = self.draw.choices(kinds, weights=weights, k=self.draw.choice((1, 2, 4, 8, 16)))
        clients = [
            threading.Thread(target=self._client, args=(kind, self.draw.choice(hot), random.Random(self.draw.random())))
            for kind in chosen
        ]
        for client in clients:
            client.start()
        return clients

    def _await(self, clients: list[threading.Thread]) -> None:
        for client in clients:
            client.join(PATIENCE)
            assert not client.is_alive(), "a request is not answered"

    def _client(self, kind: Callable[..., None], prompt: list[int], draw: random.Random) -> None:
        try:
            kind(prompt, draw)
        except (OSError, HTTPException) as error:
            if not self._expects(error):
                self.wrong.append(f"{kind.__name__}: {error!r}")
        self.happened[kind.__name__] += 1

    def _expects(self, error: Exception) -> bool:
        """Whether this is what a request may come to now."""
        return self.ending

    def _answers(self, prompt: list[int], tokens: int, sampling: dict[str, Any] | None = None, **more: Any) -> Any:
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **(sampling or {})}
        body = {"input_ids": prompt, "sampling_params": parameters, **more}
        found = call(self.server, "/generate", body, timeout=PATIENCE)
        return found if isinstance(found, list) else [found]

    def _compare(self, found: list[dict[str, Any]], prompt: list[int], tokens: int = ANSWER) -> None:
        """With the first tokens of the right answer."""
        right = self._right[tuple(prompt)][:tokens]
        for one in found:
            self._count(one)
            if one["output_ids"][: len(right)] != right:
                self.wrong.append(f"{one['output_ids']}, not {right}: {one['meta_info']}")

    def _count(self, found: dict[str, Any]) -> None:
        for tier, tokens in (found["meta_info"].get("cached_tokens_details") or {}).items():
            self.happened[f"tokens from {tier}"] += tokens if isinstance(tokens, int) else 0

    def came_from(self, tiers: Sequence[str]) -> int:
        """So many tokens so far."""
        return sum(self.happened[f"tokens from {tier}"] for tier in tiers)

    def ask(self, prompt: list[int], draw: random.Random) -> None:
        tokens = draw.choice((1, 3, ANSWER))
        self._compare(self._answers(prompt, tokens), prompt, tokens)

    def ask_long(self, prompt: list[int], draw: random.Random) -> None:
        self._compare(self._answers(prompt, self.long), prompt)

    def ask_log_probabilities(self, prompt: list[int], draw: random.Random) -> None:
        start = draw.choice((-1, 0, len(prompt) // 2))
        self._compare(self._answers(prompt, 3, return_logprob=True, logprob_start_len=start), prompt, 3)

    def ask_thrice(self, prompt: list[int], draw: random.Random) -> None:
        self._compare(self._answers(prompt, 4, {"n": 3}), prompt, 4)

    def abort(self, prompt: list[int], draw: random.Random) -> None:
        name = f"{draw.random()}"

        def give_up() -> None:
            with contextlib.suppress(OSError):  # it is ending
                call(self.server, "/abort_request", {"rid": name})

        later = threading.Timer(draw.choice((0, 0.01, 0.05, 0.2)), give_up)
        later.start()
        try:
            (found,) = self._answers(prompt, 50, rid=name)
        finally:
            later.join()
        if found["meta_info"]["finish_reason"]["type"] != "abort":
            self._compare([found], prompt)

    def leave(self, prompt: list[int], draw: random.Random) -> None:
        body = json.dumps({"input_ids": prompt, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}})
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall((head + body).encode())
            time.sleep(draw.choice((0, 0.01, 0.05, 0.2)))

    # Operators and devices

    def flush_cache(self) -> bool:
        try:
            call(self.server, "/flush_cache", {})
        except urllib.error.HTTPError:  # SGLang's answer while requests run
            return False
        self.happened["flush_cache"] += 1
        return True

    def order(self, *words: str) -> None:
        done = command(["control", "life", *words, "--directory", str(self.site.bus)]) == 0
        # A tier is not capped below what requests hold of it.
        assert done or words[0] == "cap-tier", words
        self.happened[words[0] if done else f"{words[0]} refused"] += 1

    def damage(self) -> None:
        """Change bytes of a device file, behind its beginning."""
        files = [path for one in self.site.directories for path in one.iterdir() if path.stat().st_size > 1 << 20]
        path = self.draw.choice(files)
        with open(path, "r+b") as file:
            for _ in range(20):
                file.seek(self.draw.randrange(1 << 20, path.stat().st_size))
                file.write(self.draw.randbytes(1))
        self.happened["damage"] += 1

    def end_and_begin(self) -> None:
        """Stop it, or kill it, with requests under way."""
        self.ending = True
        clients = self._clients()
        time.sleep(self.draw.choice((0, 0.05, 0.3)))
        if self.draw.random() < 0.5:
            self.server.signal_all(signal.SIGKILL)
        self.server.stop()
        self._await(clients)
        self.server.end()
        self.server.start()
        self.server.wait_ready(START_SECONDS)
        self.ending = False
        self.happened["lives"] += 1

    def rest(self) -> None:
        """Once all is quiet nothing is held for anybody."""
        limit = time.monotonic() + PATIENCE
        while (state := snapshot(self.server))["tiers"]["host"]["pinned_pages"] or state["write_queue_pages"]:
            assert time.monotonic() < limit, state
            time.sleep(0.1)


class LifeBesideADonor(Life):
    """... of a server that borrows what another one of another model lends, which lives as wildly."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        bus = {"directory": str(self.site.bus), "control": True, "interval": "200ms", "server": "donor"}
        lends = {"donate": True, "window": "500ms", "term": "3s"}
        model = tiny_model(self.site.root / "other", layers=2, heads=2, kv_heads=1, head_dim=32, seed=5)
        shape = {"--model-path": str(model), "--max-total-tokens": str(DONORS_TOKENS), "--page-size": "16"}
        self._donor = self.site.server("donor", tiers={"host": {"size": "1MiB"}, "bus": bus, "peer": lends}, **shape)
        self._answers_of_donor: list[list[int]] = []
        self.others += [
            (4, self.ask_donor),
            (2, self.want_it_all),
            (2, self.recall),
            (1, self.pause_donor),
            (1, self.kill_donor),
        ]

    def __enter__(self) -> Self:
        self._donor.__enter__()
        self._begin_donor()
        self._answers_of_donor = [generate(self._donor, prompt(seed))[0] for seed in range(3)]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._donor.__exit__(*raised)

    def _begin_donor(self) -> None:
        self._donor.start()
        self._donor.wait_ready(START_SECONDS)

    def ask_donor(self) -> None:
        for seed, answer in enumerate(self._answers_of_donor):
            if (found := generate(self._donor, prompt(seed))[0]) != answer:
                self.wrong.append(f"donor: {found}, not {answer}")
        self.happened["ask_donor"] += 1

    def want_it_all(self) -> None:
        """A request of the donor's that needs what it has lent."""
        generate(self._donor, prompt(77, tokens=DONORS_TOKENS - 200), 3)
        self.happened["want_it_all"] += 1

    def recall(self) -> None:
        done = command(["lease", "recall", "donor", "all", "--directory", str(self.site.bus)]) == 0
        self.happened["recall" if done else "recall refused"] += 1

    def pause_donor(self) -> None:
        self._donor.signal_all(signal.SIGSTOP)
        time.sleep(self.draw.choice((0.2, 1, 5)))  # the last is longer than a lease
        self._donor.signal_all(signal.SIGCONT)
        self.happened["pause_donor"] += 1

    def kill_donor(self) -> None:
        self._donor.signal_all(signal.SIGKILL)
        self._donor.end()
        self._begin_donor()
        self.happened["kill_donor"] += 1


class LifeBesideAStore(Life):
    """... of a server over a remote store that loses objects and damages others, and whose client dies."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._store = Path(given[-1]["remote"]["options"]["file_storage_path"])
        self.others += [(2, self.lose_objects), (1, self.damage_objects), (1, self.kill_child), (1, self.pause_child)]

    def _some_objects(self) -> list[Path]:
        objects = sorted(path for path in self._store.rglob("*") if path.is_file())
        return self.draw.sample(objects, k=len(objects) // 3)

    def lose_objects(self) -> None:
        for path in self._some_objects():
            path.unlink(missing_ok=True)
            self.happened["lost objects"] += 1

    def damage_objects(self) -> None:
        for path in self._some_objects():
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                file.seek(self.draw.randrange(max(1, path.stat().st_size)))
                file.write(self.draw.randbytes(1))
                self.happened["damaged objects"] += 1

    def kill_child(self) -> None:
        self._signal_child(signal.SIGKILL)

    def pause_child(self) -> None:
        self._signal_child(signal.SIGSTOP)

    def _signal_child(self, number: int) -> None:
        for child in children_of(self.server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            self.happened[f"child gets {number}"] += 1
