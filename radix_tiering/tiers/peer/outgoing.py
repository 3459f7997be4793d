"""Device memory of this server's own that donors on devices may read: pages on their way from the pool to them.

A page that has been computed is copied to host memory. From there it would cross the link between host and devices a
second time, and a third one for its digest. While it is on the device it is copied here too, which costs that device's
own memory next to nothing; a donor then copies it over NVLink, or within one device (docs/decisions/0006: it pulls).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base.page import round_up
from ...base.runner import THREADS, Runner
from ...lending.donation.arena import ArenaError
from ...lending.donation.device_arena import DeviceArena
from ...lending.donation.device_memory import DeviceMemory

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: Each page begins at such a multiple of bytes.
_ALIGNMENT = 4096
#: A page that nobody has begun to store after so many seconds makes room for another. One that is asked for later goes
#: through host memory.
LINGER_SECONDS = 1.0


class OutgoingMemory:
    """Rows of one page each. Any thread.

    A row is free, or being filled, or has a page that waits to be stored, or is held while a donor stores it. A page is
    found by its checksum alone, so that no row can be taken for what was there before.
    """

    def __init__(
        self,
        device: DeviceMemory,
        page_bytes: int,
        size_bytes: int,
        runner: Runner = THREADS,
    ) -> None:
        """As many whole pages as `size_bytes` hold. Raises ValueError if that is none, ArenaError where the device has
        not got the memory or cannot share it."""
        self._stride = round_up(page_bytes, _ALIGNMENT)
        self.rows = size_bytes // self._stride
        if self.rows < 1:
            raise ValueError(f"{size_bytes} bytes of outgoing memory hold no page of {page_bytes}")
        self.arena = DeviceArena(device, self.rows * self._stride)
        #: uint8 [rows, stride], on the device. A row is to be touched by who has taken or held it only.
        self.memory: torch.Tensor = self.arena.memory.view(self.rows, self._stride)
        #: Whether there is a donor that would read it.
        self.wanted = False
        self._clock = runner.monotonic
        self._lock = runner.lock()
        self._free = list(range(self.rows - 1, -1, -1))
        self._waiting: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # checksum -> (row, since when)
        self._closed = False

    @property
    def open_rows(self) -> int:
        """Rows that there are; 0 once it is closed."""
        return 0 if self._closed else self.rows

    @property
    def size_bytes(self) -> int:
        """Of the rows that there are."""
        return self.open_rows * self._stride

    @property
    def used_rows(self) -> int:
        """Rows that are being filled or held, or whose page waits and does not make room for another yet."""
        with self._lock:
            late = self._clock() - LINGER_SECONDS
            lingering = sum(since <= late for _, since in self._waiting.values())
            return self.rows - len(self._free) - lingering

    # ---- whoever copies pages out of the pool ----

    def take(self, most: int) -> list[int]:
        """Rows to be filled, so many at most: none where no donor would read them."""
        with self._lock:
            if self._closed or not self.wanted:
                return []
            late = self._clock() - LINGER_SECONDS
            while len(self._free) < most and self._waiting:
                digest, (row, since) = next(iter(self._waiting.items()))
                if since > late:
                    break
                del self._waiting[digest]
                self._free.append(row)
            return [self._free.pop() for _ in range(min(most, len(self._free)))]

    def enter(self, rows: Sequence[int], digests: Sequence[bytes]) -> None:
        """These rows have been filled, with the pages of these checksums."""
        now = self._clock()
        with self._lock:
            for row, digest in zip(rows, digests, strict=True):
                if digest in self._waiting or self._closed:
                    self._free.append(row)
                else:
                    self._waiting[digest] = row, now
            self._unmap_if_unused()

    def give_back(self, rows: Sequence[int]) -> None:
        """Nothing in these rows, which were taken or held, is needed any more."""
        with self._lock:
            self._free.extend(rows)
            self._unmap_if_unused()

    # ---- whoever has pages stored ----

    def hold(self, digest: bytes) -> int | None:
        """The row of the page with this checksum, which stays as it is until `give_back`; None where it is not here."""
        with self._lock:
            row, _ = self._waiting.pop(digest, (None, 0.0))
            return row

    def place(self, row: int) -> int:
        """Where a row begins, in bytes from the start of the arena."""
        return row * self._stride

    def close(self) -> None:
        """Nothing is taken any more; the memory goes when no row is being filled or held here, and no donor has it
        mapped. Idempotent."""
        with self._lock:
            self._closed = True
            self._free.extend(row for row, _ in self._waiting.values())
            self._waiting.clear()
            self._unmap_if_unused()

    def _unmap_if_unused(self) -> None:
        if self._closed and len(self._free) == self.rows:
            try:
                self.arena.close()
            except ArenaError as error:
                logger.warning("swift-tiers: outgoing memory stays mapped: %s", error)
