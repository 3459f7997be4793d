"""A peer tier whose pages are all known, so that every byte it serves can be compared: what a server's stack does with
lent memory, at any rate that the tier allows."""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.page import KEY_BYTES, NAMESPACE_BYTES, ROOT_KEY, PageRecord, page_digest, round_up
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.table.tier_copies import Copy, Part
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Write, Written

from .donor_process import DonorProcess, LendingError

#: Different pages there are; any place may hold any of them.
_KNOWN = 96
#: Asked for at a time.
_DEPTH = 32
#: Of landing memory: no less than that of its slots.
_ALIGNMENT = 4096
#: How long a donor may take to say that it reads outgoing memory, seconds; then pages go there through the host.
_OFFER_SECONDS = 5.0
#: Seconds, a guard against hanging.
PATIENCE = 30.0


class KnownPages:
    """Pages of random bytes, in host memory and on the device."""

    def __init__(self, device: torch.device, page_bytes: int, seed: int) -> None:
        self.host: np.ndarray = np.random.default_rng(seed).integers(0, 256, (_KNOWN, page_bytes), dtype=np.uint8)
        self.checksums = [page_digest(page) for page in self.host]
        self.device: torch.Tensor = torch.from_numpy(self.host).to(device)


class _Answer(NamedTuple):
    """What has become of a page that was asked for."""

    what: str  # "stored", "read" or "landed"
    place: PeerPlace
    page: int
    outcome: ReadOutcome  # of a page to be stored: OK, or CANCELLED
    slot: int = -1  # of landing memory
    into: np.ndarray | None = None


