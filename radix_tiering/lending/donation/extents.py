"""What is lent: runs of bytes in a donor's buffers, and how a borrower cuts them into pages of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ..leases.messages import Extent

#: Bytes of an extent at which one DMA transfer is worth its setup.
EXTENT_BYTES = 2 * 2**20
#: A pool is cut into at least so many spans, so that a small one can lend at all.
LEAST_SPANS = 64


class Span(NamedTuple):
    """Neighbouring pages of a pool that are lent, and come back, together. One or several make a run."""

    first: int  # page
    pages: int


class PoolLayout(NamedTuple):
    """Where a pool's pages lie in the one buffer that its donor exports.

    A layer-major pool has a plane for K and one for V of every layer; a block-major one has a single plane.
    """

    planes: tuple[int, ...]  # where each begins, bytes from the buffer's start
    plane_bytes: int  # of one page in one plane

    @property
    def page_bytes(self) -> int:
        return len(self.planes) * self.plane_bytes

    def extents(self, spans: Iterable[Span]) -> list[Extent]:
        """The bytes of these spans: one extent in each plane, neighbouring spans joined."""
        joined: list[Span] = []
        for span in sorted(spans):
            if joined and joined[-1].first + joined[-1].pages == span.first:
                joined[-1] = Span(joined[-1].first, joined[-1].pages + span.pages)
            else:
                joined.append(span)
        return [
            Extent(0, start + span.first * self.plane_bytes, span.pages * self.plane_bytes)
            for span in joined
            for start in self.planes
        ]


class RunShape(NamedTuple):
    """How a pool is cut for lending: a run is whole elastic units, and whole spans, which need not be neighbours."""

    span_pages: int
    spans: int

    @property
    def pages(self) -> int:
        return self.span_pages * self.spans


def run_shape(layout: PoolLayout, unit_pages: int, pool_pages: int) -> RunShape:
    """The shortest spans whose extents are at least `EXTENT_BYTES` long, and the shortest run of them.

    A unit longer than that is made of several spans: short ones are found sooner in a pool that is in use. In a pool
    that would have less than `LEAST_SPANS` of them they are shorter.
    """
    least = min(-(-EXTENT_BYTES // layout.plane_bytes), max(1, pool_pages // LEAST_SPANS))
    if least > unit_pages:
        return RunShape(-(-least // unit_pages) * unit_pages, 1)
    span = next(pages for pages in range(least, unit_pages + 1) if unit_pages % pages == 0)
    return RunShape(span, unit_pages // span)


class CutRun:
    """The extents of one lent run, end to end, as slots of `page_bytes` each. Immutable; any thread.

    Slot `i` is bytes `[i * page_bytes, (i + 1) * page_bytes)` of the concatenation. What is left behind the last whole
    slot is never used; with runs of whole elastic units that is nothing.
    """

    def __init__(self, extents: Iterable[Extent], page_bytes: int) -> None:
        """Raises ValueError for extents that overlap, lie at negative places, or hold no page together."""
        self.extents: Sequence[Extent] = tuple(extents)
        self.page_bytes = page_bytes
        if page_bytes < 1 or any(one.offset < 0 or one.length < 1 for one in self.extents):
            raise ValueError("pages and extents have at least one byte, at a place that is not negative")
        ordered = sorted(self.extents, key=lambda one: (one.buffer, one.offset))
        for one, following in pairwise(ordered):
            if one.buffer == following.buffer and one.offset + one.length > following.offset:
                raise ValueError(f"{one} and {following} overlap")
        self._ends = list(accumulate(one.length for one in self.extents))
        self.slots = (self._ends[-1] if self._ends else 0) // page_bytes
        if not self.slots:
            raise ValueError(f"{len(self.extents)} extents hold no page of {page_bytes} bytes")

    def pieces(self, slot: int, start: int = 0, length: int | None = None) -> list[Extent]:
        """Where `length` bytes from byte `start` of a slot's page lie (by default the whole page), in order.

        Raises IndexError for what is not within the slot.
        """
        length = self.page_bytes - start if length is None else length
        if not 0 <= slot < self.slots or start < 0 or length < 1 or start + length > self.page_bytes:
            raise IndexError(f"bytes {start} to {start + length} of slot {slot}: there are {self.slots} slots")
        at = slot * self.page_bytes + start
        index = bisect_right(self._ends, at)
        found = []
        while length:
            extent = self.extents[index]
            inside = at - (self._ends[index] - extent.length)
            count = min(length, extent.length - inside)
            found.append(Extent(extent.buffer, extent.offset + inside, count))
            at += count
            length -= count
            index += 1
        return found

    def pieces_of(self, slot: int, at: int = 0) -> np.ndarray:
        """The page in a slot, piece by piece, as copies from a single buffer take it: int64 [n, 3] of (offset in the
        buffer, offset in a target where the page begins at `at`, length in bytes)."""
        table = np.array([(piece.offset, at, piece.length) for piece in self.pieces(slot)], np.int64)
        table[1:, 1] += np.cumsum(table[:-1, 2])
        return table
