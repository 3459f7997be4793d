"""What one server is asked, and what it has answered so far.

Agents take turns; prompts come again that the device has had and lost, alone and while others decode.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...base.errors import CommandError

if TYPE_CHECKING:
    from ..bench.multiturn_replay import TurnOutcome

NEW_TOKENS = 8
#: Seeds; the last one counts.
ROUNDS = (0, 1)
VOCABULARY = 151_936
PAGE_TOKENS = 16


class ServingLoad(NamedTuple):
    """What is asked, and of what memory."""

    agents: int = 8
    turns: int = 4
    longest: int = 12_000  # tokens of a prompt, at most
    together: int = 2  # requests at a time
    device_share: float = 0.4  # of all agents' tokens, in the device pool
    host_share: float = 1.5  # likewise, in host memory


def pool_tokens(load: ServingLoad) -> int:
    """Of each server's device pool."""
    tokens = load.agents * load.longest
    return -(-int(max(tokens * load.device_share, load.together * (load.longest + 64))) // PAGE_TOKENS) * PAGE_TOKENS


class Hits(NamedTuple):
    """Prompts that the device has had and lost, asked once more with something new behind them."""

    length: int  # tokens that were asked before, of each
    new: int  # tokens behind them
    prompts: int


HITS = (Hits(160, 32, 12), Hits(2048, 64, 8), Hits(8192, 256, 6), Hits(30_000, 256, 2))
#: Hits that come while so many others decode, and what these get meanwhile at least, of what they get alone.
BESIDE, DECODING, DECODED_AT_LEAST = Hits(30_000, 256, 2), 7, 0.97
#: How long they are counted alone, seconds; and tokens of each, at most.
_ALONE_SECONDS, _DECODED = 1.0, 900


class ServerAnswer(NamedTuple):
    """What one server answered."""

    seconds: list[float]  # to the first token, of turns with a history, in the round that counts
    cached_tokens: int  # that were not computed in that round
    answers: list[tuple[int, ...]]  # of that round, then of the hits
    hits: Mapping[int, list[float]] = {}  # seconds to the first token, by their length
    decoded: Sequence[float] = ()  # of alone, what others got who decoded beside each hit of BESIDE


class AskedServer:
    """One server, and what it has answered so far. Every method raises CommandError."""

    def __init__(self, port: int, load: ServingLoad) -> None:
        self._port = port
        self._load = load
        #: Whether it has answered the round that counts.
        self.was_asked = False
        self._turns: Sequence[TurnOutcome] = ()
        self._hits: dict[int, list[TurnOutcome]] = {}
        self._decoded: list[float] = []

    @property
    def answer(self) -> ServerAnswer:
        hits = [answer for answers in self._hits.values() for answer in answers]
        return ServerAnswer(
            [answer.ttft_seconds for answer in self._turns if answer.turn],
            sum(answer.prompt_tokens - answer.computed for answer in self._turns),
            [answer.token_ids for answer in (*self._turns, *hits)],
            {length: [answer.ttft_seconds for answer in answers] for length, answers in self._hits.items()},
            tuple(self._decoded),
        )

    def round(self, seed: int) -> None:
        """Agents that take turns; the last round counts."""
        from ..bench.multiturn_replay import replay
        from ..bench.multiturn_workload import RoundShape, make_round

        shape = RoundShape(self._load.agents, self._load.turns, self._load.longest)
        self._turns = replay(self._port, make_round(shape, VOCABULARY, seed), self._load.together, NEW_TOKENS).answers
        self.was_asked = seed == ROUNDS[-1]

    def hits(self, hits: Hits) -> None:
        """Prompts, one at a time; others, until the device has lost them; then the first ones again, with something new
        behind them. Nothing that is longer than the pool holds."""
        if again := self._lost(hits):
            self._hits[hits.length] = [self._ask(prompt) for prompt in again]

    def decoded_beside(self, hits: Hits) -> None:
        """Likewise, while others decode: what these get until each first token, of what they get alone."""
        if not (again := self._lost(hits)):
            return
        with Decoding(self._port, DECODING) as decoding:
            alone = decoding.rate(lambda: time.sleep(_ALONE_SECONDS))
            for prompt in again:
                self._decoded.append(decoding.rate(lambda prompt=prompt: self._ask(prompt, 1)) / alone)  # type: ignore[misc]

    def _lost(self, hits: Hits) -> list[list[int]]:
        """Prompts whose beginnings the device has had and lost; none where they are longer than the pool holds."""
        from ..bench.multiturn_workload import draw_tokens

        pool = pool_tokens(self._load)
        if hits.length + hits.new + NEW_TOKENS > pool:
            return []
        draw = random.Random(hits.length)
        before = [draw_tokens(draw, VOCABULARY, hits.length) for _ in range(hits.prompts)]
        filling = self._load.longest * 2 // 3
        others = [draw_tokens(draw, VOCABULARY, filling) for _ in range(pool // filling + 1)]
        for prompt in (*before, *others):
            self._ask(prompt)
        return [prompt + draw_tokens(draw, VOCABULARY, hits.new) for prompt in before]

    def _ask(self, prompt: list[int], new_tokens: int = NEW_TOKENS) -> TurnOutcome:
        from ..bench.multiturn_replay import ask
        from ..bench.multiturn_workload import BenchTurn

        return ask(self._port, BenchTurn(0, 0, prompt), new_tokens)


class Decoding:
    """Requests that decode until this ends, each with a thread that counts its tokens. Raises CommandError."""

    def __init__(self, port: int, requests: int) -> None:
        self._port = port
        self._tokens = [0] * requests
        self._over = threading.Event()
        self._wrong: list[CommandError] = []
        self._threads = [threading.Thread(target=self._decode, args=(number,)) for number in range(requests)]

    def _decode(self, number: int) -> None:
        from ..demo.replay import stream

        sampling = {"temperature": 0, "max_new_tokens": _DECODED, "ignore_eos": True}
        body = {"input_ids": [number + 1] * 32, "sampling_params": sampling, "stream": True}
        try:
            for event in stream(self._port, "/generate", body):
                self._tokens[number] = len(event["output_ids"])
                if self._over.is_set():
                    return  # the server ends a request whose answer nobody reads
            if not self._over.is_set():
                raise CommandError(f"{_DECODED} tokens were too few to be decoded meanwhile")
        except CommandError as error:
            self._wrong.append(error)

    def __enter__(self) -> Decoding:
        for thread in self._threads:
            thread.start()
        while not all(self._tokens) and not self._wrong:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def rate(self, work: Callable[[], object]) -> float:
        """Tokens a second of all of them while `work` is done."""
        before, began = sum(self._tokens), time.perf_counter()
        work()
        took = time.perf_counter() - began
        if self._wrong:
            raise self._wrong[0]
        return (sum(self._tokens) - before) / took
