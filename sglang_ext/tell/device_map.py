"""What is in each page of SGLang's device pool: free, lent, in the tree, or a request's own.

The tree is not walked: it may hold a million tokens, and a walk takes longer than a batch. What is not free, not lent
and no request's own is in the tree; what requests and offloads have locked of it is known from them. That this adds up
is checked with the tree's own sums, as SGLang itself does; where it does not, the tree is walked if it is small (a
`capture` with `walk`), and else there is no map.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from swift_tiers.kernels.pool_planes import uploaded
from swift_tiers.radix_tiering.base.slot_map import SlotState, TierMap
from swift_tiers.radix_tiering.figures.telemetry import NoAnswer
from swift_tiers.radix_tiering.restore.flight import Unit

from ..pools.kept import attention_allocator
from ..pools.lending_allocator import LendingAllocator
from .on_the_way import OnTheWay

#: Pages of requests' rows that are read for one map.
MOST_ROW_PAGES = 262_144
#: Nodes that wait to be copied out, and are looked at for one map, each with its path.
MOST_OFFLOADED = 1000
#: Tokens of a tree that may be walked: that takes about as long as a map without.
MOST_WALKED_TOKENS = 65_536


class RowStretch(NamedTuple):
    """Pages `[first, end)` of a request's row of `req_to_token`, and what they are."""

    row: int
    first: int
    end: int
    state: SlotState


class CapturedMap(NamedTuple):
    """What was read on the scheduler's thread in one turn."""

    time: float
    pages: int  # of the pool
    page_size: int
    page_bytes: int
    in_tree: int  # tokens, by the tree's own count
    locked: int  # of these
    free: OnTheWay  # pages
    rows: OnTheWay  # first slots of the pages of all stretches
    states: np.ndarray  # uint8, of each page in `rows`
    offloads: tuple[OnTheWay, ...]  # slots of tree nodes that are locked while they are copied out
    lent: np.ndarray
    loading: tuple[OnTheWay, ...]  # slots that are copied to
    walked: tuple[OnTheWay, OnTheWay] | None  # slots in the tree: all, and those that are not locked
    too_many: bool  # rows, or nodes that are copied out, were left out

    @property
    def may_walk(self) -> bool:
        """Whether the tree was not walked, and is small enough for that."""
        return self.walked is None and self.in_tree <= MOST_WALKED_TOKENS

    def ready(self) -> bool:
        parts = (self.free, self.rows, *self.offloads, *self.loading, *(self.walked or ()))
        return all(part.ready() for part in parts)


def capture(scheduler: Any, linker: Any, *, walk: bool = False) -> CapturedMap:
    """Scheduler's thread, between two batches. `walk`: through the whole tree."""
    cache = scheduler.tree_cache
    allocator = attention_allocator(cache.token_to_kv_pool_allocator)
    core, page_size = cache.tree_core, cache.page_size
    stretches, too_many = _stretches(scheduler, page_size)
    offloaded, too_many_nodes = _locked_by_offloads(cache, core)
    rows = _first_slots(scheduler.req_to_token_pool.req_to_token, stretches, page_size)
    in_tree, locked = cache.full_evictable_size() + cache.full_protected_size(), cache.full_protected_size()
    lent = allocator.lent_pages() if isinstance(allocator, LendingAllocator) else np.zeros(0, np.int64)
    return CapturedMap(
        time=time.time(),
        pages=allocator.size // page_size,
        page_size=page_size,
        page_bytes=linker.pool.geometry.device_page_bytes,
        in_tree=in_tree,
        locked=locked,
        free=OnTheWay(allocator.get_all_free_pages()),
        rows=OnTheWay(rows),
        states=np.repeat(
            np.array([one.state for one in stretches], np.uint8), [one.end - one.first for one in stretches]
        ),
        offloads=() if offloaded is None else (OnTheWay(offloaded),),
        lent=lent,
        loading=tuple(linker.loader.rows_under_way()),
        walked=(OnTheWay(core.all_values_flatten()), OnTheWay(core.walk_for_kv_canary(True, False).slot_indices))
        if walk
        else None,
        too_many=too_many or too_many_nodes,
    )


