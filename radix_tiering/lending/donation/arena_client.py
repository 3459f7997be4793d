"""A borrower's end of the arena socket: maps a donor's memory for reading, and has pages stored there."""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from pathlib import Path

import numpy as np
import torch

from ...base.poller import READABLE, WRITABLE
from ...base.private_directory import LEASE_DIRECTORY, open_private_directory
from ...base.runner import THREADS, Runner
from ..leases.messages import GarbledError, Party
from .arena import ArenaError, AttachedArena, SharedArena
from .arena_messages import (
    Attach,
    Attached,
    OfferAnswered,
    OtherVersionError,
    OutgoingOffer,
    Paced,
    Refused,
    Store,
    Stored,
    StoresDone,
    decode_donors,
    encode,
    in_packets,
)
from .arena_socket import close_all, is_own_user, packet_socket, receive, send
from .device_arena import AttachedDevice, DeviceArena
from .device_memory import DeviceMemory
from .extents import CutRun

logger = logging.getLogger(__name__)

#: Packets taken at one time.
_BATCH = 16


class ArenaClient:
    """One connection to one donor's arena. It does nothing by itself and never waits: whoever owns it polls
    `descriptor` for `interest`, and calls `handle` when that is ready. One thread.

    A client that has ended stays so; another one is made. The donor's memory stays mapped for as long as a read of it
    is under way.
    """

    def __init__(
        self,
        path: Path,
        donor: str,
        party: Party,
        page_bytes: int,
        staging: SharedArena,
        device: DeviceMemory | None = None,
        runner: Runner = THREADS,
        outgoing: DeviceArena | None = None,
    ) -> None:
        """Connect to the donor of this name at `path`, as `party`. `staging`: where pages to be stored are put; it may
        be shared by all clients of a process. `device`: for which a donor's device memory is mapped; None: for none,
        and such a donor cannot be used. `outgoing`: memory of that device from which a donor on one may store pages as
        well. Raises ArenaError where nobody serves there now, ConfigError for a directory
        that is not this user's alone."""
        os.close(open_private_directory(path.parent, LEASE_DIRECTORY, create=False))
        self._donor = donor
        self._device = device
        self._runner = runner
        self._outgoing = outgoing
        #: Whether stores may name outgoing memory: the donor has it mapped.
        self.pulls = False
        #: What was ignored: `garbled`, `oversized`.
        self.counters: Counter[str] = Counter()
        #: The donor's memory, once it has answered, and whose leases lie in it.
        self.arena: AttachedArena | AttachedDevice | None = None
        self.party: Party | None = None
        self.bandwidth: float | None = None
        #: The part of its time that this borrower may spend on moving pages, as the donor said last; None: all of it.
        self.share: float | None = None
        #: Why the connection has ended; empty while it has not.
        self.ended = ""
        self._outbox: deque[bytes] = deque()
        self._blocked = False
        self._connection = packet_socket()
        try:
            self._connection.connect(str(path))
            if not is_own_user(self._connection):
                raise ArenaError(f"{path}: another user's process listens there")
            send(self._connection, encode(Attach(party, page_bytes, staging.size)), staging.fd)
        except OSError as error:  # as well where so many wait to be let in that there is no room for one more
            self._connection.close()
            raise ArenaError(f"{path}: cannot be reached ({error.strerror})") from None
        except ArenaError:
            self._connection.close()
            raise
        self.descriptor = self._connection.fileno()

    @property
    def memory(self) -> torch.Tensor | None:
        """The donor's memory as this server's own device reaches it, uint8 [size]; None where it lies in memory of the
        host, or is not mapped. To be touched within `AttachedDevice.use` only."""
        return self.arena.memory if isinstance(self.arena, AttachedDevice) else None

    @property
    def interest(self) -> int:
        """What to poll for."""
        return READABLE | (WRITABLE if self._blocked else 0)

    def store(self, stores: list[Store]) -> None:
        """Have these pages stored. Each is answered by `handle`, once, unless the connection ends before."""
        self._outbox.extend(encode(message) for message in in_packets(stores))
        self._flush()

    def handle(self) -> list[Stored]:
        """Take what has come, and send what waits. Look at `arena` and `ended` afterwards."""
        answers: list[Stored] = []
        try:
            for _ in range(_BATCH):
                if self.ended:
                    break
                packet = receive(self._connection)
                if packet.ended:
                    self.end("the donor has closed the connection")
                elif not packet.whole:
                    close_all(packet.descriptors)
                    self.counters["oversized"] += 1
                else:
                    answers += self._understand(packet.data, packet.descriptors)
        except BlockingIOError:
            pass
        except OSError as error:
            self.end(f"the connection is broken ({error.strerror})")
        self._flush()
        return answers

    def has(self, run: CutRun) -> bool:
        """Whether all of a run lies within the donor's memory."""
        size = self.arena.size if self.arena is not None else 0
        return all(one.buffer == 0 and one.offset + one.length <= size for one in run.extents)

    def copy(self, run: CutRun, slot: int, into: np.ndarray) -> None:
        """Copy the page in a slot of `run`, which this arena has, to `into`, uint8 [page_bytes]. Complete on
        return. Raises ArenaError where a device fails."""
        assert self.arena is not None
        self.arena.read(run.pieces_of(slot), into)

    def end(self, reason: str) -> None:
        """Close the connection. Idempotent: the first reason stays."""
        self.ended = self.ended or reason
        self.pulls = False
        self._connection.close()
        self._outbox.clear()
        if self.arena is not None:
            self.arena.close()

    def _flush(self) -> None:
        self._blocked = False
        try:
            while self._outbox and not self.ended:
                send(self._connection, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            self._blocked = True
        except OSError:
            pass  # what the donor said last is still to be read; then comes the end

    def _understand(self, data: bytes, descriptors: tuple[int, ...]) -> tuple[Stored, ...]:
        try:
            message = decode_donors(data)
            later = isinstance(message, StoresDone | Paced | OfferAnswered)
            if isinstance(message, Attached) != bool(descriptors) or later != (self.arena is not None):
                raise GarbledError("not the time for that")
        except OtherVersionError as error:
            close_all(descriptors)
            self.end(str(error))
        except GarbledError:
            close_all(descriptors)
            self.counters["garbled"] += 1
        else:
            if isinstance(message, StoresDone):
                return message.stored
            if isinstance(message, Paced):
                self.share = message.share
            elif isinstance(message, OfferAnswered):
                self._offer_answered(message)
            elif isinstance(message, Refused):
                self.end(f"the donor refuses: {message.reason}")
            elif isinstance(message, Attached):
                self._attach(message, descriptors[0])
        return ()

    def _attach(self, attached: Attached, descriptor: int) -> None:
        if attached.party.name != self._donor:
            close_all((descriptor,))
            self.end(f"{attached.party.name} listens where {self._donor} should")
            return
        try:
            arena = self._map(attached, descriptor)
        except ArenaError as error:
            self.end(str(error))
            return
        self.arena, self.party, self.bandwidth = arena, attached.party, attached.bandwidth
        if self._outgoing is not None and isinstance(arena, AttachedDevice):
            try:
                send(self._connection, encode(OutgoingOffer(self._outgoing.size)), self._outgoing.fd)
            except OSError:
                pass  # what is stored there goes through host memory

    def _offer_answered(self, answer: OfferAnswered) -> None:
        self.pulls = self._outgoing is not None and not answer.refusal
        if answer.refusal:
            logger.info("swift-tiers: what %s stores goes through host memory: %s", self._donor, answer.refusal)

    def _map(self, attached: Attached, descriptor: int) -> AttachedArena | AttachedDevice:
        """The memory that was handed out. Takes the descriptor over. Raises ArenaError."""
        if attached.kind == AttachedArena.kind:
            return AttachedArena(descriptor, attached.size)
        device = self._device
        if device is None or device.kind != attached.kind:
            close_all((descriptor,))
            raise ArenaError(
                f"it lends memory of {attached.device}, a device of kind {attached.kind!r}, and this server has none "
                "to map it for; borrow with a server that runs on such a device, or lend from one that does not"
            )
        try:
            return AttachedDevice(device, descriptor, attached.size, self._runner)
        except ArenaError as error:
            raise ArenaError(f"its memory on {attached.device} cannot be mapped for {device.name}: {error}") from None
