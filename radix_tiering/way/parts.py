"""What becomes of pages when a part of their tier comes, is taken back, or goes: a lease, a device.

    there --(leaving)--> what would be lost is saved to host memory --> returned --> gone
      '-------------------------------(gone)-----------------------------------------'

From the moment a part has gone none of its copies is promised; they are given up in steps after that, and then it is
let go of. A device may be back one day, with nothing on it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from ..base.events import EventLog
from ..base.runner import Lock, Runner
from ..table.held_page import Page
from ..table.page_table import PageTable
from ..table.tier_copies import Part
from . import sweeps
from .down import Mover
from .filling import Filling, Stage
from .reads import Reads


class AnswerBatch:
    """What several writes and reads of a tier have come to is told within one hold of the page table's lock; then
    begins what there is room for now. See `Tier.answers`."""

    def __init__(self, lock: Lock, then: Sequence[Callable[[], None]]) -> None:
        """`then`: to be called when all have been told, with the lock held."""
        self._lock = lock
        self._then = then

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with ExitStack() as rest:  # all of it, whatever one of them raises
            rest.callback(self._lock.release)
            for begin in reversed(self._then):
                rest.callback(begin)


class Parts:
    """A `TierListener` of one tier. Called on the tier's thread, without locks."""

    def __init__(
        self,
        table: PageTable,
        mover: Mover,
        reads: Reads[Any],
        answers: AnswerBatch,
        *,
        runner: Runner,
        start: Callable[[Generator[None, None, int]], None],
        events: EventLog,
        filling: Filling | None = None,
        register: Callable[[Mover], None] = lambda mover: None,
    ) -> None:
        """`mover`, `answers`: the tier's; `reads`: those that bring pages up; `start`: has an errand of many steps
        done; `filling`: of what it has kept over a restart; `register`: has it know the namespace that is served."""
        self._table = table
        self._mover = mover
        self._tier = mover.tier
        self._number = mover.number
        self._reads = reads
        self._answers = answers
        self._start = start
        self._events = events
        self._filling = filling
        self._register = register
        self._offering = False  # an errand that offers all pages waits for its turn
        self._saving: dict[Part, int] = {}  # parts that are leaving: pages that are being saved from them
        self._idle = runner.condition(table.lock)

    def room(self) -> None:
        """Offer what host memory holds, most recent first, in steps; to a tier that took nothing, since no part of it
        could note the namespace, once one has."""
        if self._filling is not None and self._filling.stage is Stage.FILLED and not self._mover.enabled:
            self._register(self._mover)
        if not self._offering:
            self._offering = True
            self._start(self._offer_all())

    def _offer_all(self) -> Generator[None, None, int]:
        self._offering = False  # what room comes from now on is not known to this one
        with self._table.lock:
            self._mover.pump()
        return (yield from sweeps.offer(self._table, self._mover, self._table.unwritten(self._number)))

    def leaving(self, part: Part, until: float) -> Iterator[None]:
        """Save to host memory what would be lost, as far as there is room, hottest first; then return the part."""
        with self._table.lock:
            self._saving[part] = 1  # the share of these steps
        return self._save_and_lose(part)

    def _save(self, page: Page, part: Part) -> bool:
        """Read a page that is nowhere else into host memory; False if there is no room for it that is worth less."""
        saving = self._reads.save(page, self._number, lambda: self._saved(part))
        self._saving[part] += saving
        return saving

    def _saved(self, part: Part) -> None:
        """One less to wait for before the part is returned."""
        if part in self._saving:
            self._saving[part] -= 1
            if not self._saving[part]:
                del self._saving[part]
                self._idle.notify_all()
                self._tier.give_up(part)

    def wait_saved(self, timeout: float) -> bool:
        """Wait until nothing is being saved any more; False on timeout. The page table's lock is held. For simulations
        and tests."""
        return bool(self._idle.wait_for(lambda: not self._saving, timeout))

    def full(self, part: Part, reason: str) -> None:
        self._tell(self._tier.part_full, part, reason=reason)

    def gone(self, part: Part, reason: str) -> None:
        """None of its copies is promised any more. Who waits for a page that is being read from it goes on without, or
        with another copy."""
        with self._answers:
            self._table.part_gone(self._number, part)
            if self._filling is not None:
                self._filling.lose(part)
            if self._tier.may_hang:
                self._reads.abandon(self._number, part)
            self._saving.pop(part, None)
            self._idle.notify_all()
        self._tell(self._tier.part_gone, part, reason=reason)
        self._start(self._forget(part))

    def _forget(self, part: Part) -> Generator[None, None, int]:
        """Its copies are given up; what memory still has of them is written again, to the parts that are left."""
        staying = []
        for batch in sweeps.batches(self._table.perhaps_on(self._number, part)):
            with self._table.lock:
                for page in batch:
                    lies = self._table.lies_on(page, self._number, part)
                    if lies and self._table.settle(page) and not page.dropped:
                        staying.append(page)
            yield
        with self._table.lock:
            pages = self._table.part_forgotten(self._number, part)
        yield from sweeps.offer(self._table, self._mover, self._table.parents_first(staying))
        if pages or self._tier.durable:
            self._tell(self._tier.part_lost, part, pages=pages)
        self._tier.let_go(part)
        return pages

    def back(self, part: Part) -> None:
        """It is told of, and pages are offered to it."""
        self._tell(self._tier.part_back, part)
        self.room()

    def _save_and_lose(self, part: Part) -> Iterator[None]:
        """Give up the copies of pages that lie on `part`; after that it is returned when all have been saved."""
        pages: list[Page] = []
        for batch in sweeps.batches(self._table.perhaps_on(self._number, part)):
            with self._table.lock:
                pages += [page for page in batch if self._table.lies_on(page, self._number, part)]
        saving = 0
        for number, batch in enumerate(sweeps.batches(self._table.hottest_first(pages))):
            if number:
                yield
            with self._table.lock:
                if part not in self._saving:
                    break  # it has gone meanwhile
                for page in batch:
                    if self._table.lies_on(page, self._number, part):
                        saving += self._save(page, part)
                        self._table.lose(page, self._number)
        self._tell(self._tier.part_leaves, part, pages=len(pages), saving=saving)
        with self._table.lock:
            self._saved(part)

    def _tell(self, event: str, part: Part, **facts: Any) -> None:
        if event:
            self._events.emit(event, **self._tier.part_facts(part), **facts)
