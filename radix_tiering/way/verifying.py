"""Whether pages in host memory are what they were: before they are promised, or while they are copied to the device.

By their checksums, on the threads of `checking`; and where they are copied to a device that says so, by what it says of
those that it has had before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..base.errors import DamagedPageError
from ..base.events import EventLog
from ..base.runner import Runner
from ..table.held_page import Page, host_slots
from ..table.page_table import PageTable
from ..table.tier_copies import HOST
from ..tiers.host.host_tier import HostTier
from ..tiers.tier import ReadOutcome
from .checking import Checkers
from .request_restore import Restore, RestoreState

#: Why a page is not taken whose checksum could not be computed.
UNCHECKED = "could not be verified"
#: Why a page is not taken whose digest on the device is another one than before.
NOT_AS_IT_WAS = "not what it was when the device had it"
#: Pages of a restore, by where they are in it, and their checksums; None: it could not be computed.
Looked = Sequence[tuple[int, bytes | None]]


class Verifier:
    """Of the pages of restores. Any thread."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        checkers: Checkers,
        events: EventLog,
        runner: Runner,
        *,
        beside: bool,
    ) -> None:
        """`beside`: pages that were in host memory already are verified while they are copied to the device."""
        self.beside = beside
        self.checkers = checkers
        self._table = table
        self._host = host
        self._events = events
        self._runner = runner

    def look_at(self, restore: Restore, units: Sequence[int], told: Callable[[Looked], None]) -> int:
        """Compute the checksums of these pages, which are kept in host memory by their pins; `told` is called with a
        part of them at a time, on a thread of the checkers. How many times. Lock held."""
        starts = range(0, len(units), self.checkers.together)
        slots = host_slots([restore.claimed[unit] for unit in units])
        for start in starts:
            some = slice(start, start + self.checkers.together)
            self.checkers.check(slots[some], partial(_tell, told, units[some]))
        return len(starts)

    def damage(self, page: Page, digest: bytes | None) -> str:
        """What is wrong with a page whose bytes in host memory have this checksum; empty: nothing."""
        if digest is None:
            return UNCHECKED
        if page.digest is None:
            if self._host.digests.known([page.slot])[0]:
                return UNCHECKED  # the device alone can tell
            # Came up from ssd, where its units were verified; this is the first look at it in memory.
            page.learn_digest(digest)
        elif digest != page.digest:
            drop_damaged(self._table, self._events, page, page.slot)
            return ReadOutcome.CHECKSUM.value
        return ""

    def verified(
        self, restore: Restore, first: int, places: Sequence[int], *, by_device: bool = False
    ) -> Callable[[np.ndarray | None], None]:
        """Where pages are verified beside their copy: begin to look at those from page `first` on, which are being
        copied to the device from `places`, and stay pinned. `by_device`: leave those to it that it has had before.

        What this returns waits for that, and raises DamagedPageError if one of them is not what it was. It is given
        the digests that the pages have on the device, int64 [places, 2], or None without `by_device`. Any thread."""
        looks = self._runner.queue()
        with self._table.lock:
            units, slots = self._copied_unseen(restore, first, places)
            known = self._host.digests.known(slots) & by_device
            # Of now, while these pages are there: a slot that was another's by the end would agree with itself.
            expected = self._host.digests.of(slots[known])
            looked_at = self.look_at(restore, units[~known].tolist(), looks.put)

        def wait(digests: np.ndarray | None) -> None:
            count, damage = looked_at, set[str]()
            if digests is not None:
                differ = (digests[units[known] - first] != expected).any(axis=1)
                changed = units[known][differ].tolist()
                if changed:
                    damage.add(NOT_AS_IT_WAS)
                    with self._table.lock:
                        if restore.state is not RestoreState.RELEASED:
                            count += self._look_again(restore, changed, looks.put)
            for _ in range(count):
                looked = looks.get()
                with self._table.lock:
                    if restore.state is not RestoreState.RELEASED:  # else the slots may hold other pages by now
                        damage.update(self.damage(restore.claimed[unit], digest) for unit, digest in looked)
            if said := ", ".join(sorted(damage - {""})):
                raise DamagedPageError(f"a page in host memory: {said}")
            if digests is not None and not known.all():
                with self._table.lock:
                    if restore.state is not RestoreState.RELEASED:
                        self._host.digests.learn(slots[~known], digests[units[~known] - first])

        return wait

    def _look_again(self, restore: Restore, units: Sequence[int], told: Callable[[Looked], None]) -> int:
        """At pages that are not what they were when the device had them: host memory was damaged, or the way to the
        device. A checksum tells which; a page that has none goes. How many answers there will be. Lock held."""
        blind = {unit: page for unit in units if (page := restore.claimed[unit]).digest is None}
        for page in blind.values():
            drop_damaged(self._table, self._events, page, page.slot)
        return self.look_at(restore, [unit for unit in units if unit not in blind], told)

    def _copied_unseen(self, restore: Restore, first: int, places: Sequence[int]) -> np.ndarray:
        """The pages, and where they are, whose bytes nobody has looked at since they came to host memory, and which are
        to be looked at while they are copied: int64 [2, n]. Lock held."""
        if not self.beside or restore.state is RestoreState.RELEASED:
            return np.empty((2, 0), np.int64)
        copied = np.stack([np.arange(first, first + len(places)), np.asarray(places, np.int64)])
        from_host = np.array(restore.sources[first : first + len(places)]) == HOST
        from_host |= np.isin(copied[0], list(restore.also_here))
        return copied[:, from_host & (copied[1] < self._host.slots)]


def drop_damaged(table: PageTable, events: EventLog, page: Page, slot: int) -> None:
    """A page whose bytes in host memory, at `slot`, are not what they were leaves, is counted and told. Once, though a
    restore and a write may find it at the same time: nothing is said of a page that has left. Lock held."""
    if not page.dropped:
        table.of[HOST].counters.checksum_failures += 1
        events.emit("page.corrupt", tier="host", key=page.key.hex(), slot=slot)
        table.drop(page)


def _tell(told: Callable[[Looked], None], units: Sequence[int], digests: Sequence[bytes] | None) -> None:
    """What the checkers have found of these pages of a restore."""
    known: Sequence[bytes | None] = digests or [None] * len(units)
    told(list(zip(units, known, strict=True)))
