"""A page's way down, as one procedure: from the device into host memory, and from there to the tiers beneath it.

1. `Intake.begin`: the device offers a chain of pages. Those that are not held get a slot of host memory each, and
   whoever drives the device fills it. Until then nobody finds them.
2. `Intake.commit`: they are there. Each tier beneath is offered them, at once or when host memory needs their room.
3. `Mover.offer`, `enqueue`: a tier takes what its policy admits; to a durable one parents go before their children.
4. `Mover.pump`, `_begin`: a bounded number of pages is being written at a time. The rest waits in a queue without
   holding anything, so a page that leaves host memory meanwhile is simply not written. What a durable tier lacks of the
   prefix of the first one goes ahead of it, from its beginning on, a part at a time. Where a tier has no room, those
   leave for a page that are worth less, by the order of the tier.
5. `Mover._settle`, on the tier's thread, at the end of `Tier.answers`: it is written, and its bytes were still the
   page's; or it is forgotten. So are all that ended together, before the next are begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

from ..base.events import EventLog
from ..base.page import ROOT_KEY
from ..base.runner import Runner
from ..table.held_page import Page
from ..table.kernels import BATCH
from ..table.page_table import PageTable
from ..table.policy import AdmissionPolicy
from ..table.tier_copies import HOST
from ..tiers.host.host_tier import HostTier
from ..tiers.tier import DAMAGED, NOT_NOW, Tier, Write, Written
from .verifying import drop_damaged
from .write_queue import WriteQueue

#: What is wanted of a tier beyond the pages that memory holds now: room for those to come.
HEADROOM = 1.25
#: With write-back, pages that would be lost next are written once less than this share of host memory is safe to use.
WRITE_BACK_RESERVE = 0.25
#: Pages that write-back writes in one step, and those that it looks at for them, most of which may be saved already:
#: bounds how long the page table is locked.
WRITE_BACK_STEP, WRITE_BACK_LOOKS = 64, 512
#: Pages of a prefix that is not there which are made out at a time: bounds the same, however long the prefix is.
PREFIX_STEP = 256
#: No page, by row and generation.
NO_PART = (-1, -1)
#: Why pages are refused that came of weights which are gone.
WEIGHTS_CHANGED = "the weights changed"
#: ... and those that would have waited for others on the device, where they are locked.
TOO_MANY_WAIT = "too many wait to be copied"
#: ... and why pages are not written to a tier that takes no more at a time.
QUEUE_FULL = "too many wait"


class Put(NamedTuple):
    """Pages on their way into host memory: `pages[i]`, the `indices[i]`-th of the offered ones, goes to `slots[i]`."""

    pages: list[Page]
    indices: list[int]
    slots: list[int]
    refused: int  # offered pages that are neither held nor taken in


class WriteEnded(NamedTuple):
    """A write that has been answered."""

    page: Page
    key: bytes
    slot: int  # it was written from
    place: Any  # where it was to be
    told: bytes | None  # the checksum that the tier was told
    written: Written | None
    reason: str


class Intake:
    """Takes pages from the device into host memory. Any thread."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        movers: Sequence[Mover],
        *,
        through: Callable[[], bool],
        checksum_unit: int | None,
    ) -> None:
        """`movers`: to the tiers beneath. `through()`: whether pages go to durable ones as soon as they come in, not
        only when host memory needs their room. `checksum_unit`: see `Tier`."""
        self._through = through
        self._table = table
        self._host = host
        self._movers = movers
        self._checksum_unit = checksum_unit

    @property
    def tells_tiers(self) -> bool:
        """Whether pages go to tiers beneath host memory, which are told their checksums."""
        return bool(self._movers)

    def tick(self) -> int:
        """A new logical time, for all steps of one long chain."""
        with self._table.lock:
            return self._table.tick()

    def begin(
        self,
        keys: Sequence[bytes],
        parent: bytes,
        depth: int,
        now: int | None = None,
        namespace: bytes | None = None,
        offered_behind: int = 0,
    ) -> Put:
        """Take slots for the pages of a chain that are not held yet.

        `keys` follow each other in one sequence, the first one after page `parent` (ROOT_KEY for none), at position
        `depth` (from 1). The caller fills the slots, then calls `commit` or `abort`; until then the pages are
        invisible. Pages whose prefix is not held, or for which there is no room, are refused together with all
        behind them, `offered_behind` of which are offered only if none of these is refused; and all of them where they
        are of another `namespace` (its digest) than the one served now.
        """
        with self._table.lock:
            if namespace is not None and namespace != self._table.serving:
                self._table.of[HOST].counters.refuse(WEIGHTS_CHANGED, len(keys) + offered_behind)
                return Put([], [], [], len(keys))
            now = self._table.tick() if now is None else now
            anchor = self._table.settled(self._table.serving, parent)
            if anchor is not None:
                self._table.refresh(anchor, now)
                # Nothing may evict the prefix between here and the first child's entry.
                self._table.pin(anchor)
            try:
                return self._take_in(keys, parent, anchor, now, offered_behind)
            finally:
                if anchor is not None:
                    self._table.unpin(anchor)

    def _take_in(self, keys: Sequence[bytes], parent: bytes, anchor: Page | None, now: int, offered_behind: int) -> Put:
        """Of `keys`, which follow `anchor`, or nothing where `parent` says so, those that are not held."""
        held = self._table.settled_chain(self._table.serving, keys)
        self._table.refresh_all(held, now)
        pages, indices = self._take_hinted(held, now)
        if len(held) == len(keys):
            return Put(pages, indices, [page.slot for page in pages], 0)
        before = held[-1] if held else anchor
        if before is None and parent != ROOT_KEY:
            self._table.of[HOST].counters.refuse("prefix not held", len(keys) + offered_behind)
            return Put([], [], [], len(keys))
        known = len(pages)
        for start in range(len(held), len(keys), BATCH):
            some = keys[start : start + BATCH]
            try:
                taken = self._table.take_in(before, some, self._host.geometry.page_bytes, now)
            except MemoryError:
                # The table could not grow: a lack like another. Those that were taken before have to be told of.
                taken = []
            pages += taken
            if len(taken) < len(some):
                break
            before = pages[-1]
        end = len(held) + len(pages) - known
        if end < len(keys):
            self._table.of[HOST].counters.refuse("full", len(keys) - end + offered_behind)
        indices += range(len(held), end)
        return Put(pages, indices, [page.slot for page in pages], len(keys) - end)

    def _take_hinted(self, held: Sequence[Page], now: int) -> tuple[list[Page], list[int]]:
        """Of pages that are held, those of which there are only hints get slots as well, as far as there is room; they,
        and which of `held` they are."""
        indices = self._table.only_hinted(held)[:BATCH]
        slots = self._table.take_slots(len(indices), now)
        pages = [held[at] for at in indices[: len(slots)]]
        if pages:
            self._table.begin_all(pages, HOST, slots)
        return pages, indices[: len(slots)]

    def digests(self, put: Put) -> list[bytes]:
        """The checksums of the slots of `put`, once they are filled."""
        return self._host.checksums(put.slots, self._checksum_unit)

    def commit(self, put: Put, digests: Sequence[bytes | None] | None = None) -> None:
        """The slots are filled: publish the pages. `digests` are their checksums, computed here if not given; None: the
        device says what the page is."""
        if digests is None:
            digests = self.digests(put)
        with self._table.lock:
            for start in range(0, len(put.pages), BATCH):
                end = start + BATCH
                self._table.end_all(put.pages[start:end], HOST, whole=True, digests=digests[start:end])
                self._table.forget_hints(self._table.hinted(put.pages[start:end]))
            for mover in filter(self._goes_through, self._movers):
                mover.offer(put.pages)
            self._write_back()

    def abort(self, put: Put) -> None:
        """The slots could not be filled: forget the pages."""
        with self._table.lock:
            for start in range(0, len(put.pages), BATCH):
                self._table.end_all(put.pages[::-1][start : start + BATCH], HOST, whole=False)

    def refuse_stale(self, pages: int) -> None:
        """So many pages that the device offers are not taken in: they may come of weights that are gone."""
        with self._table.lock:
            self._table.of[HOST].counters.refuse(WEIGHTS_CHANGED, pages)

    def refuse_late(self, pages: int) -> None:
        """So many pages that the device offers are not taken in: they are computed faster than they are copied."""
        with self._table.lock:
            self._table.of[HOST].counters.refuse(TOO_MANY_WAIT, pages)

    def _write_back(self) -> None:
        """With write-back: save the pages that leave host memory next, before their room is needed."""
        later = [mover for mover in self._movers if not self._goes_through(mover)]
        reserve = max(1, int(self._host.limit_slots * WRITE_BACK_RESERVE))
        if later and self._host.free_slots < reserve:
            # Beyond those that are saved already: the next burst may need the room of all of them.
            coldest = self._table.coldest_unsaved(min(reserve - self._host.free_slots, WRITE_BACK_LOOKS))
            for mover in later:
                mover.offer(mover.unqueued(coldest)[:WRITE_BACK_STEP])

    def _goes_through(self, mover: Mover) -> bool:
        """Whether pages go to its tier as soon as they come in."""
        return self._through() or not mover.copies.durable


