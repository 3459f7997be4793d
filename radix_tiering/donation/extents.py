"""What is lent: runs of bytes in a donor's buffers, and how a borrower cuts them into pages of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes in one of a donor's buffers."""

    buffer: int  # number of the buffer, as the donor counts them
    offset: int  # bytes from its start
    length: int  # bytes


def pool_extents(first_page: int, pages: int, plane_bytes: int, planes: int) -> list[Extent]:
    """Neighbouring pages of a layer-major pool: one extent in each of its planes, buffers 0 to `planes` - 1.

    `plane_bytes`: of one page in one plane. A run of pages is lent as a whole so that each extent is long enough for
    one DMA transfer, whatever a single page takes in one layer.
    """
    return [Extent(plane, first_page * plane_bytes, pages * plane_bytes) for plane in range(planes)]


def run_pages(plane_bytes: int, unit_pages: int, wanted_bytes: int = 2 * 2**20) -> int:
    """Pages of a run: the fewest whole elastic units whose extents are at least `wanted_bytes` long."""
    least = -(-wanted_bytes // plane_bytes)
    return -(-least // unit_pages) * unit_pages


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
