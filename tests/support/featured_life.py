"""A real server's life among clients that use what SGLang offers (sessions, salts, priorities, streams, batches,
adapters), and among operators that pause it, change its weights, and load other adapters."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from .adapters_on_cpu import named
from .any_life import ANSWER, PATIENCE, Life
from .servers import Plain, Site, call


class Served(NamedTuple):
    """What an answer depends on, but for its prompt: the model, and the adapter, by their numbers."""

    model: int = 0
    adapter: int | None = None


class Truth:
    """What is right: of each model a server without tiers says it, with all adapters."""

    def __init__(
        self, site: Site, running: ExitStack, models: Sequence[Path], adapters: Sequence[Path], **options: str
    ) -> None:
        self.models, self.adapters = models, adapters
        self._plain = [
            Plain(site, running, *named(adapters), name=f"plain{number}", **{**options, "--model-path": str(model)})
            for number, model in enumerate(models)
        ]
        self._lock = threading.Lock()

    def answer(self, prompt: Sequence[int], served: Served) -> list[int]:
        """The first tokens of it. Any thread."""
        adapter = None if served.adapter is None else self.adapters[served.adapter].name
        with self._lock:
            return self._plain[served.model].answers([prompt], adapter)[0]

    def answers(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """As `Plain`'s: of the first model, without an adapter."""
        return [self.answer(prompt, Served()) for prompt in prompts]


class History:
    """What has been served, newest last: a request may have met whatever was served while it was under way."""

    def __init__(self, first: int) -> None:
        self._served = [first]
        self._changing = False

    @property
    def newest(self) -> int:
        return self._served[-1]

    @contextlib.contextmanager
    def changing(self, to: int) -> Iterator[None]:
        self._served.append(to)
        self._changing = True
        yield
        self._changing = False

    def begin(self) -> int:
        """For `since`, of a request that begins now."""
        return len(self._served) - 1 - self._changing

    def since(self, begun: int) -> set[int]:
        return set(self._served[begun:])


def order(server: Any, path: str, body: dict[str, Any]) -> str:
    """SGLang's refusal; empty where it did it."""
    try:
        call(server, path, body, PATIENCE)
    except urllib.error.HTTPError as error:
        return error.read().decode() or str(error)
    return ""


