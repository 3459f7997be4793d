"""Page transfers: what the I/O thread works on, unit by unit, and how what was read is verified.

A transfer:   QUEUED --first unit submitted--> STARTED --last unit back--> FINISHED
              QUEUED --cancelled, or a device gone--> FINISHED
              STARTED --a device of a write out, or closing gave up--> FINISHED, units still under way

Units that come back after the end only free their slots.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
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
    PageIdentity,
    Placement,
    SlotPlace,
    StoredPage,
    decode_header,
    unit_identity,
)

logger = logging.getLogger(__name__)

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


class TransferStage(Enum):
    QUEUED = 0
    STARTED = 1
    FINISHED = 2


class PageRead:
    """A page being read."""

    __slots__ = (
        "data", "done", "flying", "identity", "length", "namespace_id", "outcome", "placement", "stage", "stored",
        "todo",
    )  # fmt: skip
    writing = False

    def __init__(self, request: ReadRequest, namespace_id: int, identity: PageIdentity) -> None:
        self.stored = request.stored
        self.placement: Placement = request.stored.placement
        self.length: int = request.stored.record.length
        self.data = request.into[: round_up(self.length, BLOCK_BYTES)]
        self.done = request.done
        self.namespace_id = namespace_id
        self.identity = identity
        self.stage = TransferStage.QUEUED
        self.flying = 0  # units submitted and not yet back
        self.todo = len(self.placement)  # units not yet verified
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
        "data", "digest", "done", "expected", "failure", "flying", "generation", "identity", "length", "namespace_id",
        "placement", "record", "stage", "stored", "todo", "unit_digests",
    )  # fmt: skip
    writing = True

    def __init__(self, request: WriteRequest, namespace_id: int, generation: int) -> None:
        self.record = request.record
        self.placement = request.placement
        self.length = request.record.length
        self.data = request.data[: round_up(self.length, BLOCK_BYTES)]
        self.done = request.done
        self.namespace_id = namespace_id
        self.generation = generation
        self.expected = request.digest
        self.digest = b""
        self.unit_digests: list[bytes] = []
        self.identity: PageIdentity | None = None  # once its digest is known
        self.stage = TransferStage.QUEUED
        self.flying = 0
        self.todo = len(request.placement)
        self.failure = ""
        self.stored: StoredPage | None = None  # once it is written

    @property
    def failed(self) -> bool:
        return bool(self.failure)

    def lose_device(self, reason: str) -> None:
        self.failure = self.failure or reason

    def finish(self) -> None:
        self.done(self.stored, self.failure)


Transfer = PageRead | PageWrite


#: One stripe unit of a transfer, by its number in the page, from 0.
TransferUnit = tuple[Transfer, int]


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
    expected = unit_identity(record, stored.generation, stored.digest, namespace_id, index, unit_bytes, place)
    if block[:IDENTITY_BYTES] != expected:
        return _explain(stored, namespace_id, place, block)
    return _verify_checksums(block, payload)


def _verify_checksums(block: bytes, payload: np.ndarray) -> ReadOutcome:
    """Whether a header and a payload are what they were when they were written."""
    if page_digest(memoryview(block)[:CHECKSUM_OFFSET]) != block[CHECKSUM_OFFSET:]:
        return ReadOutcome.CHECKSUM
    digest = page_digest(payload.data)
    if digest != block[PAYLOAD_DIGEST_OFFSET : PAYLOAD_DIGEST_OFFSET + DIGEST_BYTES]:
        return ReadOutcome.CHECKSUM
    return ReadOutcome.OK


def _explain(stored: StoredPage, namespace_id: int, place: SlotPlace, block: bytes) -> ReadOutcome:
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
# xxh3-128 of a large buffer runs without the interpreter lock, so it overlaps with everything else; what remains per
# unit is the price of handing it over. Therefore units go over in lists, and a handful is not worth it.


class ReadUnit(NamedTuple):
    """A unit that has been read and not yet been verified."""

    transfer: PageRead
    number: int
    device: int  # its position in the array
    device_index: int  # its number in the set
    set_id: bytes
    block: bytes  # its header
    payload: np.ndarray

    def verify(self) -> ReadOutcome:
        """As `verify_unit`."""
        transfer, block, index = self.transfer, self.block, self.device_index
        slot = transfer.placement[self.number][1]
        if block[:IDENTITY_BYTES] != transfer.identity.of_unit(self.number, index, slot):
            return _explain(transfer.stored, transfer.namespace_id, SlotPlace(self.set_id, index, slot), block)
        return _verify_checksums(block, self.payload)


class VerifyPool:
    """Used by the I/O thread alone; `ready` is called on a pool thread when there are new `results`."""

    #: Fewer units than this are verified sooner by whoever has them.
    WORTH = 3

    def __init__(self, threads: int, ready: Callable[[], None], runner: Runner) -> None:
        self._ready = ready
        self._jobs = runner.queue()  # of units, and None at the end
        self.results: deque[tuple[ReadUnit, ReadOutcome]] = deque()
        self._threads = [runner.thread(self._run, f"ssd-verify-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def verify(self, units: Sequence[ReadUnit]) -> None:
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
            for unit in units:
                try:
                    outcome = unit.verify()
                except Exception:
                    # What cannot be verified is not served.
                    logger.exception("verifying a unit failed")
                    outcome = ReadOutcome.CHECKSUM
                self.results.append((unit, outcome))
            self._ready()
