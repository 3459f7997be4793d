"""What a prefix needs behind it, beside the KV of all its tokens: states and windows, as pages.

A state is what layers keep in place of KV (Mamba, gated delta nets): it stands for all tokens before it. A window is
the KV that layers with a sliding window have of the last tokens alone, in a pool of their own; it is called a state
from here on, too. Both belong to one length of a prefix, and SGLang has them at the ends of some nodes of its tree. In
the tiers each is a chain of pages of its own, which follow the last page of the prefix that it is of: of the length of
any other page, kept, moved, verified and evicted as they are, and never without the pages before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue, QueueMark
from swift_tiers.kernels.page_gather import JoinedCopies, ListedCopy, PageCopy, page_lists
from swift_tiers.kernels.pool_planes import PoolPlanes, whole_pages
from swift_tiers.radix_tiering.base.errors import ConfigError


def state_key(page_key: bytes, number: int) -> bytes:
    """The key of page `number`, from 0, of the state behind page `page_key`."""
    return hashlib.sha256(b"state %d behind " % number + page_key).digest()


class StatePool:
    """Copies states between their slots on the device and pages in host memory. One thread may copy out while another
    one copies in.

    A state has `parts`, each in a slot of its own: one, or of a window as many as it has pages of the device's pool.
    """

    def __init__(
        self,
        groups: Sequence[PoolPlanes],
        page_bytes: int,
        accelerator: Accelerator | None = None,
        *,
        parts: int = 1,
        slot_tokens: int = 1,
        windows: bool = False,
        kinds: str = "",
    ) -> None:
        """`groups`: of each kind of which a part has something, its planes, a slot being a page of theirs;
        `page_bytes`: of a page of KV; `slot_tokens`: rows of SGLang's that a slot has; `windows`: whether these are
        windows; `kinds`: for people, and for the namespace: all that tells these states from others. Raises ConfigError
        where the device has no memory to pass a state through."""
        self.groups = list(groups)
        self.parts = parts
        self.slot_tokens = slot_tokens
        self.windows = windows
        self.kinds = kinds
        self.part_bytes = sum(group.page_bytes for group in self.groups)
        self.nbytes = parts * self.part_bytes
        self.pages = -(-self.nbytes // page_bytes)
        self.slots = min(group.pool_pages for group in self.groups)
        self._page_bytes = page_bytes
        try:
            self._passages = {out: _Passage(self, accelerator, out=out) for out in (True, False)}
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"--mem-fraction-static: leaves the device no room to pass states of {self.nbytes} bytes through; "
                "lower it"
            ) from None

    @classmethod
    def of_layers(
        cls, states: Sequence[Sequence[torch.Tensor]], page_bytes: int, accelerator: Accelerator | None = None
    ) -> StatePool:
        """`states`: of each kind (recurrent, convolution) the tensor of each layer, `[slots, ...]`."""
        kinds = ", ".join(f"{dtype_name(kind[0])} {tuple(kind[0].shape[1:])}" for kind in states)
        groups = [PoolPlanes([[layer] for layer in layers], 1) for layers in states]
        return cls(groups, page_bytes, accelerator, kinds=kinds)

    @classmethod
    def of_windows(
        cls,
        windows: Sequence[PoolPlanes],
        tokens: int,
        page_size: int,
        page_bytes: int,
        accelerator: Accelerator | None = None,
        *,
        kinds: str = "",
    ) -> StatePool:
        """`windows`: the pool of the layers with a sliding window, in pages of `page_size` tokens, as all others, and
        what else lies in these pages; `tokens`: of which SGLang keeps them; `kinds`: what else tells them apart."""
        one = windows[0].flat[0]
        known = (
            f"{windows[0].layers} layers of the last {tokens} tokens, {dtype_name(one)} {tuple(one.shape[1:])}{kinds}"
        )
        parts = -(-tokens // page_size)
        return cls(windows, page_bytes, accelerator, parts=parts, slot_tokens=page_size, windows=True, kinds=known)

    def slots_of(self, rows: np.ndarray) -> np.ndarray:
        """The slots that SGLang's `rows` are, int64; none where it has given some of a window up. Raises ValueError
        where they are not whole slots."""
        if self.windows and not rows.all():  # row 0 is nobody's
            return np.empty(0, np.int64)
        slots = whole_pages(rows, self.slot_tokens)
        if slots is None:
            raise ValueError("rows of a state are not whole slots")
        return slots

    def keys(self, page_key: bytes) -> list[bytes]:
        """Those of the pages of the state behind page `page_key`."""
        return [state_key(page_key, number) for number in range(self.pages)]

    def copy_out(self, slots: np.ndarray, after: Sequence[Any] = ()) -> np.ndarray:
        """The state whose last parts are in `slots`, once the device's events `after` have come: uint8
        [pages, page_bytes], in memory of this pool's, as it is until the next call; zero where it has fewer parts,
        since its prefix is shorter than a window. Complete when it returns or raises. Raises IndexError if there is no
        such slot."""
        self._require(slots)
        found = self._passages[True].copy_out(slots, after)
        found.reshape(-1)[: (self.parts - len(slots)) * self.part_bytes] = 0
        return found

    def copy_in(
        self, slots: np.ndarray, slab: np.ndarray, pages: np.ndarray, after: Sequence[Any] = ()
    ) -> QueueMark | None:
        """The last parts of a state, all of whose pages are in slab rows `pages`, to `slots`, once the device's events
        `after` have come. Complete once the mark is reached; None: when it returns. The slab is read by then, and
        nothing is waited for that the device has still to do. Nothing is written any more when it raises, or after
        `settle`."""
        self._require(slots)
        if len(pages) != self.pages:
            raise IndexError(f"{len(pages)} pages of a state of {self.pages}")
        return self._passages[False].copy_in(slots, slab[:, : self._page_bytes], pages, after)

    def settle(self) -> None:
        """Wait until nothing is written any more that `copy_in` was asked for."""
        self._passages[False].settle()

    def prepare(self) -> None:
        """Compile and load what copies launch."""
        for passage in self._passages.values():
            passage.copies.prepare()

    def _require(self, slots: np.ndarray) -> None:
        if not 0 < len(slots) <= self.parts:
            raise IndexError(f"{len(slots)} slots for the {self.parts} of a state")
        if not 0 <= slots.min() <= slots.max() < self.slots:
            raise IndexError(f"a slot of {int(slots.min())} to {int(slots.max())} is none of {self.slots}")


def copy_rows(source: np.ndarray, sources: Iterable[int], target: np.ndarray, targets: Iterable[int]) -> None:
    """Rows of one array to rows of another one. One by one: to take them all together costs three times as much, for
    they go by way of a temporary as large as all of them."""
    for one, other in zip(sources, targets, strict=True):
        target[other] = source[one]


def dtype_name(tensor: torch.Tensor) -> str:
    """Of its dtype."""
    return str(tensor.dtype).removeprefix("torch.")


class _Passage:
    """Between slots and host memory, one way, with the memory that a state passes through."""

    def __init__(self, pool: StatePool, accelerator: Accelerator | None, *, out: bool) -> None:
        self._first = pool.groups[0]
        self._queue: CopyQueue | None = None
        self._newest: QueueMark | None = None  # of the copies to the device
        # Whole pages; what no state fills stays zero.
        whole = pool.pages * pool._page_bytes
        if accelerator is None:
            memory = torch.zeros((1, whole), dtype=torch.uint8)
        else:
            self._queue = accelerator.queue()
            memory = accelerator.device_memory(1, whole)
            memory[:, pool.nbytes :] = 0
            self._queue.after(accelerator.mark_here())
            self._locked = accelerator.host_memory(pool.pages, pool._page_bytes)
        #: The same bytes: as pages of host memory, and as parts of a state.
        self._rows = memory.view(pool.pages, -1)
        self._parts = memory[0, : pool.nbytes].view(pool.parts, -1)
        copies = list[ListedCopy]()
        offset = 0
        for group in pool.groups:
            copies.append(PageCopy(group, self._parts, None, offset, out=out))
            offset += group.page_bytes
        self.copies = JoinedCopies(*copies)

    def copy_out(self, slots: np.ndarray, after: Sequence[Any]) -> np.ndarray:
        self._between(slots, after)
        if self._queue is None:
            return self._rows.numpy()
        try:
            self._queue.rows(self._rows, self._locked)
        finally:
            self._queue.mark().synchronize()
        return self._locked.numpy()

    def copy_in(self, slots: np.ndarray, slab: np.ndarray, pages: np.ndarray, after: Sequence[Any]) -> QueueMark | None:
        if self._queue is None:
            copy_rows(slab, pages, self._rows.numpy(), range(len(pages)))
            self._between(slots, after)
            return None
        self.settle()  # the one before passes through the same memory
        copy_rows(slab, pages, self._locked.numpy(), range(len(pages)))
        try:
            self._queue.rows(self._locked, self._rows)
            self._between(slots, after)
        except BaseException:
            self._queue.mark().synchronize()
            raise
        self._newest = self._queue.mark()
        return self._newest

    def settle(self) -> None:
        if self._newest is not None:
            self._newest.synchronize()
            self._newest = None

    def _between(self, slots: np.ndarray, after: Sequence[Any]) -> None:
        """Between `slots` and the last parts."""
        parts = np.arange(len(self._parts) - len(slots), len(self._parts), dtype=np.int64)
        if self._queue is None:
            for event in after:
                event.synchronize()
            self.copies.run(page_lists(self._first, slots, self._parts, parts))
            return
        for event in after:
            self._queue.after(event)
        self._queue.copy(self.copies, self._queue.lists(self._first, slots, self._parts, parts))
