"""(b) SGLang's transfer kernels beside ours, on the same pages and in the same run; where `sgl_kernel` is installed.

Of its kernels two can do what ours do with a layer-first pool: gather whole pages, given every plane as a layer and
every page as an item, and scatter one plane of them. SGLang runs them as two blocks, so that forwards keep the other
multiprocessors; here they also get all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_gather import gather_pages, scatter_pages

from .figures import ProofCheck, ProofFigure
from .layouts import Layout, layer_first, planes_of
from .right import POISON
from .stopwatch import Stopwatch

#: How they are launched: as SGLang does unless told otherwise, and a page for each warp, on as many as there are.
LAUNCHES = {
    "2 blocks": {"block_quota": 2, "num_warps_per_block": 32},
    "all blocks": {"block_quota": 2**16, "num_warps_per_block": 4},
}
_GB = 1e9


class _Pages(NamedTuple):
    """Rows of a slab, and the pool pages that belong to them; indices are on the device."""

    slab: torch.Tensor
    slots: torch.Tensor
    pages: torch.Tensor

    @classmethod
    def random(cls, slab: torch.Tensor, pool_pages: int, device: torch.device) -> _Pages:
        random, count = np.random.default_rng(4), len(slab)
        slots = random.permutation(count).astype(np.int64)
        pages = random.permutation(pool_pages)[:count].astype(np.int64)
        return cls(slab, torch.from_numpy(slots).to(device), torch.from_numpy(pages).to(device))


class _SameCopies:
    """The same copies by either's kernels: of whole pages out of a pool, and of one layer of pages into it."""

    def __init__(self, layout: Layout, pool_pages: int, device: torch.device) -> None:
        """Raises ImportError."""
        self._theirs: Any = importlib.import_module("sgl_kernel.kvcacheio")
        self.pool = planes_of(layer_first(layout, pool_pages, device))
        for plane in self.pool.flat:
            plane.normal_()
        self._layer = range(layout.layers // 2, layout.layers // 2 + 1)
        self._page_bytes = layout.page_bytes
        self._item = layout.layer_bytes // self.pool.planes

    @property
    def planes(self) -> range:
        """Of the one layer."""
        return range(self._layer.start * self.pool.planes, self._layer.stop * self.pool.planes)

    def gather(self, them: _Pages) -> None:
        gather_pages(self.pool, them.pages, them.slab, them.slots)

    def scatter(self, them: _Pages) -> None:
        scatter_pages(self.pool, them.pages, them.slab, them.slots, self._layer)

    def their_gather(self, them: _Pages, **launch: int) -> None:
        self._theirs.transfer_kv_all_layer_mla_lf_pf(
            src_layers=self.pool.table.view(torch.uint64),
            dst=them.slab,
            src_indices=them.pages,
            dst_indices=them.slots,
            item_size=self._item,
            dst_layout_dim=self._page_bytes,
            num_layers=len(self.pool.flat),
            **launch,
        )

    def their_scatter(self, them: _Pages, **launch: int) -> None:
        for plane in self.planes:
            self._theirs.transfer_kv_per_layer_mla_pf_lf(
                src=them.slab,
                dst=self.pool.flat[plane],
                src_indices=them.slots,
                dst_indices=them.pages,
                layer_id=plane,
                item_size=self._item,
                src_layout_dim=self._page_bytes,
                **launch,
            )

    def differ(self, them: _Pages) -> str:
        """In words; empty if both copy the same bytes."""
        self.gather(them)
        wanted = them.slab.clone()
        self.their_gather(them, **LAUNCHES["all blocks"])
        if not torch.equal(them.slab, wanted):
            return "gathered pages differ"
        for plane in self.planes:
            self.pool.flat[plane].view(torch.uint8).fill_(POISON)
        self.their_scatter(them, **LAUNCHES["all blocks"])
        self.gather(them)
        return "" if torch.equal(them.slab, wanted) else "scattered pages differ"


def beside_sglang(
    layout: Layout, accelerator: Accelerator, watch: Stopwatch, pages: int, host_pages: int
) -> Iterator[ProofCheck | ProofFigure]:
    """What both copy, and theirs as shares of ours. `host_pages`: of page-locked memory. Raises ImportError where
    SGLang's kernels are not there."""
    device = accelerator.device
    both = _SameCopies(layout, 2 * pages, device)
    here = _Pages.random(accelerator.device_memory(pages, layout.page_bytes).fill_(POISON), 2 * pages, device)
    yield ProofCheck(f"{layout.name}: SGLang's kernels copy what ours do", pages, both.differ(here))
    host = _Pages.random(accelerator.host_memory(host_pages, layout.page_bytes), 2 * pages, device)
    moves: tuple[tuple[str, int, Callable[[], None], Callable[..., None]], ...] = (
        (
            "gather, all layers",
            2 * pages * layout.page_bytes,
            partial(both.gather, here),
            partial(both.their_gather, here),
        ),
        (
            "scatter, one layer",
            2 * pages * layout.layer_bytes,
            partial(both.scatter, here),
            partial(both.their_scatter, here),
        ),
        (
            "scatter, one layer from page-locked memory",
            host_pages * layout.layer_bytes,
            partial(both.scatter, host),
            partial(both.their_scatter, host),
        ),
    )
    for name, nbytes, ours, theirs in moves:
        rate = nbytes / watch.device_seconds(ours) / _GB
        for blocks, launch in LAUNCHES.items():
            found = nbytes / watch.device_seconds(partial(theirs, **launch)) / _GB
            yield ProofFigure(
                "sglang", f"{layout.name}: {name}: SGLang's, {blocks}", found, "GB/s", rate, note="of ours"
            )
