"""Copies out of the device: tree nodes, in the order in which they were accepted, on the thread "swift-offload".

SGLang evicts no node before it has been answered for. So where the device's pool is short of room, no more than a part
of it waits to be copied: the oldest beyond are answered as not stored, and their room is the device's. Where there is
none at all, none waits.

A node may be offered while the page before it is still on its way: it has its turn behind that. Where that page does
not come, the node is not stored either, and has its whole path with it when SGLang offers it again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.base.rest import Rest
from swift_tiers.radix_tiering.base.runner import Thread
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
from swift_tiers.radix_tiering.way.down import Put

from ..pools.device_pool import DevicePool
from ..pools.states import copy_rows
from ..tell.on_the_way import OnTheWay

logger = logging.getLogger(__name__)

#: Of the device's pool so much may wait to be copied, and no less than one step takes, where less than that is free or
#: could be.
WAITING_SHARE = 0.1
#: How long SGLang may have to wait for copies out of the device before they are given up, seconds.
QUIESCE_SECONDS = 10.0
#: How long SGLang may wait, where the device has no room left, for that of pages that are being copied, seconds:
#: without it requests are retracted, or ended.
ROOM_SECONDS = 1.0
#: How long nothing is set aside for donors' devices after that went wrong, seconds: doubled up to the most.
FIRST_ASIDE_REST, MOST_ASIDE_REST = 30.0, 600.0
#: How often who waits for copies looks whether the thread still lives, seconds.
WATCHDOG_SECONDS = 1.0

#: A page that others may follow: whose KV it is, and its hash.
End = tuple[bytes | None, str]


class Offload:
    """Pages of one tree node on their way to host memory. Compared by identity."""

    __slots__ = (
        "after",
        "brings",
        "depth",
        "hashes",
        "namespace",
        "parent",
        "path",
        "ready",
        "rows",
        "state",
        "state_only",
    )

    def __init__(
        self,
        hashes: list[str],
        rows: OnTheWay,
        ready: list[Any],
        parent: str | None,
        depth: int,
        namespace: bytes | None,
        path: int = 0,
        state: OnTheWay | None = None,
        *,
        state_only: bool = False,
    ) -> None:
        self.hashes = hashes
        self.rows = rows  # of the device pool: int64 [pages * page_size]
        self.ready = ready  # events after which the device pages may be read
        self.parent = parent  # hash of the page before the first one
        self.depth = depth  # position of the first one, in pages from 1
        self.namespace = namespace  # digest; whose KV it is, however late it is copied. None: of weights that are gone
        self.path = path  # so many of its first pages come before the node, and are offered along
        self.state = state  # slot of the state behind the last page: int64 [1]; None: there is none
        self.state_only = state_only  # its page was offered before, and is named for the state behind it
        self.brings = 0  # pages that wait for it, and for no other that waits
        #: Who is to bring the page before the first one; None: nobody, or it is its own turn, after that one's.
        self.after: Offload | None = None

    @property
    def before(self) -> str | None:
        """Hash of the last page that is offered along; None without any."""
        return self.hashes[self.path - 1] if self.path else None

    @property
    def ends(self) -> list[End]:
        """Its last page and the last one before its node: where others may follow."""
        last = [] if self.state_only else self.hashes[-1:]
        return [(self.namespace, page_hash) for page_hash in (*last, *self.hashes[: self.path][-1:])]


class Offloader:
    """Every accepted job gets one answer, in the order of acceptance, even if the thread dies over it.

        WAITING --(its turn)--> in hand --(copied, refused, failed)--> answered
           |----(too many wait, no room)----> passed over --(its turn)--> answered: not stored
           |----(so is the one before it)---------^
           '--------------------------------(forget)--------------------> given up

    A job that is no longer among the unanswered ones has been given up: it must not publish anything, since its device
    pages may belong to others by now.
    """

    def __init__(self, pool: DevicePool, stack: TierStack) -> None:
        self._pool = pool
        self._stack = stack
        self._runner = stack.runner
        self._jobs = self._runner.queue()  # of offloads, and None at the end
        self._unanswered: deque[Offload] = deque()
        #: Pages of the device that are free, or of prefixes that SGLang may evict.
        self.room: Callable[[], int] = lambda: pool.pool_pages
        self._most = max(PAGES_PER_HOLD, int(pool.pool_pages * WAITING_SHARE))
        #: Of the unanswered ones, the oldest first; not in hand, nor passed over. A job comes behind the one before it.
        self._waiting: dict[Offload, None] = {}
        self._waiting_pages = 0
        #: The ends of each job that waits or is in hand, as long as nothing before it has failed: they are to be held
        #: before whoever is offered now has its turn.
        self._ends: dict[End, Offload] = {}
        self._results: deque[bool] = deque()
        self._answering = self._runner.condition()
        self._in_hand: Offload | None = None  # the thread works on it
        self._cut_short: Offload | None = None  # the thread is to copy no more of it than what it is copying
        self._closed = False
        self._aside_rest = Rest(FIRST_ASIDE_REST, MOST_ASIDE_REST)
        self._thread = self._spawn()

    # ---- the scheduler's thread ----

    def submit(self, job: Offload) -> None:
        """Queue it, whatever this raises: a thread that cannot be started is started by whoever asks for answers."""
        with self._answering:
            self._unanswered.append(job)
            self._add_waiting(job)
            # With nothing in hand the thread is about to take the oldest.
            if self._in_hand is not None and self._waiting_pages > self._most and self.room() < self._most:
                self._pass_oldest(job)
            self._jobs.put(job)
        self.revive()

    def brings(self, namespace: bytes | None, page_hash: str) -> bool:
        """Whether a page is on its way, so that what follows it may be offered without it."""
        return (namespace, page_hash) in self._ends

    @property
    def answered(self) -> int:
        """Answers to be taken."""
        self.revive()
        return len(self._results)

    def take_answer(self) -> bool:
        """Of the oldest job: whether every page of it is held now."""
        return self._results.popleft()

    def wait(self, timeout: float = QUIESCE_SECONDS) -> bool:
        """Wait until nothing is copied out of the device any more; False on timeout."""
        deadline = self._runner.monotonic() + timeout
        while self._unanswered:
            self.revive()
            left = deadline - self._runner.monotonic()
            if left < 0:
                return False
            with self._answering:
                self._answering.wait_for(lambda: not self._unanswered, min(left, WATCHDOG_SECONDS))
        return True

    def make_room(self) -> None:
        """The device needs the room of all that is to be copied. What is being copied is waited for, `ROOM_SECONDS` at
        most, and once; the rest is answered as not stored."""
        with self._answering:
            self._pass_all()
            hangs = self._in_hand is not None and self._in_hand is self._cut_short
            self._cut_short = self._in_hand
        if not hangs:
            self.wait(ROOM_SECONDS)

    def forget(self) -> None:
        """Nobody waits for any answer any more; jobs still under way publish nothing."""
        with self._answering:
            if self._unanswered:
                self._stack.events.emit("offload.given_up", jobs=len(self._unanswered))
            self._pass_all()
            self._unanswered.clear()
            self._results.clear()
            self._answering.notify_all()

    def stop(self) -> None:
        """Nothing is copied out of the device any more when this returns. What is not within the usual time is given
        up, and publishes nothing; of that the copy in hand is waited for, whatever it takes. SGLang has to empty its
        tree next, since nobody is told of what was given up."""
        if self.wait():
            return
        self.forget()
        while self._in_hand is not None:
            self.revive()
            with self._answering:
                self._answering.wait_for(lambda: self._in_hand is None, WATCHDOG_SECONDS)

    def revive(self) -> None:
        """If the thread died over a job, answer that job, so that its device pages are unlocked, and go on."""
        if self._thread.is_alive() or self._closed:
            return
        if self._in_hand is not None:
            self._answer(self._in_hand, False)
        self._thread = self._spawn()
        self._stack.events.emit("thread.restarted", thread="swift-offload")

    def close(self, timeout: float = 5.0) -> bool:
        """End the thread; whether it has ended, and copies nothing any more, in so many seconds."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _add_waiting(self, job: Offload) -> None:
        job.brings = len(job.hashes)
        if job.before and self._ends.get((job.namespace, job.before)) in self._waiting:
            job.brings -= job.path  # they wait already
        if job.parent:
            job.after = self._ends.get((job.namespace, job.parent))
        self._waiting[job] = None
        self._waiting_pages += job.brings
        self._ends.update(dict.fromkeys(job.ends, job))

    def _wait_no_longer(self, job: Offload) -> None:
        del self._waiting[job]
        self._waiting_pages -= job.brings

    def _pass_oldest(self, newest: Offload) -> None:
        """Pass over the oldest that wait, since they are answered first, until no more wait than may; and whoever comes
        after one of them, which could not be stored, and would lock its pages all the same. The newest stays, with
        those before it, which it locks: it may be longer than all that may wait."""
        stay, before = {newest}, newest.after
        while before is not None:
            stay.add(before)
            before = before.after
        passed: set[Offload] = set()
        for job in list(self._waiting):
            if job.after in passed or (self._waiting_pages > self._most and job not in stay):
                passed.add(job)
                self._wait_no_longer(job)
                self._forget_ends(job)

    def _pass_all(self) -> None:
        """Nobody waits any longer, and nobody is told to follow the one in hand."""
        self._waiting.clear()
        self._waiting_pages = 0
        self._ends.clear()

    def _forget_ends(self, job: Offload) -> None:
        for end in job.ends:
            if self._ends.get(end) is job:
                del self._ends[end]

    # ---- our thread ----

    def _spawn(self) -> Thread:
        thread = self._runner.thread(self._run, "swift-offload")
        thread.start()
        return thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            stored, passed_over = False, self._take(job)
            try:
                if passed_over:
                    self._stack.intake.refuse_late(job.brings)
                else:
                    self._pool.adopt_thread()
                    stored = self._copy_out(job)
            except Exception as error:
                logger.exception("swift-tiers: an offload failed")
                self._stack.events.emit("offload.failed", error=repr(error))
            self._answer(job, stored)

    def _take(self, job: Offload) -> bool:
        """It is its turn; whether it has been passed over."""
        with self._answering:
            self._in_hand, job.after = job, None
            if job in self._waiting:
                self._wait_no_longer(job)
                return False
            return self._is_current(job)  # else it was given up

    def _is_current(self, job: Offload) -> bool:
        return bool(self._unanswered) and self._unanswered[0] is job

    def _answer(self, job: Offload, stored: bool) -> None:
        with self._answering:
            self._in_hand = None
            self._forget_ends(job)  # it is held by now, or does not come
            if not stored:
                lost = {job}
                for other in self._waiting:
                    if other.after in lost:
                        # It has its turn: what is before it may be held all the same. Nobody else is to count on that.
                        lost.add(other)
                        self._forget_ends(other)
            if self._is_current(job):
                self._unanswered.popleft()
                self._results.append(stored)
            self._answering.notify_all()

    def _copy_out(self, job: Offload) -> bool:
        """Take the pages into host memory; True if every one of them is held afterwards."""
        if job.namespace is None:
            self._stack.intake.refuse_stale(len(job.hashes))
            return False
        pool_pages, after = self._pool.page_indices(job.rows.wait()), job.ready
        now = self._stack.intake.tick()
        keys = [bytes.fromhex(page_hash) for page_hash in job.hashes]
        parent = bytes.fromhex(job.parent) if job.parent else ROOT_KEY
        for start in range(0, len(keys), PAGES_PER_HOLD):
            with self._answering:
                if not self._is_current(job):
                    return False  # it was given up: its device pages may be others', or no memory any more
            if job is self._cut_short:
                self._stack.intake.refuse_late(len(keys) - start)
                return False
            step = keys[start : start + PAGES_PER_HOLD]
            left = len(keys) - start - len(step)
            put = self._stack.intake.begin(step, parent, job.depth + start, now, job.namespace, left)
            rows: list[int] = []
            try:
                source = pool_pages[start + np.asarray(put.indices, dtype=np.int64)]
                digests = list[bytes | None]()
                if put.slots:
                    rows = self._copy_aside(source, after)
                    digests, after = self._fill(put, source, after), []
            except BaseException:
                self._abort(put, rows)
                raise
            with self._answering:
                current = self._is_current(job)
                if current:
                    self._commit(put, digests, rows)
            if not current:
                self._abort(put, rows)
                return False
            if put.refused:
                return False
            parent = step[-1]
        if job.state is not None and keys and job is not self._cut_short:
            self._copy_state(job, job.state, keys[-1], job.depth + len(keys), now, job.namespace)
        return bool(keys)

    def _copy_state(self, job: Offload, state: OnTheWay, page: bytes, depth: int, now: int, namespace: bytes) -> None:
        """Take the state behind `page` into host memory, as pages that follow it from `depth` on. Where there is no
        room for it, the pages are held all the same: a longer prefix of theirs may have one."""
        states = self._pool.states
        assert states is not None, "a state of a model that keeps none"
        slots = states.slots_of(state.wait().numpy())
        if not len(slots):
            return  # SGLang had given a part of it up
        keys, parent, whole = states.keys(page), page, None
        for start in range(0, len(keys), PAGES_PER_HOLD):
            step = keys[start : start + PAGES_PER_HOLD]
            put = self._stack.intake.begin(step, parent, depth + start, now, namespace)
            try:
                if put.slots:
                    began = self._runner.monotonic()
                    if whole is None:  # once, for all of its pages
                        whole = states.copy_out(slots, job.ready)
                    where, pages = (np.asarray(one, dtype=np.int64) for one in (put.slots, put.indices))
                    copy_rows(whole, start + pages, self._stack.host.slab[:, : whole.shape[1]], where)
                    self._count_link(len(where), began, self._runner.monotonic())
                digests = self._digests(put, list(range(len(put.slots))))
            except BaseException:
                self._stack.intake.abort(put)
                raise
            with self._answering:
                current = self._is_current(job)
                if current:
                    self._stack.intake.commit(put, digests)
            if not current:
                self._stack.intake.abort(put)
            if not current or put.refused:
                return
            parent = step[-1]

    def _copy_aside(self, pages: np.ndarray, after: list[Any]) -> list[int]:
        """Copy pool pages to outgoing memory, as many of the first ones as it has room for, once events `after` have
        come; their rows there, which are the caller's."""
        outgoing = self._pool.outgoing
        if outgoing is None or not self._aside_rest.is_over(self._runner.monotonic()):
            return []
        rows = outgoing.take(len(pages))
        if not rows:
            return []
        try:
            self._pool.copy_aside(pages[: len(rows)], rows, after)
        except BaseException as error:
            outgoing.give_back(rows)
            if not isinstance(error, Exception):
                raise
            # Host memory is to have them all the same.
            seconds = self._aside_rest.failed(self._runner.monotonic())
            logger.exception(
                "swift-tiers: for %.0f s pages go to other GPUs through host memory: they could not be set aside",
                seconds,
            )
            self._stack.events.emit("offload.not_aside", seconds=seconds, error=repr(error))
            return []
        self._aside_rest.went_well()
        return rows

    def _commit(self, put: Put, digests: list[bytes | None], rows: list[int]) -> None:
        """Pages are there, the first ones also in `rows`, where they are found before anybody wants to store them."""
        if self._pool.outgoing is not None and rows:
            self._pool.outgoing.enter(rows, [digest for digest in digests[: len(rows)] if digest is not None])
        self._stack.intake.commit(put, digests)

    def _abort(self, put: Put, rows: list[int]) -> None:
        self._give_back(rows)
        self._stack.intake.abort(put)

    def _give_back(self, rows: list[int]) -> None:
        if self._pool.outgoing is not None:
            self._pool.outgoing.give_back(rows)

    @property
    def device_alone(self) -> bool:
        """Whether the device alone says what pages in host memory are, as it says of them when it has them again: no
        tier beneath is told their checksums, and none are computed."""
        return self._by_device and not self._stack.intake.tells_tiers and self._pool.outgoing is None

    @property
    def _by_device(self) -> bool:
        return self._pool.has_digests and self._stack.restorer.verifier.beside

    def _fill(self, put: Put, pages: np.ndarray, after: list[Any]) -> list[bytes | None]:
        """Copy pool pages to the slots of `put`, once events `after` have come; the checksums of the slots. They are
        computed of pages that are there while the device brings others."""
        runner, digests, alone = self._runner, list[bytes | None]([None] * len(put.slots)), self.device_alone
        began = until = runner.monotonic()

        def came(some: np.ndarray) -> None:
            nonlocal until
            until = runner.monotonic()
            where = some.tolist()
            for index, digest in zip(where, self._digests(put, where), strict=True):
                digests[index] = digest

        slots = np.asarray(put.slots, dtype=np.int64)
        # The device waits for the forward that still writes the pages, not this thread.
        if alone:
            self._pool.copy_out(pages, self._stack.host.slab, slots, after)
            until = runner.monotonic()
        else:
            self._pool.copy_out(pages, self._stack.host.slab, slots, after, came)
            rest = [index for index, digest in enumerate(digests) if digest is None]
            if rest:
                came(np.asarray(rest, dtype=np.int64))
        if self._by_device:
            # Pages that come back are compared with these, and their checksums need not be computed once more.
            self._stack.host.digests.learn(slots, self._pool.digests(pages))
        self._count_link(len(slots), began, until)
        return digests

    def _count_link(self, pages: int, began: float, ended: float) -> None:
        self._stack.links["device-host"].count(pages, pages * self._pool.geometry.page_bytes, ended - began)

    def _digests(self, put: Put, where: list[int]) -> list[bytes]:
        slots = [put.slots[index] for index in where]
        verifier = self._stack.restorer.verifier
        if verifier.beside:
            # A GPU brings pages sooner than one thread computes their checksums.
            return verifier.checkers.checksums(slots)
        return self._stack.intake.digests(put._replace(slots=slots))
