"""In which order pages are entered that a restart has kept: chains that were written last first, parents before those
that follow them.

Recency does not survive a restart, the order of writing does: it stands in for it.
"""

from __future__ import annotations

import numpy as np

from ..base.compiled import compiled
from ..base.page import HeldPages

#: A key is the first half of a row of `HeldPages.keys`, that of the page before it the second.
_WORDS = 4


def newest_first(held: HeldPages) -> np.ndarray:
    """The pages of `held` by number: int64 [pages]. Those whose descendants were written last come first, and a page
    comes before all that follow it. Takes a second for a million, and leaves the interpreter to others."""
    reach = np.empty(len(held.places), np.int64)
    by_depth = np.argsort(held.depths, kind="stable")
    _reach(held.keys, by_depth, held.order, _empty_table(len(reach)), reach)
    # A page reaches as far as any that follows it: where two reach as far, the one before has the lower depth.
    np.negative(reach, reach)
    return np.lexsort((held.depths, reach))


def _empty_table(pages: int) -> np.ndarray:
    """An open hash table with room for so many, at most half of it used: int32."""
    return np.full(1 << max(2 * pages, 2).bit_length(), -1, np.int32)


@compiled("void(int64[:,::1], int64[::1], int64[::1], int32[::1], int64[::1])", nogil=True)
def _reach(keys: np.ndarray, by_depth: np.ndarray, order: np.ndarray, table: np.ndarray, reach: np.ndarray) -> None:
    """`reach`: the highest of `order` of each page and of all that follow it."""
    mask = len(table) - 1
    for page in range(len(keys)):
        reach[page] = order[page]
        at = keys[page, 0] & mask
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = page
    # Those that others follow come after them.
    for number in range(len(keys) - 1, -1, -1):
        page = by_depth[number]
        at = keys[page, _WORDS] & mask
        while table[at] >= 0:
            other = table[at]
            same = True
            for word in range(_WORDS):
                if keys[other, word] != keys[page, _WORDS + word]:
                    same = False
            if same:
                reach[other] = max(reach[other], reach[page])
            at = (at + 1) & mask
