"""What a thread copies with: queues of its own, and memory in two halves, of which one is filled while the other is
emptied."""

from __future__ import annotations

import torch

from swift_tiers.kernels.copy_queue import Accelerator

#: Memory that a thread which copies may stage in, in halves: on the device, and as much page-locked if the host tier is
#: not; bytes.
STAGING_BYTES = 64 * 2**20

#: Two tensors, uint8 [pages, page_bytes] each.
Halves = list[torch.Tensor]


class StagingMemory:
    """Makes halves, and keeps those that were made before any thread needs them. Any thread."""

    def __init__(self, accelerator: Accelerator, page_bytes: int) -> None:
        self.rows = max(1, STAGING_BYTES // 2 // page_bytes)
        self._accelerator = accelerator
        self._page_bytes = page_bytes
        self._staging: list[Halves] = []
        self._locked: list[Halves] = []

    def staging(self) -> Halves:
        """On the device; the caller's own."""
        if self._staging:
            return self._staging.pop()
        return [self._accelerator.device_memory(self.rows, self._page_bytes) for _ in range(2)]

    def locked(self) -> Halves:
        """In page-locked host memory; the caller's own."""
        if self._locked:
            return self._locked.pop()
        return [self._accelerator.host_memory(self.rows, self._page_bytes) for _ in range(2)]

    def make_staging(self) -> torch.Tensor:
        """Have halves for the first thread that asks; one of them."""
        self._staging.append(self.staging())
        return self._staging[0][0]

    def make_locked(self) -> torch.Tensor:
        """Have halves for the first thread that asks; one of them."""
        self._locked.append(self.locked())
        return self._locked[0][0]


class CopySide:
    """One thread's."""

    def __init__(self, accelerator: Accelerator, buffers: StagingMemory) -> None:
        self.rows = buffers.rows
        self.kernels = accelerator.queue()
        self.engine = accelerator.queue()
        self._buffers = buffers
        self._staging: Halves | None = None
        self._locked: Halves | None = None

    @property
    def staging(self) -> Halves:
        """On the device."""
        if self._staging is None:
            self._staging = self._buffers.staging()
        return self._staging

    @property
    def locked(self) -> Halves:
        """In page-locked host memory."""
        if self._locked is None:
            self._locked = self._buffers.locked()
        return self._locked
