"""Ranks take part in the same collectives, whatever goes wrong on one of them alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.way.request_restore import Readiness
from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
from swift_tiers.sglang_ext.way import cache as cache_module
from swift_tiers.sglang_ext.way.admission import Admission
from swift_tiers.sglang_ext.way.cache import SwiftLinkerWrapper
from swift_tiers.sglang_ext.way.layer_wise import LayerWise
from swift_tiers.sglang_ext.way.request import TieredRequest

PAGES, PAGE = 4, 16


class Rank:
    """One rank's wrapper over a linker that answers what is set here, or raises."""

    def __init__(
        self,
        readiness: Readiness,
        *,
        by_layers: bool = False,
        drains: bool = False,
        comes: bool = False,
        claim: bool = True,
        broken: str = "",
    ) -> None:
        self.collectives: list[tuple[str, int]] = []
        self.others: list[list[int]] = []  # what the other rank says, for each collective
        self.broken = broken
        self.req = SimpleNamespace(rid="r", prefix_len=0, cache_request_handle=object())
        restore: Any = SimpleNamespace(flight=[None] * PAGES, drains=drains)
        self.linker: Any = SimpleNamespace(
            requests={},
            stack=SimpleNamespace(
                events=SimpleNamespace(emit=lambda *_, **__: None),
                restorer=SimpleNamespace(
                    poll=lambda restore: readiness,
                    may_wait=lambda restore: comes,
                    settled=lambda restore: readiness is Readiness.READY,
                    split=lambda restore: None,
                    release=lambda restore: None,
                    step=lambda restore, front: self._answer("step", Step(front, PAGES)),
                    take=lambda restore, step: self._answer("take", None),
                    wants_layers=lambda restore: by_layers,
                    take_layers=lambda restore, front, end: self._answer("take_layers", None),
                    refuse_draining=lambda restore: setattr(restore, "drains", False),
                    refuse_layers=lambda restore, why: self._answer("refuse_layers", None),
                ),
            ),
            pool=SimpleNamespace(page_size=PAGE),
        )
        self.wrapper = SwiftLinkerWrapper.__new__(SwiftLinkerWrapper)
        self.wrapper.cache = SimpleNamespace(page_size=PAGE, _all_reduce_attn_groups=self._all_reduce)
        self.wrapper.cache_linker = self.linker
        requests = self.linker.requests
        self.request = TieredRequest("r", self.linker.stack, requests, RequestFacts(), req=self.req)
        self.request.restore = restore if claim else None
        self.wrapper.admission = Admission(requests, self._all_reduce)
        self.layer_wise = LayerWise.__new__(LayerWise)
        self.layer_wise._expected, self.layer_wise.linker = None, self.linker
        self.wrapper.layer_wise = self.layer_wise

    def _answer(self, what: str, answer: Any) -> Any:
        if self.broken == what:
            raise RuntimeError("an error of ours, on this rank alone")
        return answer

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self.collectives.append((str(op), tensor.numel()))
        if self.others:
            tensor.copy_(torch.minimum(tensor, torch.tensor(self.others.pop(0)).view(tensor.shape)))

    def admit(self) -> Any:
        """A scheduling round that comes to the request."""
        admission = self.wrapper.admission
        admission.begin_round()
        enters = admission.may_enter(self.request, lambda: False)
        return self.wrapper.may_take_course(self.req) if enters else None


def test_one_that_has_lost_its_claim_takes_the_others_course() -> None:
    """What is agreed on decides, not what a rank has by itself."""
    ranks = [Rank(Readiness.COMPUTE), Rank(Readiness.READY, claim=False)]
    # settled, readiness and pages, as the other rank says them
    ranks[0].others = [[2, 0, 0, 1, 1, 0], [2, 0, 0, 1, 1, 0]]
    ranks[1].others = [[0, 0, 0, 0, 0, 0], [1, PAGES, 0, 0, 1, 0]]
    courses = [rank.admit() for rank in ranks]
    assert [(course.pages, course.computes, course.by_layers) for course in courses] == [(0, True, False)] * 2
    assert ranks[0].collectives == ranks[1].collectives


def test_one_that_has_all_its_pages_lets_another_take_them_as_they_land() -> None:
    ranks = [Rank(Readiness.COMPUTE, drains=True), Rank(Readiness.READY)]
    ranks[0].others = [[2, PAGES, 0, 1, 1, 0]] * 2
    ranks[1].others = [[0, 0, 0, 0, 0, 0], [1, PAGES, 0, 1, 0, 0]]
    courses = [rank.admit() for rank in ranks]
    assert [(course.computes, course.drains) for course in courses] == [(True, True)] * 2


