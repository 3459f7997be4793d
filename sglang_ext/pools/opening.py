"""Which of our pools serves a KV pool of SGLang."""

from __future__ import annotations

from typing import Any

from swift_tiers.radix_tiering.base.errors import ConfigError

from .accelerator_pool import open_cuda_pool
from .device_pool import BlockMajorPool, DevicePool, HostMemoryPool, layer_planes


def open_device_pool(kvcache: Any, page_size: int) -> DevicePool:
    """The pool behind SGLang's `kvcache`. Raises ConfigError if it is of a kind that is not supported."""
    from .shared_pool import BlockMajorKVPool

    layers = layer_planes(kvcache)
    if isinstance(kvcache, BlockMajorKVPool):
        return BlockMajorPool(layers, page_size, kvcache.table)
    device = layers[0][0].device.type
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"--enable-swift-tiers: the model's KV pool is on a {device!r} device; "
            "CUDA devices and the CPU are supported: remove the flag"
        )
    return HostMemoryPool(layers, page_size) if device == "cpu" else open_cuda_pool(layers, page_size)