class FeaturedLife(Life):
    """... whose clients keep sessions, salt their prompts, have priorities, read streams and ask in batches."""

    def __init__(self, *given: Any, truth: Truth) -> None:
        super().__init__(*given)
        self.truth = truth
        self._model = History(0)
        #: So often has the model changed under requests: their answers are of both.
        self._mixed = 0
        self._asking = threading.local()
        self._keeps_rows = threading.Lock()
        self.kinds += [
            (4, self.ask_in_session), (3, self.ask_in_streaming_session), (3, self.ask_salted), (2, self.ask_in_batch),
            (2, self.ask_stream), (1, self.leave_stream),
        ]  # fmt: skip
        modes = ((4, "in_place"), (4, "retract"), (2, "abort"))
        self.others += [(weight, partial(self.pause, mode)) for weight, mode in modes]

    # What is right

    def _client(self, kind: Any, prompt: list[int], draw: random.Random) -> None:
        self._asking.model, self._asking.mixed = self._model.begin(), self._mixed
        super()._client(kind, prompt, draw)

    def _compare(
        self,
        found: list[dict[str, Any]],
        prompt: list[int],
        tokens: int = ANSWER,
        adapters: Sequence[int | None] = (None,),
    ) -> None:
        if self._mixed != self._asking.mixed:
            self.happened["mixed"] += 1
            return
        served = [Served(model, adapter) for model in self._model.since(self._asking.model) for adapter in adapters]
        right = [self.truth.answer(prompt, one)[:tokens] for one in served]
        for one in found:
            self._count(one)
            if one["meta_info"]["finish_reason"]["type"] == "abort":
                self.happened["aborted"] += 1  # by a pause
            elif one["output_ids"][: len(right[0])] not in right:
                self.wrong.append(f"{one['output_ids']}, not {right} of {served}: {one['meta_info']}")

    # Clients

    def _answers(self, prompt: list[int], tokens: int, sampling: dict[str, Any] | None = None, **more: Any) -> Any:
        more.setdefault("priority", len(prompt) % 3)
        return super()._answers(prompt, tokens, sampling, **more)

    def ask_salted(self, prompt: list[int], draw: random.Random) -> None:
        self._compare(self._answers(prompt, 3, cache_salt=draw.choice(("salt", "pepper"))), prompt, 3)

    def ask_in_batch(self, prompt: list[int], draw: random.Random) -> None:
        prompts = [prompt, *draw.sample(self.prompts, k=3)]
        for one, found in zip(prompts, self._answers(prompts, 3, priority=1), strict=True):
            self._compare([found], one, 3)

    def ask_stream(self, prompt: list[int], draw: random.Random) -> None:
        *_, last = self._stream(prompt, 20)
        self._compare([last], prompt)

    def leave_stream(self, prompt: list[int], draw: random.Random) -> None:
        for _ in zip(range(draw.randrange(1, 5)), self._stream(prompt, self.long), strict=False):
            pass

    def _stream(self, prompt: list[int], tokens: int) -> Iterator[dict[str, Any]]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "sampling_params": sampling, "stream": True}).encode()
        url = f"http://127.0.0.1:{self.server.port}/generate"
        asked = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as lines:
            for line in lines:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def ask_in_session(self, prompt: list[int], draw: random.Random, **more: Any) -> None:
        """Turns that go on from any turn before, or from a part of it."""
        said: dict[str | None, list[int]] = {None: []}
        with self._session(draw, streaming=False) as session:
            for number in range(draw.randrange(2, 6)):
                after = draw.choice([*said])
                where: dict[str, Any] = {"id": session, "rid": after}
                before = said[after]
                if after is not None and draw.random() < 0.3:
                    where["offset"] = draw.randrange(1, len(before))
                    before = before[: where["offset"]]
                name, whole = self._turn(before, self._said_next(number, prompt, draw), where, draw, more)
                if name is None:
                    return
                said[name] = whole

    def ask_in_streaming_session(self, prompt: list[int], draw: random.Random, **more: Any) -> None:
        """Turns whose rows SGLang keeps from one to the next."""
        whole: list[int] = []
        # SGLang takes from no session what it keeps, and the next turn of another one may wait for that.
        with self._keeps_rows, self._session(draw, streaming=True) as session:
            for number in range(draw.randrange(2, 6)):
                said = self._said_next(number, prompt[:700], draw)
                name, whole = self._turn(whole, said, {"id": session}, draw, more)
                if name is None:
                    return

    def _said_next(self, number: int, prompt: list[int], draw: random.Random) -> list[int]:
        return draw.choices(range(1, 250), k=draw.choice((2, 30, 200))) if number else prompt

    def _turn(
        self, before: list[int], said: list[int], where: dict[str, Any], draw: random.Random, more: dict[str, Any]
    ) -> tuple[str | None, list[int]]:
        """Its name, None where it was aborted; and what follows on it."""
        tokens = draw.choice((1, 4, 9))
        (found,) = self._answers(said, tokens, session_params=where, **more)
        whole = before + said
        self._compare([found], whole, min(tokens, ANSWER), self._adapters(more))
        aborted = found["meta_info"]["finish_reason"]["type"] == "abort"
        return None if aborted else found["meta_info"]["id"], whole + found["output_ids"]

    @contextlib.contextmanager
    def _session(self, draw: random.Random, *, streaming: bool) -> Iterator[str]:
        timeout = draw.choice((None, 3))
        asked = {"capacity_of_str_len": 1 << 16, "streaming": streaming, "timeout": timeout}
        session = str(call(self.server, "/open_session", asked))
        try:
            yield session
        except urllib.error.HTTPError as error:
            if timeout is None or error.code != 400:
                raise
            self.happened["session over"] += 1
        call(self.server, "/close_session", {"session_id": session})

    def _adapters(self, asked: dict[str, Any]) -> Sequence[int | None]:
        """Those that may have answered what was asked so; None: the model without one."""
        return (None,)

    # Operators

    def pause(self, mode: str) -> None:
        time.sleep(self.draw.choice((0, 0.05, 0.3)))
        with self._paused(mode):
            time.sleep(self.draw.choice((0, 0.1, 0.5)))

    @contextlib.contextmanager
    def _paused(self, mode: str) -> Iterator[None]:
        call(self.server, "/pause_generation", {"mode": mode})
        yield
        call(self.server, "/continue_generation", {})
        self.happened[f"pause: {mode}"] += 1


