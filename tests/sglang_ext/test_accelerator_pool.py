"""Copies beside the forward, on an accelerator that does everything as late, and in as odd an order, as it may."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels.copy_queue import QueueMark
from swift_tiers.kernels.load_programs import measure_load_programs
from swift_tiers.kernels.page_gather import PageCopy
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.sglang_ext.build import assembly, identity
from swift_tiers.sglang_ext.pools import accelerator_pool, sides
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool, layer_groups

from support.deferred_accelerator import DeferredAccelerator, LateQueue
from support.device_pools import page_of
from support.engine import GEOMETRY
from support.examples import examples

POISON = 0x5A
#: What copies are cut by where they serve; tests cut them smaller.
SERVED = {name: getattr(accelerator_pool, name) for name in ("TOGETHER_BYTES", "MOST_LAYERS")}
#: Layers, planes of each, heads, dimensions of one, tokens of a page: K and V, or the latent rows of MLA, among them
#: those of DeepSeek and Kimi, 1152 bytes.
SHAPES = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.integers(1, 8), st.sampled_from([1, 4])),
    st.just((2, 1, 1, 576, 4)),
)


class Case:
    """A pool, a slab, and pages that are copied between them."""

    def __init__(self, data: st.DataObject, *, locked: bool) -> None:
        draw = data.draw
        layers, planes, heads, head_dim, page_size = draw(SHAPES)
        pages, spare = draw(st.integers(1, 24)), 3
        self.accelerator = DeferredAccelerator(draw(st.integers(0, 2**16)), locked=locked, lists=draw(st.booleans()))
        self.generator = np.random.default_rng(draw(st.integers(0, 2**16)))
        shape = ((pages + spare) * page_size, heads, head_dim)
        self.buffers = [[self._random(shape) for _ in range(planes)] for _ in range(layers)]
        #: What lies in front of a page's layers: rows of other lengths, of tokens or of pages.
        fronts = draw(
            st.lists(st.tuples(st.sampled_from([1, page_size]), st.integers(1, 2), st.integers(1, 9)), max_size=2)
        )
        self.front = [
            PoolPlanes([[self._random(((pages + spare) * rows, 1, 8 * width))] for _ in range(count)], rows)
            for rows, count, width in fronts
        ]
        # A row may stand for several tokens.
        tokens = page_size * draw(st.sampled_from([1, 4]))
        self.pool = AcceleratorPool(self.buffers, tokens, self.accelerator, front=self.front, rows=page_size)
        count = draw(st.integers(1, pages))
        self.pages = self._list(draw, pages + spare, count)
        self.slots = self._list(draw, pages + spare, count)
        self.slab = self.generator.integers(0, 256, (pages + spare, self.pool.geometry.stride_bytes), dtype=np.uint8)
        self.places = self.slots
        if draw(st.booleans()):
            self._land(draw)
        self.page_size = page_size

    def _random(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(self.generator.standard_normal(shape).astype(np.float32)).to(torch.bfloat16)

    def _list(self, draw, most: int, count: int) -> np.ndarray:
        """Neighbours, or not."""
        if draw(st.booleans()):
            first = draw(st.integers(0, most - count))
            return np.arange(first, first + count, dtype=np.int64)
        return np.array(draw(st.permutations(range(most)))[:count], dtype=np.int64)

    def _land(self, draw) -> None:
        """Some pages, or all, lie in landing memory: their places are beyond the slab's."""
        stride = self.pool.geometry.page_bytes + 8
        self.pool.landing = torch.from_numpy(self.generator.integers(0, 256, (len(self.pages), stride), dtype=np.uint8))
        landed = np.array([draw(st.booleans()) for _ in self.pages])
        self.places = np.where(landed, len(self.slab) + np.array(draw(st.permutations(range(len(landed))))), self.slots)

    def there(self, place: int, part: slice) -> bytes:
        """What lies at a place that is loaded from."""
        if place < len(self.slab):
            return self.slab[place, part].tobytes()
        return self.pool.landing[place - len(self.slab), part].numpy().tobytes()

    def rows_of(self, plane: torch.Tensor, page: int) -> bytes:
        part = plane[page * self.page_size : (page + 1) * self.page_size]
        return part.contiguous().view(torch.uint8).numpy().tobytes()

    def page(self, page: int, layer: int | None = None) -> bytes:
        layers = self.buffers if layer is None else [self.buffers[layer]]
        front = b"" if layer else b"".join(page_of(planes, page) for planes in self.front)
        return front + b"".join(self.rows_of(plane, page) for planes in layers for plane in planes)

    @property
    def planes(self) -> list[torch.Tensor]:
        """All of them."""
        return [plane for planes in self.front for plane in planes.flat] + [
            plane for planes in self.buffers for plane in planes
        ]


