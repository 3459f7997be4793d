"""The device pool as the tiers see it: planes of pages, whatever SGLang calls them.

`HostMemoryPool` serves pools in host memory (the portable CPU platform), `BlockMajorPool` those of them in which a page
lies together; `AcceleratorPool` serves the others, with a side stream of its own and staging in device memory.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.page_copy import copy_in, copy_out, runs, stage_in, stage_out
from swift_tiers.radix_tiering.errors import ConfigError
from swift_tiers.radix_tiering.page import PageGeometry

#: Device memory that a transfer may stage in, bytes.
STAGING_BYTES = 128 * 2**20


def layer_planes(kvcache: Any) -> list[list[torch.Tensor]]:
    """The K and V buffer of every layer of SGLang's pool, `[rows, heads, head_dim]` each.

    Raises ConfigError for a pool whose bytes mean more than K and V rows: scaled, vectorised, latent, hybrid ones.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from swift_tiers.sglang_ext.shared_pool import BlockMajorKVPool, SharedKVPool

    if type(kvcache) not in (MHATokenToKVPool, SharedKVPool, BlockMajorKVPool):
        raise ConfigError(
            f"--enable-swift-tiers: the model's KV pool is a {type(kvcache).__name__}; "
            "only plain multi-head and grouped-query attention (MHATokenToKVPool) is supported: remove the flag"
        )
    scaled = [name for name in ("k_scale_buffer", "native_k_scale_buffer") if getattr(kvcache, name, None) is not None]
    if scaled or kvcache.kv_cache_layout != "nhd":
        raise ConfigError(
            "--enable-swift-tiers: the KV pool is scaled or not in NHD layout; "
            "choose another --kv-cache-dtype or attention backend, or remove the flag"
        )
    return [[key, value] for key, value in zip(kvcache.k_buffer, kvcache.v_buffer, strict=True)]


def pool_geometry(layers: Sequence[Sequence[torch.Tensor]], page_size: int) -> PageGeometry:
    """The geometry of a page of this pool. Raises ConfigError if layers or planes differ in size."""
    row_bytes = {plane[0].numel() * plane.element_size() for planes in layers for plane in planes}
    if len(row_bytes) != 1 or len({len(planes) for planes in layers}) != 1:
        raise ConfigError(
            "--enable-swift-tiers: the model's layers keep KV rows of different sizes, which is not supported: "
            "remove the flag"
        )
    return PageGeometry(layers=len(layers), planes=len(layers[0]), tokens=page_size, row_bytes=row_bytes.pop())


def _as_pages(buffer: torch.Tensor, page_size: int) -> torch.Tensor:
    """`[rows, ...]` as uint8 `[rows // page_size, page_size * row_bytes]`, sharing memory."""
    whole = buffer.shape[0] // page_size * page_size
    return buffer[:whole].reshape(whole, -1).view(torch.uint8).view(whole // page_size, -1)


class DevicePool(ABC):
    """Base: where a request's pages lie in the pool, and copies from and to a slab of block-major pages."""

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int) -> None:
        self.geometry = pool_geometry(layers, page_size)
        self.page_size = page_size
        self.pool_pages = layers[0][0].shape[0] // page_size
        self.device = layers[0][0].device

    def page_indices(self, rows: torch.Tensor) -> np.ndarray:
        """The pool page of each `page_size` rows: int64 [pages].

        Raises ValueError if the rows are not whole, aligned, existing pages.
        """
        slots = rows.detach().to(device="cpu", dtype=torch.int64).flatten().numpy()
        if len(slots) % self.page_size:
            raise ValueError(f"{len(slots)} rows are not whole pages of {self.page_size}")
        table = slots.reshape(-1, self.page_size)
        first = table[:, 0]
        if (first % self.page_size).any() or (table != first[:, None] + np.arange(self.page_size)).any():
            raise ValueError("rows are not aligned pages")
        pages = first // self.page_size
        if len(pages) and (pages.min() < 0 or pages.max() >= self.pool_pages):
            raise ValueError(f"rows lie outside the pool of {self.pool_pages} pages")
        return np.ascontiguousarray(pages)

    @abstractmethod
    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
        """Pool pages to slab rows; complete when it returns. Not on the scheduler's thread."""

    @abstractmethod
    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: Callable[[int], None]
    ) -> None:
        """Slab rows to pool pages; `layer_done(layer)` once a layer may be read. Not on the scheduler's thread."""

    @abstractmethod
    def copy_layer(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int) -> None:
        """One layer of slab rows to pool pages; it may be read when this returns. Not on the scheduler's thread."""


class HostMemoryPool(DevicePool):
    """A pool in host memory: plain copies, one layer after the other."""

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int) -> None:
        super().__init__(layers, page_size)
        self._arrays = [[_as_pages(plane, page_size).numpy() for plane in planes] for planes in layers]
        self._flat = [plane for planes in self._arrays for plane in planes]

    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
        copy_out(self._flat, pages, slab, slots)

    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: Callable[[int], None]
    ) -> None:
        for layer in range(self.geometry.layers):
            self.copy_layer(pages, slab, slots, layer)
            layer_done(layer)

    def copy_layer(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int) -> None:
        copy_in(self._arrays[layer], pages, slab, slots, layer * self.geometry.layer_bytes)


