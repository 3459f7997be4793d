"""Pages on their way to a tier of hints, which others read and write too: sent, and then forgotten here.

    offered --(the last page of a run, admitted, not known to be there)--> queued --> sent, pinned --> forgotten
                                                                             '--(not all in host memory)--'

A run is sent whole or not at all: `Tier.together` pages, one behind the other. Nothing waits for it, and nothing counts
on it: what was sent leaves no copy in the page table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..table.held_page import Page
from ..table.kernels import BATCH
from ..tiers.tier import DAMAGED
from .down import QUEUE_FULL, Mover, WriteEnded
from .verifying import drop_damaged

#: Why a run is not sent.
SCATTERED = "not all of it is in host memory"


class Sender(Mover):
    """A `Mover` to a tier with `hints`. Its queue holds the last pages of runs."""

    def offer(self, pages: Iterable[Page]) -> None:
        """Send the runs that end with one of `pages`, as far as these are admitted and not known to be there."""
        if not self.enabled or not self.tier.takes(1):
            return
        for page in pages:
            if page.depth % self.tier.together or page.dropped or page in self._queue:
                continue
            if not self.admission.admits(page) or not self.tier.lacks(page.namespace, page.key):
                continue
            if len(self._queue) >= self._most_queued:
                self.copies.counters.refuse(QUEUE_FULL, self.tier.together)
                continue
            self._queue.append(page)
        self.pump()

    def pump(self) -> None:
        if self._ended:
            self._settle()
        while self._queue and not self.waits_for and self._in_flight < self.tier.writes_in_flight:
            last = self._queue.popleft()
            run = self._run_to(last)
            if run is None:
                self.copies.counters.refuse(SCATTERED, self.tier.together)
            elif not self._send(run):
                break
        if not self.backlog:
            self._idle.notify_all()

    def _run_to(self, last: Page) -> list[Page] | None:
        """The pages of the run that ends with this one, in order; None unless all of them are in host memory, and it is
        known what they were when they came there."""
        run: list[Page] = []
        page: Page | None = last
        while len(run) < self.tier.together:
            if page is None or page.dropped or not page.resident or page.digest is None:
                return None
            run.append(page)
            page = page.parent
        return run[::-1]

    def _send(self, run: Sequence[Page]) -> bool:
        """Whether the tier has taken it."""
        writes = self._writes(run, [None] * len(run))
        for start in range(0, len(run), BATCH):
            self._table.pin_all(run[start : start + BATCH])
        self._in_flight += len(run)
        try:
            self.tier.write(writes)
        except (ValueError, RuntimeError) as error:
            self._in_flight -= len(run)
            self._unpin(run)
            self.copies.counters.refuse(str(error), len(run))
            return False
        return True

    def _unpin(self, pages: Sequence[Page]) -> None:
        for start in range(0, len(pages), BATCH):
            self._table.unpin_all(pages[start : start + BATCH])

    def _settle_written(self, ended: Sequence[WriteEnded]) -> None:
        self.copies.counters.bytes_written += sum(one.page.length for one in ended if not one.page.gone)
        self._unpin([one.page for one in ended])

    def _settle_otherwise(self, one: WriteEnded) -> None:
        page, damaged = one.page, one.reason == DAMAGED
        if damaged:
            drop_damaged(self._table, self._events, page, one.slot)
        else:
            self.copies.counters.refuse(one.reason)
        self._unpin([page])
