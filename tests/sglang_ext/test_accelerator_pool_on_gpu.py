"""Copies of a real GPU: what the tests beside this one put to accelerators that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.kernels.copy_queue import CudaAccelerator
from swift_tiers.kernels.page_digest import digest_bytes, host_page_digest
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.memory import huge_array
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.sglang_ext.build.assembly import lock_pages
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
from swift_tiers.sglang_ext.pools.states import StatePool
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here: accelerators that are none stand in"),
]

LAYERS, PAGE, PAGES = 3, 16, 40


def compiled() -> int:
    """Variants of the kernels that serve, in this process."""
    from swift_tiers.kernels import page_digest_triton, page_gather_triton, piece_copy_triton

    kernels: list[Any] = [
        page_gather_triton.copy_pieces,
        piece_copy_triton.copy_chunks,
        page_digest_triton.sum_parts,
        page_digest_triton.sum_planes,
        page_digest_triton.finish_digests,
    ]
    return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())


def planes(layers: int, heads: int, width: int) -> list[list[torch.Tensor]]:
    """K and V of the pages of some layers."""
    shape = (PAGES * PAGE, heads, width)
    return [[torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in "kv"] for _ in range(layers)]


@pytest.mark.parametrize("front", [False, True], ids=["", "with a front"])
@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
def test_pages_go_out_and_come_back_and_nothing_is_compiled_meanwhile(locked: bool, front: bool) -> None:
    """A front: KV of one that drafts, and an index, whose rows are of whole pages."""
    device = torch.device("cuda", 0)
    layers = planes(LAYERS, 2, 40)
    accelerator = CudaAccelerator(device)
    index = torch.randint(0, 256, (PAGES, 132 * PAGE), device=device, dtype=torch.uint8)
    drafts = planes(1, 1, 24)
    parts = [PoolPlanes(drafts, PAGE), PoolPlanes([[index]], 1)] if front else []
    pool = AcceleratorPool(layers, PAGE, accelerator, front=parts)
    if front:
        layers = [*layers, *drafts]
    stride = pool.geometry.stride_bytes
    slab = huge_array(64 * stride).reshape(64, stride) if locked else np.zeros((64, stride), np.uint8)
    if locked:
        lock_pages(slab)
    landing = Landing(accelerator, pool.geometry.page_bytes, 9 * 2**16)
    pool.landing = landing.memory
    pool.prepare(slab)
    before = compiled()
    originals = [[plane.clone() for plane in each] for each in layers]
    random = np.random.default_rng(0)
    for programs in (pool.load_programs, None, 32):
        pool.load_programs = programs
        pages, slots = random.permutation(PAGES)[:30], random.permutation(64)[:30]
        came: list[int] = []
        written = torch.cuda.Event()
        written.record()
        pool.copy_out(pages, slab, slots, [written], lambda some, came=came: came.extend(some.tolist()))  # type: ignore[misc]
        assert len(came) == len(set(came))
        for each in layers:
            for plane in each:
                plane.zero_()
        index_before = index.clone()
        index.zero_()
        cleared = torch.cuda.Event()
        cleared.record()
        done: list[int] = []

        def layer_done(layer: int, mark: Any, done: list[int] = done) -> None:
            mark.wait()
            done.append(layer)

        pool.copy_in(pages, slab, slots, layer_done, [cleared])
        assert done == list(range(LAYERS))
        if front:
            assert torch.equal(index[pages], index_before[pages])
        index.copy_(index_before)
        found = digest_bytes(torch.from_numpy(pool.digests(pages)))
        assert found == [host_page_digest(slab[slot, : pool.geometry.page_bytes]) for slot in slots.tolist()]
        for each, originals_of_layer in zip(layers, originals, strict=True):
            for plane, original in zip(each, originals_of_layer, strict=True):
                for page in pages.tolist():
                    rows = slice(page * PAGE, (page + 1) * PAGE)
                    assert torch.equal(plane[rows], original[rows])
                plane.copy_(original)
    landing.digest(slab[0, : pool.geometry.page_bytes])
    assert compiled() == before


@pytest.mark.parametrize("windows", [False, True], ids=["states", "windows"])
def test_states_go_out_and_come_back_behind_what_the_forward_does(windows: bool) -> None:
    """One after the other through the same memory, asked for before the forward has come so far."""
    accelerator = CudaAccelerator(torch.device("cuda", 0))
    if windows:
        layers = planes(2, 1, 40)
        pool = StatePool.of_windows([PoolPlanes(layers, PAGE)], 3 * PAGE + PAGE // 2, PAGE, 1000, accelerator)
        places = [np.array([3, 9, 1, 4]), np.array([7, 2, 30, 8]), np.array([11, 12, 5, 6])]
    else:
        layers = [[torch.randn((12, 3, 24), device="cuda") for _ in range(2)], [torch.randn((12, 7, 3), device="cuda")]]
        pool = StatePool.of_layers(layers, 1000, accelerator)
        places = [np.array([3]), np.array([7]), np.array([11])]
    pool.prepare()
    slab = np.zeros((3 * pool.pages, 1024), np.uint8)
    rows = np.random.default_rng(0).permutation(3 * pool.pages).reshape(3, -1)
    long = torch.randn((4096, 4096), device="cuda")

    def event_after_a_while() -> torch.cuda.Event:
        for _ in range(20):
            torch.matmul(long, long)
        event = torch.cuda.Event()
        event.record()
        return event

    for slots, at in zip(places, rows, strict=True):
        written = event_after_a_while()
        slab[at, :1000] = pool.copy_out(slots, [written])
    originals = [[plane.clone() for plane in each] for each in layers]
    for each in layers:
        for plane in each:
            plane.zero_()
    cleared = event_after_a_while()
    for slots, at in zip(places, rows, strict=True):
        mark = pool.copy_in(slots, slab, at, [cleared])
        assert mark is not None
        mark.wait()
    slab[:] = 7  # its rows are others' now
    step = PAGE if windows else 1
    for slots in places:
        for each, before in zip(layers, originals, strict=True):
            for plane, original in zip(each, before, strict=True):
                for slot in slots.tolist():
                    there = slice(slot * step, (slot + 1) * step)
                    assert torch.equal(plane[there], original[there])
    pool.settle()


def test_queues_are_not_the_forwards_stream() -> None:
    device = torch.device("cuda", 0)
    accelerator = CudaAccelerator(device)
    forward = torch.cuda.Stream(device)
    accelerator.keep_clear_of(forward)
    queues: list[Any] = [accelerator.queue() for _ in range(20)]
    handles = {queue._stream.cuda_stream for queue in queues}
    assert len(handles) == 20
    assert forward.cuda_stream not in handles


def test_numbers_come_without_the_scheduler_waiting() -> None:
    rows = torch.arange(32, device="cuda")
    there = OnTheWay(rows)
    rows.zero_()
    assert there.wait().tolist() == list(range(32))
