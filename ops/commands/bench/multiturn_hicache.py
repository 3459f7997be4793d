"""What SGLang's HiCache needs to run on a machine without an accelerator, and a throttle for its file storage.

A plugin of SGLang that only the HiCache server of `swift-tiers bench multiturn` loads: `announce` writes an entry point
for it into the bench's own temporary folder, and that server alone has the folder on its path. Nothing of it is in the
project's own entry points.

**On the CPU** SGLang 0.5.23 lacks: memory that need not be pinned (every host pool asks CUDA to pin it), and the three
copies between host pool and device pool of `--hicache-io-backend direct`, which it takes from a CUDA extension. Both
are supplied here in plain torch. Policy, threads, storage layout and everything else are SGLang's own.

**The disk.** Reads and writes of pages by SGLang's `file` storage pass one token bucket, the one of `ssd.throttle`
(`TokenBucket`): both directions and all threads share it, bytes are taken when a page is asked for, and the call
returns when the page is there *and* its bytes have passed. Files are read through the page cache, so the throttle alone
says how fast the disk is. Nothing is taken for a page that is not there, or that is not written because it is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swift_tiers.radix_tiering.base.token_bucket import TokenBucket

from ..demo.entry_points import PLUGINS
from ..demo.entry_points import announce as announce_to

#: Environment variable with the settings, JSON: `bytes_per_second`, and `counters`, the path of a file.
SETTINGS = "SWIFT_TIERS_BENCH_HICACHE"
_DISTRIBUTION = "swift-tiers-bench-hicache"
_READ, _WRITTEN = 0, 1
_POOLS = "sglang.srt.mem_cache.pool_host"
_FILE = "sglang.srt.mem_cache.hicache_storage.HiCacheFile"


class DiskBytes(NamedTuple):
    """What has passed since the start."""

    read: int
    written: int


def announce(folder: Path, bytes_per_second: float) -> dict[str, str]:
    """Prepare `folder` for one HiCache server; the environment variables which that server needs."""
    path = announce_to(folder, _DISTRIBUTION, {PLUGINS: {"bench-hicache": f"{__name__}:load"}})
    settings = {"bytes_per_second": bytes_per_second, "counters": str(folder / "disk-bytes")}
    return {"PYTHONPATH": path, SETTINGS: json.dumps(settings)}


def disk_bytes(folder: Path) -> DiskBytes | None:
    """What passed the throttle of the server that `announce` prepared `folder` for; None if it has no throttle."""
    try:
        read, written = np.fromfile(folder / "disk-bytes", np.int64)
    except (OSError, ValueError):
        return None
    return DiskBytes(int(read), int(written))


def load() -> None:
    """The entry point, called in each process of the server; the scheduler's is the one with pools and storage."""
    if SETTINGS not in os.environ or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.mem_cache.pool_host import base, mha
    from sglang.srt.plugins.hook_registry import HookType

    from swift_tiers.sglang_ext.hooks import Hook, apply_hooks, check_hook

    settings = json.loads(os.environ[SETTINGS])
    disk = ThrottledDisk(settings["bytes_per_second"], Path(settings["counters"]))
    # The bench gives the pool its size; SGLang would leave 10 GiB to others and refuse to start on a small machine.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    for function in (transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf):
        setattr(mha, function.__name__, function)
    target = ("target_location", "target_sizes")
    storage = (
        Hook(f"{_FILE}.get", HookType.AROUND, disk.around_get, ("self", "key", *target), "throttle reads"),
        Hook(f"{_FILE}.set", HookType.AROUND, disk.around_set, ("self", "key", "value", *target), "throttle writes"),
    )
    for hook in storage:
        check_hook(hook)
    init = Hook(f"{_POOLS}.base.HostKVCache.__init__", HookType.AROUND, around_pool_init, (), "pin nothing")
    apply_hooks((*storage, init))


class ThrottledDisk:
    """The disk of all threads of a process. Counts in a file, where another process can read it at any time."""

    def __init__(
        self,
        bytes_per_second: float,
        counters: Path,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bucket = TokenBucket(bytes_per_second)
        self._lock = threading.Lock()
        self._now, self._sleep = now, sleep
        np.zeros(2, np.int64).tofile(counters)
        self._counters = np.memmap(counters, np.int64, "r+", shape=(2,))

    def around_get(self, original: Any, storage: Any, key: str, target: Any, *more: Any, **named: Any) -> Any:
        asked = self._now()
        page = original(storage, key, target, *more, **named)
        if page is not None:
            self._pass(_READ, target.numel() * target.element_size(), asked)
        return page

    def around_set(self, original: Any, storage: Any, key: str, value: Any = None, *more: Any, **named: Any) -> Any:
        asked = self._now()
        there = storage.exists(key)
        stored = original(storage, key, value, *more, **named)
        if stored and not there:
            self._pass(_WRITTEN, value.numel() * value.element_size(), asked)
        return stored

    def _pass(self, counter: int, length: int, asked: float) -> None:
        """Return when `length` bytes that were asked for at `asked` have passed."""
        with self._lock:
            due = self._bucket.take(length, asked)
        left = due - self._now()
        if left > 0:
            self._sleep(left)
        with self._lock:
            self._counters[counter] += length


def around_pool_init(original: Any, pool: Any, *positional: Any, **named: Any) -> None:
    """`HostKVCache.__init__`: there is nothing to pin memory for."""
    original(pool, *positional, **{**named, "pin_memory": False})


def transfer_kv_direct(
    src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy tokens between layer-first pools. Tensors `[token, head, dim]`, one a layer; indices are of tokens."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Any], dst_ptrs: Sequence[Any], src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """Copy one layer of pages up. Sources (K, V) `[page, layer, token, head, dim]`, targets `[token, head, dim]`."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Any], dst_ptrs: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy pages of all layers down. Sources: every layer's K, then every layer's V; targets (K, V) as above."""
    pages = dst_indices[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        part, layer = divmod(number, layers)
        dst_ptrs[part][pages, layer] = source[src_indices].unflatten(0, (-1, page_size))