class Mover:
    """Writes pages to one tier. Callers hold the page table's lock unless said otherwise."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        tier: Tier,
        *,
        runner: Runner,
        events: EventLog,
        admission: AdmissionPolicy,
        verify: bool,
        stored: Callable[[Sequence[Page]], None] = lambda pages: None,
    ) -> None:
        """`tier`: one of the table's. `admission`: which pages go there. `verify`: compare what was written with what
        the page was. `stored` is told of pages that have been written."""
        self.tier = tier
        self.copies = table.named(tier.name)
        self.number = self.copies.number
        self.admission = admission  # may be replaced
        self.enabled = True  # False: nothing is taken in
        self.waits_for: set[str] = set()  # as long as there is something, what is taken in waits
        self._table = table
        self._host = host
        self._events = events
        self._verify = verify
        self._stored = stored
        self._most_queued = math.inf if tier.most_queued is None else tier.most_queued
        self._wanted = 0
        self._queue = WriteQueue()
        #: Row and generation of the first page of the part of a prefix that was made out last. That another part begins
        #: with it, too, says that it could not be written. (A page that is kept would keep all that it leads to.)
        self._part = NO_PART
        self._in_flight = 0
        self._ended: list[WriteEnded] = []  # writes, of which nobody has been told yet
        self._idle = runner.condition(table.lock)

    @property
    def backlog(self) -> int:
        """Pages admitted and not yet written, but for those of their prefixes that are made out later."""
        return len(self._queue) + self._in_flight

    def offer(self, pages: Iterable[Page]) -> None:
        """Write those of `pages` that are admitted, and to a durable tier what of their prefixes is not there yet."""
        number, admits = self.number, self.admission.admits
        if not self.enabled:
            return
        admitted = [page for page in pages if not page.begun_in(number) and not page.dropped and admits(page)]
        if admitted:
            self.enqueue(admitted)

    def enqueue(self, pages: Sequence[Page]) -> None:
        """Write `pages`, and to a durable tier what of their prefixes is not there yet."""
        self._say_what_is_wanted()
        if not self.tier.takes(1):
            if self.tier.refusal:  # their whole prefixes need not be looked at
                self.copies.counters.refuse(self.tier.refusal, len(pages))
            return
        for page in pages:
            if page.begun_in(self.number) or page in self._queue:
                continue
            if len(self._queue) < self._most_queued:
                self._queue.append(page)
            else:
                self.copies.counters.refuse(QUEUE_FULL)
        self._part = NO_PART  # what could not be written may be by now
        self.pump()

    def pump(self) -> None:
        """Account for writes that have ended; start others while there are pages and room in flight."""
        if self._ended:
            self._settle()
        begun: list[tuple[Page, Write]] = []
        while self._queue and not self.waits_for and self._in_flight < self.tier.writes_in_flight:
            some = self._next(self.tier.writes_in_flight - self._in_flight)
            together = self._begin_together(some)
            self._in_flight += len(together)
            begun += together
        if begun:
            try:
                self.tier.write([write for _, write in begun])
            except (ValueError, RuntimeError) as error:
                self._in_flight -= len(begun)
                for page, write in begun:
                    self.tier.release([write.place])
                    self._table.end(page, self.number, whole=False)
                    self._tell_failed(write.record.key, str(error))
        if not self.backlog:
            self._idle.notify_all()

    def trim(self, pages: int) -> None:
        """Look at so many that are queued, and forget those that have left host memory."""
        self._queue.trim(pages)

    def unqueued(self, pages: Sequence[Page]) -> list[Page]:
        """Those of `pages` that do not wait to be written already."""
        return self._queue.without(pages)

    def clear(self) -> WriteQueue:
        """Forget what is queued; what is in flight completes. The former queue, for whoever has time to free it."""
        former, self._queue = self._queue, WriteQueue()
        self.pump()
        return former

    def wait_idle(self, timeout: float) -> bool:
        """Wait until everything admitted is written; False on timeout."""
        return bool(self._idle.wait_for(lambda: not self.backlog, timeout))

    def _next(self, count: int) -> list[Page]:
        """Up to so many pages of the queue, each once. Where the first one's prefix lacks more than these, a part of it
        goes ahead."""
        some: dict[Page, None] = {}
        while self._queue and len(some) < min(count, BATCH):
            if self._queue.ahead:
                some[self._queue.ahead.popleft()] = None
                continue
            page = self._queue.popleft()
            if not self._lacks_prefix(page, some):
                some[page] = None
            elif some:  # which may be of its prefix: begun first
                self._queue.put_back(page)
                break
            else:
                ahead = self._table.lacking_before(page, self.number, PREFIX_STEP)
                part = (ahead[0].row, ahead[0].generation)
                if part == self._part:
                    some[page] = None  # to be refused
                else:
                    self._part = part
                    self._queue.put_back(page, ahead)
        return list(some)

    def _lacks_prefix(self, page: Page, some: Container[Page]) -> bool:
        """Whether the tier, once it has `some`, lacks something that has to be there before `page`."""
        parent = page.parent if self.copies.durable else None
        return parent is not None and not parent.begun_in(self.number) and parent not in some

    def _begin_together(self, pages: Sequence[Page]) -> list[tuple[Page, Write]]:
        """Begin to write those of `pages` that are to be written and that there is room for."""
        ready, places = self._places(pages)
        begun: list[tuple[Page, Write]] = []
        if places:
            first = ready[: len(places)]
            self._table.begin_all(first, self.number, places)
            begun = list(zip(first, self._writes(first, places), strict=True))
        # Room for the others has to be made, or is refused, page by page.
        for page in ready[len(places) :]:
            write = self._begin(page)
            if write is not None:
                begun.append((page, write))
        return begun

    def _places(self, pages: Sequence[Page]) -> tuple[list[Page], list[Any]]:
        """Those of `pages` that could be written now, and places for the first ones: for all of them, where older pages
        leave for newer ones and nothing else counts."""
        ready, unreachable = self._table.writable(pages, self.number)
        if unreachable:
            self.copies.counters.refuse(f"prefix not on {self.tier.name}", unreachable)
        if not ready or not self.copies.durable or not self.copies.order.by_time or self.copies.limit is not None:
            return ready, []
        lengths = [page.length for page in ready]
        places = self.tier.reserve(lengths)
        if len(places) < len(ready) and self.tier.takes(max(lengths)) and not self.tier.partly_shut:
            missing = len(ready) - len(places)
            oldest = min(page.last_use for page in ready[len(places) :])
            if self._table.make_way(self.number, missing, oldest):
                # What has left may have taken some of them along.
                still = set(self._table.writable(ready, self.number)[0])
                gone = [at for at, page in enumerate(ready) if page not in still]
                if gone:
                    self.tier.release(places)
                    return [page for page in ready if page in still], []
                places += self.tier.reserve(lengths[len(places) :])
        return ready, places

    def _writes(self, pages: Sequence[Page], places: Sequence[Any]) -> list[Write]:
        """Writes of pages that are in host memory, to these places."""
        tells, digest_in, host = self._verify or not self.copies.durable, self._table.of[HOST].digest, self._host
        writes = []
        for page, record, place in zip(pages, self._table.records(pages), places, strict=True):
            slot = page.slot
            digest = digest_in(slot) if tells else None
            done = self._completion(page, record.key, slot, place, digest)
            writes.append(Write(record, place, host.block_run(slot), digest, done))
        return writes

    def _begin(self, page: Page) -> Write | None:
        if page.dropped or page.begun_in(self.number) or not page.resident:
            return None
        if not self._reachable(page):
            self.copies.counters.refuse(f"prefix not on {self.tier.name}")
            return None
        if not self.copies.durable and page.digest is None:
            return None  # nobody could tell later whether its bytes are right
        place = self._place(page)
        if place is None:
            if not page.dropped and (reason := self.tier.full if self.tier.takes(1) else self.tier.refusal):
                self.copies.counters.refuse(reason)
            return None
        self._table.begin(page, self.number, place, page.digest)
        return self._writes([page], [place])[0]

    def _reachable(self, page: Page) -> bool:
        """Whether a restart would find the prefix of `page`, once the writes in flight are done."""
        return not self.copies.durable or page.parent is None or page.parent.begun_in(self.number)

    def _place(self, page: Page) -> object | None:
        """A place for `page`, made by evicting if need be; None if that would take too much, or it is worth no more
        than what is there. Making room may take `page` along."""
        size, limit = self.tier.size_of(page.length), self.copies.limit
        for tried in range(self.tier.most_evictions + 1):
            if self.copies.may_take(size) and (places := self.tier.reserve([page.length])):
                return places[0]
            if not tried and ((limit is not None and size > limit) or not self.tier.takes(page.length)):
                return None
            victim = self._table.victim(self.number)
            if victim is None or not self.copies.order.gives_way(victim, page):
                return None
            if self.copies.may_take(size) and not self._makes_room(victim):
                # It is served from there until its part is gone. Others leave before it comes to this again.
                self._table.refresh(victim, self._table.time)
                continue
            if tried < self.tier.most_evictions:
                self._table.evict(victim, self.number)
            if page.dropped:
                return None
        return None

    def _makes_room(self, victim: Page) -> bool:
        copy = victim.copy_in(self.number) if self.tier.partly_shut else None
        return copy is None or self.tier.makes_room(copy.place)

    def _completion(
        self, page: Page, key: bytes, slot: int, place: Any, told: bytes | None
    ) -> Callable[[Written | None, str], None]:
        def done(written: Written | None, reason: str) -> None:
            self._ended.append(WriteEnded(page, key, slot, place, told, written, reason))

        return done

    def _settle(self) -> None:
        """Account for writes that have ended: for many at once, as they mostly are what was meant."""
        ended, self._ended = self._ended, []
        self._in_flight -= len(ended)
        as_meant: list[WriteEnded] = []
        for one in ended:
            if self._as_meant(one):
                as_meant.append(one)
            else:
                self._settle_written(as_meant)
                as_meant = []
                self._settle_otherwise(one)
        self._settle_written(as_meant)

    def _as_meant(self, one: WriteEnded) -> bool:
        """Whether it was written, where it was to be, and its bytes were the page's."""
        if one.written is None or one.written.place != one.place:
            return False
        # A durable tier that is told a checksum writes no other bytes.
        return (self.copies.durable and one.told is not None) or not self._differs(one.page, one.written)

    def _differs(self, page: Page, written: Written) -> bool:
        """Whether what was written is known not to be the page."""
        return self._verify and page.digest not in (None, written.digest)

    def _settle_written(self, ended: Sequence[WriteEnded]) -> None:
        for start in range(0, len(ended), BATCH):
            some = [(one.page, one.written) for one in ended[start : start + BATCH] if one.written is not None]
            pages = [page for page, _ in some]
            kept = self._table.end_all(pages, self.number, whole=True, digests=[written.digest for _, written in some])
            if all(kept):
                self._stored(pages)
            else:
                self._stored([page for page, there in zip(pages, kept, strict=True) if there])
                self.tier.release([written.place for (_, written), there in zip(some, kept, strict=True) if not there])

    def _settle_otherwise(self, one: WriteEnded) -> None:
        page, written = one.page, one.written
        intact = one.reason != DAMAGED and (written is None or not self._differs(page, written))
        if written is None:
            flushed = self._table.has_left(page)
            self._table.end(page, self.number, whole=False)
            if intact and not flushed:
                self._failed(page, one.key, one.reason)
        elif self._table.end(
            page, self.number, whole=intact and self._reachable(page), place=written.place, digest=written.digest
        ):
            self._stored([page])
        else:
            self.tier.release([written.place])
        if not intact:
            drop_damaged(self._table, self._events, page, one.slot)

    def _failed(self, page: Page, key: bytes, reason: str) -> None:
        self._tell_failed(key, reason)
        # What has failed has left service, so trying again ends at the latest when nothing is left. Else the next use
        # of the page offers it.
        if self.tier.tries_again and reason != NOT_NOW and not page.dropped and page.resident:
            self.offer([page])

    def _tell_failed(self, key: bytes, reason: str) -> None:
        self.copies.counters.refuse("write failed" if self.tier.tries_again else reason)
        if self.tier.tries_again:
            self._events.emit(f"{self.tier.name}.write_failed", key=key.hex(), reason=reason)

    def _say_what_is_wanted(self) -> None:
        """What memory holds now, and some more."""
        pages, limit = self._table.of[HOST].pages + self.copies.pages, self.tier.limit_bytes
        most = math.inf if limit is None else limit
        wanted = int(min(most, pages * self._host.geometry.page_bytes * HEADROOM))
        if not self._wanted / 2 <= wanted <= self._wanted:
            # With room to grow, so that not every page changes it.
            self._wanted = int(min(most, wanted * HEADROOM))
            self.tier.want(self._wanted)