@pytest.fixture(autouse=True)
def small_staging(monkeypatch):
    """So that several pieces are needed, and buffers are used again."""
    monkeypatch.setattr(sides, "STAGING_BYTES", 4096)
    monkeypatch.setattr(accelerator_pool, "TOGETHER_BYTES", 512)


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_pages_go_out_whole(locked, data):
    case = Case(data, locked=locked)
    before = case.slab.copy()
    # The forward still writes the pages when the copy is asked for.
    final = [plane.clone() for plane in case.planes]
    for plane, value in zip(case.planes, final, strict=True):
        plane.fill_(0)
        case.accelerator.forward.do(lambda plane=plane, value=value: plane.copy_(value))
    case.pool.copy_out(case.pages, case.slab, case.slots, [case.accelerator.forward.mark()])
    nbytes = case.pool.geometry.page_bytes
    for page, slot in zip(case.pages.tolist(), case.slots.tolist(), strict=True):
        assert case.slab[slot, :nbytes].tobytes() == case.page(page)
        before[slot, :nbytes] = case.slab[slot, :nbytes]
    assert np.array_equal(case.slab, before), "written beside the pages"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_pages_go_to_outgoing_memory_whole(data):
    case = Case(data, locked=True)
    nbytes, rows = case.pool.geometry.page_bytes, len(case.slab)
    stride = nbytes + data.draw(st.sampled_from([0, 8]))
    memory = torch.from_numpy(case.generator.integers(0, 256, (rows, stride), dtype=np.uint8))
    case.pool.outgoing = SimpleNamespace(rows=rows, memory=memory)
    before = memory.clone()
    final = [plane.clone() for plane in case.planes]
    for plane, value in zip(case.planes, final, strict=True):
        plane.fill_(0)
        case.accelerator.forward.do(lambda plane=plane, value=value: plane.copy_(value))
    case.pool.copy_aside(case.pages, case.slots.tolist(), [case.accelerator.forward.mark()])
    for page, row in zip(case.pages.tolist(), case.slots.tolist(), strict=True):
        assert memory[row, :nbytes].numpy().tobytes() == case.page(page)
        before[row, :nbytes] = memory[row, :nbytes]
    assert torch.equal(memory, before), "written beside the pages"
    with pytest.raises(IndexError, match=f"a slot of {rows} to {rows} is none of {rows}"):
        case.pool.copy_aside(case.pages[:1], [rows])


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_forward_reads_each_layer_as_it_comes(locked, data):
    case = Case(data, locked=locked)
    geometry = case.pool.geometry
    before = [case.page(page) for page in range(case.pool.pool_pages)]
    seen: dict[int, list[bytes]] = {}
    reached: list[int] = []

    def layer_done(layer: int, mark: QueueMark | None) -> None:
        assert mark is not None
        reached.append(layer)
        mark.wait()
        case.accelerator.forward.do(lambda: seen.update({layer: [case.page(page, layer) for page in case.pages]}))

    # Whoever had the pages before still reads them when the copy is asked for.
    old: list[bytes] = []
    parts = [geometry.span(range(at, at + 1)) for at in range(geometry.layers)]
    expected = [[case.there(place, part) for place in case.places.tolist()] for part in parts]
    expected_old = [case.page(page) for page in case.pages]
    case.accelerator.forward.do(lambda: old.extend(case.page(page) for page in case.pages))
    case.pool.copy_in(case.pages, case.slab, case.places, layer_done, [case.accelerator.forward.mark()])
    if not locked:
        case.slab[:] = POISON  # given to others
    if case.pool.landing is not None:
        case.pool.landing.fill_(POISON)
    case.accelerator.run_until(lambda: case.accelerator.forward.done == len(case.accelerator.forward.jobs))
    assert old == expected_old
    assert reached == list(range(geometry.layers))
    for layer in range(geometry.layers):
        assert seen[layer] == expected[layer], "read before they had come"
    loaded = set(case.pages.tolist())
    for page in set(range(case.pool.pool_pages)) - loaded:
        assert case.page(page) == before[page], "written beside the pages"


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_what_went_out_comes_back_in_one_layer_at_a_time(locked, data):
    case = Case(data, locked=locked)
    geometry = case.pool.geometry
    case.pool.copy_out(case.pages, case.slab, case.slots)
    kept = {page: [case.page(page, layer) for layer in range(geometry.layers)] for page in case.pages.tolist()}
    if case.pool.landing is not None:
        # As if it had come from elsewhere.
        for slot, place in zip(case.slots.tolist(), case.places.tolist(), strict=True):
            if place >= len(case.slab):
                bytes_there = torch.from_numpy(case.slab[slot, : geometry.page_bytes].copy())
                case.pool.landing[place - len(case.slab), : geometry.page_bytes] = bytes_there
                case.slab[slot] = POISON
    for plane in case.planes:
        plane.fill_(0)
    for layer in data.draw(st.permutations(range(geometry.layers))):
        case.pool.copy_layer(case.pages, case.slab, case.places, layer)
        assert all(case.page(page, layer) == kept[page][layer] for page in kept)


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
def test_nothing_is_under_way_when_a_copy_fails(locked, monkeypatch):
    accelerator = DeferredAccelerator(0, locked=locked)
    buffers = [[torch.zeros(8, 1, 8) for _ in "kv"] for _ in range(3)]
    pool = AcceleratorPool(buffers, 1, accelerator)
    slab = np.zeros((8, pool.geometry.stride_bytes), dtype=np.uint8)
    everything = np.arange(8, dtype=np.int64)

    def layer_done(layer: int, mark: QueueMark | None) -> None:
        if layer == 1:
            raise OSError("the second layer")

    with pytest.raises(OSError, match="the second layer"):
        pool.copy_in(everything, slab, everything, layer_done)
    assert all(queue.done == len(queue.jobs) for queue in accelerator.queues if queue.jobs)


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
def test_pages_that_have_come_are_told_while_others_are_under_way(locked):
    """Whoever computes their checksums need not wait for all of them."""
    accelerator = DeferredAccelerator(3, locked=locked)
    buffers = [[torch.randn(64, 4, 8) for _ in "kv"] for _ in range(2)]
    pool = AcceleratorPool(buffers, 1, accelerator)
    slab = np.zeros((64, pool.geometry.stride_bytes), dtype=np.uint8)
    pages, slots = np.arange(40)[::-1].copy(), np.random.default_rng(1).permutation(64)[:40]
    told, under_way = [], []

    def came(some: np.ndarray) -> None:
        for index in some.tolist():
            rows = [plane[pages[index]].contiguous().view(torch.uint8).numpy() for both in buffers for plane in both]
            there = slab[slots[index], : pool.geometry.page_bytes]
            assert there.tobytes() == b"".join(row.tobytes() for row in rows)
        told.extend(some.tolist())
        under_way.append(any(queue.done < len(queue.jobs) for queue in accelerator.queues))

    pool.copy_out(pages, slab, slots, [], came)
    assert sorted(told) == list(range(40))
    assert any(under_way), "it was told of all at the end"


