"""Copies of a real GPU: what the tests beside this one put to accelerators that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.kernels.copy_queue import CudaAccelerator
from swift_tiers.radix_tiering.base.memory import huge_array
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.sglang_ext.build.assembly import lock_pages
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
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
        page_digest_triton.finish_digests,
    ]
    return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())


@pytest.mark.parametrize("locked", [True, False], ids=["page-locked", "pageable"])
def test_pages_go_out_and_come_back_and_nothing_is_compiled_meanwhile(locked: bool) -> None:
    device = torch.device("cuda", 0)
    shape = (PAGES * PAGE, 2, 40)
    layers = [[torch.randn(shape, device=device).to(torch.bfloat16) for _ in "kv"] for _ in range(LAYERS)]
    accelerator = CudaAccelerator(device)
    pool = AcceleratorPool(layers, PAGE, accelerator)
    stride = pool.geometry.stride_bytes
    slab = huge_array(64 * stride).reshape(64, stride) if locked else np.zeros((64, stride), np.uint8)
    if locked:
        lock_pages(slab)
    landing = Landing(accelerator, pool.geometry.page_bytes, 9 * 2**16)
    pool.landing = landing.memory
    pool.prepare(slab)
    before = compiled()
    originals = [[plane.clone() for plane in planes] for planes in layers]
    random = np.random.default_rng(0)
    for programs in (pool.load_programs, None, 32):
        pool.load_programs = programs
        pages, slots = random.permutation(PAGES)[:30], random.permutation(64)[:30]
        came: list[int] = []
        written = torch.cuda.Event()
        written.record()
        pool.copy_out(pages, slab, slots, [written], lambda some, came=came: came.extend(some.tolist()))  # type: ignore[misc]
        assert len(came) == len(set(came))
        for planes in layers:
            for plane in planes:
                plane.zero_()
        cleared = torch.cuda.Event()
        cleared.record()
        done: list[int] = []

        def layer_done(layer: int, mark: Any, done: list[int] = done) -> None:
            mark.wait()
            done.append(layer)

        pool.copy_in(pages, slab, slots, layer_done, [cleared])
        assert done == list(range(LAYERS))
        for planes, originals_of_layer in zip(layers, originals, strict=True):
            for plane, original in zip(planes, originals_of_layer, strict=True):
                for page in pages.tolist():
                    rows = slice(page * PAGE, (page + 1) * PAGE)
                    assert torch.equal(plane[rows], original[rows])
                plane.copy_(original)
    landing.digest(slab[0, : pool.geometry.page_bytes])
    assert compiled() == before


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
