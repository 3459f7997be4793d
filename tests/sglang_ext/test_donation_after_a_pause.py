"""A donor whose process stood still: what it needed, and used, before that is no older for it."""

from __future__ import annotations

from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.sglang_ext.build import donation as module
from swift_tiers.sglang_ext.build.donation import AHEAD_TOKENS, Demand, Donation
from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator
from swift_tiers.sglang_ext.way.keeping_cache import KeepingRadixCache

PAGE, PAGES, SECONDS = 2, 100, 60.0
#: Pages of a cached prefix, and pages that requests need at times.
CACHED, NEEDED = 20, 50


class Donor:
    """The first of one rank or two, between rounds that the test begins. The others have no borrowers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.allocator = PagedLendingAllocator(PAGES * PAGE, PAGE, torch.float32, "cpu", None, need_sort=False)
        cache = KeepingRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                tree_components=(ComponentType.FULL,),
            )
        )
        cache._all_reduce_attn_groups = self._all_reduce
        self.faults: list[str] = []
        scheduler = SimpleNamespace(
            token_to_kv_pool_allocator=self.allocator, tree_cache=cache, running_batch=SimpleNamespace(reqs=[]),
            last_batch=None, chunked_req=None, waiting_queue=[], max_running_requests=4, result_queue=[],
            new_token_ratio_tracker=SimpleNamespace(current=0.5),
        )  # fmt: skip
        server: Any = SimpleNamespace(computing=lambda computes: None, copying=frozenset, copying_seconds=0.0)
        service: Any = SimpleNamespace(wanted_bytes=lambda run_bytes: 0, bytes_in=lambda *states: 0)
        stack = SimpleNamespace(events=SimpleNamespace(emit=lambda kind, **facts: self.faults.append(str(facts))))
        bounds = donation_bounds(True)
        assert bounds is not None
        self.donation = Donation(
            scheduler,
            stack,
            PoolLayout((0,), 4096),
            bounds,
            SECONDS,
            SECONDS,
            2.0,
            service,
            deque(),
            server,
            ranks=ranks,
        )
        slots = self.allocator.alloc(CACHED * PAGE)
        cache.insert(InsertParams(key=RadixKey(array("q", range(CACHED * PAGE))), value=slots))

    @staticmethod
    def _all_reduce(values: torch.Tensor, how: Any) -> None:
        values[-1][-1] = 0

    @property
    def spare(self) -> int:
        """Pages that it would lend."""
        lender = self.donation.lender
        if not isinstance(lender, Lender):
            assert lender._lead is not None
            lender = lender._lead.lender
        return lender._sizer.spare(lender._now)

    @property
    def kept(self) -> int:
        """Pages of cached prefixes."""
        assert self.donation._kept is not None
        return self.donation._kept.tokens() // PAGE

    def round(self, seconds: float) -> None:
        """After the last one."""
        self.now += seconds
        self.donation.tick()

    def requests(self) -> None:
        """Some come, and end."""
        slots = self.allocator.alloc(NEEDED * PAGE)
        for _ in range(8):
            self.round(0.05)
        self.allocator.free(slots)


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_lent_for_a_pause(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    donor = Donor(monkeypatch, ranks)
    donor.requests()
    for _ in range(20):
        donor.round(0.05)
    before = donor.spare
    assert before == PAGES - (NEEDED + NEEDED // 10)
    assert donor.kept == CACHED
    donor.round(SECONDS + 1)
    for _ in range(8):
        donor.round(0.05)
    assert donor.spare == before
    assert donor.kept == CACHED
    assert not donor.faults


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("between", [0.01, 1.05])
def test_what_was_needed_grows_old_while_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, ranks: int, between: float
) -> None:
    """Also where the scheduler sleeps between its rounds, a second each time."""
    donor = Donor(monkeypatch, ranks)
    donor.requests()
    began = donor.now
    while donor.spare < PAGES:
        donor.round(between)
        assert donor.now < began + 1.1 * SECONDS, "it never grows old"
    assert donor.now > began + 0.9 * SECONDS
    assert donor.kept == 0
    assert not donor.faults


@pytest.mark.parametrize(("rate", "away", "tokens"), [(40, 2.0, AHEAD_TOKENS), (400, 2.0, 1200), (100, 60.0, 9000)])
def test_a_request_has_memory_for_what_it_generates_until_lent_memory_is_back(
    monkeypatch: pytest.MonkeyPatch, rate: int, away: float, tokens: int
) -> None:
    """However fast it is, and however long a silent borrower may keep memory; else SGLang would end the request."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    req = _request("r", PAGE, 100_000)
    allocator = PagedLendingAllocator(50_000 * PAGE, PAGE, torch.float32, "cpu", None, need_sort=False)
    scheduler = SimpleNamespace(
        running_batch=SimpleNamespace(reqs=[req]), last_batch=None, chunked_req=None, waiting_queue=[],
        max_running_requests=4, new_token_ratio_tracker=SimpleNamespace(current=0.0),
        tree_cache=SimpleNamespace(evictable_size=lambda: 0, kept=None),
    )  # fmt: skip
    demand = Demand(scheduler, allocator, away)
    for _ in range(100):
        demand()
        now[0] += 0.02
        while len(req.output_ids) < rate * now[0]:
            req.output_ids.append(0)
            req.kv.kv_allocated_len += 1
    assert tokens <= demand() <= 1.1 * tokens + 4 * PAGE


@pytest.mark.parametrize("late", [0.001, 0.003, 0.02])
def test_ranks_take_the_same_prefixes_for_used_whatever_their_clocks_say(
    monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    """What those that wait come back to is not evicted for neighbours: on every rank the same. How fast requests
    generate each rank measures for itself."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    used: list[list[str]] = []
    for behind in (0.0, late):
        now[0] = behind
        running = [_request(f"runs{number}", 64, 8000) for number in range(60)]
        waiting = [_request(f"waits{number}", 200, 100) for number in range(600)]
        looked: list[str] = []
        tree = SimpleNamespace(
            evictable_size=lambda: 0,
            kept=SimpleNamespace(wait_for=lambda node, looked=looked: looked.append(node) or 32),
            linker=SimpleNamespace(of=lambda req: SimpleNamespace(device_node=req.rid)),
        )
        allocator = PagedLendingAllocator(64_000, PAGE, torch.float32, "cpu", None, need_sort=False)
        scheduler = SimpleNamespace(
            running_batch=SimpleNamespace(reqs=running), last_batch=None, chunked_req=None, waiting_queue=waiting,
            max_running_requests=1024, new_token_ratio_tracker=SimpleNamespace(current=0.02), tree_cache=tree,
        )  # fmt: skip
        demand = Demand(scheduler, allocator, 2.01)
        now[0] += 0.3
        demand()
        now[0] += 0.3 + behind  # the same step, at another time
        for req in running:
            req.output_ids.extend([0] * 60)
            req.kv.kv_allocated_len += 60
        looked.clear()
        demand()
        used.append(looked)
    assert demand.ahead > AHEAD_TOKENS, "they are not fast enough for this to test anything"
    assert 0 < len(used[0]) < 600, "it looks at none, or all"
    assert used[0] == used[1]


def _request(rid: str, prompt: int, most: int) -> SimpleNamespace:
    return SimpleNamespace(
        rid=rid,
        output_ids=[],
        origin_input_ids=[0] * prompt,
        sampling_params=SimpleNamespace(max_new_tokens=most, ignore_eos=False),
        beam_group=None,
        kv=SimpleNamespace(kv_allocated_len=prompt),
        finished=lambda: False,
    )
