"""Asking one server the turns of a round, several at a time, over SGLang's own `/generate`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from ...base.errors import CommandError
from ..demo.replay import stream
from .multiturn_workload import BenchTurn


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one turn. Prompt tokens: device + host + disk + computed."""

    agent: int
    turn: int
    ttft_seconds: float
    prompt_tokens: int
    device: int
    host: int
    disk: int
    token_ids: tuple[int, ...]

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.device - self.host - self.disk


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one server. Answers are in the order of the turns."""

    seconds: float
    answers: tuple[TurnOutcome, ...]


def replay(port: int, turns: Sequence[BenchTurn], together: int, new_tokens: int) -> Replayed:
    """Ask the turns in their order, `together` at a time; an agent asks when its turn before has been answered.

    Raises CommandError.
    """
    started = time.perf_counter()
    last: dict[int, Future[TurnOutcome]] = {}
    asked: list[Future[TurnOutcome]] = []
    with ThreadPoolExecutor(together) as pool:
        for turn in turns:
            # One that waits holds a worker, but what it waits for was handed to a worker before it.
            last[turn.agent] = pool.submit(_ask_after, last.get(turn.agent), port, turn, new_tokens)
            asked.append(last[turn.agent])
        try:
            answers = tuple(future.result() for future in asked)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Replayed(seconds=time.perf_counter() - started, answers=answers)


def _ask_after(before: Future[TurnOutcome] | None, port: int, turn: BenchTurn, new_tokens: int) -> TurnOutcome:
    if before is not None:
        before.result()
    return ask(port, turn, new_tokens)


def ask(port: int, turn: BenchTurn, new_tokens: int) -> TurnOutcome:
    """Ask one turn, greedily. Raises CommandError."""
    body = {
        "input_ids": turn.prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        "stream": True,
    }
    started, first = time.perf_counter(), 0.0
    last: dict[str, Any] = {}
    for event in stream(port, "/generate", body):
        first = first or time.perf_counter() - started
        last = event
    return read_answer(turn, first, last)


def read_answer(turn: BenchTurn, first: float, event: dict[str, Any]) -> TurnOutcome:
    """Put an answer together from the last event of its stream. Raises CommandError."""
    try:
        about, token_ids = event["meta_info"], tuple(event["output_ids"])
        prompt, cached = about["prompt_tokens"], about["cached_tokens"]
    except (KeyError, TypeError):
        raise CommandError(f"an answer without token ids or figures: {json.dumps(event)[:400]}") from None
    details = about.get("cached_tokens_details") or {"device": cached}
    device, host, disk = (details.get(tier, 0) for tier in ("device", "host", "storage"))
    if prompt != len(turn.prompt) or device + host + disk != cached or cached > prompt:
        raise CommandError(f"an answer whose figures do not add up: {json.dumps(about)[:400]}")
    return TurnOutcome(
        agent=turn.agent,
        turn=turn.turn,
        ttft_seconds=first,
        prompt_tokens=prompt,
        device=device,
        host=host,
        disk=disk,
        token_ids=token_ids,
    )
