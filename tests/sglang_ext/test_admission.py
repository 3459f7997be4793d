"""Which waiting requests may be admitted, asked as SGLang asks: one after the other, in each round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_tiers.radix_tiering.way.request_restore import Readiness
from swift_tiers.sglang_ext.way.admission import MAX_AWAITED, MOST_LOOKED_AT, Admission
from swift_tiers.sglang_ext.way.request import TieringStage


def request(at_once: Readiness, readiness: Readiness, asked: list[Any]) -> Any:
    """`asked`: is told of whom the pages are waited for from then on."""
    made = SimpleNamespace(
        stage=TieringStage.WAITING,
        agreed=False,
        heard=False,
        computes=False,
        known_pages=4,
        wants_layers=lambda: False,
        wants_draining=False,
        at_once=lambda: at_once,
    )
    made.readiness = lambda: asked.append(made) or readiness
    return made


def one_rank(tensor: torch.Tensor, op: Any) -> None:
    """There is nobody to agree with."""


class Round:
    """One scheduling round over these requests."""

    def __init__(self, requests: list[Any], chunk_taken: bool = False) -> None:
        admission = Admission({str(number): one for number, one in enumerate(requests)}, one_rank)
        admission.begin_round()
        self.admitted: list[Any] = []
        self._chunk_taken = chunk_taken
        for one in requests:
            if admission.may_enter(one, lambda: self._chunk_taken):
                self.admitted.append(one)
                self._chunk_taken = self._chunk_taken or one.computes  # SGLang follows one


@pytest.mark.parametrize("chunk_taken", [False, True])
def test_who_computes_does_not_queue_behind_those_that_wait_for_their_pages(chunk_taken: bool) -> None:
    asked: list[Any] = []
    waiting = [request(Readiness.WAIT, Readiness.WAIT, asked) for _ in range(MAX_AWAITED + 4)]
    computing = [request(Readiness.COMPUTE, Readiness.COMPUTE, asked) for _ in range(3)]
    waiting, late = waiting[:MAX_AWAITED], waiting[MAX_AWAITED:]
    ready = [request(Readiness.READY, Readiness.READY, asked) for _ in range(3)]
    found = Round([*waiting[1:], *computing, *waiting[:1], *late, *ready], chunk_taken)
    first = [] if chunk_taken else computing[:1]
    assert found.admitted == [*first, *ready]
    assert asked == [*waiting[1:], *first, waiting[0]], "those that wait for their turn wait for no pages"


def test_who_is_asked_for_twice_in_a_round_is_counted_once() -> None:
    asked: list[Any] = []
    waiting = [request(Readiness.WAIT, Readiness.WAIT, asked) for _ in range(MAX_AWAITED)]
    found = Round([one for one in waiting for _ in range(2)])
    assert not found.admitted
    assert asked == waiting


def test_a_round_looks_at_so_many_only() -> None:
    asked: list[Any] = []
    ready = [request(Readiness.READY, Readiness.READY, asked) for _ in range(MOST_LOOKED_AT + 5)]
    found = Round(ready)
    assert found.admitted == ready
    assert asked == ready[MOST_LOOKED_AT:]
