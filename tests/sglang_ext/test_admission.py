"""Which waiting requests may be admitted, asked as SGLang asks: one after the other, in each round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.way.request_restore import Readiness
from swift_tiers.sglang_ext.way.admission import MAX_AWAITED, MOST_LOOKED_AT, Admission
from swift_tiers.sglang_ext.way.request import TieringStage


class Made(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def request(at_once: Readiness, readiness: Readiness, asked: list[Any], *, may_wait: bool = False) -> Any:
    """`asked`: is told of whom the pages are waited for from then on; `may_wait`: what it is to compute comes if it
    does not."""
    made = Made(
        stage=TieringStage.WAITING,
        agreed=False,
        heard=False,
        computes=False,
        comes=False,
        may_wait=lambda: may_wait,
        known_pages=4,
        wants_layers=lambda: False,
        wants_draining=False,
        at_once=lambda: at_once,
    )
    made.readiness = lambda: asked.append(made) or readiness
    return made


class Round:
    """One scheduling round over these requests, None for one that is not the tiers'."""

    def __init__(self, requests: list[Any], chunk_taken: bool = False, *, stops: bool = False) -> None:
        """`stops`: as SGLang does where it is told that nobody else may be admitted."""
        queue = [SimpleNamespace(rid=str(number)) for number in range(len(requests))]
        for one, req in zip(requests, queue, strict=True):
            if one is not None:
                one.req = req
        self.collectives = 0
        known = {req.rid: one for one, req in zip(requests, queue, strict=True) if one is not None}
        admission = Admission(known, self._all_reduce)
        admission.queue = lambda: queue
        admission.begin_round()
        self.admitted: list[Any] = []
        self.asked = 0
        self._chunk_taken = chunk_taken
        for one in requests:
            if stops and admission.is_over(lambda: self._chunk_taken):
                break
            self.asked += 1
            if one is None:
                self.admitted.append(one)
            elif admission.may_enter(one, lambda: self._chunk_taken):
                self.admitted.append(one)
                admission.others_admitted = True
                self._chunk_taken = self._chunk_taken or one.computes  # SGLang follows one

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self.collectives += 1


@pytest.mark.parametrize("may_wait", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_whose_pages_come_computes_nothing_beside_others(first: bool, may_wait: bool) -> None:
    """They would get their first tokens later for it. Those behind it pass."""
    ready = [request(Readiness.READY, Readiness.READY, []) for _ in range(2)]
    both = request(Readiness.COMPUTE, Readiness.COMPUTE, [], may_wait=may_wait)
    queue = [both, *ready] if first else [ready[0], both, ready[1]]
    assert Round(queue).admitted == (ready if may_wait and not first else queue)


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


def test_whoever_waits_behind_many_is_looked_at_some_time() -> None:
    """Who has nothing to wait for passes them, however many they are."""
    asked: list[Any] = []
    waiting = [request(Readiness.WAIT, Readiness.WAIT, asked) for _ in range(3 * MOST_LOOKED_AT)]
    ready = request(Readiness.READY, Readiness.READY, asked)
    known = {str(number): one for number, one in enumerate([*waiting, ready])}
    admission = Admission(known, lambda tensor, op: None)
    for _ in range(4):
        admission.begin_round()
        assert not ready.agreed
        admission.look()
    assert ready.agreed
    del known[str(len(waiting))]
    admission.begin_round()
    admission.look()  # the first have their turn again
    waiting[0].at_once = lambda: Readiness.READY
    for number in range(len(waiting) - 1, MOST_LOOKED_AT - 1, -1):
        del known[str(number)]
    admission.begin_round()
    admission.look()
    assert waiting[0].agreed, "all that wait are few enough to be looked at"


KINDS = {
    "waits": (Readiness.WAIT, Readiness.WAIT),
    "comes now": (Readiness.WAIT, Readiness.READY),
    "has come": (Readiness.READY, Readiness.READY),
    "computes": (Readiness.COMPUTE, Readiness.COMPUTE),
    "computes late": (Readiness.WAIT, Readiness.COMPUTE),
}


@given(st.lists(st.sampled_from([*KINDS, "waits", "waits", "not the tiers'"]), max_size=3 * MAX_AWAITED), st.booleans())
def test_a_round_that_ends_early_admits_the_same(kinds: list[str], chunk_taken: bool) -> None:
    def queue() -> list[Any]:
        return [request(*KINDS[kind], []) if kind in KINDS else None for kind in kinds]

    (whole, numbers), (short, others) = (
        (Round(made, chunk_taken, stops=stops), made) for made, stops in ((queue(), False), (queue(), True))
    )
    at = [[numbers.index(one) for one in whole.admitted], [others.index(one) for one in short.admitted]]
    assert at[0] == at[1]
    assert short.asked <= whole.asked


def test_a_round_ends_where_nobody_else_may_enter() -> None:
    """SGLang goes through all of its queue otherwise, however long that is."""
    waiting = [request(Readiness.WAIT, Readiness.WAIT, []) for _ in range(50 * MAX_AWAITED)]
    found = Round(waiting, stops=True)
    assert found.asked == MAX_AWAITED
    assert found.collectives == 1 + MAX_AWAITED


def test_a_round_in_which_nobody_is_asked_for_costs_nothing() -> None:
    """As where SGLang's batch is full."""
    requests = {str(number): request(Readiness.READY, Readiness.READY, []) for number in range(5)}
    collectives: list[int] = []
    admission = Admission(requests, lambda tensor, op: collectives.append(1))
    admission.begin_round()
    assert not collectives
    assert not any(one.agreed for one in requests.values())
    admission.look()
    admission.look()
    assert len(collectives) == 1
    assert all(one.agreed for one in requests.values())
