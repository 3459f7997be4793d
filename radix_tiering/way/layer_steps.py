"""What whoever drives the device asks of a restore that is computed layer by layer, and tells of it."""

from __future__ import annotations

from ..table.held_page import HOST
from ..table.page_table import PageTable
from .pacing import Pacing
from .page_reads import PageReads
from .request_restore import Restore


class LayerSteps:
    """For the thread that drives the device. Takes the page table's lock itself, for one step over the pages."""

    def __init__(self, table: PageTable, pacing: Pacing, reads: PageReads) -> None:
        self._table = table
        self._pacing = pacing
        self._reads = reads

    def wanted(self, restore: Restore) -> bool:
        """Whether its layers are to be computed from the bottom, as things are."""
        with self._table.lock:
            return self._pacing.by_layers(restore)

    def refuse(self, restore: Restore, why: str) -> None:
        """They cannot be, for this reason: it goes on as if that had never been thought of."""
        with self._table.lock:
            self._pacing.not_by_layers(restore, why)

    def take(self, restore: Restore, front: int, end: int) -> None:
        """The device, which has the first `front` pages, computes those up to `end` layer by layer. What is missing of
        them still comes up: `arrived` says when the upper layers can be copied instead."""
        with self._table.lock:
            restore.flight.begin(front)
            restore.computing = True
            self._pacing.goes_on(restore)
            restore.story.computed(front, end)
            # Its pages are of use together only, so none is left out for being computed sooner.
            self._reads.batch.set_computing(restore, False)
            self._reads.pump()

    def arrived(self, restore: Restore, front: int, end: int) -> bool | None:
        """Whether pages `[front, end)` lie in host memory, verified; None if one of them never will. Then nothing more
        is read for it."""
        with self._table.lock:
            if restore.flight.arrived_all(front, end):
                return not any(page.dropped for page in restore.claimed[front:end]) or None
            if restore.flight.to_compute(front, end):
                self._reads.remove(restore)
                return None
            return False

    def count(self, restore: Restore, pages: int, computed: int, layers: int) -> None:
        """Of `pages` pages `computed` of `layers` layers were computed, and the others copied to the device."""
        with self._table.lock:
            length = restore.claimed[0].length if restore.claimed else 0
            self._table.of[HOST].counters.bytes_read += pages * length * (layers - computed) // layers
            restore.story.by_layers(computed, layers)
