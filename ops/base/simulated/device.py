"""A simulated server's GPU memory and what is cached there: there is no SGLang here, so this is a model of it.

The pool is slots, the tree a page table of the product's over them. Pages have no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

import numpy as np

from swift_tiers.radix_tiering.base.config import PolicyConfig
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageGeometry, PageRecord
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.bus.contract.views import NodeEntry
from swift_tiers.radix_tiering.figures.telemetry import TreeSample
from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import eviction_policy
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier


class SimulatedPool(HostTier):
    """Slots that can also be taken in neighbouring spans, to lend them (`PagePool`)."""

    table: PageTable

    def __init__(self, geometry: PageGeometry, slots: int) -> None:
        super().__init__(geometry, slots * geometry.stride_bytes, allocate=_nothing)

    @property
    def pages(self) -> int:
        return self.slots

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def lent_slots(self) -> int:
        return self._states.count(SlotState.LENT)

    def arrange(self, span_pages: int) -> None:
        self._span = span_pages

    def take(self, spans: int) -> list[Span]:
        free, length = set(self._free), self._span
        starts = range(0, self.slots - length + 1, length)
        found = [start for start in starts if all(slot in free for slot in range(start, start + length))][-spans:]
        taken = {slot for start in found for slot in range(start, start + length)}
        self._free = [slot for slot in self._free if slot not in taken]
        for slot in taken:
            self.mark(slot, SlotState.LENT)
        return [Span(start, length) for start in found]

    def put_back(self, spans: Collection[Span]) -> None:
        for span in spans:
            for slot in range(span.first, span.first + span.pages):
                self.free(slot)

    def evict(self, pages: int, *, kept: bool = False) -> None:
        before = self.limit_slots
        self.limit_slots = max(0, self.used_slots - pages)
        with self.table.lock:
            self.table.shed(pages)
        self.limit_slots = before


class Seat:
    """What a request has on the device: pages of the tree, pinned, and slots of its own behind them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys  # of the whole pages of its prompt
        self.pages: list[Page] = []  # from the front
        self.slots: list[int] = []

    @property
    def block_table(self) -> tuple[int, ...]:
        """First and last of each run of its slots, one after the other; the device's first page is number 1."""
        slots = [page.slot + 1 for page in self.pages] + [slot + 1 for slot in self.slots]
        groups = [[slot for _, slot in group] for _, group in groupby(enumerate(slots), lambda one: one[1] - one[0])]
        return tuple(end for run in groups for end in (run[0], run[-1]))


