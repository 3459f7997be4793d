"""Which copy of a page is read, where several tiers have one.

Mostly the nearest tier's, but not while that sets a pace by which a farther one is sooner done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from ..table.held_page import HOST, Page
from ..tiers.tier import Tier


class NearestCopy:
    """For the pages of one restore, one after the other: what it has chosen for them counts for the next. So a tier
    with a pace and the one behind it are both kept busy, each with as many pages as it can bring meanwhile.

    Decided by what a tier allows just now, not by what reads took: a donor that has become idle is asked again at
    once. Used under the page table's lock.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        page_seconds: Callable[[str], float | None],
        under_way: Callable[[str], int],
    ) -> None:
        """`tiers`: those beneath host memory, the nearest one first. `page_seconds(tier)`: of one page, None where that
        is not known; `under_way(tier)`: pages that it is to bring first."""
        self._tiers = tiers
        self._page_seconds = page_seconds
        self._chosen = [under_way(tier.name) for tier in tiers]
        self._in_lane: Counter[tuple[int, Hashable]] = Counter()

    def choose(self, page: Page) -> int:
        """The number of the tier that a page is to be read from, which is in one of them."""
        having = [at for at in range(len(self._tiers)) if page.whole_in(HOST + 1 + at)]
        at = having[0]
        for farther in having[1:]:
            each = self._page_seconds(self._tiers[farther].name)
            if each is None or self._paced(page, at) <= (self._chosen[farther] + 1) * each:
                break
            at = farther
        self._chosen[at] += 1
        self._in_lane[at, self._lane(page, at)] += 1
        return HOST + 1 + at

    def _lane(self, page: Page, at: int) -> Hashable:
        copy = page.copies[HOST + 1 + at]
        return None if copy is None else self._tiers[at].lane(copy.place)

    def _paced(self, page: Page, at: int) -> float:
        """How long the pace of this tier, if it sets one, has this page wait."""
        lane = self._lane(page, at)
        return self._tiers[at].paced_seconds(lane, self._in_lane[at, lane] + 1)