class KnowingBorrower:
    """`borrow` and `wait`: any thread. The others: one thread at a time, which may be a `ReadLoad`'s."""

    def __init__(self, accelerator: Accelerator, memory: DeviceMemory, page_bytes: int, seed: int) -> None:
        """Raises ArenaError."""
        self.known = KnownPages(accelerator.device, page_bytes, seed)
        self._landing = Landing(accelerator, page_bytes, (_DEPTH + 1) * round_up(page_bytes, _ALIGNMENT))
        self._accelerator = accelerator
        self._outgoing = OutgoingMemory(memory, page_bytes, _DEPTH * round_up(page_bytes, _ALIGNMENT))
        self.tier = PeerTier(
            "proof-borrower",
            page_bytes,
            PeerConfig(borrow=True),
            fingerprint=page_digest,
            landing=self._landing,
            device=memory,
            outgoing=self._outgoing,
        )
        self.tier.watch(self)
        self._page_bytes = page_bytes
        self._record = PageRecord(bytes(KEY_BYTES), ROOT_KEY, bytes(NAMESPACE_BYTES), 1, self.tier.page_bytes)
        self._held: dict[PeerPlace, int] = {}  # what is stored there
        self._random = random.Random(seed)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._buffers = [np.empty(page_bytes, dtype=np.uint8) for _ in range(_DEPTH)]
        self._asked = 0
        self._turn = False
        #: Pages that were accepted, by "stored", "read" and "landed".
        self.accepted: Counter[str] = Counter()
        #: What may not be, in words.
        self.wrong: list[str] = []

    @property
    def pages_read(self) -> int:
        """That were accepted, to host memory or to the device."""
        return self.accepted["read"] + self.accepted["landed"]

    # What the tier tells, on its own thread

    def room(self) -> None:
        """Room is looked for whenever a page is to be stored."""

    def full(self, part: Part, reason: str) -> None:
        """A lease never is."""

    def leaving(self, part: Part, until: float) -> Iterator[None]:
        """Nothing of it is worth saving."""
        self.tier.give_up(part)
        return iter(())

    def gone(self, part: Part, reason: str) -> None:
        """Its places are found out about when they are read."""

    def back(self, part: Part) -> None:
        """A lease that has ended does not come back."""

    # Steps

    def borrow(self, donor: DonorProcess, pages: int) -> None:
        """Until so many are lent. Raises LendingError."""
        self.tier.neighbours({donor.options.name: donor.address})
        self.tier.want(pages * self._page_bytes)
        self.wait(lambda: self.tier.capacity_bytes >= pages * self._page_bytes, f"{pages} pages to be lent")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Raises LendingError, with the donors' reasons."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise LendingError(f"waited {PATIENCE:g} s for {what}: {self._reasons() or 'no donor says why'}")
            time.sleep(0.001)

    def fill(self, most: float = math.inf, *, aside: bool = False) -> int:
        """Store a page in every place that is free, or in so many; how many were stored. `aside`: from outgoing memory.
        Raises LendingError."""
        before, asked = self.accepted["stored"], 0
        deadline = time.monotonic() + _OFFER_SECONDS
        while aside and not self._outgoing.wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        while asked < most and self._store(aside=aside):
            asked += 1
            self._keep_depth()
        self.settle()
        return self.accepted["stored"] - before

    @property
    def pulled(self) -> int:
        """Pages that the donor has copied from outgoing memory."""
        return self.tier.links["device-peer"].pages

    def read_all(self, *, land: bool) -> int:
        """Read all that is stored, to host memory or to the device; how many pages were accepted. Raises
        LendingError."""
        before = self.pages_read
        for place in list(self._held):
            while not self._read(place, land=land):
                if not self._asked:
                    raise LendingError(f"a page cannot be landed: {self._reasons() or 'its memory is not mapped here'}")
                self._take(PATIENCE)
            self._keep_depth()
        self.settle()
        return self.pages_read - before

    def step(self) -> None:
        """Ask for one page more, or take one answer: what is free is filled, and what is held is read, by turns to the
        device and to host memory. Raises LendingError."""
        if self._asked < _DEPTH and (self._store() or self._read_any()):
            return
        if self._asked:
            self._take(PATIENCE)
        else:
            time.sleep(0.001)  # nobody lends

    def settle(self) -> None:
        """Until everything has been answered. Raises LendingError."""
        while self._asked:
            self._take(PATIENCE)

    def close(self) -> None:
        """Return everything. Idempotent."""
        self.tier.close()

    # Inside

    def _store(self, *, aside: bool = False) -> bool:
        places = self.tier.reserve([self.tier.page_bytes])
        if not places:
            return False
        (place,) = places
        # In turn, since outgoing memory has no page twice.
        page = (self.accepted["stored"] + self._asked) % _KNOWN if aside else self._random.randrange(_KNOWN)
        if aside:
            self._set_aside(page)

        def done(written: Written | None, why: str) -> None:
            outcome = ReadOutcome.CANCELLED if written is None else ReadOutcome.OK
            self._answers.put(_Answer("stored", place, page, outcome))

        self.tier.write([Write(self._record, place, self.known.host[page], self.known.checksums[page], done)])
        self._asked += 1
        return True

    def _set_aside(self, page: int) -> None:
        """As a pool does with pages that have been computed."""
        for row in self._outgoing.take(1):
            self._outgoing.memory[row, : self._page_bytes].copy_(self.known.device[page])
            self._accelerator.mark_here().synchronize()
            self._outgoing.enter([row], [self.known.checksums[page]])

    def _read(self, place: PeerPlace, *, land: bool) -> bool:
        """False if it was to be landed and cannot be."""
        page = self._held[place]
        copy = Copy(place, self.known.checksums[page], 0, whole=True)
        if land:
            landing = self.tier.land(
                self._record,
                copy,
                lambda outcome, slot: self._answers.put(_Answer("landed", place, page, outcome, slot)),
            )
            self._asked += landing
            return landing
        into = self._buffers.pop()

        def done(outcome: ReadOutcome) -> None:
            self._answers.put(_Answer("read", place, page, outcome, into=into))

        self.tier.read([Read(self._record, copy, into, done)])
        self._asked += 1
        return True

    def _read_any(self) -> bool:
        """False if nothing is stored."""
        if not self._held:
            return False
        place = self._random.choice(list(self._held))
        self._turn = not self._turn
        return (self._turn and self._read(place, land=True)) or self._read(place, land=False)

    def _keep_depth(self) -> None:
        while self._asked >= _DEPTH:
            self._take(PATIENCE)

    def _take(self, seconds: float) -> None:
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise LendingError(f"{self._asked} pages were not answered for within {seconds:g} s") from None
        self._asked -= 1
        if answer.outcome is ReadOutcome.OK:
            self._accept(answer)
        elif answer.outcome is not ReadOutcome.CANCELLED:
            # The lease lasted, and yet these were not the page's bytes, or could not be had.
            self.wrong.append(f"a page under a lease that lasted: {answer.outcome.value}")
        if answer.into is not None:
            self._buffers.append(answer.into)
        if answer.outcome is not ReadOutcome.OK and self._held.pop(answer.place, None) is not None:
            self.tier.release([answer.place])

    def _accept(self, answer: _Answer) -> None:
        self.accepted[answer.what] += 1
        if answer.what == "stored":
            self._held[answer.place] = answer.page
            return
        if answer.into is not None:
            same = np.array_equal(answer.into, self.known.host[answer.page])
        else:
            landed = self._landing.memory[answer.slot, : self._page_bytes]
            same = torch.equal(landed, self.known.device[answer.page])
            self._landing.give_back(answer.slot)
        if not same:
            self.wrong.append(f"a page that was {answer.what} is not what was stored there")

    def _reasons(self) -> str:
        """Why donors lend nothing."""
        return "; ".join(one.reason for one in self.tier.snapshot().donors if one.reason)


class ReadLoad:
    """Reads without a pause, on a thread of its own: by turns to the device and to host memory, and what is free is
    filled again. A context manager; on leaving, everything has been answered, or LendingError is raised."""

    def __init__(self, borrower: KnowingBorrower) -> None:
        self._borrower = borrower
        self._ending = threading.Event()
        self._thread = ThreadPoolExecutor(1, "proof-load")

    def __enter__(self) -> Self:
        self._load = self._thread.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.shutdown()
        self._load.result()

    def wait_for_pages(self, pages: int) -> None:
        """Until so many more have been read. Raises LendingError."""
        wanted = self._borrower.pages_read + pages
        self._borrower.wait(
            lambda: self._borrower.pages_read >= wanted or self._load.done(), f"{pages} pages to be read"
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            self._borrower.step()
        self._borrower.settle()
