"""Launch every kernel as its wrapper does, by Triton's own way of a launch, on a GPU that is not there.

Everything up to the launch itself is Triton's: arguments are bound, specialised, and compiled for. Prints as JSON how
many variants of each kernel that gave, over lists and slabs that begin at addresses of every alignment.
"""

from __future__ import annotations

import collections
import json
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from swift_tiers.kernels import launch as launching
from swift_tiers.kernels import page_codec_triton, page_digest_triton, page_gather_triton, piece_copy_triton
from swift_tiers.kernels.page_codec import Codec, EncodedLayout
from swift_tiers.kernels.pool_planes import PoolPlanes


class AbsentDriver:
    """A driver of a GPU of capability 9.0 that can be compiled for, and nothing else."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


variants: dict[str, set[str]] = collections.defaultdict(set)


def launch(
    kernel: JITFunction, device: torch.device, programs: int, *arguments: Any, warps: int = 4, **constants: Any
) -> None:
    compiled = kernel.warmup(*arguments, grid=(programs,), **constants, num_warps=warps, enable_fp_fusion=False)
    variants[kernel.__name__].add(compiled.hash)


def main() -> None:
    driver.set_active(AbsentDriver())
    for module in (launching, page_digest_triton, piece_copy_triton):
        module.launch = launch
    # One plane a layer: where a layer's addresses begin in the table is a multiple of 8 bytes only.
    layers = [[torch.zeros(33, 2, 64, dtype=torch.bfloat16)] for _ in range(4)]
    pool = PoolPlanes(layers, 16)
    indices = torch.arange(9) % 2
    slab = torch.zeros(2, 32768, dtype=torch.uint8)
    layout = EncodedLayout.of(pool, Codec.INT8)
    for begin in range(3):
        some = indices[begin : begin + 1 + begin]
        for chosen in (range(begin, begin + 1), range(4)):
            for out in (True, False):
                page_gather_triton.copy_pages_triton(pool, some, slab, some, chosen, begin * pool.layer_bytes, out)
                at = begin * layout.layer_bytes
                page_codec_triton.code_pages_triton(pool, some, slab, some, Codec.INT8, chosen, at, out)
        page_digest_triton.page_digests_triton(slab, some, 4096, begin * 16)
        pieces = np.array([[0, 0, 100]] * (begin + 1), dtype=np.int64)
        piece_copy_triton.copy_pieces_triton(slab[0, begin:], slab[1, begin * 16 :], pieces, slab.device)
    print(json.dumps({name: len(found) for name, found in variants.items()}))


if __name__ == "__main__":
    main()