class BlockMajorPool(DevicePool):
    """A pool in host memory in which a token's rows of all layers lie together: page by page, rows put in order."""

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int, table: torch.Tensor) -> None:
        """`table`: the pool as uint8 `[pages, page_size, layers * planes, row_bytes]`."""
        super().__init__(layers, page_size)
        # A row as one element: numpy then copies it in one go.
        self._table = table.numpy().view(f"V{self.geometry.row_bytes}")[..., 0]

    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
        for page, slot in zip(pages.tolist(), slots.tolist(), strict=True):
            self._rows_of(slab[slot])[...] = self._table[page].T

    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: Callable[[int], None]
    ) -> None:
        pairs = self._pairs(pages, slab, slots)
        for layer in range(self.geometry.layers):
            self._copy_layer(pairs, layer)
            layer_done(layer)

    def copy_layer(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int) -> None:
        self._copy_layer(self._pairs(pages, slab, slots), layer)

    def _copy_layer(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], layer: int) -> None:
        part = slice(layer * self.geometry.planes, (layer + 1) * self.geometry.planes)
        for page, rows in pairs:
            page[part] = rows[part]

    def _pairs(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of each page in the pool, and in the slab."""
        return [
            (self._table[page].T, self._rows_of(slab[slot]))
            for page, slot in zip(pages.tolist(), slots.tolist(), strict=True)
        ]

    def _rows_of(self, row: np.ndarray) -> np.ndarray:
        """A slab row as rows `[layers * planes, page_size]`."""
        shape = (self.geometry.layers * self.geometry.planes, self.page_size)
        return row[: self.geometry.page_bytes].view(f"V{self.geometry.row_bytes}").reshape(shape)


class AcceleratorPool(DevicePool):
    """A pool in an accelerator's memory. Pages pass through a staging tensor there; the slab should be pinned.

    Loads come up in whole pages, one copy for each run of neighbouring slots, and are then scattered layer by layer,
    so the forward may start on layer 0 while later layers are still being scattered.
    """

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int) -> None:
        super().__init__(layers, page_size)
        self._layers = [[_as_pages(plane, page_size) for plane in planes] for planes in layers]
        self._flat = [plane for planes in self._layers for plane in planes]
        self._module = getattr(torch, self.device.type)
        self._streams = threading.local()  # one side stream for each thread that copies

    def _stream(self) -> Any:
        if not hasattr(self._streams, "stream"):
            self._module.set_device(self.device)
            self._streams.stream = self._module.Stream()
        return self._streams.stream

    def _staged(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]]:
        """In pieces that fit the staging memory: (pool pages, staging, [(rows of staging, their rows of the slab)])."""
        page_bytes = self.geometry.page_bytes
        step = max(1, STAGING_BYTES // page_bytes)
        host = torch.from_numpy(slab)
        for start in range(0, len(pages), step):
            part = slice(start, start + step)
            indices = torch.from_numpy(pages[part]).to(self.device)
            staging = torch.empty((len(indices), page_bytes), dtype=torch.uint8, device=self.device)
            pairs = [
                (staging[row : row + count], host[slot : slot + count, :page_bytes])
                for row, slot, count in runs(np.arange(len(indices)), slots[part])
            ]
            yield indices, staging, pairs

    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
        stream = self._stream()
        with self._module.stream(stream):
            for indices, staging, pairs in self._staged(pages, slab, slots):
                stage_out(self._flat, indices, staging)
                for staged, rows in pairs:
                    rows.copy_(staged, non_blocking=True)
                stream.synchronize()

    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: Callable[[int], None]
    ) -> None:
        stream, copied = self._stream(), 0
        with self._module.stream(stream):
            for indices, staging, pairs in self._staged(pages, slab, slots):
                for staged, rows in pairs:
                    staged.copy_(rows, non_blocking=True)
                copied += len(indices)
                for layer, planes in enumerate(self._layers):
                    stage_in(planes, indices, staging, layer * self.geometry.layer_bytes)
                    if copied == len(pages):
                        stream.synchronize()
                        layer_done(layer)
                stream.synchronize()

    def copy_layer(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int) -> None:
        stream, planes, nbytes = self._stream(), self._layers[layer], self.geometry.layer_bytes
        part = torch.from_numpy(slab)[:, layer * nbytes : (layer + 1) * nbytes]
        step = max(1, STAGING_BYTES // nbytes)
        with self._module.stream(stream):
            for start in range(0, len(pages), step):
                indices = torch.from_numpy(pages[start : start + step]).to(self.device)
                staging = torch.empty((len(indices), nbytes), dtype=torch.uint8, device=self.device)
                # Row by row: a layer's bytes lie together in a page only, and a copy of several would pass through
                # memory that is not pinned.
                for row, slot in enumerate(slots[start : start + step].tolist()):
                    staging[row].copy_(part[slot], non_blocking=True)
                stage_in(planes, indices, staging, 0)
            stream.synchronize()


def open_device_pool(kvcache: Any, page_size: int) -> DevicePool:
    """The pool behind SGLang's `kvcache`. Raises ConfigError if it is of a kind that is not supported."""
    from swift_tiers.sglang_ext.shared_pool import BlockMajorKVPool

    layers = layer_planes(kvcache)
    if isinstance(kvcache, BlockMajorKVPool):
        return BlockMajorPool(layers, page_size, kvcache.table)
    on_host = layers[0][0].device.type == "cpu"
    return HostMemoryPool(layers, page_size) if on_host else AcceleratorPool(layers, page_size)
