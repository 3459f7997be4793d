"""Device memory of this server's own in which pages arrive that do not pass through host memory.

A page that lies on a neighbouring device, or an SSD, could be copied to where SGLang reads it. But a length is promised
when a request is admitted, and a donor may take its memory back at any moment after, or the SSD fail. So a page first
lands here: it is verified here, and promised from here, where nothing of that can reach it. What is left is a copy
within this device, beside the forward, at the speed of its own memory.

It holds pages until they have been copied to where SGLang reads them, and no longer (`way/draining.py`): it is no
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...base.page import round_up
from ...base.runner import THREADS, Runner

if TYPE_CHECKING:  # a stack without an accelerator starts without torch
    import torch

    from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue

#: Each page begins at such a multiple of bytes: what GPUDirect Storage reads to without a detour.
_ALIGNMENT = 4096


class LandingSlots(Protocol):
    """Landing memory, as far as the tier stack has to do with it."""

    @property
    def slots(self) -> int: ...

    @property
    def used_slots(self) -> int: ...

    def give_back(self, slot: int) -> None:
        """Nothing in the slot is needed any more, and nothing is being copied there."""


def landing_slots(page_bytes: int, size_bytes: float) -> int:
    """Pages that so much landing memory holds: as many as fit, less one, in which digests are computed."""
    return int(size_bytes // round_up(page_bytes, _ALIGNMENT)) - 1


class Landing:
    """Slots of one page each. Any thread."""

    def __init__(self, accelerator: Accelerator, page_bytes: int, size_bytes: int, runner: Runner = THREADS) -> None:
        """As many whole pages as `size_bytes` hold, but one, on `accelerator`'s device. Raises ValueError if that is
        none, and torch.OutOfMemoryError where the device has not got the memory."""
        self.page_bytes = page_bytes
        self._stride = round_up(page_bytes, _ALIGNMENT)
        self.slots = landing_slots(page_bytes, size_bytes)
        if self.slots < 1:
            raise ValueError(f"{size_bytes} bytes of landing memory hold no page of {page_bytes}")
        #: uint8 [slots + 1, stride], on the device. The last row is for `digest`.
        self.memory: torch.Tensor = accelerator.device_memory(self.slots + 1, self._stride)
        self._flat = self.memory.view(-1)
        self._accelerator = accelerator
        self._queues = runner.local()
        self._scratch = runner.lock()
        self._lock = runner.lock()
        self._free = list(range(self.slots - 1, -1, -1))

    @property
    def used_slots(self) -> int:
        return self.slots - len(self._free)

    def take(self) -> int | None:
        """A slot, its content undefined; None if all are taken."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Nothing in the slot is needed any more, and nothing is being copied there."""
        with self._lock:
            self._free.append(slot)

    def digest(self, page: np.ndarray) -> bytes:
        """What `digests` says of these bytes of host memory, uint8 [page_bytes], when they have landed.

        Computed on the device too: a trip there costs less than the arithmetic here.
        """
        import torch

        row = slice(0, self.page_bytes)
        with self._scratch:
            self.queue.rows(torch.from_numpy(page)[None], self.memory[self.slots :, row])
            return self.digests([self.slots])[0]

    def fetch(self, memory: torch.Tensor, pages: Sequence[np.ndarray], slots: Sequence[int]) -> None:
        """Copy pages of a donor's `memory`, uint8 [bytes], each to its slot, in one go; they are there when this
        returns, and nothing is under way any more however it ends.

        A page is given by its pieces, int64 [n, 3] of (offset in memory, offset in the page, length in bytes).
        """
        pieces = np.concatenate(
            [page + np.array([0, slot * self._stride, 0]) for page, slot in zip(pages, slots, strict=True)]
        )
        try:
            self.queue.pieces(memory, self._flat, pieces)
        finally:
            self.queue.mark().synchronize()

    def digests(self, slots: Sequence[int]) -> list[bytes]:
        """The 128-bit digests (`kernels.page_digest`) of the pages in these slots, computed on the device."""
        return self.digests_in(self.memory, slots)

    def digests_in(self, memory: torch.Tensor, rows: Sequence[int]) -> list[bytes]:
        """The same of the pages in these rows of other memory of this device, uint8 [rows, stride]."""
        return self.queue.digests(memory, np.array(rows, dtype=np.int64), self.page_bytes)

    @property
    def queue(self) -> CopyQueue:
        """This thread's own."""
        if not hasattr(self._queues, "queue"):
            self._queues.queue = self._accelerator.queue()
        queue: CopyQueue = self._queues.queue
        return queue
