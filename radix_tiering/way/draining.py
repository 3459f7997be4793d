"""Landing memory is drained as pages land: a page leaves it as soon as it has been copied to where the device reads it,
and others land in its place.

So a prefix of any length can come through it. A restore whose pages are more than landing memory holds reads them from
the front, and what finds no slot waits for one, instead of coming through host memory. Nothing waits for ever: a
restore whose device takes its pages waits only while pages of its own are landing, or are about to be copied out of
there; where there are none, as others keep all of it, its pages come through host memory. Those that the device does
not take yet leave half of landing memory to the one whose pages it takes, but for the page that each begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..restore.flight import Step, Unit
from ..table.kernels import BATCH
from ..table.page_table import PageTable
from ..table.rows import rows_of
from ..table.tier_copies import HOST
from ..tiers.host.landing import LandingSlots
from ..tiers.tier import Tier
from .request_restore import Restore, runs_of


class Draining:
    """Used under the page table's lock."""

    def __init__(self, table: PageTable, tiers: Sequence[Tier], landing: LandingSlots | None) -> None:
        """`tiers`: those beneath host memory. `landing`: None: nothing ever lands."""
        self._table = table
        self._landing = landing
        self._near = [number for number, tier in enumerate(tiers, HOST + 1) if tier.near]

    # ---- what is read ----

    def beyond(self, restore: Restore) -> int:
        """Pages that would land, and for which landing memory has no room beside the others of `restore`."""
        if self._landing is None:
            return 0
        return max(0, sum(map(restore.sources.count, self._near)) - self._landing.slots)

    def also_here(self, restore: Restore) -> dict[int, list[range]]:
        """Pages of `restore` that host memory has, and that could land as well: runs of them, by the tier they would
        land from. Nothing, where those that would land would fit into landing memory together."""
        found: dict[int, list[range]] = {}
        if self._landing is None or not self._near or len(restore.claimed) <= self._landing.slots:
            return found
        claimed = rows_of(restore.claimed)
        here = np.frombuffer(restore.flight.states(), np.uint8) == Unit.PRESENT
        here &= self._table.whole(claimed, HOST)
        for tier in self._near:
            both = here & self._table.whole(claimed, tier)
            here &= ~both
            if both.any():
                found[tier] = runs_of(both)
        landing = sum(map(restore.sources.count, self._near)) + sum(len(run) for runs in found.values() for run in runs)
        return found if landing > self._landing.slots else {}

    def room(self, restore: Restore, tier: int, most: int) -> int:
        """How many pages, `most` at most, may be read for it now from the tier of this number; 0: it waits."""
        landing = self._landing
        if landing is None or not restore.drains or tier not in self._near:
            return most
        free = landing.slots - landing.used_slots
        if not restore.computing:
            # Those that land stay until SGLang takes them, which may be after it is through with somebody else. But the
            # page that it begins with has to come, whoever keeps the others of landing memory, and be it this restore.
            begins, room = restore.flight.next_state, free - landing.slots // 2
            return min(most, max(room, int(begins is Unit.ABSENT)))
        if free <= 0:
            return 0 if self._goes_on(restore) else most
        return min(most, free)

    def _goes_on(self, restore: Restore) -> bool:
        """Whether slots of its own come back without anybody else: of pages that are being copied, that can be taken
        next, or that will be when they have landed."""
        flight = restore.flight
        if any(restore.copying.values()) or flight.arrived_from(flight.front):
            return True
        loading = (restore.claimed[unit] for unit in flight.units(Unit.LOADING))
        return any(not page.in_host or page.resident for page in loading)  # nothing fills a slot of host memory for it

    # ---- what has been read ----

    def copies(self, restore: Restore, first: int, pages: int) -> None:
        """Pages of it, from this one on, are about to be copied to the device: they stay pinned until they have been,
        wherever they are copied from. One that is copied from host memory may land meanwhile."""
        if self._landing is not None:
            units = range(first, min(first + pages, len(restore.claimed)))
            restore.copying.update((unit, restore.claimed[unit].landing >= 0) for unit in units)

    def taken(self, restore: Restore, step: Step) -> None:
        """The device computes pages of it as `step` says, and has those before: what has landed of all these, and is
        not being copied, is not needed."""
        if self._landing is not None and self._landing.used_slots:
            first = step.jump if restore.computing else 0
            self.spare(restore, range(first, step.end))

    def copied(self, restore: Restore, first: int, pages: int) -> None:
        """They have been, and nothing reads them any more. Those of a request that goes on from there are let go."""
        come = [unit for unit in range(first, first + pages) if restore.copying.pop(unit, None) is not None]
        self.spare(restore, (unit for unit in come if restore.flight[unit] is Unit.DONE))

    def spare(self, restore: Restore, units: Iterable[int]) -> None:
        """Those of these pages of it that have landed, and are not being copied, are not needed for it any more."""
        pages = []
        for unit in units:
            if unit >= len(restore.claimed) or unit in restore.spared or unit in restore.copying:
                continue
            if restore.claimed[unit].landing >= 0:
                restore.spared.add(unit)
                pages.append(restore.claimed[unit])
        for start in range(0, len(pages), BATCH):
            some = pages[start : start + BATCH]
            hinted = self._table.hinted(some)
            self._table.unpin_all(some)
            self._table.forget_hints(hinted)
