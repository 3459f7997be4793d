"""Pages out of a pool and into it: kernel and plain torch, both layouts, any geometry, against plain slicing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels import launch, page_gather_triton
from swift_tiers.kernels.launch import Launcher
from swift_tiers.kernels.page_gather import copy_pages_plain, gather_pages, scatter_pages
from swift_tiers.kernels.page_gather_triton import TritonPageCopy, copy_pages_triton, copy_shape
from swift_tiers.kernels.pool_planes import PoolPlanes, alignment_of

from support.device_pools import DEVICES, POISON, Geometry, bounded, make_pool, make_slab, page_of
from support.examples import examples

_ANY = st.builds(
    Geometry,
    layers=st.integers(1, 3),
    planes=st.integers(1, 2),
    heads=st.integers(1, 9),
    head_dim=st.integers(1, 256),
    page_size=st.sampled_from([1, 4, 16, 64]),
    pages=st.integers(1, 5),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float8_e4m3fn]),
    block_major=st.booleans(),
).map(bounded)
#: The latent rows of MLA as DeepSeek and Kimi have them: one plane, 576 values.
_LATENT = st.builds(
    Geometry,
    layers=st.just(2),
    planes=st.just(1),
    heads=st.just(1),
    head_dim=st.just(576),
    page_size=st.sampled_from([1, 16]),
    pages=st.integers(1, 3),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float8_e4m3fn]),
    block_major=st.booleans(),
)
GEOMETRIES = _ANY | _LATENT
FORMS = [*DEVICES, pytest.param("plain", id="plain")]


def copy(form: str, pool: PoolPlanes, pages, slab: torch.Tensor, slots, layers: range, offset: int, out: bool) -> None:
    function = copy_pages_plain if form == "plain" else copy_pages_triton
    index = [torch.as_tensor(values, dtype=torch.int64).to(pool.device) for values in (pages, slots)]
    function(pool, index[0], slab, index[1], layers, offset, out)


def put_pages(pool: PoolPlanes, memory: torch.Tensor, image: torch.Tensor, pages, contents: list[bytes]) -> None:
    """Put block-major bytes where these pages lie in `image`, a copy of the pool's memory, by plain slicing."""
    for page, content in zip(pages, contents, strict=True):
        rows = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy()).view(-1, pool.row_bytes).to(image.device)
        for number, plane in enumerate(pool.flat):
            for token in range(pool.page_size):
                at = plane.data_ptr() - memory.data_ptr() + (page * pool.page_size + token) * pool.row_stride
                image[at : at + pool.row_bytes] = rows[number * pool.page_size + token]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(geometry=GEOMETRIES, shift=st.sampled_from([0, 1, 2, 4, 8, 16]), data=st.data())
def test_pages_go_out_and_nothing_else_is_written(form, geometry, shift, data):
    pool, memory = make_pool(geometry, "cpu" if form == "plain" else form)
    before = memory.clone()
    count = data.draw(st.integers(1, geometry.pages))
    pages = data.draw(st.permutations(range(geometry.pages)))[:count]
    slots = data.draw(st.permutations(range(geometry.pages + 2)))[:count]
    slab = make_slab(geometry.pages + 2, shift + pool.page_bytes + 3, str(pool.device))
    copy(form, pool, pages, slab, slots, range(pool.layers), shift, out=True)
    wanted = np.full(tuple(slab.shape), POISON, dtype=np.uint8)
    for page, slot in zip(pages, slots, strict=True):
        wanted[slot, shift : shift + pool.page_bytes] = np.frombuffer(page_of(pool, page), dtype=np.uint8)
    assert np.array_equal(slab.cpu().numpy(), wanted)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(geometry=GEOMETRIES, shift=st.sampled_from([0, 1, 2, 4, 8, 16]), data=st.data())
def test_pages_come_in_and_nothing_else_is_written(form, geometry, shift, data):
    device = "cpu" if form == "plain" else form
    pool, memory = make_pool(geometry, device, seed=1)
    other, _ = make_pool(geometry, device, seed=2)
    wanted = memory.fill_(POISON).clone()
    count = data.draw(st.integers(1, geometry.pages))
    pages = data.draw(st.permutations(range(geometry.pages)))[:count]
    slots = data.draw(st.permutations(range(geometry.pages + 2)))[:count]
    contents = [page_of(other, page) for page in range(count)]
    slab = make_slab(geometry.pages + 2, shift + pool.page_bytes + 3, device)
    for slot, content in zip(slots, contents, strict=True):
        row = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
        slab[slot, shift : shift + pool.page_bytes] = row.to(device)
    before = slab.clone()
    copy(form, pool, pages, slab, slots, range(pool.layers), shift, out=False)
    put_pages(pool, memory, wanted, pages, contents)
    assert torch.equal(memory, wanted)
    assert torch.equal(slab, before)


