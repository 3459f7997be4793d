"""SGLang's device pools as the tiers need them: block-major, shared, lent, and how pages are copied out and in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .accelerator_pool import AcceleratorPool
    from .device_pool import DevicePool, HostMemoryPool
    from .lending_allocator import LendingAllocator
    from .opening import open_device_pool
    from .shared_pool import BlockMajorKVPool, LentKVPool, SharedKVPool
    from .supported import check_model, check_modes
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "AcceleratorPool",
    "BlockMajorKVPool",
    "DevicePool",
    "HostMemoryPool",
    "LendingAllocator",
    "LentKVPool",
    "SharedKVPool",
    "check_model",
    "check_modes",
    "open_device_pool",
]
