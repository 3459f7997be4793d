"""The summary of a page table: how many pages are known below the device, where, and how deep.

It is counted with every change, so that reading it costs nothing however many pages there are.
"""

from __future__ import annotations

import numpy as np

from ..base.slot_map import SlotState
from ..figures.counters import DirectorySnapshot
from .kernels import COUNTS, DEEPEST, DROPPED, FIRST, FLAGS, KEEP, KEPT, PAGES, PINS
from .rows import PageRows
from .tier_copies import HOST


def _counts(rows: PageRows) -> np.ndarray:
    """Pages by what they are counted as: bits of the tiers that have a whole copy, and one more where it is pinned."""
    return rows.meta[COUNTS : COUNTS + (2 << rows.tiers)]


def pinned(rows: PageRows, tier: int) -> int:
    """Pinned pages with a whole copy in this tier."""
    bits = 1 << rows.tiers | 1 << tier
    return sum(count for kind, count in enumerate(_counts(rows).tolist()) if kind & bits == bits)


def only(rows: PageRows, tier: int) -> int:
    """Pages with a whole copy in this tier alone."""
    counts = _counts(rows)
    return int(counts[1 << tier] + counts[1 << rows.tiers | 1 << tier])


def pinned_elsewhere(rows: PageRows) -> int:
    """Pinned pages with a whole copy, but none in host memory."""
    counts, pinned_bit, host = _counts(rows), 1 << rows.tiers, 1 << HOST
    return sum(int(counts[pinned_bit | kind]) for kind in range(1, pinned_bit) if not kind & host)


def snapshot(rows: PageRows, own_pages: int) -> DirectorySnapshot:
    """`own_pages`: pages in the table that are of this server's namespace."""
    counts, tiers = _counts(rows).tolist(), (1 << rows.tiers) - 1
    return DirectorySnapshot(
        pages=rows.count[PAGES],
        both_pages=sum(count for kind, count in enumerate(counts) if (kind & tiers).bit_count() > 1),
        deepest_pages=rows.count[DEEPEST],
        first_pages=rows.count[FIRST],
        foreign_pages=rows.count[PAGES] - own_pages,
    )


def slot_states(rows: PageRows, owners: np.ndarray) -> np.ndarray:
    """What slots of host memory are used for that belong to these rows: uint8 [owners] of `SlotState`."""
    words, flags = rows.words, rows.words[owners, FLAGS]
    pinned_pages = (words[owners, PINS] > 0) | (words[owners, KEPT] > 0) | (flags & KEEP != 0)
    states = np.where(pinned_pages, SlotState.PINNED, SlotState.CACHED)
    states = np.where(flags & DROPPED != 0, SlotState.PRIVATE, states)
    return np.where(rows.whole(owners, HOST), states, SlotState.LOADING).astype(np.uint8)
