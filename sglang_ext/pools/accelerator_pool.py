"""A device pool in an accelerator's memory: loads layer by layer, stores page by page, beside the forward.

To the device, the copy engine brings layers of many pages into one half of a staging buffer there, while a kernel takes
those in the other half to where SGLang reads them; from the device, a kernel gathers whole pages into one half while
the copy engine empties the other. Where the engine takes no lists of copies, or pages are too short for it, or one
layer is asked for, a kernel that reads host memory itself loads. Host memory that is not page-locked is passed through
two buffers that are, by turns. What has landed on the device already (`radix_tiering.landing`) is copied there by a
kernel.

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
from swift_tiers.kernels.pool_planes import PoolPlanes

from .device_pool import Came, DevicePool, LayerDone
from .sides import CopySide, StagingMemory

logger = logging.getLogger(__name__)

#: Layers are loaded together, as many as have so many bytes: what it takes to ask for a copy is then less than what the
#: copy takes on any link, and a forward waits a tenth of a millisecond longer for its first layer.
TOGETHER_BYTES = 4 * 2**20
#: A kernel that writes host memory gets no more programs: nobody waits for it, and a forward needs the processors.
STORE_PROGRAMS = 64
#: What the copy engine brings of a page at a time, of neighbouring layers: shorter pieces leave the link waiting.
STRIP_BYTES = 256 * 2**10
#: Pages that are shorter go by kernels, and pieces of pages are no shorter: the copy engine takes longer over less than
#: the link, and over 16 KiB ten times as long.
LISTED_BYTES = 64 * 2**10


def strip_layers(layers: int, layer_bytes: int) -> int:
    """How many layers of a page the copy engine brings together, at most."""
    return min(layers, max(1, -(-STRIP_BYTES // layer_bytes)))


def layer_groups(layers: int, layer_bytes: int, pages: int) -> list[range]:
    """Neighbouring layers that are loaded together, of pages that are more than a half of the staging memory holds.

    Few at first, so that a forward may begin, and at last, so that it has little left to do: as many as make pieces
    that the copy engine is not slow over, and no less together than is worth asking for. Sizes double from either
    end."""
    most = strip_layers(layers, layer_bytes)
    least = min(most, max(-(-LISTED_BYTES // layer_bytes), -(-TOGETHER_BYTES // (pages * layer_bytes))))
    first, last, rest, size = list[int](), list[int](), layers, least
    while rest:
        for sizes in (last, first):
            some = min(size, rest)
            if 0 < rest - some < least:  # which is too few by themselves
                some = rest if rest <= most else rest // 2
            if some:
                sizes.append(some)
            rest -= some
        size = min(2 * size, most)
    begins = np.cumsum([0, *first, *reversed(last)]).tolist()
    return [range(begin, end) for begin, end in itertools.pairwise(begins)]


class AcceleratorPool(DevicePool):
    """See the module. Any thread may copy; each has queues and staging memory of its own."""

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        accelerator: Accelerator,
        codec: str = "",
        front: Sequence[PoolPlanes] = (),
    ) -> None:
        """`codec` and `front` as of any pool."""
        super().__init__(layers, page_size, codec, front)
        self._codec = Codec.named(codec) if codec else None
        #: Of a kernel that reads host memory; None: as many as the device holds. `prepare` measures it.
        self.load_programs: int | None = None
        self.accelerator: Accelerator = accelerator
        self._pool = PoolPlanes(layers, page_size)
        self._like = layers[0]
        self._sides = threading.local()
        self._copies: dict[tuple[Any, ...], ListedCopy] = {}
        self._buffers = StagingMemory(accelerator, self.geometry.page_bytes)
        #: Whether loads go by the copy engine, lists of pages in one call, by way of staging memory.
        self._listed = accelerator.copies_lists and self.geometry.page_bytes >= LISTED_BYTES
        self._strip_layers = range(strip_layers(self.geometry.layers, self.geometry.layer_bytes))

    def _side(self) -> CopySide:
        if not hasattr(self._sides, "side"):
            self._sides.side = CopySide(self.accelerator, self._buffers)
        side: CopySide = self._sides.side
        return side

    def prepare(self, slab: np.ndarray) -> None:
        whole = torch.from_numpy(slab)
        locked = self.accelerator.page_locked(whole)
        reached = whole if locked else self._buffers.make_locked()
        # Of who offloads, and of who loads.
        staging = self._buffers.make_staging(1 + self._listed) if locked else None
        self._measure(reached)
        self._compile(reached, staging)

    def _compile(self, slab: torch.Tensor, staging: torch.Tensor | None) -> None:
        """Every kernel that serves, as it serves: compiled at its first use, one would keep a forward waiting for a
        second, and be loaded when the device's memory is full. `slab`: what is loaded from and stored to."""
        copies = [
            self._copy_of(slab, self._all_layers, out=False),
            self._copy_of(slab if staging is None else staging, self._all_layers, out=True),
        ]
        if staging is not None and self._listed:
            copies.append(self._copy_of(staging, self._all_layers, out=False))
            strips = self._strips(staging)
            # Of the first layers, with what lies in front of them, and of others.
            copies.append(self._copy_of(strips, self._strip_layers, 0, out=False))
            if self.geometry.layers > 1:
                copies.append(self._copy_of(strips, self._all_layers[1:2], 0, out=False))
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
                self.page_size,
                slab,
                load=lambda pool, source: self._copy_between(pool, source, out=False),
            )
        except Exception:
            # Copies are right all the same.
            logger.exception("swift-tiers: it cannot be measured how many programs fill the link: all are used")
            return
        way = "by the copy engine" if self._listed else "by a kernel"
        logger.info("swift-tiers: pages are loaded %s; a kernel has %s programs", way, self.load_programs or "all")

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

    def _copy_of(self, slab: torch.Tensor, layers: range, offset: int | None = None, *, out: bool) -> ListedCopy:
        """The copies of these layers between the pool and one of the few slabs that there are, made ready once; they
        code pages, where these are kept in a codec. `offset`: of the first layer in a row; None: as in a page."""
        key = (slab.data_ptr(), slab.shape, slab.stride(0), layers, offset, out)
        found = self._copies.get(key)
        if found is None:
            # It keeps the slab, so no other one can have its address.
            found = self._copies[key] = self._make_copy(slab, layers, offset, out=out)
        return found

    def _make_copy(self, slab: torch.Tensor, layers: range, offset: int | None, *, out: bool) -> ListedCopy:
        begin = self.geometry.span(layers).start if offset is None else offset
        fronts = []
        for planes in self.front if layers.start == 0 else ():
            fronts.append(PageCopy(planes, slab, None, begin, out=out))
            begin += planes.page_bytes
        copy = self._copy_between(self._pool, slab, layers, begin, out=out)
        return JoinedCopies(*fronts, copy) if fronts else copy

    def _copy_between(
        self,
        pool: PoolPlanes,
        slab: torch.Tensor,
        layers: range | None = None,
        offset: int | None = None,
        *,
        out: bool,
    ) -> ListedCopy:
        if self._codec is None:
            return PageCopy(pool, slab, layers, offset, out=out)
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
            elif self._listed and self.accelerator.page_locked(whole := torch.from_numpy(slab)):
                self._load_staged(side, whole, pages, slots, layer_done)
                return
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
        step = max(1, -(-TOGETHER_BYTES // (len(pages) * self.geometry.layer_bytes)))
        for first in range(layers.start, layers.stop, step):
            some = range(first, min(first + step, layers.stop))
            queue.copy(self._copy_of(source, some, out=False), lists, self.load_programs)
            if layer_done is not None:
                mark = queue.mark()
                for layer in some:
                    layer_done(layer, mark)

    def _load_staged(
        self, side: CopySide, source: torch.Tensor, pages: np.ndarray, rows: np.ndarray, layer_done: LayerDone
    ) -> None:
        """All layers of rows of page-locked `source`, by way of both halves of the staging memory: the copy engine
        brings layers of many pages into one, while a kernel takes those in the other to the pool, at the speed of the
        device's own memory. A forward has its processors to itself but for that moment."""
        count, layer_bytes = len(pages), self.geometry.layer_bytes
        halves, groups = side.staging, [self._all_layers]
        if count > len(halves[0]):
            halves = [self._strips(half) for half in halves]
            groups = layer_groups(self.geometry.layers, layer_bytes, count)
        step = len(halves[0])
        places = np.arange(count, dtype=np.int64) % step
        # Once a load: an upload between copies would wait for the link, and whoever asks for copies keeps the forward's
        # thread from the interpreter.
        lists = side.lists(self._pool, pages, halves[0], places)
        parts = [slice(start, start + step) for start in range(0, count, step)]
        some_pages = [PageLists(lists.pages[part], lists.slots[part]) for part in parts]
        sources, targets = addresses(source, rows), [addresses(half, places[:step]) for half in halves]
        emptied: list[QueueMark | None] = [None, None]
        turns = itertools.cycle((0, 1))
        for layers in groups:
            part_of_page = self.geometry.span(layers)
            width, strip = part_of_page.stop - part_of_page.start, sources + np.uint64(part_of_page.start)
            copies = [self._copy_of(half, layers, 0, out=False) for half in halves]
            for part, pages_of_it in zip(parts, some_pages, strict=True):
                turn = next(turns)
                if (before := emptied[turn]) is not None:
                    side.engine.after(before)
                theirs = strip[part]
                side.engine.listed(theirs, targets[turn][: len(theirs)], width)
                side.kernels.after(side.engine.mark())
                side.kernels.copy(copies[turn], pages_of_it)
                emptied[turn] = side.kernels.mark()
            mark = side.kernels.mark()
            for layer in layers:
                layer_done(layer, mark)

    def _strips(self, half: torch.Tensor) -> torch.Tensor:
        """A half of the staging memory as rows of `_strip_layers` each, with what lies in front of the first one."""
        width = self.geometry.span(self._strip_layers).stop
        rows = half.numel() // width
        return half.view(-1)[: rows * width].view(rows, width)

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
        self, queue: CopyQueue, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray, most: int | None = None
    ) -> None:
        copy = self._copy_of(slab, self._all_layers, out=True)
        queue.copy(copy, queue.lists(self._pool, pages, slab, slots), most)

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
            most = min(self.load_programs or STORE_PROGRAMS, STORE_PROGRAMS)
            self._gather(side.kernels, pages[start : start + side.rows], half, rows, most)
            under_way.append((side.kernels.mark(), half, start, targets))
        while under_way:
            take()


def open_cuda_pool(
    layers: Sequence[Sequence[torch.Tensor]], page_size: int, codec: str = "", front: Sequence[PoolPlanes] = ()
) -> AcceleratorPool:
    """A pool on a CUDA device, which `prepare` measures."""
    return AcceleratorPool(layers, page_size, CudaAccelerator(layers[0][0].device), codec, front)
