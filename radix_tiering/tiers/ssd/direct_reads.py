"""Pages read from the stripe set's devices straight into landing memory, on the thread "swift-direct".

The stripe set verifies what it reads by checksums of the host's. A page that never comes to the host is verified by the
device, by the digest that it had when its bytes were last in host memory and their checksum right: until that has been
learnt, a page comes up through host memory. What does not have its digest, whatever the reason, is read again there,
where headers and checksums tell what is wrong.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np

from ...base.page import round_up
from ...base.repeats import FaultLogger
from ...base.rest import Rest
from ...base.runner import THREADS, Empty, Flag, Runner
from ...figures.counters import LinkCounters
from ..host.landing import Landing
from ..tier import ReadOutcome
from . import StoredPage, StripeSet, UnitPlace
from .direct import DIRECT_BLOCK, DirectFiles, PendingRead

logger = logging.getLogger(__name__)

#: Pages whose reads are under way together.
PAGES_UNDER_WAY = 32
#: Pages that wait to have their digests learnt at most; the others come through host memory once more.
MOST_LEARNING = 256
#: After so many reads in a row that failed, none is tried for so long, seconds, doubled up to the most: pages come up
#: through host memory.
FAILURES, REST_SECONDS, MOST_REST_SECONDS = 8, 30.0, 600.0
#: How long the end waits for a read that does not come back, seconds.
CLOSE_SECONDS = 5.0

ReadDone = Callable[[ReadOutcome, int], None]


class _Read(NamedTuple):
    stored: StoredPage
    slot: int
    digest: bytes
    done: ReadDone
    since: float


class _Learn(NamedTuple):
    page: np.ndarray
    checksum: bytes
    done: Callable[[bytes | None], None]


class _Pause(NamedTuple):
    """Between both nothing is asked of the device."""

    begun: Flag
    over: Flag


class _UnderWay(NamedTuple):
    read: _Read
    units: list[UnitPlace] | None  # None: the page is not there any more
    pending: list[PendingRead]  # of the first of them; of all, unless some could not even be asked for


class DirectReads:
    """Any thread may call; nothing waits but `close`. Every read and lesson is answered once, on "swift-direct"."""

    def __init__(
        self,
        stripes: StripeSet,
        files: DirectFiles,
        landing: Landing,
        fingerprint: Callable[[np.ndarray], bytes],
        runner: Runner = THREADS,
    ) -> None:
        """`fingerprint`: the checksum of a page in host memory. `files` is closed with this."""
        self._stripes = stripes
        self._files = files
        self._landing = landing
        self._fingerprint = fingerprint
        self._clock = runner.monotonic
        #: See `Tier.answers`.
        self.answers: AbstractContextManager[object] = nullcontext()
        #: What has come this way.
        self.link = LinkCounters()
        #: Reads by how they were answered; lessons "learnt" or "refused"; "faults": errors of ours, logged.
        self.counters: Counter[str] = Counter()
        self._runner = runner
        self._jobs = runner.queue()  # of reads, lessons and pauses, and None at the end
        self._lessons: deque[_Learn] = deque()
        self._under_way: deque[_UnderWay] = deque()
        self._learning = 0
        self._failed = 0  # reads, since the last that came
        self._why = ""  # the last of them failed, if a library has said so
        self._fault_logger = FaultLogger(logger)
        self._rest = Rest(REST_SECONDS, MOST_REST_SECONDS)
        self._lock = runner.lock()
        self._closing = False
        self._thread = runner.thread(self._run, "swift-direct")
        self._thread.start()

    def read(self, stored: StoredPage, digest: bytes, done: ReadDone) -> bool:
        """Read a page into landing memory; False, and no answer, where there is no room, or reads have lately failed.

        `done(outcome, slot)`: with OK the page lies in that slot, verified; else there is none.
        """
        slot = self._landing.take() if self._rest.is_over(self._clock()) else None
        if slot is None:
            return False
        with self._lock:
            if not self._closing:
                self._jobs.put(_Read(stored, slot, digest, done, self._clock()))
                return True
        self._landing.give_back(slot)
        return False

    def learn(self, page: np.ndarray, checksum: bytes, done: Callable[[bytes | None], None]) -> bool:
        """Have the digest of a page in host memory computed, uint8 [page_bytes], unchanged until `done(digest)`; None
        where its checksum is another, or the device fails. False, and no answer, where too many wait."""
        with self._lock:
            if self._closing or self._learning >= MOST_LEARNING:
                return False
            self._learning += 1
            self._jobs.put(_Learn(page, checksum, done))
            return True

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within this nothing is asked of the device. Waits for what has been, as long as the end does at most."""
        pause = _Pause(self._runner.flag(), self._runner.flag())
        with self._lock:
            if self._closing:
                pause.begun.set()
            else:
                self._jobs.put(pause)
        if not pause.begun.wait(CLOSE_SECONDS):
            logger.warning("swift-tiers: a device does not answer: its reads go on while the GPU is needed alone")
        try:
            yield
        finally:
            pause.over.set()

    def close(self) -> None:
        """Answer everything and end. What a device does not answer is left behind with the thread, and said. To be
        called before the stripe set and its devices are closed. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("swift-tiers: a device does not answer: its reads are left behind")
        else:
            self._files.close()

    # ---- the thread ----

    def _run(self) -> None:
        ended = False
        while not (ended and not self._under_way and not self._lessons):
            try:
                ended = self._take_jobs()
                if self._under_way:
                    self._end_some()
                elif self._lessons:
                    self._teach(self._lessons.popleft())
            except Exception:
                # Who waited has a deadline; the next are served.
                self.counters["faults"] += 1
                self._fault_logger.exception("swift-tiers: reading straight to the GPU failed")

    def _take_jobs(self) -> bool:
        """Begin reads as long as there are any to begin, and not too many; wait for a job only where there is nothing
        else to do. True at the end of all jobs."""
        while len(self._under_way) < PAGES_UNDER_WAY:
            try:
                job = self._jobs.get(block=not self._under_way and not self._lessons)
            except Empty:
                return False
            if job is None:
                self._jobs.put(None)  # for the next look
                return True
            if isinstance(job, _Pause):
                self._be_still(job)
            elif isinstance(job, _Learn):
                self._lessons.append(job)
            else:
                self._under_way.append(self._begin(job))
        return False

    def _be_still(self, pause: _Pause) -> None:
        while self._under_way:
            self._end_some()
        pause.begun.set()
        pause.over.wait()

    def _begin(self, read: _Read) -> _UnderWay:
        pending: list[PendingRead] = []
        units: list[UnitPlace] | None = None
        row, at = self._landing.memory[read.slot], 0
        try:
            _ = self._landing.queue  # so that what a library asks of CUDA on this thread is asked of that device
            units = self._stripes.begin_reading_beside(read.stored)
            for unit in units or ():
                part = row[at : at + round_up(unit.length, DIRECT_BLOCK)]
                pending.append(self._files.read(unit.path, part, unit.offset))
                at += unit.length
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the page comes by another way
            self._why = repr(error)
        return _UnderWay(read, units, pending)

    def _end_some(self) -> None:
        """Wait for the oldest read, and verify it."""
        one = self._under_way.popleft()
        if one.units is None:
            self._answer(one.read, ReadOutcome.CANCELLED)
            return
        came = len(one.pending) == len(one.units)
        # All of them, whatever became of the others: none may write to the slot when it is another's.
        for unit, pending in zip(one.units, one.pending, strict=False):
            try:
                came = pending.get() >= unit.length and came
            except Exception as error:  # noqa: BLE001 - as above
                self._why = repr(error)
                came = False
        self._stripes.end_reading_beside(one.read.stored)
        self._answer(one.read, self._verify(one.read) if came else ReadOutcome.IO_ERROR)

    def _verify(self, read: _Read) -> ReadOutcome:
        try:
            (digest,) = self._landing.digests([read.slot])
        except Exception:
            self.counters["faults"] += 1
            self._fault_logger.exception("swift-tiers: a page could not be verified on the GPU")
            return ReadOutcome.IO_ERROR
        return ReadOutcome.OK if digest == read.digest else ReadOutcome.CHECKSUM

    def _answer(self, read: _Read, outcome: ReadOutcome) -> None:
        self.counters[outcome.value] += 1
        self._failed = self._failed + 1 if outcome is ReadOutcome.IO_ERROR else 0
        self._why = self._why if self._failed else ""
        if self._failed == FAILURES:
            self._failed = 0
            logger.warning(
                "swift-tiers: %d reads straight to the GPU in a row have failed, the last with %s: pages come through "
                'host memory for %d s; `ssd.gpu_direct` "off" ends the trying',
                FAILURES,
                self._why or "fewer bytes than a page has",
                self._rest.failed(self._clock()),
            )
        if outcome is ReadOutcome.OK:
            self._rest.went_well()
            self.link.count(1, self._landing.page_bytes, self._clock() - read.since)
        else:
            self._landing.give_back(read.slot)
        self._call(lambda: read.done(outcome, read.slot if outcome is ReadOutcome.OK else -1))

    def _teach(self, lesson: _Learn) -> None:
        digest = None
        try:
            if self._fingerprint(lesson.page) == lesson.checksum:
                digest = self._landing.digest(lesson.page)
        except Exception:
            self.counters["faults"] += 1
            self._fault_logger.exception("swift-tiers: the digest of a page could not be computed on the GPU")
        with self._lock:
            self._learning -= 1
        self.counters["refused" if digest is None else "learnt"] += 1
        self._call(lambda: lesson.done(digest))

    def _call(self, done: Callable[[], None]) -> None:
        try:
            with self.answers:
                done()
        except Exception:
            self.counters["faults"] += 1
            self._fault_logger.exception("swift-tiers: whoever waited for a page from a device raised")
