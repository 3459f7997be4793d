"""SGLang's own storage backends as drivers of the remote tier: our slots, our names, whatever options they know.

Runs in the child of `radix_tiering.tiers.remote`. A backend asks its host pool where a page lies and how large it is;
here one "page" is one object, whole, as with a model whose ranks all have the same KV: so it puts nothing of its own
between our name and our bytes but a suffix.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

#: What engines are told unless somebody has told them otherwise: their own patience is a minute and more.
ENVIRONMENT = {
    "MC_RPC_TIMEOUT_MS": "500",
    "MC_RPC_CONNECT_TIMEOUT_MS": "500",
    "MC_TCP_STATUS_TIMEOUT_SEC": "2",
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
}


#: Engines that bring nothing of several objects where one of them is missing.
ALL_OR_NOTHING = ("nixl",)
#: Engines whose client waits for a transfer by asking, over and over (kvcache-ai/Mooncake#1033).
SPINNING = ("mooncake",)


class SlotPool:
    """Slots of one object each, uint8 [slots, stride], in the words of SGLang's `HostKVCache`: one "token" is one."""

    layout, page_size, dtype, device = "page_first", 1, torch.uint8, "cpu"
    can_use_write_back_jit = False
    allocator = None

    def __init__(self, slots: np.ndarray) -> None:
        self.kv_buffer = torch.from_numpy(slots.reshape(-1))
        self.size = self.page_num = len(slots)
        self.size_per_token = slots.shape[1]
        self._mine = threading.local()

    def get_size_per_token(self) -> int:
        return self.size_per_token

    get_ksize_per_token = get_size_per_token

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        """Addresses and lengths."""
        base, length = self.kv_buffer.data_ptr(), self.size_per_token
        return [base + int(index) * length for index in indices], [length] * len(indices)

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        return self.kv_buffer[int(index) * self.size_per_token :][: self.size_per_token]

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        """What a backend reads to before it copies: of each thread one, since zeroing a new one takes longer than the
        read."""
        if not hasattr(self._mine, "page"):
            self._mine.page = torch.zeros(self.size_per_token, dtype=torch.uint8)
        page: torch.Tensor = self._mine.page
        return page

    def set_from_flat_data_page(self, index: int, data: torch.Tensor) -> None:
        self.get_data_page(index).copy_(data.view(torch.uint8).reshape(-1))

    def get_hybrid_pool_buffer(self) -> list[torch.Tensor]:
        return [self.kv_buffer]

    def is_stride_page_aligned(self, page_size: int = 4096) -> bool:
        return self.size_per_token % page_size == 0 and self.kv_buffer.data_ptr() % page_size == 0


class BackendDriver:
    """A `Driver` over one backend. Never clears it: others use it, too."""

    def __init__(self, engine: str, options: dict[str, object], slots: np.ndarray) -> None:
        """Raises whatever the backend raises where it cannot be opened."""
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, PoolName, PoolTransfer
        from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

        pool: Any = SlotPool(slots)
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=True,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=None,
            extra_config=dict(options),
        )
        self._backend = StorageBackendFactory.create_backend(engine, config, pool)
        self._backend.register_mem_pool_host(pool)
        #: Backends that copy by themselves have the first interface, others the second one alone.
        self._first = type(self._backend).batch_get_v1 is not HiCacheStorage.batch_get_v1
        if not self._first:
            self._backend.register_mem_host_pool_v2(pool, PoolName.KV)
        self._backend.on_host_pools_registered()
        self._kv, self._transfer = PoolName.KV, PoolTransfer
        self._all_or_nothing = engine in ALL_OR_NOTHING
        self.spins = engine in SPINNING

    def exists(self, names: Sequence[str]) -> int:
        return int(self._backend.batch_exists(list(names)))

    def get(self, names: Sequence[str], slots: Sequence[int]) -> list[bool]:
        if not self._first:
            return [self._get_alone(name, slot) for name, slot in zip(names, slots, strict=True)]
        done = [bool(one) for one in self._backend.batch_get_v1(list(names), torch.tensor(slots))]
        if len(names) > 1 and self._all_or_nothing and not any(done):
            return [self.get([name], [slot])[0] for name, slot in zip(names, slots, strict=True)]
        return done

    def _get_alone(self, name: str, slot: int) -> bool:
        """Of those that raise where an object is too short, no other one suffers."""
        transfer = self._transfer(name=self._kv, keys=[name], host_indices=torch.tensor([slot]))
        try:
            return bool(self._backend.batch_get_v2([transfer])[self._kv][0])
        except OSError:
            return False

    def put(self, names: Sequence[str], slots: Sequence[int]) -> list[bool]:
        if self._first:
            return [bool(one) for one in self._backend.batch_set_v1(list(names), torch.tensor(slots))]
        transfer = self._transfer(name=self._kv, keys=list(names), host_indices=torch.tensor(slots))
        return [bool(one) for one in self._backend.batch_set_v2([transfer])[self._kv]]


def open_backend(engine: str, options: dict[str, object], slots: np.ndarray) -> BackendDriver:
    """An `OpenDriver`. Raises HookMismatchError where SGLang's interface is another one than expected."""
    from .hooks import check_hook
    from .overrides import storage_overrides

    torch.set_num_threads(1)  # for copies, several of them wait for each other
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for override in storage_overrides():
        check_hook(override)
    return BackendDriver(engine, options, slots)
