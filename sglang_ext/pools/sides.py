"""What a thread copies with: queues of its own, and memory in two halves, of which one is filled while the other is
emptied."""

from __future__ import annotations

import logging

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_gather import PageLists
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import format_size

logger = logging.getLogger(__name__)

#: Memory that a thread which copies may stage in, in halves: on the device, and as much page-locked if the host tier is
#: not; bytes.
STAGING_BYTES = 128 * 2**20

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
        """On the device, smaller where it has not got the memory; the caller's own. Raises torch.OutOfMemoryError where
        it has none for two pages."""
        return self._staging.pop() if self._staging else self._halves()

    def _halves(self) -> Halves:
        rows = self.rows
        while True:
            try:
                return list(self._accelerator.device_memory(2 * rows, self._page_bytes).split(rows))
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
                rows //= 2

    def locked(self) -> Halves:
        """In page-locked host memory; the caller's own."""
        if self._locked:
            return self._locked.pop()
        return [self._accelerator.host_memory(self.rows, self._page_bytes) for _ in range(2)]

    def make_staging(self) -> torch.Tensor:
        """Have halves for the first thread that asks; one of them. Raises ConfigError where there is no room."""
        try:
            made = self._halves()
        except torch.OutOfMemoryError:
            raise ConfigError(
                "--mem-fraction-static: leaves the device no room for two pages of "
                f"{format_size(self._page_bytes)}, in which copies to and from host memory are staged; lower it"
            ) from None
        self._staging.append(made)
        size = sum(half.nbytes for half in made)
        logger.info("swift-tiers: %s of the device's memory for copies", format_size(size))
        return made[0]

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
        self._uploaded: tuple[tuple[int, int], np.ndarray, np.ndarray, PageLists] | None = None

    def lists(self, pool: PoolPlanes, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray) -> PageLists:
        """For copies on `kernels`; not uploaded again where they are what was asked for last, as of a load that comes
        one layer at a time."""
        # The limits that lists are checked against.
        limits = pool.pool_pages, slab.shape[0]
        last = self._uploaded
        if last is None or last[0] != limits or not (np.array_equal(last[1], pages) and np.array_equal(last[2], slots)):
            last = (limits, pages.copy(), slots.copy(), self.kernels.lists(pool, pages, slab, slots))
            self._uploaded = last
        return last[3]

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