class ShortAccelerator(DeferredAccelerator):
    """It has device memory for so many bytes."""

    def __init__(self, nbytes: int, *, lists: bool = False) -> None:
        super().__init__(0, locked=True, lists=lists)
        self.left = nbytes

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        if rows * row_bytes > self.left:
            raise torch.OutOfMemoryError
        self.left -= rows * row_bytes
        memory = super().device_memory(rows, row_bytes)
        weakref.finalize(memory.untyped_storage(), self._freed, rows * row_bytes)
        return memory

    def _freed(self, nbytes: int) -> None:
        self.left += nbytes


def short_pool(accelerator: ShortAccelerator) -> tuple[AcceleratorPool, np.ndarray]:
    """Pages of 512 bytes, of which a half of the staging memory is to hold four."""
    buffers = [[torch.randn(16, 4, 8) for _ in "kv"] for _ in range(2)]
    pool = AcceleratorPool(buffers, 1, accelerator)
    return pool, np.zeros((16, pool.geometry.stride_bytes), dtype=np.uint8)


def test_what_stores_stage_in_is_taken_before_anything_is_served():
    """Later, SGLang's own requests have the device's memory."""
    pool, slab = short_pool(accelerator := ShortAccelerator(4096))
    pool.prepare(slab)
    assert accelerator.left == 0
    pool.copy_out(np.arange(16), slab, np.arange(16))
    assert slab[:, : pool.geometry.page_bytes].any(1).all()


