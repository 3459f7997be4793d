"""Which of our pools serves a KV pool of SGLang."""

from __future__ import annotations

from typing import Any

from swift_tiers.radix_tiering.base.errors import ConfigError

from .accelerator_pool import open_cuda_pool
from .device_pool import BlockMajorPool, DevicePool, HostMemoryPool, layer_planes
from .encoded_pool import EncodedPool


def open_device_pool(kvcache: Any, page_size: int, codec: str = "") -> DevicePool:
    """The pool behind SGLang's `kvcache`, of which pages are kept in `codec`; empty: as they are. Raises ConfigError if
    it is of a kind that is not supported."""
    from .shared_pool import BlockMajorKVPool

    layers = layer_planes(kvcache)
    device = layers[0][0].device.type
    if codec and device == "cpu":
        return EncodedPool(layers, page_size, codec)
    if isinstance(kvcache, BlockMajorKVPool):
        return BlockMajorPool(layers, page_size, kvcache.table)
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"--enable-swift-tiers: the model's KV pool is on a {device!r} device; "
            "CUDA devices and the CPU are supported: remove the flag"
        )
    return HostMemoryPool(layers, page_size) if device == "cpu" else open_cuda_pool(layers, page_size, codec)
