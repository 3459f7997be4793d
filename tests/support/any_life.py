"""A real server's life, and what clients, operators and devices do to it at any time."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from swift_tiers.ops.cli import main as command

from .servers import START_SECONDS, Site, call, snapshot

ANSWER = 6
#: A guard against hanging, not a measure: a request waits for its pages for 20 s at most.
PATIENCE = 300

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


class Life:
    """One server, and what has happened to it."""

    def __init__(self, site: Site, server: Any, said: list[Conversation], draw: random.Random) -> None:
        self.site, self.server, self.said, self.draw = site, server, said, draw
        self.wrong: list[str] = []
        self.happened: Counter[str] = Counter()
        self.ending = False  # errors are what is to be expected
        self.others: tuple[tuple[int, Callable[[], None]], ...] = (
            (20, lambda: None),
            (2, self.flush_cache),
            (2, lambda: self.order("flush", self.draw.choice(("host", "host", "all")))),
            (
                2,
                lambda: self.order(
                    "cap-tier", self.draw.choice(("host", "ssd")), self.draw.choice(("64KiB", "400KiB"))
                ),
            ),
            (3, lambda: [self.order("cap-tier", tier) for tier in ("host", "ssd")] and None),
            (3, lambda: self.order("set-policy", *self.draw.choice(POLICIES))),
            (1, self.damage),
        )

    # Clients

    def one_round(self) -> None:
        """Many clients ask, and meanwhile something else may happen."""
        clients = self._clients()
        ((_, other),) = self.draw.choices(self.others, weights=[weight for weight, _ in self.others])
        other()
        self._await(clients)

    def _clients(self) -> list[threading.Thread]:
        hot = self.draw.sample(self.said, k=self.draw.choice((3, 8, len(self.said))))
        kinds = (self.ask, self.leave, self.ask_long, self.ask_log_probabilities, self.ask_thrice, self.abort)
        chosen = self.draw.choices(kinds, weights=(12, 2, 1, 1, 1, 2), k=self.draw.choice((1, 2, 4, 8, 16)))
        clients = [
            threading.Thread(
                target=self._client, args=(kind, *self.draw.choice(hot), random.Random(self.draw.random()))
            )
            for kind in chosen
        ]
        for client in clients:
            client.start()
        return clients

    def _await(self, clients: list[threading.Thread]) -> None:
        for client in clients:
            client.join(PATIENCE)
            assert not client.is_alive(), "a request is not answered"

    def _client(self, kind: Callable[..., None], prompt: list[int], answer: list[int], draw: random.Random) -> None:
        try:
            kind(prompt, answer, draw)
        except (OSError, HTTPException) as error:
            if not self.ending:
                self.wrong.append(f"{kind.__name__}: {error!r}")
        self.happened[kind.__name__] += 1

    def _answers(self, prompt: list[int], tokens: int, sampling: dict[str, Any] | None = None, **more: Any) -> Any:
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **(sampling or {})}
        body = {"input_ids": prompt, "sampling_params": parameters, **more}
        found = call(self.server, "/generate", body, timeout=PATIENCE)
        return found if isinstance(found, list) else [found]

    def _compare(self, found: list[dict[str, Any]], answer: list[int]) -> None:
        for one in found:
            for tier, tokens in (one["meta_info"].get("cached_tokens_details") or {}).items():
                self.happened[f"tokens from {tier}"] += tokens if isinstance(tokens, int) else 0
            if one["output_ids"][: len(answer)] != answer:
                self.wrong.append(f"{one['output_ids']}, not {answer}: {one['meta_info']}")

    def ask(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
        tokens = draw.choice((1, 3, ANSWER))
        self._compare(self._answers(prompt, tokens), answer[:tokens])

    def ask_long(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
        self._compare(self._answers(prompt, 200), answer)

    def ask_log_probabilities(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
        start = draw.choice((-1, 0, len(prompt) // 2))
        self._compare(self._answers(prompt, 3, return_logprob=True, logprob_start_len=start), answer[:3])

    def ask_thrice(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
        self._compare(self._answers(prompt, 4, {"n": 3}), answer[:4])

    def abort(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
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
            self._compare([found], answer)

    def leave(self, prompt: list[int], answer: list[int], draw: random.Random) -> None:
        body = json.dumps({"input_ids": prompt, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}})
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall((head + body).encode())
            time.sleep(draw.choice((0, 0.01, 0.05, 0.2)))

    # Operators and devices

    def flush_cache(self) -> None:
        try:
            call(self.server, "/flush_cache", {})
        except urllib.error.HTTPError:  # SGLang's answer while requests run
            return
        self.happened["flush_cache"] += 1

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
