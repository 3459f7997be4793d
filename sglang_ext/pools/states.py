"""States that layers keep in place of KV (Mamba, gated delta nets), as pages.

A state stands for all tokens before it, and SGLang has one at the ends of some nodes of its tree. In the tiers it is a
chain of pages of its own, which follow the last page of the prefix that it is of: of the length of any other page,
kept, moved, verified and evicted as they are, and never without the pages before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue
from swift_tiers.kernels.page_gather import JoinedCopies, ListedCopy, PageCopy, page_lists
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError


def state_key(page_key: bytes, number: int) -> bytes:
    """The key of page `number`, from 0, of the state behind page `page_key`."""
    return hashlib.sha256(b"state %d behind " % number + page_key).digest()


class StatePool:
    """Copies states between their slots on the device and pages in host memory. One thread may copy out while another
    one copies in."""

    def __init__(
        self, states: Sequence[Sequence[torch.Tensor]], page_bytes: int, accelerator: Accelerator | None = None
    ) -> None:
        """`states`: of each kind (recurrent, convolution) the tensor of each layer, `[slots, ...]`; `page_bytes`: of a
        page of KV. Raises ConfigError where the device has no memory to pass a state through."""
        self.groups = [PoolPlanes([[layer] for layer in layers], 1) for layers in states]
        self.nbytes = sum(group.page_bytes for group in self.groups)
        self.pages = -(-self.nbytes // page_bytes)
        #: For people, and for the namespace: of each kind its dtype, and the shape of one layer's.
        self.kinds = ", ".join(
            f"{str(kind[0].dtype).removeprefix('torch.')} {tuple(kind[0].shape[1:])}" for kind in states
        )
        self.slots = min(group.pool_pages for group in self.groups)
        self._page_bytes = page_bytes
        try:
            self._passages = {out: _Passage(self, accelerator, out=out) for out in (True, False)}
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"--mem-fraction-static: leaves the device no room to pass states of {self.nbytes} bytes through; "
                "lower it"
            ) from None

    def keys(self, page_key: bytes) -> list[bytes]:
        """Those of the pages of the state behind page `page_key`."""
        return [state_key(page_key, number) for number in range(self.pages)]

    def copy_out(self, slot: int, after: Sequence[Any] = ()) -> np.ndarray:
        """The state in `slot`, once the device's events `after` have come: uint8 [pages, page_bytes], in memory of this
        pool's, as it is until the next call. Complete when it returns or raises. Raises IndexError if there is no such
        slot."""
        self._require(slot)
        return self._passages[True].copy_out(slot, after)

    def copy_in(self, slot: int, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any] = ()) -> None:
        """All pages of a state, in slab rows `slots`, to `slot`, once the device's events `after` have come. Nothing is
        written any more when it returns or raises."""
        self._require(slot)
        if len(slots) != self.pages:
            raise IndexError(f"{len(slots)} pages of a state of {self.pages}")
        self._passages[False].copy_in(slot, slab[:, : self._page_bytes], slots, after)

    def prepare(self) -> None:
        """Compile and load what copies launch."""
        for passage in self._passages.values():
            passage.copies.prepare()

    def _require(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise IndexError(f"a slot of {slot} is none of {self.slots}")


class _Passage:
    """Between slots and host memory, one way, with the memory that a state passes through."""

    def __init__(self, pool: StatePool, accelerator: Accelerator | None, *, out: bool) -> None:
        nbytes = pool.nbytes
        self._pages = pool.pages
        self._first = pool.groups[0]
        self._queue: CopyQueue | None = None
        # Whole pages; what no state fills stays zero.
        whole = pool.pages * pool._page_bytes
        if accelerator is None:
            self._row = torch.zeros((1, whole), dtype=torch.uint8)
        else:
            self._queue = accelerator.queue()
            self._row = accelerator.device_memory(1, whole)
            self._row[:, nbytes:] = 0
            self._queue.after(accelerator.mark_here())
            self._locked = accelerator.host_memory(pool.pages, pool._page_bytes)
        copies = list[ListedCopy]()
        offset = 0
        for group in pool.groups:
            copies.append(PageCopy(group, self._row, None, offset, out=out))
            offset += group.page_bytes
        self.copies = JoinedCopies(*copies)

    @property
    def _rows(self) -> torch.Tensor:
        return self._row.view(self._pages, -1)

    def copy_out(self, slot: int, after: Sequence[Any]) -> np.ndarray:
        self._between(slot, after)
        if self._queue is None:
            return self._rows.numpy()
        try:
            self._queue.rows(self._rows, self._locked)
        finally:
            self._queue.mark().synchronize()
        return self._locked.numpy()

    def copy_in(self, slot: int, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any]) -> None:
        if self._queue is None:
            self._rows.numpy()[...] = slab[slots]
            self._between(slot, after)
            return
        self._locked.numpy()[...] = slab[slots]
        try:
            self._queue.rows(self._locked, self._rows)
            self._between(slot, after)
        finally:
            self._queue.mark().synchronize()

    def _between(self, slot: int, after: Sequence[Any]) -> None:
        """Between `slot` and the row."""
        one, none = np.array([slot], np.int64), np.zeros(1, np.int64)
        if self._queue is None:
            for event in after:
                event.synchronize()
            self.copies.run(page_lists(self._first, one, self._row, none))
            return
        for event in after:
            self._queue.after(event)
        self._queue.copy(self.copies, self._queue.lists(self._first, one, self._row, none))
