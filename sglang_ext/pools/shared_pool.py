"""SGLang's KV pool in memory that other processes can map, where memory is lent.

The CPU platform hands these classes to SGLang (`get_kv_pool_cls`), and on a GPU a hook does. Only where the buffers lie
is ours: addressing, reading and writing stay SGLang's.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import round_up
from swift_tiers.radix_tiering.lending.donation.arena import ExportedArena, SharedArena
from swift_tiers.radix_tiering.lending.donation.device_arena import DeviceArena
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout

from .gpu_memory import gpu_memory

#: Each layer, and what is block-major, begins at such a multiple of bytes.
_ALIGNMENT = 4096


class LentKVPool(MHATokenToKVPool):
    """A pool whose rows lie in an arena, in one of two layouts:

    - layer-major, as SGLang's own: K and V of each layer are planes of their own, `[rows, heads, head_dim]`, and V
      begins whole pages behind K: there are attention kernels that reach the one from the other.
    - block-major: `[rows, 2 * layers, heads, head_dim]`, K and V of a layer being views with a stride. The bytes of a
      page lie together, so a page can be lent in one piece; a row's neighbour in its layer is a whole token away.
    """

    block_major = False
    arena: ExportedArena
    layout: PoolLayout
    #: Block-major only: uint8 [pages, page_size, 2 * layers, bytes of a row].
    table: torch.Tensor

    @abstractmethod
    def _export(self, size: int) -> torch.Tensor:
        """Set `arena`, of so many bytes; its memory, uint8 [size], zeroed. Raises ArenaError."""

    def _create_buffers(self) -> None:
        if self.is_quantized_kv_cache or self.post_capture_active:
            raise ConfigError(
                "peer.donate: a KV pool with scales, or one that is sized after graphs were captured, cannot be lent; "
                "choose another --kv-cache-dtype, or remove peer.donate"
            )
        super()._create_buffers()

    def _create_buffers_normal(self) -> None:
        shape, v_shape = self._kv_buffer_shapes()
        if shape != v_shape or self.kv_cache_layout != "nhd":
            raise ConfigError(
                "peer.donate: the model's KV pool has keys and values of different sizes, or is not in NHD layout; "
                "remove peer.donate"
            )
        rows, planes = round_up(shape[0], self.page_size), 2 * self.layer_num
        row_bytes = self.head_num * self.head_dim * self.store_dtype.itemsize
        plane_bytes = rows * row_bytes
        layer_bytes = 2 * plane_bytes if self.block_major else round_up(2 * plane_bytes, _ALIGNMENT)
        memory = self._export(self.layer_num * layer_bytes)
        whole = memory.view(self.store_dtype)
        if self.block_major:
            self.layout = PoolLayout((0,), self.page_size * planes * row_bytes)
            self.table = memory.view(-1, self.page_size, planes, row_bytes)
            views = list(whole.view(rows, planes, *shape[1:])[: shape[0]].unbind(1))
        else:
            starts = [plane // 2 * layer_bytes + plane % 2 * plane_bytes for plane in range(planes)]
            self.layout = PoolLayout(tuple(starts), self.page_size * row_bytes)
            views = [
                whole[start // self.store_dtype.itemsize :][: shape[0] * shape[1] * shape[2]].view(shape)
                for start in starts
            ]
        self.k_buffer = views[0::2]
        self.v_buffer = views[1::2]


class SharedKVPool(LentKVPool):
    """In memory of the host, for the CPU platform."""

    def _export(self, size: int) -> torch.Tensor:
        self.arena = arena = SharedArena(size, "swift-tiers-kv")
        return torch.from_numpy(arena.array)


class BlockMajorKVPool(SharedKVPool):
    """The same, block-major."""

    block_major = True


class DeviceKVPool(LentKVPool):
    """In memory of the GPU that computes with it."""

    def _export(self, size: int) -> torch.Tensor:
        self.arena = arena = DeviceArena(gpu_memory(torch.device(self.device)), size)
        return arena.memory


def device_pool_class(default: type) -> type:
    """What takes the place of `default`, SGLang's choice, on a GPU. Raises ConfigError where nothing can."""
    if default is not MHATokenToKVPool:
        raise ConfigError(f"peer.donate: a {default.__name__} cannot be lent so far; remove peer.donate")
    return DeviceKVPool