def test_little_memory_makes_smaller_steps_and_none_is_said_at_the_start():
    pool, slab = short_pool(accelerator := ShortAccelerator(2 * 512))
    pool.prepare(slab)
    assert accelerator.left == 0
    pool.copy_out(np.arange(16), slab, np.arange(16))
    assert slab[:, : pool.geometry.page_bytes].any(1).all()
    pool, slab = short_pool(ShortAccelerator(100))
    with pytest.raises(ConfigError, match=r"mem-fraction-static.*lower it"):
        pool.prepare(slab)


@given(
    first=st.integers(0, 9), count=st.integers(1, 99), layer_bytes=st.integers(16, 2**20), pages=st.integers(1, 10**4)
)
def test_layers_come_in_groups_that_begin_and_end_small(first, count, layer_bytes, pages):
    with pytest.MonkeyPatch.context() as as_served:
        for name, value in SERVED.items():
            as_served.setattr(accelerator_pool, name, value)
        groups = layer_groups(range(first, first + count), layer_bytes, pages)
    assert [layer for group in groups for layer in group] == list(range(first, first + count))
    sizes = [len(group) for group in groups]
    together = SERVED["TOGETHER_BYTES"]
    assert max(sizes) <= max(SERVED["MOST_LAYERS"], 1 + together // (pages * layer_bytes))
    # None is half as small as what is worth asking for, unless all of them are.
    assert 2 * min(sizes) * pages * layer_bytes >= min(together, count * pages * layer_bytes)
    if pages * layer_bytes >= together:
        assert sizes[0] == sizes[-1] == 1


@pytest.mark.parametrize(
    ("layers", "layer_bytes", "pages", "sizes"),
    [
        (36, 65536, 512, [1, 2, *[4] * 3, 2, *[4] * 4, 2, 1]),  # Qwen3-8B, 8,192 tokens
        (36, 65536, 10, [7, 7, 4, 4, 7, 7]),  # 160 tokens: 4 MiB and more each time
        (36, 65536, 1, [36]),
        (61, 1152, 4000, [1, 2, *[4] * 6, 3, *[4] * 7, 2, 1]),  # DeepSeek-V3, pages of one token
    ],
)
def test_of_many_pages_few_layers_come_together(layers, layer_bytes, pages, sizes, monkeypatch):
    for name, value in SERVED.items():
        monkeypatch.setattr(accelerator_pool, name, value)
    assert [len(group) for group in layer_groups(range(layers), layer_bytes, pages)] == sizes


def test_a_load_is_asked_for_once_for_few_pages_and_in_groups_for_many():
    accelerator = DeferredAccelerator(0, locked=True)
    buffers = [[torch.randn(64, 1, 8) for _ in "kv"] for _ in range(9)]
    pool = AcceleratorPool(buffers, 1, accelerator)
    slab = np.random.default_rng(0).integers(0, 256, (64, pool.geometry.stride_bytes), dtype=np.uint8)
    marks = []
    pool.copy_in(np.array([7]), slab, np.array([0]), lambda layer, mark: marks.append(mark))
    assert (accelerator.engine_calls, accelerator.kernel_calls, accelerator.uploads) == (0, 2, 1)
    assert len(set(map(id, marks))) == 2
    marks.clear()
    pool.copy_in(2 * np.arange(24), slab, np.arange(24), lambda layer, mark: marks.append(mark))
    # Layers 0, 1-2, 3-5, 6-7 and 8.
    assert (accelerator.engine_calls, accelerator.kernel_calls, accelerator.uploads) == (0, 2 + 5, 2)
    assert len(set(map(id, marks))) == 5
    for page, slot in [(7, 0), *((2 * slot, slot) for slot in range(24))]:
        there = b"".join(plane[page].numpy().tobytes() for both in buffers for plane in both)
        assert there == slab[slot, : pool.geometry.page_bytes].tobytes()


def test_without_lists_a_kernel_loads_and_the_engine_stores_by_runs():
    # 32 pages of a layer are more than what is loaded together.
    accelerator = DeferredAccelerator(0, locked=True)
    pool = AcceleratorPool([[torch.zeros(64, 1, 8) for _ in "kv"] for _ in range(3)], 1, accelerator)
    slab = np.zeros((64, pool.geometry.stride_bytes), dtype=np.uint8)
    near, far = np.arange(8, dtype=np.int64), np.arange(0, 16, 2, dtype=np.int64)
    for pages in (near, far):
        pool.copy_in(np.concatenate([pages, 20 + pages]), slab, np.arange(16), lambda layer, mark: None)
    assert (accelerator.engine_calls, accelerator.kernel_calls) == (0, 2 * 3)
    pool.copy_out(near, slab, near)
    assert (accelerator.engine_calls, accelerator.kernel_calls) == (1, 2 * 3 + 1)
    pool.copy_out(near, slab, far)
    assert (accelerator.engine_calls, accelerator.kernel_calls) == (1 + 8, 2 * 3 + 2)


def test_lists_go_up_once_a_load_and_copies_are_made_ready_once(monkeypatch):
    made = []

    class Counted(PageCopy):
        def __init__(self, *them, **more):
            made.append(them)
            super().__init__(*them, **more)

    monkeypatch.setattr(accelerator_pool, "PageCopy", Counted)
    accelerator = DeferredAccelerator(0, locked=True)
    pool = AcceleratorPool([[torch.zeros(64, 1, 8) for _ in "kv"] for _ in range(3)], 1, accelerator)
    slab = np.zeros((64, pool.geometry.stride_bytes), dtype=np.uint8)
    near, far = np.arange(32, dtype=np.int64), np.arange(0, 64, 2, dtype=np.int64)
    for _ in range(3):
        pool.copy_in(far, slab, near, lambda layer, mark: None)
        pool.copy_out(far, slab, near)
    assert accelerator.uploads == 1 + 3, "of the same pages once, and of each store"
    assert len(made) == 3 + 2, "a layer each to the device, and whole pages from there to either half"


def test_a_load_of_one_layer_after_the_other_uploads_its_lists_once():
    accelerator = DeferredAccelerator(0, locked=True)
    buffers = [[torch.zeros(64, 1, 8) for _ in "kv"] for _ in range(3)]
    pool = AcceleratorPool(buffers, 1, accelerator)
    slab = np.random.default_rng(0).integers(0, 256, (64, pool.geometry.stride_bytes), dtype=np.uint8)
    slots = np.arange(8, dtype=np.int64)
    for number, pages in enumerate((2 * slots, 2 * slots + 1), start=1):
        for layer in (2, 1, 0):
            pool.copy_layer(pages, slab, slots, layer)
        assert accelerator.uploads == number
        for page, slot in zip(pages.tolist(), slots.tolist(), strict=True):
            there = b"".join(plane[page].view(torch.uint8).numpy().tobytes() for both in buffers for plane in both)
            assert there == slab[slot, : pool.geometry.page_bytes].tobytes()
    pages[:] = slots + 40  # the caller's own arrays may change
    pool.copy_layer(pages, slab, slots, 0)
    assert accelerator.uploads == 3


def test_layers_of_few_pages_are_loaded_together():
    accelerator = DeferredAccelerator(0, locked=True)
    pool = AcceleratorPool([[torch.zeros(64, 1, 8) for _ in "kv"] for _ in range(7)], 1, accelerator)
    slab = np.zeros((64, pool.geometry.stride_bytes), dtype=np.uint8)
    marks = {}
    # 3 pages of a layer have 192 bytes; of three layers they have 512 and more.
    pool.copy_in(np.array([5, 9, 2]), slab, np.array([3, 8, 1]), lambda layer, mark: marks.update({layer: mark}))
    assert accelerator.kernel_calls == 2
    assert list(marks) == list(range(7))
    assert len({id(mark) for mark in marks.values()}) == 2


class PricedAccelerator(DeferredAccelerator):
    """Time passes on the device by the byte, and the slower the fewer programs there are below so many."""

    def __init__(self, programs: int) -> None:
        super().__init__(0, locked=True)
        self.device_time = 0.0
        self.programs = programs  # that fill the link
        self.launches: list[int] = []  # bytes of each

    def queue(self) -> LateQueue:
        queue = PricedQueue(self)
        self.queues.append(queue)
        return queue


class PricedQueue(LateQueue):
    accelerator: PricedAccelerator

    def copy(self, copy, lists, most_programs=None):
        few = max(1.0, self.accelerator.programs / most_programs) if most_programs else 1.0
        nbytes = len(lists.pages) * copy.pool.layer_bytes * len(copy.layers)
        self.accelerator.launches.append(nbytes)
        self.accelerator.device_time += nbytes * few
        super().copy(copy, lists, most_programs)

    def seconds(self, work):
        began = self.accelerator.device_time
        super().seconds(work)
        return self.accelerator.device_time - began


SAMPLE = 2**16


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize(("needed", "programs"), [(1, 1), (3, 4), (34, 64), (64, 64), (500, 512), (2000, None)])
def test_a_load_gets_no_more_programs_than_fill_the_link(needed, programs, planes):
    """By the device's clock, over more than the host's price of a launch can be seen in."""
    accelerator = PricedAccelerator(needed)
    # Pages of one token, 8 layers of 128 bytes.
    like = [torch.zeros(16, 1, 64 // planes, dtype=torch.bfloat16) for _ in range(planes)]
    slab = torch.zeros(200, 8 * 128 + 64, dtype=torch.uint8)
    before = slab.clone()
    assert measure_load_programs(accelerator, like, 1, slab, SAMPLE) == programs
    assert torch.equal(slab, before), "the host tier is only read"
    assert set(accelerator.launches) == {SAMPLE}


@pytest.mark.parametrize(("codec", "store_programs"), [("", 8), ("int8", 64)])
def test_a_store_by_kernel_leaves_processors_to_the_forward(codec, store_programs, monkeypatch):
    """Wide programs, or so many that are not, as have as many threads."""
    limits = []
    copy = LateQueue.copy

    def watched(queue, which, lists, most_programs=None):
        limits.append(most_programs)
        copy(queue, which, lists, most_programs)

    monkeypatch.setattr(LateQueue, "copy", watched)
    buffers = [[torch.zeros(16, 1, 8, dtype=torch.bfloat16) for _ in "kv"]]
    pool = AcceleratorPool(buffers, 1, DeferredAccelerator(0, locked=False), codec)
    slab = np.zeros((16, pool.geometry.stride_bytes), dtype=np.uint8)
    pool.copy_out(np.array([1, 2, 3]), slab, np.array([0, 2, 4]))
    assert limits == [store_programs]


def test_latent_rows_go_by_one_plane_each():
    """MLA as DeepSeek and Kimi have it: a layer of a page is one run of bytes, 64 rows of 1152."""
    accelerator = DeferredAccelerator(0, locked=True)
    layers = [[torch.zeros(8 * 64, 1, 576, dtype=torch.bfloat16)] for _ in range(3)]
    pool = AcceleratorPool(layers, 64, accelerator)
    assert (pool.geometry.planes, pool.geometry.row_bytes, pool.geometry.page_bytes) == (1, 1152, 3 * 64 * 1152)
    slab = np.zeros((8, pool.geometry.stride_bytes), dtype=np.uint8)
    near, far = np.arange(8, dtype=np.int64), np.array([6, 1, 4, 3, 0, 7, 2, 5])
    for pages in (near, far):
        pool.copy_in(pages, slab, near, lambda layer, mark: None)
    assert (accelerator.engine_calls, accelerator.kernel_calls) == (0, 2 * 3)


def test_loads_from_host_memory_are_limited_and_landed_pages_are_not(monkeypatch):
    limits = []
    copy = LateQueue.copy

    def watched(queue, which, lists, most_programs=None):
        limits.append((len(lists.pages), most_programs))
        copy(queue, which, lists, most_programs)

    monkeypatch.setattr(LateQueue, "copy", watched)
    monkeypatch.setattr(accelerator_pool, "TOGETHER_BYTES", 1)
    buffers = [[torch.zeros(64, 1, 8) for _ in "kv"] for _ in range(2)]
    pool = AcceleratorPool(buffers, 1, DeferredAccelerator(0, locked=True))
    pool.load_programs = 48
    pool.landing = torch.zeros((2, pool.geometry.page_bytes), dtype=torch.uint8)
    slab = np.zeros((8, pool.geometry.stride_bytes), dtype=np.uint8)
    pool.copy_in(np.arange(5), slab, np.array([3, 8, 1, 9, 0]), lambda layer, mark: None)
    assert limits == [(2, None), (3, 48), (3, 48)]


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
def test_what_was_measured_is_used_and_said(locked, monkeypatch, caplog):
    asked = []

    def measure(accelerator, like, page_size, slab, load):
        asked.append((len(like), page_size, accelerator.page_locked(slab)))
        return 64

    accelerator = DeferredAccelerator(0, locked=locked)
    monkeypatch.setattr(accelerator_pool, "CudaAccelerator", lambda device: accelerator)
    monkeypatch.setattr(accelerator_pool, "measure_load_programs", measure)
    pool = accelerator_pool.open_cuda_pool([[torch.zeros(8, 1, 8) for _ in "kv"] for _ in range(3)], 1)
    with caplog.at_level("INFO"):
        pool.prepare(np.zeros((8, pool.geometry.stride_bytes), dtype=np.uint8))
    assert asked == [(2, 1, True)]
    assert pool.load_programs == 64
    staged = ["swift-tiers: 3.75KiB of the device's memory for copies"] if locked else []
    assert caplog.messages == [
        *staged,
        "swift-tiers: pages are loaded by a kernel of 64 programs",
    ]


def test_where_nothing_can_be_measured_all_programs_load(monkeypatch, caplog):
    def measure(*them, load):
        raise RuntimeError("an odd driver")

    monkeypatch.setattr(accelerator_pool, "measure_load_programs", measure)
    pool = AcceleratorPool([[torch.zeros(8, 1, 8) for _ in "kv"]], 1, DeferredAccelerator(0, locked=True))
    pool.prepare(np.zeros((8, pool.geometry.stride_bytes), dtype=np.uint8))
    assert pool.load_programs is None
    assert "an odd driver" in caplog.text


@pytest.mark.parametrize("accelerator", [DeferredAccelerator(0, locked=True), None])
def test_pages_are_verified_beside_the_copies_of_an_accelerator(
    accelerator: DeferredAccelerator | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU copies them while it computes; on the CPU whoever verifies meanwhile takes time from the forward."""
    opened: dict[str, object] = {}
    monkeypatch.setattr(assembly, "current_rank", lambda: assembly.Rank(0, 1, 0, 1))
    monkeypatch.setattr(assembly, "check_hooked", lambda: None)
    monkeypatch.setattr(assembly, "shared_scope", lambda *_: "")
    monkeypatch.setattr(assembly, "open_stack", lambda *_, **named: opened.update(named))
    monkeypatch.setattr(identity, "server_namespace", lambda *_: None)
    pool = SimpleNamespace(geometry=GEOMETRY, accelerator=accelerator, states=None)
    assembly.build_tiers(SimpleNamespace(nnodes=1), MagicMock(), pool, parse_config({}))  # type: ignore[arg-type]
    assert opened["copies_beside"] is (accelerator is not None)
