"""Page transfers: what the I/O thread works on, unit by unit, and how what was read is verified.

A transfer:   queued --first unit submitted--> started --last unit back--> finished
              queued --a device gone--> finished
              accepted --(a write that is to be coded)--> queued      finished --(a read that was coded)--> decoded
              started --a device of a write out, or closing gave up--> finished, units still under way

Units that come back after the end only free their slots.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...base.page import BLOCK_BYTES, PageRecord, page_digest, round_up
from ...base.runner import Runner
from ..tier import ReadOutcome
from .layout import (
    CHECKSUM_OFFSET,
    DIGEST_BYTES,
    IDENTITY_BYTES,
    PAYLOAD_DIGEST_OFFSET,
    Placement,
    SlotPlace,
    StoredPage,
    coded_identity,
    decode_header,
    stored_bytes,
    unit_identity,
)

logger = logging.getLogger(__name__)

#: Before a page has entered.
NOWHERE: tuple[np.ndarray, ...] = ()
#: How a unit counts that could not be verified.
UNVERIFIABLE = -1

ReadDone = Callable[[ReadOutcome], None]
WriteDone = Callable[[StoredPage | None, str], None]


class ReadRequest(NamedTuple):
    """One page to read. `into`: see `StripeSet.read`."""

    stored: StoredPage
    into: np.ndarray
    done: ReadDone


class WriteRequest(NamedTuple):
    """One page to write. `data`: see `StripeSet.write`."""

    record: PageRecord
    placement: Placement
    data: np.ndarray
    done: WriteDone
    digest: bytes | None = None  # of the page, where it is known: other bytes are not written


class PageRead:
    """A page being read."""

    __slots__ = (
        "coded", "data", "done", "finished", "identity", "into", "length", "memory", "namespace_id", "outcome",
        "placement", "row", "stored",
    )  # fmt: skip
    writing = False

    def __init__(self, request: ReadRequest, namespace_id: int, identity: bytes, unit_bytes: int) -> None:
        """`identity`: what the headers of its units say alike; see `IoThread.identity`."""
        self.stored = request.stored
        self.placement: Placement = request.stored.placement
        #: What is read: the page, or what it was coded as.
        self.length = stored_bytes(request.stored.record.length, len(self.placement), unit_bytes)
        self.coded = self.length != request.stored.record.length
        self.into = request.into
        self.data = request.into[: round_up(self.length, BLOCK_BYTES)]
        self.done = request.done
        self.namespace_id = namespace_id
        self.identity = identity
        self.finished = False
        self.row = -1  # see `units.Units`, which owns this and `memory`
        self.memory = NOWHERE
        self.outcome = ReadOutcome.OK

    @property
    def failed(self) -> bool:
        return self.outcome is not ReadOutcome.OK

    def lose_device(self, reason: str) -> None:
        if not self.failed:
            self.outcome = ReadOutcome.DEVICE_GONE

    def finish(self) -> None:
        self.done(self.outcome)


class PageWrite:
    """A page being written."""

    __slots__ = (
        "data", "digest", "done", "expected", "failure", "finished", "generation", "identity", "length",
        "memory", "needless", "placement", "record", "room", "row", "stored",
    )  # fmt: skip
    writing = True

    def __init__(self, request: WriteRequest, generation: int, identity: bytes) -> None:
        """`identity`: as of a `PageRead`, but for the digest."""
        self.record = request.record
        self.placement = request.placement
        self.length = request.record.length
        self.data = request.data[: round_up(self.length, BLOCK_BYTES)]
        self.done = request.done
        self.generation = generation
        self.identity = identity
        self.expected = request.digest
        self.digest = b""
        self.finished = False
        self.row = -1  # see `units.Units`, which owns this and `memory`
        self.memory = NOWHERE
        self.failure = ""
        self.stored: StoredPage | None = None  # once it is written
        self.room: np.ndarray | None = None  # in which it is coded, of `Coders`
        self.needless: Placement = ()  # what it does not take of its places, coded

    def lie_coded(self, room: np.ndarray, units: int, unit_bytes: int, digest: bytes) -> None:
        """It is written as what is in so many units of `room`, in the first of its places. Before it enters."""
        self.room = room
        self.length = units * unit_bytes
        self.data = room[: self.length]
        self.identity = coded_identity(self.identity, units, digest)
        self.placement, self.needless = self.placement[:units], self.placement[units:]

    @property
    def coded(self) -> bool:
        return self.room is not None

    @property
    def failed(self) -> bool:
        return bool(self.failure)

    def lose_device(self, reason: str) -> None:
        self.failure = self.failure or reason

    def finish(self) -> None:
        self.done(self.stored, self.failure)


Transfer = PageRead | PageWrite


def verify_unit(
    stored: StoredPage,
    index: int,
    namespace_id: int,
    unit_bytes: int,
    place: SlotPlace,
    block: bytes,
    payload: np.ndarray,
) -> ReadOutcome:
    """Whether `block` (a slot's header) and `payload` (the unit's bytes, without padding) are that unit of that page.

    Key, namespace, generation, length and place are compared with what was asked for; the checksums of the header
    and of the payload are computed. About 60 microseconds per MiB, without the interpreter lock.
    """
    record = stored.record
    units = len(stored.placement)
    expected = unit_identity(record, stored.generation, stored.digest, namespace_id, index, units, unit_bytes, place)
    if block[:IDENTITY_BYTES] != expected:
        return explain(stored, namespace_id, place, block)
    return _verify_checksums(block, payload)


def _verify_checksums(block: bytes, payload: np.ndarray) -> ReadOutcome:
    """Whether a header and a payload are what they were when they were written."""
    if page_digest(memoryview(block)[:CHECKSUM_OFFSET]) != block[CHECKSUM_OFFSET:]:
        return ReadOutcome.CHECKSUM
    digest = page_digest(payload.data)
    if digest != block[PAYLOAD_DIGEST_OFFSET : PAYLOAD_DIGEST_OFFSET + DIGEST_BYTES]:
        return ReadOutcome.CHECKSUM
    return ReadOutcome.OK


def explain(stored: StoredPage, namespace_id: int, place: SlotPlace, block: bytes) -> ReadOutcome:
    """What is wrong with a header that is not the expected one."""
    header = decode_header(block)
    if isinstance(header, str):
        return ReadOutcome.MAGIC if header == "magic" else ReadOutcome.CHECKSUM
    if header.place != place:
        return ReadOutcome.PLACE
    if header.record.namespace != stored.record.namespace or header.namespace_id != namespace_id:
        return ReadOutcome.NAMESPACE
    if header.record.key != stored.record.key:
        return ReadOutcome.KEY
    if header.generation != stored.generation or header.digest != stored.digest:
        return ReadOutcome.GENERATION
    return ReadOutcome.LENGTH


# ---- verifying beside the I/O thread, for devices that are faster than one thread can compute checksums ----
#
# It runs without the interpreter lock, so it overlaps with everything else; what remains is the price of handing over.
# Therefore units go over many at a time, and a handful is not worth it.


class VerifyPool:
    """Used by the I/O thread alone; `ready` is called on a pool thread when there are new `results`."""

    #: Fewer units than this are verified sooner by whoever has them.
    WORTH = 3

    def __init__(
        self, threads: int, check: Callable[[np.ndarray], np.ndarray | None], ready: Callable[[], None], runner: Runner
    ) -> None:
        """`check`: see `Units.verify`."""
        self._check = check
        self._ready = ready
        self._jobs = runner.queue()  # of units, by row, and None at the end
        #: Units, by row, and how they were verified; None: all are right.
        self.results: deque[tuple[np.ndarray, np.ndarray | None]] = deque()
        self._threads = [runner.thread(self._run, f"ssd-verify-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def verify(self, units: np.ndarray) -> None:
        """Verify all, spread over the threads; each comes back in `results`."""
        share = -(-len(units) // len(self._threads))
        for start in range(0, len(units), share):
            self._jobs.put(units[start : start + share])

    def close(self) -> None:
        """End the threads once they have done what they were given."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (units := self._jobs.get()) is not None:
            try:
                outcomes = self._check(units)
            except Exception:
                # What cannot be verified is not served.
                logger.exception("verifying units failed")
                outcomes = np.full(len(units), UNVERIFIABLE, np.int64)
            self.results.append((units, outcomes))
            self._ready()
