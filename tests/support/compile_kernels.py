"""Compile every kernel for a GPU that is not there, in a process of its own, and say what came out as JSON.

`python compile_kernels.py`: one object a line, of `Compiled`'s fields. Nothing is run: code generation and ptxas need
no device. Of its own because TRITON_INTERPRET, were it set, would leave nothing to compile.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from swift_tiers.kernels.launch import WARPS
from swift_tiers.kernels.page_codec import Codec, EncodedLayout
from swift_tiers.kernels.page_codec_triton import code_shape, decode_tiles, encode_tiles
from swift_tiers.kernels.page_digest_triton import (
    TILE_WORDS,
    digest_constants,
    finish_constants,
    finish_digests,
    sum_parts,
    sum_planes,
)
from swift_tiers.kernels.page_gather_triton import copy_pieces, copy_shape
from swift_tiers.kernels.piece_copy_triton import CONSTANTS, copy_chunks
from swift_tiers.kernels.pool_planes import WIDER
from swift_tiers.radix_tiering.base.page import round_up

#: Layers, KV heads on one GPU, head_dim.
MODELS = {
    "Qwen3-8B": (36, 8, 128),
    "Qwen3-14B": (40, 8, 128),
    "Qwen3-32B": (64, 8, 128),
    "Llama-3.1-8B": (32, 8, 128),
    "LWM-7B": (32, 32, 128),
    "Qwen3-32B on 8 GPUs": (64, 1, 128),
}
#: What Triton passes at launch, by the parameter's name.
_TYPES = {
    "table": "*i64",
    "pages": "*i64",
    "slots": "*i64",
    "slab": "*u8",
    "count": "i32",
    "layers": "i32",
    "planes": "i32",
    "sums": "*u64",
    "digests": "*u64",
    "source": "*u8",
    "target": "*u8",
    "chunks": "*i64",
}


class Job(NamedTuple):
    name: str
    kernel: Any
    constants: dict[str, Any]
    capability: int = 90
    warps: int = WARPS


class Compiled(NamedTuple):
    name: str
    capability: int
    accesses: dict[str, int]  # how often each kind of access to global memory stands in the PTX
    registers: int  # of a thread
    spilled: int  # bytes of a thread's stack and local memory
    flushes: bool  # whether any instruction flushes subnormal numbers to zero
    fused: bool  # whether any product and sum became one rounding


def jobs() -> Iterator[Job]:
    def copy(
        name: str, layers: int, row: int, page: int, block_major: bool, alignment: int, out: bool, sm: int = 90
    ) -> Job:
        stride = row * 2 * layers if block_major else row
        slot = round_up(2 * layers * page * row, 4096)
        shape = copy_shape(page, row, stride, slot, alignment, out)
        return Job(f"{'gather' if out else 'scatter'} {name}", copy_pieces, shape.constants, sm)

    def code(
        name: str, out: bool, codec: Codec, dtype: torch.dtype, layers: int, heads: int, dim: int, sm: int = 90
    ) -> Job:
        layout = EncodedLayout(layers, 2 * 16 * heads, codec.code_bytes(dim))
        row = heads * dim * dtype.itemsize
        slot = round_up(layout.page_bytes, 4096)
        shape = code_shape(layout, codec, dtype, 2, 16, heads, dim, row, slot, 16, layers)
        return Job(
            f"{'encode' if out else 'decode'} {name}", encode_tiles if out else decode_tiles, shape.constants, sm
        )

    for model, (layers, heads, dim) in MODELS.items():
        for block_major in (False, True) if model.startswith(("Qwen3-8B", "LWM", "Qwen3-32B on")) else (False,):
            layout = "block-major" if block_major else "layer-first"
            for out in (True, False):
                yield copy(f"{model} {layout}", layers, heads * dim * 2, 16, block_major, 16, out)
    yield copy("one layer", 1, 2048, 16, False, 16, True)
    yield copy("one layer", 1, 2048, 16, False, 16, False)
    for out in (True, False):
        shape = copy_shape(16, 2048, 2048, 72 * 16 * 2048, 16, out, WIDER)
        way = "gather" if out else "scatter"
        yield Job(f"{way} Qwen3-8B by wide programs", copy_pieces, shape.constants, warps=WIDER * WARPS)
    yield copy("pages of one token", 36, 2048, 1, False, 16, True)
    for alignment in (8, 4, 2, 1):
        yield copy(f"aligned to {alignment}", 36, 2048, 16, False, alignment, True)
        yield copy(f"aligned to {alignment}", 36, 2048, 16, False, alignment, False)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for codec in Codec:
            for out in (True, False):
                yield code(f"{codec.name} {dtype}", out, codec, dtype, 36, 8, 128)
    for codec in Codec:
        for out in (True, False):
            yield code(f"{codec.name} odd head_dim", out, codec, torch.bfloat16, 3, 3, 81)
            yield code(f"{codec.name} head_dim 1", out, codec, torch.bfloat16, 1, 1, 1)
    for name, nbytes in (("words", 4718592), ("bytes", 999)):
        summing, finishing = digest_constants(nbytes, round_up(nbytes, 4096), 0)
        yield Job(f"digest of {name}", sum_parts, summing)
        yield Job(f"digest of {name}, end", finish_digests, finishing)
    for layout, pieces, words, stride in (("layer-first", 1, 4096, 2048), ("block-major", 16, 256, 72 * 2048)):
        yield Job(f"digest of pages of a {layout} pool", sum_planes, planes_constants(72, pieces, words, stride))
    yield Job("digest of pages of a pool, end", finish_digests, finish_constants(2359296, 72))
    yield Job("pieces", copy_chunks, CONSTANTS)
    for sm in (80, 100):
        yield Job(f"pieces sm_{sm}", copy_chunks, CONSTANTS, sm)
        yield copy(f"sm_{sm}", 36, 2048, 16, False, 16, True, sm)
        yield code(f"sm_{sm}", True, Codec.E4M3, torch.bfloat16, 36, 8, 128, sm)
        yield code(f"sm_{sm}", False, Codec.E4M3, torch.bfloat16, 36, 8, 128, sm)
        yield Job(f"digest of a pool sm_{sm}", sum_planes, planes_constants(72, 1, 4096, 2048), sm)
        yield Job(f"digest sm_{sm}", sum_parts, digest_constants(4718592, 4718592, 0)[0], sm)


def planes_constants(planes: int, pieces: int, words: int, stride: int) -> dict[str, Any]:
    """As of `pool_constants`, of pages of 16 tokens."""
    return {
        "PLANES": planes,
        "FIRST_PART": 0,
        "PARTS": planes,
        "FIRST_WORD": 0,
        "PIECES": pieces,
        "PIECE_WORDS": words,
        "PIECE_STRIDE": stride,
        "PAGE_STRIDE": 16 * stride,
        "ALIGNMENT": 16,
        "TILE_WORDS": TILE_WORDS,
    }


def compiled(job: Job) -> Compiled:
    """Raises whatever Triton or ptxas says against it."""
    names = job.kernel.arg_names
    signature = {name: "constexpr" if name in job.constants else _TYPES[name] for name in names}
    source = ASTSource(job.kernel, signature, constexprs=job.constants)
    options = {"num_warps": job.warps, "enable_fp_fusion": False}
    result = triton.compile(source, target=GPUTarget("cuda", job.capability, 32), options=options)
    ptx = result.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(result.asm["cubin"])
        cubin.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    used = {kind: int(number) for kind, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    accesses = collections.Counter(re.findall(r"\b((?:ld|st)\.global[.\w]*)", ptx))
    spilled = used["STACK"] + used["LOCAL"]
    return Compiled(job.name, job.capability, accesses, used["REG"], spilled, ".ftz" in ptx, "fma.rn.f32" in ptx)


if __name__ == "__main__":
    for job in jobs():
        print(json.dumps(compiled(job)._asdict()))
        sys.stdout.flush()