def test_where_ranks_do_not_load_alike_none_takes_pages_as_they_land() -> None:
    """Who would, and is not followed by the others, would wait for good for what it never takes."""
    ranks = [Rank(Readiness.COMPUTE, drains=True), Rank(Readiness.COMPUTE)]
    ranks[0].others = [[0, 0, 0, 0, 0, 0], [1, PAGES, 0, 0, 1, 0]]
    ranks[1].others = [[0, 0, 0, 0, 0, 0], [1, PAGES, 0, 1, 0, 0]]
    assert [rank.admit() for rank in ranks] == [None, None]
    assert not ranks[0].request.wants_draining
    courses = [rank.admit() for rank in ranks]
    assert [(course.computes, course.drains) for course in courses] == [(True, False)] * 2


@pytest.mark.parametrize("comes", [(True, True), (True, False), (False, True)])
def test_who_computes_begins_beside_others_on_all_ranks_or_on_none(comes: tuple[bool, bool]) -> None:
    """One rank's pages come meanwhile, and another's do not."""
    ranks = [Rank(Readiness.COMPUTE, comes=one) for one in comes]
    for rank, other in zip(ranks, reversed(comes), strict=True):
        rank.others = [[1, PAGES, 0, 0, 1, other]] * 3
        rank.admit()
    assert [rank.request.comes for rank in ranks] == [all(comes)] * 2
    for rank in ranks:
        rank.wrapper.admission.others_admitted = True
    entered = [rank.wrapper.admission.may_enter(rank.request, lambda: False) for rank in ranks]
    assert entered == [not all(comes)] * 2
    assert ranks[0].collectives == ranks[1].collectives


@pytest.mark.parametrize("broken", ["", "step", "take"])
def test_an_error_in_a_step_keeps_the_ranks_together(broken: str) -> None:
    rank = Rank(Readiness.COMPUTE, broken=broken)
    course = rank.admit()
    step = rank.wrapper.agree(course, 0)
    course.admit()
    course.take(step)
    assert step == Step(0, PAGES)
    assert len(rank.collectives) == 3


def test_a_course_without_a_claim_asks_the_other_ranks() -> None:
    rank = Rank(Readiness.COMPUTE)
    course = rank.admit()
    course.restore = None
    rank.others = [[1, 2]]
    assert rank.wrapper.agree(course, 1) == Step(1, 2)
    course.admit()
    course.take(Step(1, 2))
    course.refuse_layers("there is no restore")
    assert len(rank.collectives) == 3


@pytest.mark.parametrize("broken", ["", "take_layers"])
def test_an_error_before_a_forward_by_layers_leaves_it_one(broken: str) -> None:
    """Each of its layers is agreed on: a rank that computes all of it in one piece would leave the others waiting."""
    rank = Rank(Readiness.READY, by_layers=True, broken=broken)
    course = rank.admit()
    rank.wrapper.admit_by_layers(course, 0)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND, rids=["r"], extend_prefix_lens_cpu=[0], extend_seq_lens_cpu=[PAGES * PAGE]
    )
    assert rank.layer_wise.expects(batch)


@given(st.lists(st.sets(st.integers(1, 30), max_size=6), min_size=1, max_size=4))
def test_ranks_go_back_to_the_longest_part_that_each_has_a_state_behind(ends: list[set[int]]) -> None:
    """Whatever one of them has lost, or all but a few parts."""
    tail = [str(page) for page in range(30)]
    barrier, said = threading.Barrier(len(ends)), [torch.zeros(0)] * len(ends)

    def found_on(rank: int) -> tuple[int, int]:
        asked = 0

        def all_reduce(values: torch.Tensor, operation: Any) -> None:
            nonlocal asked
            asked += 1
            said[rank] = values.clone()
            barrier.wait(60)
            values.copy_(torch.stack(said).amin(0))
            barrier.wait(60)

        wrapper: Any = SwiftLinkerWrapper.__new__(SwiftLinkerWrapper)
        wrapper.cache = SimpleNamespace(_all_reduce_attn_groups=all_reduce)
        states: Any = object()
        request: Any = SimpleNamespace(
            held_with_state=lambda hashes, states: max((end for end in ends[rank] if end <= len(hashes)), default=0)
        )
        return wrapper._held_on_all_ranks(request, tail, states), asked

    with ThreadPoolExecutor(len(ends)) as pool:
        found = list(pool.map(found_on, range(len(ends))))
    common = max(set.intersection(*ends), default=0)
    assert len(set(found)) == 1, "they agree, and ask as often as each other"
    assert found[0][0] in ((common, 0) if found[0][1] == cache_module._ENDS_COMPARED else (common,))
