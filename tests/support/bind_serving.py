"""Make a pool ready and serve from it as a server does, on a GPU that is not there.

Prints as JSON, for a page-locked host tier and for one that is not, with a copy engine that takes lists and with one
that does not, with pages as they are and in a codec, the variants of kernels that `prepare` compiled and those that
serving launched. Each launch of a variant that was found before is compared with what Triton would choose then.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import torch

from swift_tiers.kernels import launch as launching
from swift_tiers.kernels.launch import Launcher, launch
from swift_tiers.ops.lab.bench.idle_gpu import IdleAccelerator, idle_gpu
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.sglang_ext.pools import sides
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

LAYERS, PAGE = 3, 16


class WithoutLists(IdleAccelerator):
    """As CUDA before 13."""

    copies_lists = False


class Unlocked(IdleAccelerator):
    """It reaches only memory that it was asked for."""

    def __init__(self) -> None:
        self.own: set[int] = set()

    def page_locked(self, memory: torch.Tensor) -> bool:
        return memory.data_ptr() in self.own

    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        memory = super().host_memory(rows, row_bytes)
        self.own.add(memory.data_ptr())
        return memory


def serve(accelerator: IdleAccelerator, launched: set[str], codec: str) -> list[list[str]]:
    launched.clear()
    shape = (40 * PAGE, 2, 40)  # so that a page and its slot differ in length
    layers = [[torch.zeros(shape, dtype=torch.bfloat16) for _ in "kv"] for _ in range(LAYERS)]
    pool = AcceleratorPool(layers, PAGE, accelerator, codec=codec)
    slab = np.zeros((64, pool.geometry.stride_bytes), dtype=np.uint8)
    landing = Landing(accelerator, pool.geometry.page_bytes, 9 * 2**16)
    pool.landing = landing.memory
    pool.prepare(slab)
    prepared = sorted(launched)
    launched.clear()
    near, far = np.arange(12, dtype=np.int64), 3 * np.arange(12, dtype=np.int64)
    landed = np.where(near % 2, 64 + near // 2, near)
    for programs in (None, 32):
        pool.load_programs = programs
        for pages in (near, far, far[:1]):
            for places in (far[: len(pages)], landed[: len(pages)]):
                pool.copy_in(pages, slab, places, lambda layer, mark: None)
                for layer in range(LAYERS):
                    pool.copy_layer(pages, slab, places, layer)
            for slots in (near, far):
                pool.copy_out(pages, slab, slots[: len(pages)])
    if pool.has_digests:
        for some in (near, far[:1]):
            pool.digests(some)
    lent = torch.zeros(2**20, dtype=torch.uint8)
    for begin in (0, 1, 16):
        pieces = np.array([[begin, 0, 1000], [begin + 4096, 1000, 96]], dtype=np.int64)
        landing.fetch(lent[begin:], [pieces, pieces[:1]], [0, 3])
    landing.digests([0, 3])
    landing.digest(slab[0, : pool.geometry.page_bytes])
    return [prepared, sorted(launched)]


class Compared(Launcher):
    """Has Triton look for the variant at each launch, too."""

    told: ClassVar[list[Any]] = []
    times = 0

    def __call__(self, programs: int, *arguments: Any) -> None:
        known = self._compiled is not None
        super().__call__(programs, *arguments)
        if known:
            launch(self._kernel, self._device, programs, *arguments, warps=self._warps, **self._constants)
            ours, tritons = self.told[-2:]
            same = len(ours) == len(tritons) and all(
                one is other or one == other for one, other in zip(ours, tritons, strict=False)
            )
            assert same, f"{ours} is launched instead of {tritons}"
            Compared.times += 1
        self.told.clear()


def main() -> None:
    sides.STAGING_BYTES = 2**17
    launched: set[str] = set()

    def tell(name: str, compiled: str, *others: Any) -> None:
        launched.add(f"{name} {compiled}")
        Compared.told.append((name, compiled, *others))

    launching.Launcher = Compared
    with idle_gpu(tell) as accelerator:
        for codec in ("", "int8"):
            print(json.dumps({f"page-locked {codec}": serve(accelerator, launched, codec)}))
            print(json.dumps({f"without lists {codec}": serve(WithoutLists(), launched, codec)}))
            print(json.dumps({f"pageable {codec}": serve(Unlocked(), launched, codec)}))
    assert Compared.times > 100


if __name__ == "__main__":
    main()
