"""A device pool in an accelerator's memory: loads layer by layer, stores page by page, beside the forward.

To the device, a kernel reads host memory across the link, a few neighbouring layers of all pages at a time. From the
device, a kernel gathers whole pages into one half of a staging buffer there while the copy engine empties the other.
Host memory that is not page-locked is passed through two buffers that are, by turns. What has landed on the device
already (`radix_tiering.landing`) is copied there by a kernel.

Pages that are kept in a codec are coded by the kernel that gathers them, and decoded by the one that loads them, all of
them: what crosses the link is the coded page.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import (
    Accelerator,
    CopyQueue,
    CudaAccelerator,
    QueueMark,
    addresses,
)
from swift_tiers.kernels.load_programs import measure_load_programs
from swift_tiers.kernels.page_codec import Codec, PageCode
from swift_tiers.kernels.page_copy import runs
from swift_tiers.kernels.page_digest import digests_pools, prepare_digests, prepare_pool_digests
from swift_tiers.kernels.page_gather import JoinedCopies, ListedCopy, PageCopy, PageLists
from swift_tiers.kernels.piece_copy import prepare_pieces
from swift_tiers.kernels.pool_planes import WIDER, PoolPlanes

from .device_pool import Came, DevicePool, LayerDone
from .sides import CopySide, StagingMemory

logger = logging.getLogger(__name__)

#: Layers are loaded together, as many as have so many bytes: what it takes to ask for a copy is then less than what the
#: copy takes on any link, and a forward waits a tenth of a millisecond longer for its first layer.
TOGETHER_BYTES = 4 * 2**20
#: As many besides as a forward may wait for: each time that a copy is asked for keeps its thread from launching.
MOST_LAYERS = 4
#: A kernel that writes host memory gets no more programs, or as many threads in wide ones: nobody waits for it, and a
#: forward needs the processors.
STORE_PROGRAMS = 64


def layer_groups(layers: range, layer_bytes: int, pages: int) -> list[range]:
    """Neighbouring `layers` that are loaded together, of so many pages.

    Few at first, so that a forward may begin, and at last, so that it has little left to do, but no less together than
    is worth asking for. Sizes double from either end."""
    least = -(-TOGETHER_BYTES // (pages * layer_bytes))
    most = max(least, MOST_LAYERS)
    first, last, rest, size = list[int](), list[int](), len(layers), least
    while rest:
        for sizes in (last, first):
            some = min(size, rest)
            if 0 < rest - some < least:  # which is too few by themselves
                some = rest if rest <= most else rest // 2
            if some:
                sizes.append(some)
            rest -= some
        size = min(2 * size, most)
    ends = layers.start + np.cumsum([0, *first, *reversed(last)])
    return [range(begin, end) for begin, end in itertools.pairwise(ends.tolist())]


class AcceleratorPool(DevicePool):
    """See the module. Any thread may copy; each has queues and staging memory of its own."""

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        accelerator: Accelerator,
        codec: str = "",
        front: Sequence[PoolPlanes] = (),
        rows: int = 0,
    ) -> None:
        """`codec`, `front` and `rows` as of any pool."""
        super().__init__(layers, page_size, codec, front, rows)
        self._codec = Codec.named(codec) if codec else None
        #: Of a kernel that reads host memory, at most; None: as many as the device holds. `prepare` measures it.
        self.load_programs: int | None = None
        self.accelerator: Accelerator = accelerator
        self._pool = PoolPlanes(layers, self.geometry.plane_rows)
        self._like = layers[0]
        self._sides = threading.local()
        self._copies: dict[tuple[Any, ...], ListedCopy] = {}
        self._buffers = StagingMemory(accelerator, self.geometry.page_bytes)

    def _side(self) -> CopySide:
        if not hasattr(self._sides, "side"):
            self._sides.side = CopySide(self.accelerator, self._buffers)
        side: CopySide = self._sides.side
        return side

    def prepare(self, slab: np.ndarray) -> None:
        whole = torch.from_numpy(slab)
        locked = self.accelerator.page_locked(whole)
        reached = whole if locked else self._buffers.make_locked()
        staging = self._buffers.make_staging() if locked else None
        self._measure(reached)
        self._compile(reached, staging)

    def _compile(self, slab: torch.Tensor, staging: torch.Tensor | None) -> None:
        """Every kernel that serves, as it serves: compiled at its first use, one would keep a forward waiting for a
        second, and be loaded when the device's memory is full. `slab`: what is loaded from and stored to."""
        copies = [
            self._copy_of(slab, self._all_layers, out=False, across=True),
            self._copy_of(slab if staging is None else staging, self._all_layers, out=True, across=staging is None),
        ]
        if self.landing is not None:
            copies.append(self._copy_of(self.landing, self._all_layers, out=False))
        if self.outgoing is not None:
            copies.append(self._copy_of(self.outgoing.memory, self._all_layers, out=True))
            prepare_digests(self.outgoing.memory, self.geometry.page_bytes)
        for copy in copies:
            copy.prepare()
        if self.states is not None:
            self.states.prepare()
        if self.has_digests:
            prepare_pool_digests(self._pools)
        if self.landing is not None:
            prepare_pieces(self.landing.view(-1))
            prepare_digests(self.landing, self.geometry.page_bytes)
        self.accelerator.mark_here().synchronize()

    def _measure(self, slab: torch.Tensor) -> None:
        try:
            self.load_programs = measure_load_programs(
                self.accelerator,
                self._like,
                self.geometry.plane_rows,
                slab,
                load=lambda pool, source: self._copy_between(pool, source, out=False, across=True),
            )
        except Exception:
            # Copies are right all the same.
            logger.exception("swift-tiers: it cannot be measured how many programs fill the link: all are used")
            return
        logger.info("swift-tiers: pages are loaded by a kernel of %s programs", self.load_programs or "all")

    def adopt_thread(self) -> None:
        self._side()

    @contextmanager
    def _copying(self, after: Sequence[Any]) -> Iterator[CopySide]:
        """Nothing that was queued is under way any more when this ends, however it does: both ends of a copy may then
        be given to others."""
        side = self._side()
        for event in after:
            side.kernels.after(event)
        try:
            yield side
        finally:
            try:
                side.kernels.mark().synchronize()
            finally:  # where one is lost, the other may still copy
                side.engine.mark().synchronize()

    def _copy_of(self, slab: torch.Tensor, layers: range, *, out: bool, across: bool = False) -> ListedCopy:
        """The copies of these layers between the pool and one of the few slabs that there are, made ready once; they
        code pages, where these are kept in a codec. `across`: the slab is host memory, beyond the link."""
        key = (slab.data_ptr(), slab.shape, slab.stride(0), layers, out)
        found = self._copies.get(key)
        if found is None:
            # It keeps the slab, so no other one can have its address.
            found = self._copies[key] = self._make_copy(slab, layers, out=out, across=across)
        return found

    def _make_copy(self, slab: torch.Tensor, layers: range, *, out: bool, across: bool) -> ListedCopy:
        begin = self.geometry.span(layers).start
        fronts = []
        for planes in self.front if layers.start == 0 else ():
            # Beside a codec's programs, which are not wide: both are as many.
            fronts.append(PageCopy(planes, slab, None, begin, out=out, wide=across and self._codec is None))
            begin += planes.page_bytes
        copy = self._copy_between(self._pool, slab, layers, begin, out=out, across=across)
        return JoinedCopies(*fronts, copy) if fronts else copy

    def _copy_between(
        self,
        pool: PoolPlanes,
        slab: torch.Tensor,
        layers: range | None = None,
        offset: int | None = None,
        *,
        out: bool,
        across: bool,
    ) -> ListedCopy:
        if self._codec is None:
            return PageCopy(pool, slab, layers, offset, out=out, wide=across)
        return PageCode(pool, slab, self._codec, layers, offset, out=out)

    @property
    def has_digests(self) -> bool:
        # What a codec makes of a page is not known before it is loaded.
        return self._codec is None and digests_pools(self._pools)

    def digests(self, pages: np.ndarray) -> np.ndarray:
        return self._side().kernels.pool_digests(self._pools, pages)

    @property
    def _pools(self) -> list[PoolPlanes]:
        """Of a page's parts, one after the other."""
        return [*self.front, self._pool]

    @property
    def _all_layers(self) -> range:
        return range(self.geometry.layers)

    # ---- to the device ----

    def _copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: LayerDone, after: Sequence[Any]
    ) -> None:
        with self._copying(after) as side:
            pages, slots = self._take_landed(side, pages, slab, slots, self._all_layers)
            if not len(pages):
                landed = side.kernels.mark()
                for layer in self._all_layers:
                    layer_done(layer, landed)
            for source, part, rows, is_last in self._page_locked(side, pages, slab, slots, self._all_layers):
                self._load(side, source, part, rows, self._all_layers, layer_done if is_last else None)

    def _copy_layer(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int, after: Sequence[Any]
    ) -> None:
        with self._copying(after) as side:
            pages, slots = self._take_landed(side, pages, slab, slots, range(layer, layer + 1))
            for source, part, rows, _ in self._page_locked(side, pages, slab, slots, range(layer, layer + 1)):
                self._load(side, source, part, rows, range(layer, layer + 1))

    def _take_landed(
        self, side: CopySide, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layers: range
    ) -> tuple[np.ndarray, np.ndarray]:
        """Queue the copies of what lies in landing memory, at once: it is faster there than the first layer from host
        memory. The others, pages and slots."""
        landed = slots >= len(slab)
        if landed.any():
            assert self.landing is not None, "a page is said to have landed, and there is no landing memory"
            lists = side.kernels.lists(self._pool, pages[landed], self.landing, slots[landed] - len(slab))
            side.kernels.copy(self._copy_of(self.landing, layers, out=False), lists)
        return pages[~landed], slots[~landed]

    def _load(
        self,
        side: CopySide,
        source: torch.Tensor,
        pages: np.ndarray,
        rows: np.ndarray,
        layers: range,
        layer_done: LayerDone | None = None,
    ) -> None:
        """Rows of page-locked `source` to pages of the pool, by a kernel that reads them; where `layer_done` is told of
        layers, with marks."""
        queue = side.kernels
        lists = side.lists(self._pool, pages, source, rows)
        for some in layer_groups(layers, self.geometry.layer_bytes, len(pages)):
            queue.copy(self._copy_of(source, some, out=False, across=True), lists, self.load_programs)
            if layer_done is not None:
                mark = queue.mark()
                for layer in some:
                    layer_done(layer, mark)

    def _page_locked(
        self, side: CopySide, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layers: range
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray, bool]]:
        """(memory that the device reaches, pool pages, their rows of that memory, whether these are the last), with
        the bytes of `layers` in it."""
        if not len(pages):
            return
        whole = torch.from_numpy(slab)
        if self.accelerator.page_locked(whole):
            yield whole, pages, slots, True
            return
        part = self.geometry.span(layers)
        used: list[QueueMark | None] = [None, None]
        for number, start in enumerate(range(0, len(pages), side.rows)):
            half, before = side.locked[number % 2], used[number % 2]
            if before is not None:
                before.synchronize()
            rows = slots[start : start + side.rows]
            half.numpy()[: len(rows), part] = slab[rows, part]
            stop = start + len(rows)
            yield half, pages[start:stop], np.arange(len(rows), dtype=np.int64), stop == len(pages)
            used[number % 2] = side.kernels.mark()

    # ---- from the device ----

    def _copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any], came: Came
    ) -> None:
        with self._copying(after) as side:
            whole = torch.from_numpy(slab)
            if not self.accelerator.page_locked(whole):
                self._store_unlocked(side, pages, slab, slots, came)
                return
            self._store_staged(side, pages, whole, slots, came)

    def _copy_aside(self, pages: np.ndarray, rows: np.ndarray, after: Sequence[Any]) -> None:
        assert self.outgoing is not None
        with self._copying(after) as side:
            self._gather(side.kernels, pages, self.outgoing.memory, rows)

    def _gather(
        self, queue: CopyQueue, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray, *, across: bool = False
    ) -> None:
        most = STORE_PROGRAMS if self._codec is not None else STORE_PROGRAMS // WIDER
        copy = self._copy_of(slab, self._all_layers, out=True, across=across)
        queue.copy(copy, queue.lists(self._pool, pages, slab, slots), most if across else None)

    def _store_staged(
        self, side: CopySide, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray, came: Came
    ) -> None:
        """Through both halves of the staging memory on the device: one is filled while the other is emptied. `came` is
        told of those that are there while two pieces more are under way."""
        under_way: deque[tuple[QueueMark, int, int]] = deque()
        emptied: list[QueueMark | None] = [None, None]
        step, room = len(side.staging[0]), slab[:, : self.geometry.page_bytes]
        rows = np.arange(len(pages), dtype=np.int64) % step
        lists = side.kernels.lists(self._pool, pages, side.staging[0], rows)
        sources, targets = [addresses(half, rows[:step]) for half in side.staging], addresses(slab, slots)
        copies = [self._copy_of(half, self._all_layers, out=True) for half in side.staging]
        for number, start in enumerate(range(0, len(pages), step)):
            turn, part = number % 2, slice(start, start + step)
            half, before = side.staging[turn], emptied[turn]
            if before is not None:
                side.kernels.after(before)
            side.kernels.copy(copies[turn], PageLists(lists.pages[part], lists.slots[part]))
            side.engine.after(side.kernels.mark())
            if self.accelerator.copies_lists:
                theirs = targets[part]
                side.engine.listed(sources[turn][: len(theirs)], theirs, self.geometry.page_bytes)
            else:
                for row, slot, count in runs(rows[part], slots[part]):
                    side.engine.rows(half[row : row + count], room[slot : slot + count])
            emptied[turn] = mark = side.engine.mark()
            under_way.append((mark, start, min(start + step, len(pages))))
            if len(under_way) > 2:
                self._tell(under_way, came)
        while under_way:
            self._tell(under_way, came)

    @staticmethod
    def _tell(under_way: deque[tuple[QueueMark, int, int]], came: Came) -> None:
        mark, first, end = under_way.popleft()
        mark.synchronize()
        came(np.arange(first, end, dtype=np.int64))

    def _store_unlocked(
        self, side: CopySide, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, came: Came
    ) -> None:
        """Through both page-locked halves: a piece is on its way while this thread copies the one before it."""
        nbytes = self.geometry.page_bytes
        under_way: deque[tuple[QueueMark, torch.Tensor, int, np.ndarray]] = deque()

        def take() -> None:
            mark, half, first, targets = under_way.popleft()
            mark.synchronize()
            slab[targets, :nbytes] = half.numpy()[: len(targets), :nbytes]
            came(np.arange(first, first + len(targets), dtype=np.int64))

        for number, start in enumerate(range(0, len(pages), side.rows)):
            if len(under_way) == 2:
                take()
            half, targets = side.locked[number % 2], slots[start : start + side.rows]
            rows = np.arange(len(targets), dtype=np.int64)
            self._gather(side.kernels, pages[start : start + side.rows], half, rows, across=True)
            under_way.append((side.kernels.mark(), half, start, targets))
        while under_way:
            take()


def open_cuda_pool(
    layers: Sequence[Sequence[torch.Tensor]],
    page_size: int,
    codec: str = "",
    front: Sequence[PoolPlanes] = (),
    rows: int = 0,
) -> AcceleratorPool:
    """A pool on a CUDA device, which `prepare` measures."""
    return AcceleratorPool(layers, page_size, CudaAccelerator(layers[0][0].device), codec, front, rows)
