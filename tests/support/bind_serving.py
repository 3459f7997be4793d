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
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.ops.lab.bench.idle_gpu import IdleAccelerator, idle_gpu
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.sglang_ext.pools import sides
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
from swift_tiers.sglang_ext.pools.states import StatePool

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


def planes(layers: int, heads: int, width: int, dtype: torch.dtype = torch.bfloat16) -> list[list[torch.Tensor]]:
    """K and V of 40 pages."""
    return [[torch.zeros((40 * PAGE, heads, width), dtype=dtype) for _ in "kv"] for _ in range(layers)]


def states_of(kind: str, page_bytes: int, accelerator: IdleAccelerator) -> StatePool:
    """What lies behind a prefix: states of two kinds, or a window of three pages and a half."""
    if kind == "states":
        kinds = [
            [torch.zeros((5, 3, 24), dtype=torch.float32) for _ in range(2)],
            [torch.zeros((5, 7, 3), dtype=torch.bfloat16) for _ in range(2)],
        ]
        return StatePool.of_layers(kinds, page_bytes, accelerator)
    return StatePool.of_windows(
        [PoolPlanes(planes(2, 1, 40), PAGE)], 3 * PAGE + PAGE // 2, PAGE, page_bytes, accelerator
    )


def serve(accelerator: IdleAccelerator, launched: set[str], codec: str, kind: str = "") -> list[list[str]]:
    """`kind`: what there is beside the KV of all tokens."""
    launched.clear()
    # So that a page and its slot differ in length.
    layers = planes(LAYERS, 2, 40)
    front = [PoolPlanes(planes(1, 1, 24), PAGE), PoolPlanes([[torch.zeros((40, 132 * PAGE), dtype=torch.uint8)]], 1)]
    pool = AcceleratorPool(layers, PAGE, accelerator, codec=codec, front=front if kind == "front" else ())
    if kind in ("states", "windows"):
        states = states_of(kind, pool.geometry.page_bytes, accelerator)
        pool.keep_states(states, range(LAYERS), LAYERS)
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
    if pool.states is not None:
        for slots in (near[:1] + 1, near[: pool.states.parts] + 1):
            pool.states.copy_out(slots)
            pool.states.copy_in(slots, slab, near[: pool.states.pages])
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
        for kind in ("front", "states", "windows"):
            print(json.dumps({f"page-locked, {kind}": serve(accelerator, launched, "", kind)}))
            print(json.dumps({f"pageable, {kind}": serve(Unlocked(), launched, "", kind)}))
    assert Compared.times > 100


if __name__ == "__main__":
    main()