class LifeOfWeights(FeaturedLife):
    """... and whose weights change, between requests or under them."""

    def __init__(self, *given: Any, truth: Truth) -> None:
        super().__init__(*given, truth=truth)
        self.others += [(8, self.change_weights), (6, self.change_weights_under_requests)]

    def change_weights(self) -> None:
        """SGLang waits for those under way."""
        self._change()
        self.happened["change_weights"] += 1

    def change_weights_under_requests(self) -> None:
        """As those do who train what they serve: requests begin anew with what they have said so far."""
        with self._paused("retract"):
            self._mixed += 1
            self._change()
        self._mixed += 1
        self.happened["change_weights_under_requests"] += 1

    def _change(self) -> None:
        other = (self._model.newest + 1) % len(self.truth.models)
        asked = {"model_path": str(self.truth.models[other])}
        with self._model.changing(other):
            if refused := order(self.server, "/update_weights_from_disk", asked):
                # Requests of clients that have left run on: SGLang keeps what it computed before.
                assert "not flushed" in refused, refused
                self._mixed += 1
                assert wait_for(lambda: self.flush_cache() or None, PATIENCE)
                self._mixed += 1

    def end_and_begin(self) -> None:
        super().end_and_begin()
        self._model = History(0)


class LifeOfAdapters(FeaturedLife):
    """... and who ask for adapters, which are unloaded, and others loaded by their names."""

    long = 30  # they are computed one by one

    def __init__(self, *given: Any, truth: Truth) -> None:
        super().__init__(*given, truth=truth)
        self._begin_adapters()
        self.kinds += [(12, self.ask_adapter), (3, self.ask_adapter_in_session)]
        self.others += [(8, self.load_another)]

    def _begin_adapters(self) -> None:
        self._loaded = {path.name: History(number) for number, path in enumerate(self.truth.adapters)}

    def _client(self, kind: Any, prompt: list[int], draw: random.Random) -> None:
        self._asking.adapters = {name: loaded.begin() for name, loaded in self._loaded.items()}
        super()._client(kind, prompt, draw)

    def _expects(self, error: Exception) -> bool:
        """Also the refusal of an adapter that is being loaded anew."""
        if super()._expects(error):
            return True
        refused = isinstance(error, urllib.error.HTTPError) and b"LoRA adapters are not loaded" in error.read()
        self.happened["no such adapter"] += refused
        return refused

    def _adapters(self, asked: dict[str, Any]) -> Sequence[int | None]:
        name = asked.get("lora_path")
        return [*self._loaded[name].since(self._asking.adapters[name])] if name else super()._adapters(asked)

    def _drawn(self, draw: random.Random) -> dict[str, Any]:
        return {"lora_path": draw.choice([*self._loaded])}

    def ask_adapter(self, prompt: list[int], draw: random.Random) -> None:
        more = self._drawn(draw)
        self._compare(self._answers(prompt, 3, **more), prompt, 3, self._adapters(more))

    def ask_adapter_in_session(self, prompt: list[int], draw: random.Random) -> None:
        draw.choice((self.ask_in_session, self.ask_in_streaming_session))(prompt, draw, **self._drawn(draw))

    def load_another(self) -> None:
        """One that bears the name of another one before it."""
        name, loaded = self.draw.choice([*self._loaded.items()])
        other = self.draw.randrange(len(self.truth.adapters))
        with loaded.changing(other):
            assert wait_for(lambda: self._load(name, other) or None, PATIENCE)
        self.happened["load_another"] += 1

    def _load(self, name: str, adapter: int) -> bool:
        """False where somebody asked for it in between: SGLang loads again what it has unloaded."""
        refused = order(self.server, "/unload_lora_adapter", {"lora_name": name})
        assert not refused, refused
        path = str(self.truth.adapters[adapter])
        refused = order(self.server, "/load_lora_adapter", {"lora_name": name, "lora_path": path})
        assert not refused or "already loaded" in refused, refused
        return not refused

    def end_and_begin(self) -> None:
        super().end_and_begin()
        self._begin_adapters()
