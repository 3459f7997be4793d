"""A device pool in an accelerator's memory: loads layer by layer, stores page by page, beside the forward.

To the device, a layer of a run of neighbouring pages goes by the copy engine straight to where SGLang reads it; what is
scattered goes by a kernel that reads host memory itself. From the device, a kernel gathers whole pages into one half of
a staging buffer while the copy engine empties the other. Host memory that is not page-locked is passed through two
buffers that are, by turns. What has landed on the device already (`radix_tiering.landing`) is copied there by a kernel.

Pages that are kept in a codec are coded by the kernel that gathers them, and decoded by the one that loads them, all of
them: what crosses the link is the coded page.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue, CudaAccelerator, ListedCopy, QueueMark
from swift_tiers.kernels.page_codec import Codec, PageCode
from swift_tiers.kernels.page_copy import runs
from swift_tiers.kernels.page_digest import digests_pool, prepare_digests, prepare_pool_digests
from swift_tiers.kernels.page_gather import PageCopy, PageLists
from swift_tiers.kernels.piece_copy import prepare_pieces
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.kernels.switch_over import SwitchOver, measure_switch_over

from .device_pool import Came, DevicePool, LayerDone, as_pages
from .sides import CopySide, StagingMemory

logger = logging.getLogger(__name__)

#: Layers are loaded together, as many as have so many bytes: what it takes to ask for a copy is then less than what the
#: copy takes on any link, and a forward waits a tenth of a millisecond longer for its first layer.
TOGETHER_BYTES = 4 * 2**20
#: What the copy engine brings of a page at a time, of neighbouring layers: shorter pieces leave the link waiting.
STRIP_BYTES = 256 * 2**10
#: Pages that are shorter go by kernels: the copy engine takes longer over so short a piece than the link.
LISTED_BYTES = 64 * 2**10


class Pieces(NamedTuple):
    """A list of pairs of pages, split by the way that each goes."""

    runs: list[tuple[int, int, int]]  # (first page, first slot, length), for the copy engine
    pages: np.ndarray  # of the others: int64 [n]
    slots: np.ndarray


def split_runs(pages: np.ndarray, slots: np.ndarray, least: int) -> Pieces:
    """Runs of at least `least` pairs that grow by one on both sides, and the pairs in no such run, in their order."""
    long, rest, at = [], np.ones(len(pages), dtype=bool), 0
    for page, slot, count in runs(pages, slots):
        if count >= least:
            long.append((page, slot, count))
            rest[at : at + count] = False
        at += count
    return Pieces(long, pages[rest], slots[rest])


def layer_groups(layers: int, least: int, most: int) -> list[range]:
    """Neighbouring layers that are loaded together: `least` of them at first, so that a forward may begin, and at last,
    so that it has little left to do; in between `most`. Sizes double from either end."""
    first, last, rest, size = list[int](), list[int](), layers, least
    while rest:
        for sizes in (last, first):
            some = min(size, rest)
            if some:
                sizes.append(some)
            rest -= some
        size = min(2 * size, most)
    begins = np.cumsum([0, *first, *reversed(last)]).tolist()
    return [range(begin, end) for begin, end in pairwise(begins)]


class AcceleratorPool(DevicePool):
    """See the module. Any thread may copy; each has queues and staging memory of its own."""

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        accelerator: Accelerator,
        switch_over: SwitchOver | None = None,
        codec: str = "",
    ) -> None:
        """`switch_over`: measured by `prepare` unless given. `codec`: in which pages are kept below; empty: as they
        are."""
        super().__init__(layers, page_size, codec)
        self._codec = Codec.named(codec) if codec else None
        self.switch_over = switch_over or SwitchOver()
        self._measures = switch_over is None
        self.accelerator: Accelerator = accelerator
        self._pool = PoolPlanes(layers, page_size)
        self._like = layers[0]
        self._planes = [[as_pages(plane, page_size) for plane in planes] for planes in layers]
        self._sides = threading.local()
        self._copies: dict[tuple[Any, ...], ListedCopy] = {}
        self._buffers = StagingMemory(accelerator, self.geometry.page_bytes)
        #: Whether whole pages go by the copy engine, lists of them in one call, by way of staging memory.
        self._listed = accelerator.copies_lists and self.geometry.page_bytes >= LISTED_BYTES
        self._strip_layers = min(self.geometry.layers, max(1, STRIP_BYTES // self.geometry.layer_bytes))

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
        if self._measures:
            self._measure(reached)
        self._compile(reached, staging)

    def _compile(self, slab: torch.Tensor, staging: torch.Tensor | None) -> None:
        """Every kernel that serves, as it serves: compiled at its first use, one would keep a forward waiting for a
        second, and be loaded when the device's memory is full. `slab`: what is loaded from and stored to."""
        copies = [self._copy_of(slab, self._all_layers, out=False)]
        if staging is not None:
            copies.append(self._copy_of(staging, self._all_layers, out=True))
        if staging is not None and self._listed:
            copies.append(self._copy_of(staging, self._all_layers, out=False))
            copies.append(self._copy_of(self._strips(staging), range(self._strip_layers), 0, out=False))
        else:
            copies.append(self._copy_of(slab, self._all_layers, out=True))
        if self.landing is not None:
            copies.append(self._copy_of(self.landing, self._all_layers, out=False))
        if self.outgoing is not None:
            copies.append(self._copy_of(self.outgoing.memory, self._all_layers, out=True))
            prepare_digests(self.outgoing.memory, self.geometry.page_bytes)
        for copy in copies:
            copy.prepare()
        if self.has_digests:
            prepare_pool_digests(self._pool)
        if self.landing is not None:
            prepare_pieces(self.landing.view(-1))
            prepare_digests(self.landing, self.geometry.page_bytes)
        self.accelerator.mark_here().synchronize()

    def _measure(self, slab: torch.Tensor) -> None:
        try:
            self.switch_over = found = measure_switch_over(
                self.accelerator,
                self._like,
                self.page_size,
                self.geometry.layers,
                slab,
                load=lambda pool, source: self._copy_between(pool, source, out=False),
            )
        except Exception:
            # What is not known is guessed: copies are right all the same.
            logger.exception("swift-tiers: the copy engine and kernels cannot be measured: %s", self.switch_over)
            return
        logger.info(
            "swift-tiers: runs of %d pages and more are loaded by the copy engine, of %d and more stored; "
            "a kernel loads with %s programs",
            1 if self._listed else found.load_pages,
            1 if self._listed else found.store_pages,
            found.load_programs or "all",
        )

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
            side.kernels.mark().synchronize()
            side.engine.mark().synchronize()

    def _copy_of(self, slab: torch.Tensor, layers: range, offset: int | None = None, *, out: bool) -> ListedCopy:
        """The copies of these layers between the pool and one of the few slabs that there are, made ready once; they
        code pages, where these are kept in a codec. `offset`: of the first layer in a row; None: as in a page."""
        key = (slab.data_ptr(), slab.shape, slab.stride(0), layers, offset, out)
        found = self._copies.get(key)
        if found is None:
            # It keeps the slab, so no other one can have its address.
            found = self._copies[key] = self._copy_between(self._pool, slab, layers, offset, out=out)
        return found

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
        return self._codec is None and digests_pool(self._pool)

    def digests(self, pages: np.ndarray) -> np.ndarray:
        return self._side().kernels.pool_digests(self._pool, pages)

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
        """Rows of page-locked `source` to pages of the pool; where `layer_done` is told of layers, with marks."""
        queue = side.kernels
        # A page in a codec is not what the pool has: the copy engine cannot bring it there.
        pieces = (
            split_runs(pages, rows, self.switch_over.load_pages) if self._codec is None else Pieces([], pages, rows)
        )
        lists = side.lists(self._pool, pieces.pages, source, pieces.slots) if len(pieces.pages) else None
        step = max(1, -(-TOGETHER_BYTES // (len(pages) * self.geometry.layer_bytes)))
        for first in range(layers.start, layers.stop, step):
            some = range(first, min(first + step, layers.stop))
            for layer in some:
                self._load_runs(queue, pieces, source, layer)
            if lists is not None:
                queue.copy(self._copy_of(source, some, out=False), lists, self.switch_over.load_programs)
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
            least = min(self._strip_layers, -(-TOGETHER_BYTES // (count * layer_bytes)))
            groups = layer_groups(self.geometry.layers, least, self._strip_layers)
        step = len(halves[0])
        places = np.arange(count, dtype=np.int64) % step
        # Uploaded once: an upload between copies would wait for the link.
        lists = side.lists(self._pool, pages, halves[0], places)
        emptied: list[QueueMark | None] = [None, None]
        number = 0
        for some in groups:
            strip = slice(some.start * layer_bytes, some.stop * layer_bytes)
            for start in range(0, count, step):
                part, half, before = slice(start, start + step), halves[number % 2], emptied[number % 2]
                if before is not None:
                    side.engine.after(before)
                target = half[:, : strip.stop - strip.start]
                side.engine.listed_rows(source[:, strip], rows[part], target, places[part])
                side.kernels.after(side.engine.mark())
                copy = self._copy_of(half, some, 0, out=False)
                side.kernels.copy(copy, PageLists(lists.pages[part], lists.slots[part]))
                emptied[number % 2] = side.kernels.mark()
                number += 1
            mark = side.kernels.mark()
            for layer in some:
                layer_done(layer, mark)

    def _strips(self, half: torch.Tensor) -> torch.Tensor:
        """A half of the staging memory as rows of `_strip_layers` each."""
        width = self._strip_layers * self.geometry.layer_bytes
        rows = half.numel() // width
        return half.view(-1)[: rows * width].view(rows, width)

    def _load_runs(self, queue: CopyQueue, pieces: Pieces, source: torch.Tensor, layer: int) -> None:
        for page, slot, count in pieces.runs:
            at = layer * self.geometry.layer_bytes
            for plane in self._planes[layer]:
                width = plane.shape[1]
                queue.rows(source[slot : slot + count, at : at + width], plane[page : page + count])
                at += width

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
        part = slice(layers.start * self.geometry.layer_bytes, layers.stop * self.geometry.layer_bytes)
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
            if self._listed:
                self._store_staged(side, pages, whole, slots, lambda first, end: came(np.arange(first, end)))
                return
            # A kernel gathers the pages in whatever order: only the slots decide about the copy engine.
            order = np.argsort(slots)
            by_engine = np.ones(len(slots), dtype=bool)
            at = 0
            for _, _, count in runs(slots[order], slots[order]):
                by_engine[order[at : at + count]] = count >= self.switch_over.store_pages
                at += count
            if not by_engine.all():
                most = self.switch_over.store_programs
                self._gather(side.kernels, pages[~by_engine], whole, slots[~by_engine], most)
            order = order[by_engine[order]]
            self._store_staged(side, pages[order], whole, slots[order], lambda first, end: came(order[first:end]))

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
        self,
        side: CopySide,
        pages: np.ndarray,
        slab: torch.Tensor,
        slots: np.ndarray,
        came: Callable[[int, int], None],
    ) -> None:
        """Through both halves of the staging memory on the device: one is filled while the other is emptied. `came` is
        told of those `[first, end)` that are there while two pieces more are under way."""
        under_way: deque[tuple[QueueMark, int, int]] = deque()
        emptied: list[QueueMark | None] = [None, None]
        step = len(side.staging[0])
        for number, start in enumerate(range(0, len(pages), step)):
            half, before = side.staging[number % 2], emptied[number % 2]
            if before is not None:
                side.kernels.after(before)
            part, targets = pages[start : start + step], slots[start : start + step]
            rows = np.arange(len(part), dtype=np.int64)
            self._gather(side.kernels, part, half, rows)
            side.engine.after(side.kernels.mark())
            room = slab[:, : self.geometry.page_bytes]
            if self._listed:
                side.engine.listed_rows(half, rows, room, targets)
            else:
                for row, slot, count in runs(rows, targets):
                    side.engine.rows(half[row : row + count], room[slot : slot + count])
            emptied[number % 2] = mark = side.engine.mark()
            under_way.append((mark, start, start + len(part)))
            if len(under_way) > 2:
                self._tell(under_way, came)
        while under_way:
            self._tell(under_way, came)

    @staticmethod
    def _tell(under_way: deque[tuple[QueueMark, int, int]], came: Callable[[int, int], None]) -> None:
        mark, first, end = under_way.popleft()
        mark.synchronize()
        came(first, end)

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
            most = self.switch_over.store_programs
            self._gather(side.kernels, pages[start : start + side.rows], half, rows, most)
            under_way.append((side.kernels.mark(), half, start, targets))
        while under_way:
            take()


def open_cuda_pool(layers: Sequence[Sequence[torch.Tensor]], page_size: int, codec: str = "") -> AcceleratorPool:
    """A pool on a CUDA device, which `prepare` measures."""
    return AcceleratorPool(layers, page_size, CudaAccelerator(layers[0][0].device), codec=codec)
