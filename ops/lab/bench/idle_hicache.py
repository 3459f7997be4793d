"""HiCache's controller of SGLang over a GPU that does nothing: everything up to a launch, a stream or an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from sglang.kernels.ops.kvcache import hicache as hicache_kernels
from sglang.srt.managers import cache_controller
from sglang.srt.managers.cache_controller import CacheOperation, HiCacheController
from sglang.srt.mem_cache import l2_transfer
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost


class KvShape(NamedTuple):
    """Of a model's KV in bfloat16."""

    layers: int
    kv_heads: int
    head_dim: int
    page: int  # tokens


class _Event:
    """Reached at once."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True


class _Stream:
    """Does what it is asked for at once: nothing."""

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Entered:
    """A stream that is entered, and left."""

    def __init__(self, stream: _Stream) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class IdleHiCache:
    """It loads and writes back tokens by its kernels, as it does by default; host memory layer by layer.

    Its pools are of a few pages: which tokens are asked for makes no difference to a device that copies nothing.
    """

    def __init__(self, shape: KvShape) -> None:
        size = 4 * shape.page
        pool = MHATokenToKVPool(
            size, shape.page, torch.bfloat16, shape.kv_heads, shape.head_dim, shape.layers, "cpu", False
        )
        allocator = PagedTokenToKVPoolAllocator(size, shape.page, torch.bfloat16, "cpu", pool, False)
        with host_memory_budget_scope(2**50):
            host = MHATokenToKVPoolHost(
                pool._mha_buffer_info(), 1.0, 0, shape.page, "layer_first", pin_memory=False, device="cpu",
                device_capacity_tokens=size, start_layer=0, end_layer=shape.layers - 1,
            )  # fmt: skip
        host.can_use_jit = True  # as on a GPU
        with _device():
            self._controller = HiCacheController(
                allocator, host, shape.page, None, threading.Event(), "write_through", io_backend="kernel"
            )

    def load_microseconds(self, tokens: int) -> float:
        """Of this thread, to start a load of so many tokens, whose slots are known."""
        controller, slots = self._controller, torch.arange(tokens)
        controller.load_queue.append(CacheOperation(slots, slots, 1))
        return _microseconds(controller.start_loading, controller.ack_load_queue)

    def write_microseconds(self, tokens: int) -> float:
        """Of this thread, to start writing so many tokens back, whose slots are known."""
        controller, slots = self._controller, torch.arange(tokens)
        controller.write_queue.append(CacheOperation(slots, slots, 1))
        return _microseconds(controller.start_writing, controller.ack_write_queue)


def _microseconds(start: Callable[[], object], acknowledged: list[Any]) -> float:
    with _device():
        began = time.thread_time()
        start()
        taken = time.thread_time() - began
    acknowledged.clear()
    return taken * 1e6


@contextmanager
def _device() -> Iterator[None]:
    """Of capability 9.0, for SGLang in this process."""
    device = SimpleNamespace(
        Event=_Event, Stream=_Stream, current_stream=_Stream, stream=_Entered, __name__="a device that does nothing"
    )
    kernels = SimpleNamespace(
        launch_one=lambda *_: None, launch_all=lambda *_: None, fits_device=lambda device: True
    )  # fmt: skip
    with ExitStack() as stack:
        for module in (cache_controller, l2_transfer):
            stack.enter_context(patch.object(module, "device_module", device))
        for name in ("_jit_hicache_module", "_jit_hicache_tma_module"):
            stack.enter_context(patch.object(hicache_kernels, name, lambda **_: kernels))
        stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda: (9, 0)))
        stack.enter_context(patch.object(torch.cuda, "current_device", lambda: 0))
        yield
