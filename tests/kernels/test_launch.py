"""Kernels without a GPU: interpreted without TRITON_INTERPRET, and without leaving anything behind."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from swift_tiers.kernels import float_bits_triton, page_codec_triton
from swift_tiers.kernels import launch as launching
from swift_tiers.kernels.launch import INTERPRETED_PROGRAMS, interpreted, programs_for, resident_programs
from swift_tiers.kernels.page_codec import Codec
from swift_tiers.kernels.page_codec_triton import code_pages_triton

from support.device_pools import Geometry, make_normal_pool, make_slab


def _attributes() -> dict[str, dict[str, object]]:
    """By name, inherited or not, since it makes no difference to a kernel which."""
    places = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype)
    return {
        place.__name__: {name: getattr(place, name) for name in dir(place) if name != "__annotations__"}
        for place in places
    }


def test_what_is_interpreted_leaves_triton_as_it_was():
    before = _attributes()
    pool, _ = make_normal_pool(Geometry(), "cpu")
    slab = make_slab(5, 4096, "cpu")
    code_pages_triton(pool, torch.arange(5), slab, torch.arange(5), Codec.E4M3, range(2), 0, True)
    assert _attributes() == before
    assert "TRITON_INTERPRET" not in os.environ
    assert isinstance(page_codec_triton.encode_tiles, JITFunction)
    assert isinstance(page_codec_triton.float_to_e4m3, JITFunction)


def test_a_kernel_is_interpreted_with_the_kernels_that_it_calls():
    kernel = interpreted(page_codec_triton.encode_tiles)
    assert isinstance(kernel, InterpretedFunction)
    assert kernel is interpreted(page_codec_triton.encode_tiles)
    assert kernel.fn.__globals__["float_to_e4m3"] is interpreted(float_bits_triton.float_to_e4m3)
    assert kernel.fn.__globals__["tl"] is tl


def test_programs_share_tiles():
    cpu = torch.device("cpu")
    assert [programs_for(cpu, tiles) for tiles in (1, 2, 1000)] == [1, 2, INTERPRETED_PROGRAMS]
    assert [programs_for(cpu, 1000, most) for most in (1, 2, 1000, None)] == [1, 2, *[INTERPRETED_PROGRAMS] * 2]


#: Of an H100: registers and threads of a multiprocessor.
HOPPER = 65_536, 2048


@pytest.mark.parametrize(
    ("registers", "warps", "programs"),
    [(30, 4, 16), (44, 4, 10), (64, 4, 8), (72, 4, 7), (73, 4, 6), (90, 4, 5), (38, 32, 1), (255, 32, 1)],
)
def test_a_multiprocessor_holds_as_many_programs_as_have_registers(registers, warps, programs):
    assert resident_programs(registers, warps, *HOPPER) == programs


def test_a_gpu_gets_no_more_programs_than_it_holds_at_once(monkeypatch):
    """One more would begin when the others are done: of a kernel with 72 registers, 8 programs for each multiprocessor
    read 0.46 of what an H200 reads, and 7 read 0.68."""
    about = SimpleNamespace(
        multi_processor_count=132, regs_per_multiprocessor=65_536, max_threads_per_multi_processor=2048
    )
    monkeypatch.setattr(launching, "_properties", lambda index: about)
    gpu = torch.device("cuda", 0)
    compiled = SimpleNamespace(n_regs=72, metadata=SimpleNamespace(num_warps=4))
    assert programs_for(gpu, 10_000, None, compiled) == 7 * 132
    assert programs_for(gpu, 10_000) == 8 * 132, "where it is not known what they take"
    assert programs_for(gpu, 10_000, 30, compiled) == 30
    assert programs_for(gpu, 9, None, compiled) == 9


def _python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_doors_open_without_triton_and_without_touching_a_gpu():
    """On the CPU they are plain torch; only a pool on a GPU needs Triton."""
    printed = _python(
        "import sys; sys.modules['triton'] = None\n"
        "import torch, numpy as np\n"
        "from swift_tiers.kernels import page_codec, page_digest, page_gather, pool_planes\n"
        "plane = torch.arange(64.).view(8, 2, 4)\n"
        "pool = pool_planes.PoolPlanes([[plane]], 4)\n"
        "slab = torch.zeros(1, 128, dtype=torch.uint8)\n"
        "page_gather.gather_pages(pool, np.array([1]), slab, np.array([0]))\n"
        "assert torch.equal(slab.view(torch.float32)[0], plane[4:].flatten())\n"
        "page_codec.encode_pages(pool, np.array([1]), slab, np.array([0]), page_codec.Codec.INT8)\n"
        "page_digest.page_digests(slab, np.array([0]), 128)\n"
        "print(torch.cuda.is_initialized(), [name for name in sys.modules if name.endswith('_triton')])\n"
    )
    assert printed.split() == ["False", "[]"]


def test_with_triton_interpret_set_kernels_are_the_same():
    printed = _python(
        "import torch\n"
        "from swift_tiers.kernels import page_codec_plain, page_codec_triton\n"
        "from swift_tiers.kernels.page_codec import Codec\n"
        "from swift_tiers.kernels.pool_planes import PoolPlanes\n"
        "pool = PoolPlanes([[torch.randn(8, 2, 4)]], 4)\n"
        "one, other = torch.zeros(2, 1, 128, dtype=torch.uint8)\n"
        "index = torch.tensor([0])\n"
        "page_codec_triton.code_pages_triton(pool, index, one, index, Codec.INT4, range(1), 0, True)\n"
        "page_codec_plain.code_pages_plain(pool, index, other, index, Codec.INT4, range(1), 0, True)\n"
        "print(torch.equal(one, other), bool(one.any()))\n",
        TRITON_INTERPRET="1",
    )
    assert printed.split() == ["True", "True"]