def completed(found: CapturedMap) -> TierMap:
    """The map, once all of it is `ready`. Any thread. Raises NoAnswer where it does not add up."""
    page = found.page_size
    states = np.full(found.pages + 1, SlotState.CACHED, np.uint8)  # SGLang keeps page 0 for itself
    rows = found.rows.numpy() // page
    for state in (SlotState.PINNED, SlotState.PRIVATE, SlotState.RECOMPUTING):
        states[rows[found.states == state]] = state
    for slots in found.offloads:
        pages = slots.numpy()[::page] // page
        states[pages] = SlotState.PINNED
    states[found.free.numpy()] = SlotState.FREE
    states[found.lent] = SlotState.LENT
    if found.walked is not None:
        every, unlocked = (slots.numpy()[::page] // page for slots in found.walked)
        others = states == SlotState.CACHED
        others |= states == SlotState.PINNED
        states[others] = SlotState.PRIVATE
        states[every] = SlotState.PINNED
        states[unlocked] = SlotState.CACHED
    pinned = int((states[1:] == SlotState.PINNED).sum())
    cached = int((states[1:] == SlotState.CACHED).sum())
    if found.walked is None and found.too_many:
        raise NoAnswer("requests share, or wait to store, more pages than can be looked through; ask again")
    if ((pinned + cached) * page, pinned * page) != (found.in_tree, found.locked):
        raise NoAnswer("what requests hold and what the tree holds do not add up just now; ask again")
    for slots in found.loading:
        states[slots.numpy()[::page] // page] = SlotState.LOADING
    return TierMap(time=found.time, slot_bytes=found.page_bytes, states=states[1:], first_slot=1)


def _stretches(scheduler: Any, page_size: int) -> tuple[list[RowStretch], bool]:
    """Of all rows that requests and sessions hold; whether some were left out, for there are too many."""
    cache = scheduler.tree_cache
    found: list[RowStretch] = []
    seen: set[int] = set()
    shared: set[Any] = set()
    room = MOST_ROW_PAGES
    for req, kv in _holders(scheduler):
        if id(kv) in seen or not kv.holds_kv:
            continue
        seen.add(id(kv))
        row, inside = kv.req_pool_idx, kv.cache_protected_len // page_size
        end = -(-kv.kv_allocated_len // page_size)
        # Requests that end at the same node of the tree hold the same pages of it.
        held = None if req is None else (cache.node_of(req), inside)
        if held not in shared:
            found.append(RowStretch(row, 0, inside, SlotState.PINNED))
            room -= inside
            if held is not None:
                shared.add(held)
        found.append(RowStretch(row, inside, end, SlotState.PRIVATE))
        on_course = cache.linker.on_course(req) if req is not None else None
        if on_course is not None and on_course.restore is not None:
            found += _computed_now(on_course, row, inside, end)
        room -= end - inside
    return (found, False) if room >= 0 else ([], True)


def _holders(scheduler: Any) -> Iterator[tuple[Any, Any]]:
    """Who may hold a row, as SGLang's own checks of its memory have it: requests, and what sessions keep."""
    for batch in (scheduler.last_batch, scheduler.running_batch):
        if batch is not None:
            yield from ((req, req.kv) for req in batch.reqs)
    if scheduler.chunked_req is not None:
        yield scheduler.chunked_req, scheduler.chunked_req.kv
    yield from ((None, kv) for kv in scheduler.tree_cache.session_records().values())


def _computed_now(request: Any, row: int, first: int, end: int) -> Iterator[RowStretch]:
    """The pages of a request's own that are computed although they were found below the device."""
    computing = np.flatnonzero(np.frombuffer(request.restore.flight.states(), np.uint8) == Unit.COMPUTING)
    pages = request.device_pages + computing[computing < request.pages]
    for page in pages[(pages >= first) & (pages < end)].tolist():
        yield RowStretch(row, page, page + 1, SlotState.RECOMPUTING)


def _first_slots(req_to_token: torch.Tensor, stretches: list[RowStretch], page_size: int) -> torch.Tensor:
    """Of each page of the stretches, in order."""
    counts = np.array([one.end - one.first for one in stretches], np.int64)
    starts = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum()), dtype=np.int64) * page_size
    begins = np.array([one.row * req_to_token.shape[1] + one.first * page_size for one in stretches], np.int64)
    places += np.repeat(begins - starts * page_size, counts)
    return req_to_token.view(-1).index_select(0, uploaded(torch.from_numpy(places), req_to_token.device))


def _locked_by_offloads(cache: Any, core: Any) -> tuple[torch.Tensor | None, bool]:
    """The slots of the tree's nodes that are locked while they, or what is behind them, are copied out; whether there
    are too many nodes to look at."""
    nodes = list(dict.fromkeys(pending.lock_node_id for pending in cache.linker.pending_offloads))
    if len(nodes) > MOST_OFFLOADED:
        return None, True
    values: dict[int, torch.Tensor] = {}
    for path in core.collect_path_info(nodes) if nodes else ():
        for info in path:
            if info.node_id not in values:
                value = core.get_component_device_value(info.node_id, ComponentType.FULL)
                if value is not None:
                    values[info.node_id] = value
    return torch.cat(list(values.values())) if values else None, False
