"""SGLang's KV pool in memory that other processes can map: on the CPU platform, where memory is lent.

The platform hands these classes to SGLang (`get_kv_pool_cls`). Only where the buffers lie is ours: addressing, reading
and writing stay SGLang's.
"""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from swift_tiers.radix_tiering.donation.arena import SharedArena
from swift_tiers.radix_tiering.donation.extents import PoolLayout
from swift_tiers.radix_tiering.errors import ConfigError
from swift_tiers.radix_tiering.page import round_up

#: Each plane begins at such a multiple of bytes.
_ALIGNMENT = 4096


class SharedKVPool(MHATokenToKVPool):
    """A pool whose rows lie in a `SharedArena`, in one of two layouts:

    - layer-major, as SGLang's own: K and V of each layer are planes of their own, `[rows, heads, head_dim]`.
    - block-major: `[rows, 2 * layers, heads, head_dim]`, K and V of a layer being views with a stride. The bytes of a
      page lie together, so a page can be lent in one piece; a row's neighbour in its layer is a whole token away.
    """

    block_major = False
    arena: SharedArena
    layout: PoolLayout
    #: Block-major only: uint8 [pages, page_size, 2 * layers, bytes of a row].
    table: torch.Tensor

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
        plane_bytes = rows * row_bytes if self.block_major else round_up(rows * row_bytes, _ALIGNMENT)
        self.arena = SharedArena(planes * plane_bytes, "swift-tiers-kv")
        whole = torch.from_numpy(self.arena.array).view(self.store_dtype)
        if self.block_major:
            self.layout = PoolLayout((0,), self.page_size * planes * row_bytes)
            self.table = torch.from_numpy(self.arena.array).view(-1, self.page_size, planes, row_bytes)
            views = list(whole.view(rows, planes, *shape[1:])[: shape[0]].unbind(1))
        else:
            starts = [plane * plane_bytes for plane in range(planes)]
            self.layout = PoolLayout(tuple(starts), self.page_size * row_bytes)
            views = [
                whole[start // self.store_dtype.itemsize :][: shape[0] * shape[1] * shape[2]].view(shape)
                for start in starts
            ]
        self.k_buffer = views[0::2]
        self.v_buffer = views[1::2]


class BlockMajorKVPool(SharedKVPool):
    """The same, block-major."""

    block_major = True