class Device:
    """`match` when a request arrives, `seat` when it is admitted, `keep` when its prompt is computed, then `leave`."""

    def __init__(self, geometry: PageGeometry, pages: int, namespace: bytes, runner: Runner) -> None:
        self.pool = SimulatedPool(geometry, pages)
        self.table = self.pool.table = PageTable(self.pool, eviction_policy(PolicyConfig()), runner=runner)
        self._geometry = geometry
        self._namespace = namespace

    @property
    def evictions(self) -> int:
        return self.table.of[HOST].counters.evictions

    def match(self, keys: Sequence[bytes]) -> Seat:
        """What there is of a prompt of these pages, pinned."""
        seat = Seat(keys)
        with self.table.lock:
            now = self.table.tick()
            for key in keys:
                page = self.table.find(self._namespace, key)
                if page is None:
                    break
                self.table.use(page, now, len(keys))
                self.table.pin(page)
                seat.pages.append(page)
        return seat

    def seat(self, seat: Seat) -> bool:
        """Room for all that it lacks; False, and none, where there is not enough."""
        lacks = len(seat.keys) - len(seat.pages)
        with self.table.lock:
            if lacks > self.pool.free_slots + self.table.of[HOST].pages - self.table.pinned_pages:
                return False
            while len(seat.slots) < lacks:
                slot = self.table.take_slot(None)
                if slot is None:
                    self._give_back(seat)
                    return False
                seat.slots.append(slot)
        return True

    def mark(self, seat: Seat, first: int, end: int, state: SlotState) -> None:
        """What the slots of its pages `[first, end)`, of those that it lacked, are used for."""
        for slot in seat.slots[first:end]:
            self.pool.mark(slot, state)

    def keep(self, seat: Seat) -> None:
        """Its whole prompt is there: its pages are in the tree. Somebody else may have been faster."""
        with self.table.lock:
            now, slots = self.table.tick(), seat.slots
            seat.slots = []
            for at, slot in enumerate(slots, len(seat.pages)):
                page = self.table.find(self._namespace, seat.keys[at])
                if page is not None:
                    self.pool.free(slot)
                else:
                    page = self._enter(seat.keys, at, slot, now)
                self.table.pin(page)
                seat.pages.append(page)

    def leave(self, seat: Seat, answer: Sequence[bytes] = ()) -> None:
        """It has ended. The whole pages of its `answer` stay in the tree, as far as there is room."""
        keys = (*seat.keys, *answer)
        with self.table.lock:
            now = self.table.tick()
            for at in range(len(seat.keys), len(keys) if len(seat.pages) == len(seat.keys) else 0):
                slot = self.table.take_slot(now)
                if slot is None:
                    break
                self._enter(keys, at, slot, now)
            for page in seat.pages:
                self.table.unpin(page)
            self._give_back(seat)
        seat.pages = []

    def slot_of(self, key: bytes) -> int | None:
        """Where a page of the tree is, as it is told."""
        page = self.table.find(self._namespace, key)
        return None if page is None else page.slot + 1

    def _enter(self, keys: Sequence[bytes], at: int, slot: int, now: int) -> Page:
        record = PageRecord(
            keys[at], keys[at - 1] if at else ROOT_KEY, self._namespace, at + 1, self._geometry.page_bytes
        )
        page = self.table.enter(record, now)
        assert page is not None, "its prefix is pinned"
        self.table.begin(page, HOST, slot)
        self.table.end(page, HOST, whole=True)
        return page

    def _give_back(self, seat: Seat) -> None:
        for slot in seat.slots:
            self.pool.free(slot)
        seat.slots = []

    # ---- the tree's shape: runs of pages without a branch are its nodes, as SGLang has them ----

    def tree(self, counted: Callable[[str], int]) -> TreeSample:
        """`counted`: what was counted of prompts, by name."""
        nodes, depths, tokens = self._nodes(), dict[Page, int](), self._geometry.tokens
        for first, last, _ in nodes:
            depths[last] = 1 + (depths[first.parent] if first.parent is not None else 0)
        pages, pinned = self.table.of[HOST].pages, self.table.pinned_pages
        return TreeSample(
            nodes=len(nodes),
            leaves=sum(not last.children for _, last, _ in nodes),
            depth=max(depths.values(), default=0),
            deepest_tokens=max((last.depth for _, last, _ in nodes), default=0) * tokens,
            cached_tokens=pages * tokens,
            evictable_tokens=(pages - pinned) * tokens,
            protected_tokens=pinned * tokens,
            reused_tokens=counted("reused_tokens"),
            prompt_tokens=counted("prompt_tokens"),
            evicted_tokens=self.evictions * tokens,
            complete=True,
        )

    def largest_subtrees(self, count: int) -> tuple[int, list[NodeEntry]]:
        """How many nodes there are, and those with the largest subtrees."""
        nodes, tokens = self._nodes(), self._geometry.tokens
        numbers = {last: number for number, (_, last, _) in enumerate(nodes, 1)}
        below = {last: pages for _, last, pages in nodes}
        for first, last, _ in reversed(nodes):
            if first.parent is not None:
                below[first.parent] += below[last]
        entries = [
            NodeEntry(
                numbers[last], None if first.parent is None else numbers[first.parent], pages * tokens,
                below[last] * tokens, first.uses, int(last.pins > 0), None, last.key.hex(),
            )
            for first, last, pages in nodes
        ]  # fmt: skip
        entries.sort(key=lambda entry: -entry.subtree_tokens)
        return len(nodes), entries[:count]

    def _nodes(self) -> list[tuple[Page, Page, int]]:
        """First and last page of each node, and how many they are; parents before their children."""
        pages, follow = self.table.listed(), dict[Page | None, list[Page]]()
        for page in pages:
            follow.setdefault(page.parent, []).append(page)
        found = []
        for parent, firsts in follow.items():
            if parent is not None and len(firsts) == 1:
                continue  # in the middle of a node
            for first in firsts:
                last, length = first, 1
                while len(after := follow.get(last, [])) == 1:
                    last, length = after[0], length + 1
                found.append((first, last, length))
        return sorted(found, key=lambda node: node[1].depth)


def _nothing(nbytes: int) -> np.ndarray:
    """A slab without memory: every byte is the same one."""
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (nbytes,))