@pytest.mark.parametrize("block_major", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_range_of_layers_alone(form, block_major):
    pool, memory = make_pool(Geometry(layers=4, block_major=block_major), "cpu" if form == "plain" else form)
    pages, slots = [3, 0, 4], [1, 0, 2]
    whole = make_slab(3, pool.page_bytes, str(pool.device))
    copy(form, pool, pages, whole, slots, range(4), 0, out=True)
    original = memory.clone()
    for layers in (range(1, 2), range(2, 4), range(0, 1)):
        place = slice(layers.start * pool.layer_bytes, layers.stop * pool.layer_bytes)
        part = make_slab(3, place.stop - place.start, str(pool.device))
        copy(form, pool, pages, part, slots, layers, 0, out=True)
        assert torch.equal(part, whole[:, place])
    memory.fill_(POISON)
    image = memory.clone()
    copy(form, pool, pages, whole, slots, range(1, 3), pool.layer_bytes, out=False)
    for page in pages:
        for plane in pool.flat[2:6]:
            for token in range(pool.page_size):
                at = plane.data_ptr() - memory.data_ptr() + (page * pool.page_size + token) * pool.row_stride
                image[at : at + pool.row_bytes] = original[at : at + pool.row_bytes]
    assert torch.equal(memory, image)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_major", [False, True])
def test_more_tiles_than_programs_and_pieces_wider_than_a_tile(device, block_major, monkeypatch):
    monkeypatch.setattr(page_gather_triton, "TILE_BYTES", 256)
    pool, _ = make_pool(Geometry(head_dim=24, heads=6, pages=9, block_major=block_major), device)
    shape = copy_shape(4, pool.row_bytes, pool.row_stride, 8192, pool.alignment, True)
    assert shape.parts > 1
    assert 9 * 4 * shape.constants["PIECES"] * shape.parts > launch.INTERPRETED_PROGRAMS
    slab = make_slab(9, 8192, device)
    copy(device, pool, range(9), slab, range(8, -1, -1), range(2), 0, out=True)
    for page in range(9):
        assert slab[8 - page, : pool.page_bytes].cpu().numpy().tobytes() == page_of(pool, page)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_major", [False, True])
def test_wide_programs_copy_as_much(device, block_major):
    pool, memory = make_pool(Geometry(layers=3, head_dim=24, heads=6, pages=9, block_major=block_major), device)
    slab, pages = make_slab(9, pool.page_bytes, device), torch.arange(9, device=pool.device)
    TritonPageCopy(pool, slab, range(3), 0, out=True, wide=True).run(pages, pages.flip(0), 2)
    for page in range(9):
        assert slab[8 - page].cpu().numpy().tobytes() == page_of(pool, page)
    original = memory.clone()
    for plane in pool.flat:
        plane[: 9 * 4].view(torch.uint8).fill_(POISON)
    TritonPageCopy(pool, slab, range(3), 0, out=False, wide=True).run(pages, pages.flip(0), 1)
    assert torch.equal(memory, original)


@pytest.mark.parametrize("device", DEVICES)
def test_few_programs_copy_as_much(device, monkeypatch):
    launched = []

    class Watched(Launcher):
        def __call__(self, programs, *arguments):
            launched.append(programs)
            super().__call__(programs, *arguments)

    monkeypatch.setattr(launch, "Launcher", Watched)
    monkeypatch.setattr(launch, "_launcher", launch._launcher.__wrapped__)  # those of other tests are not watched
    monkeypatch.setattr(page_gather_triton, "TILE_BYTES", 256)
    pool, memory = make_pool(Geometry(pages=9), device)
    slab = make_slab(9, pool.page_bytes, device)
    index = torch.arange(9, device=pool.device)
    copy_pages_triton(pool, index, slab, index, range(2), 0, True)
    original = memory.clone()
    for most in (1, 2):
        for plane in pool.flat:
            plane[: 9 * 4].view(torch.uint8).fill_(POISON)
        copy_pages_triton(pool, index, slab, index, range(2), 0, False, most)
        assert torch.equal(memory, original)
    assert launched[1:] == [1, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_lists_longer_than_a_launch_counts_are_split(device, monkeypatch):
    pool, _ = make_pool(Geometry(pages=7), device)
    monkeypatch.setattr(page_gather_triton, "COUNT_LIMIT", 1)
    slab = make_slab(7, pool.page_bytes, device)
    copy(device, pool, range(7), slab, range(7), range(2), 0, out=True)
    for page in range(7):
        assert slab[page].cpu().numpy().tobytes() == page_of(pool, page)


@pytest.mark.parametrize("device", DEVICES)
def test_offsets_past_4_gib_are_reached(device):
    """Rows 3 GiB apart, in pool and slab: what 32 bits would wrap lands elsewhere. Untouched host memory costs none."""
    stride = 3 * 2**30
    memory = torch.empty(2 * stride + 4096, dtype=torch.uint8, device=device)
    plane = memory.as_strided((3, 1, 16), (stride, 16, 1))
    plane.copy_(torch.arange(48, dtype=torch.uint8).view(3, 1, 16))
    pool = PoolPlanes([[plane]], 1)
    slab = make_slab(3, 16, device)
    copy(device, pool, [2, 0, 1], slab, [0, 2, 1], range(1), 0, out=True)
    assert slab[:, 0].tolist() == [32, 16, 0]
    far = memory.as_strided((3, 64), (stride, 1))
    copy(device, pool, [1, 2], far, [2, 0], range(1), 32, out=True)
    assert far[2, 32:48].tolist() == list(range(16, 32))
    assert far[0, 32:48].tolist() == list(range(32, 48))


def test_every_alignment_has_its_word():
    for alignment in (16, 8, 4, 2, 1):
        constants = copy_shape(16, 256, 256, 4096, alignment, True).constants
        assert (constants["ALIGNMENT"], constants["WORD"].itemsize) == (alignment, min(alignment, 4))
    assert copy_shape(1, 6, 6, 4096, 16, True).constants["ALIGNMENT"] == 2
    assert copy_shape(4, 16, 16, 4097, 16, True).constants["ALIGNMENT"] == 1
    assert alignment_of(0, 48, 64) == 16
    assert alignment_of(24) == 8


def test_the_door_checks_what_comes_from_the_host():
    pool, memory = make_pool(Geometry(), "cpu")
    slab = make_slab(6, pool.page_bytes, "cpu")
    before = slab.clone(), memory.clone()
    for pages, slots, message in (
        ([5], [0], "pool pages must lie"),
        ([-1], [0], "pool pages must lie"),
        ([0], [6], "slots must lie"),
        ([0, 1], [0], "2 pool pages and 1 slots"),
    ):
        for move in (gather_pages, scatter_pages):
            with pytest.raises(ValueError, match=message):
                move(pool, np.array(pages), slab, np.array(slots))
    with pytest.raises(ValueError, match="int64"):
        gather_pages(pool, np.array([0.0]), slab, np.array([0]))
    with pytest.raises(ValueError, match="do not fit"):
        gather_pages(pool, np.array([0]), slab, np.array([0]), range(1, 2), pool.layer_bytes + 1)
    with pytest.raises(ValueError, match="neighbouring"):
        gather_pages(pool, np.array([0]), slab, np.array([0]), range(1, 3))
    with pytest.raises(ValueError, match="uint8"):
        gather_pages(pool, np.array([0]), slab.view(torch.int16), np.array([0]))
    with pytest.raises(ValueError, match="uint8"):
        gather_pages(pool, np.array([0]), slab[:, ::2], np.array([0]), range(1))
    gather_pages(pool, np.array([], dtype=np.int64), slab, np.array([]))
    assert torch.equal(slab, before[0])
    assert torch.equal(memory, before[1])


@pytest.mark.parametrize("device", DEVICES)
def test_the_door_moves_pages_there_and_back(device):
    pool, memory = make_pool(Geometry(layers=3, heads=4, head_dim=16), device)
    pages, slots = np.array([4, 1, 2]), np.array([0, 3, 1])
    slab = make_slab(4, 8192, device)
    gather_pages(pool, pages, slab, slots)
    original = memory.clone()
    for plane in pool.flat:
        plane[: 5 * 4].view(torch.uint8)[[row for page in pages.tolist() for row in range(page * 4, page * 4 + 4)]] = 0
    assert not torch.equal(memory, original)
    for layer in (2, 0, 1):
        scatter_pages(pool, pages, slab, slots, range(layer, layer + 1))
    assert torch.equal(memory, original)


@pytest.mark.gpu
def test_a_slab_in_page_locked_host_memory():
    pool, _ = make_pool(Geometry(layers=3, heads=8, head_dim=128, page_size=16), "cuda")
    slab = make_slab(5, pool.page_bytes, "cpu").pin_memory()
    gather_pages(pool, np.arange(5), slab, np.arange(5)[::-1].copy())
    torch.cuda.synchronize()
    for page in range(5):
        assert slab[4 - page].numpy().tobytes() == page_of(pool, page)


def test_planes_that_differ_are_no_pool():
    plane = torch.zeros(8, 2, 4)
    for layers in ([], [[]], [[plane], [plane, plane]], [[plane, torch.zeros(8, 1, 4)]], [[plane, plane.half()]]):
        with pytest.raises(ValueError, match="pool"):
            PoolPlanes(layers, 4)
    with pytest.raises(ValueError, match="contiguous"):
        PoolPlanes([[plane.transpose(1, 2)]], 4)
