"""Two real servers that differ in something, asked by turns: what that costs a server that gets nothing from it.

Both serve SmolLM2-135M in float32. In each round each gets the same number of fresh prompts, several at a time, which
never repeat; the figure is the median over the rounds of the ratio of their throughputs. Only one of them works at any
time.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ...base.arguments import path_argument
from ..demo.servers import Server, free_ports
from .report import parser, spread, take_turns

START_SECONDS = 300.0
#: Prompts that a server gets at a time.
TOGETHER = 4

Looked = TypeVar("Looked")


class Measured(NamedTuple, Generic[Looked]):
    """What came out. `seconds`: of each side in each round; `worked`: in all, with the round that is not counted."""

    seconds: dict[str, list[float]]
    worked: dict[str, float]
    before: Looked
    after: Looked


def arguments(name: str, description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options of such a bench."""
    result = parser(name, description, rounds)
    result.add_argument("--model-path", type=path_argument, help="a model's directory (default: the demo's)")
    result.add_argument("--prompts", type=int, default=6, help="prompts in one round (%(default)s)")
    result.add_argument("--tokens", type=int, default=512, help="tokens of a prompt (%(default)s)")
    result.add_argument("--new-tokens", type=int, default=24, help="tokens of an answer (%(default)s)")
    return result


def measure(
    folder: Path,
    options: argparse.Namespace,
    sides: Mapping[str, Mapping[str, Any] | None],
    look: Callable[[Mapping[str, int]], Looked],
    *,
    alone: bool = False,
) -> Measured[Looked]:
    """Ask both by turns. `look`, given the servers' ports, is called before that and after it.

    `sides`: by name, the tiers' configuration; None for a server without tiers. With `alone`, a server stands still
    while it is not its turn, so that what its threads do by themselves is not done on the other's time. Logs go to
    `folder`.
    """
    from ...base.model import demo_model

    model = options.model_path or demo_model()
    common = ["--model-path", str(model), "--dtype", "float32", "--max-total-tokens", "8192", "--page-size", "16"]
    ports = dict(zip(sides, free_ports(len(sides)), strict=True))
    generator = random.Random(0)
    worked = dict.fromkeys(sides, 0.0)
    with ExitStack() as children:
        servers: dict[str, BenchServer] = {}
        for name, config in sides.items():
            flags = [] if config is None else ["--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)]
            server = BenchServer(name, [*common, *flags], ports[name], folder / f"{name}.log")
            children.enter_context(server)
            server.start()
            servers[name] = server
        for server in servers.values():
            server.wait_ready(START_SECONDS)
        pool = children.enter_context(ThreadPoolExecutor(TOGETHER))

        def work(name: str) -> float:
            prompts = [generator.choices(range(1000, 40_000), k=options.tokens) for _ in range(options.prompts)]
            with servers[name].awake() if alone else nullcontext():
                started = time.perf_counter()
                list(pool.map(lambda prompt: _generate(ports[name], prompt, options.new_tokens), prompts))
                spent = time.perf_counter() - started
            worked[name] += spent
            return spent

        before = look(ports)
        with ExitStack() as sleepers:
            for server in servers.values() if alone else ():
                sleepers.enter_context(server.asleep())
            seconds = take_turns({name: partial(work, name) for name in sides}, options.rounds)
        return Measured(seconds, worked, before, look(ports))


class BenchServer(Server):
    """One whose processes can be made to stand still, between two requests."""

    @contextmanager
    def asleep(self) -> Iterator[None]:
        self.signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_all(signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within `asleep`."""
        self.signal_all(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal_all(signal.SIGSTOP)


def show(what: str, options: argparse.Namespace, seconds: Mapping[str, Sequence[float]]) -> None:
    """The throughput of each side."""
    tokens = options.prompts * (options.tokens + options.new_tokens)
    print(f"{options.rounds} rounds of {options.prompts} prompts of {options.tokens} + {options.new_tokens} tokens")
    for name, values in seconds.items():
        print(spread(f"{what} {name}", [tokens / value for value in values], "tokens/s"))


def call(port: int, path: str, body: Any = None, timeout: float = 60) -> bytes:
    """What a server answers: to a GET, or to a POST of `body` as JSON."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        answer: bytes = response.read()
    return answer


def get(port: int, path: str) -> Any:
    """The JSON that a server answers."""
    return json.loads(call(port, path))


def _generate(port: int, prompt: list[int], tokens: int) -> None:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    call(port, "/generate", {"input_ids": prompt, "sampling_params": sampling}, timeout=600)
