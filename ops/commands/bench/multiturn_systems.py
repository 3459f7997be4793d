"""The three servers that `swift-tiers bench multiturn` compares, with the same memory and the same disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, round_up

from ...base.errors import CommandError
from ..demo.servers import free_ports
from ..demo.workload import read_shape
from .multiturn_hicache import DiskBytes, announce, disk_bytes
from .two_servers import BenchServer, get

OFF, HICACHE, TIERS = "off", "hicache", "swift-tiers"
SYSTEMS = (OFF, HICACHE, TIERS)
PAGE_TOKENS = 16
#: Tokens of a prefill chunk, of every server: while one is computed, nobody else gets a turn.
CHUNK = 512
#: Host memory over device memory, where it need not hold everything.
HOST_RATIO = 1.25
#: What of a round's data the disk has room for: more than all rounds together make.
SSD_MARGIN = 1.5
SMALLEST_SSD = 64 * 2**20
#: Bytes per second that no disk passes.
NO_LIMIT = 1e15


class Sizes(NamedTuple):
    """What every server gets."""

    model: Path
    token_bytes: int
    device_tokens: int
    host_tokens: int
    ssd_bytes: int
    host_ratio: float = HOST_RATIO  # host tokens over device tokens, as HiCache is told

    @property
    def page_bytes(self) -> int:
        return PAGE_TOKENS * self.token_bytes


class System:
    """One server and how to read what it moved from and to its disk. A context manager: leaving it ends the server."""

    def __init__(self, name: str, server: BenchServer, port: int, moved: Callable[[], DiskBytes | None]) -> None:
        self.name = name
        self.server = server
        self.port = port
        self._moved = moved

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.end()

    def disk(self) -> DiskBytes:
        """Bytes since the server's start. Raises CommandError if its disk is not throttled: nothing could be said."""
        moved = self._moved()
        if moved is None:
            raise CommandError(f"{self.name}: its disk is not throttled; see {self.server.log}")
        return moved


def choose_sizes(model: Path, longest: int, together: int, written_tokens: int, held_tokens: int = 0) -> Sizes:
    """Memory for what is answered at a time; `written_tokens`: of KV that a server's disk will ever get; `held_tokens`:
    that host memory is to hold in any case.

    Raises CommandError.
    """
    token_bytes = read_shape(model).token_bytes
    device = round_up(together * (longest + 2 * PAGE_TOKENS), PAGE_TOKENS)
    # What HiCache makes of its ratio, its one page more included.
    ratio = max(HOST_RATIO, round(held_tokens / device + 0.01, 2))
    host = (int(device * ratio) // PAGE_TOKENS + 1) * PAGE_TOKENS
    ssd = round_up(max(int(written_tokens * token_bytes * SSD_MARGIN), SMALLEST_SSD), 2**20)
    return Sizes(model, token_bytes, device, host, ssd, ratio)


def make_system(name: str, sizes: Sizes, bytes_per_second: float, prefetch_policy: str, folder: Path) -> System:
    """A server that is yet to be started. `folder`, which must be there, gets its log and its disk, which there is
    none of at 0 bytes per second."""
    (port,) = free_ports(1)
    common = [
        "--model-path", str(sizes.model),
        "--dtype", "float32",
        "--max-total-tokens", str(sizes.device_tokens),
        "--page-size", str(PAGE_TOKENS),
        "--chunked-prefill-size", str(CHUNK),
        "--enable-cache-report",
    ]  # fmt: skip
    build = {OFF: _off, HICACHE: _hicache, TIERS: _tiers}[name]
    more, environment, moved = build(sizes, bytes_per_second, prefetch_policy, folder, port)
    server = BenchServer(name, [*common, *more], port, folder / f"{name}.log", environment)
    return System(name, server, port, moved)


class _Made(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    moved: Callable[[], DiskBytes | None]


def _off(sizes: Sizes, bytes_per_second: float, prefetch_policy: str, folder: Path, port: int) -> _Made:
    return _Made([], {}, lambda: DiskBytes(0, 0))


def _hicache(sizes: Sizes, bytes_per_second: float, prefetch_policy: str, folder: Path, port: int) -> _Made:
    environment = announce(folder / "plugin", bytes_per_second or NO_LIMIT)
    environment["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder / "files")
    arguments = [
        "--enable-hierarchical-cache",
        # The size in gigabytes is a whole number.
        "--hicache-ratio", str(sizes.host_ratio),
        "--hicache-write-policy", "write_through",
        "--hicache-io-backend", "direct",
        # A page in one piece, as it is in its file.
        "--hicache-mem-layout", "page_first_direct",
    ]  # fmt: skip
    if bytes_per_second:
        arguments += ["--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", prefetch_policy]
    return _Made(arguments, environment, lambda: disk_bytes(folder / "plugin"))


def _tiers(sizes: Sizes, bytes_per_second: float, prefetch_policy: str, folder: Path, port: int) -> _Made:
    disk = folder / "ssd"
    slot = round_up(sizes.page_bytes, BLOCK_BYTES)
    config: dict[str, Any] = {
        "host": {"size": sizes.host_tokens // PAGE_TOKENS * slot},
        "policy": {"write": "through"},
        "bus": {"enabled": False},  # has a bench of its own
    }
    if bytes_per_second:
        disk.mkdir()
        config["ssd"] = {
            "directories": [str(disk)],
            "size_per_device": sizes.ssd_bytes,
            # A page in one piece, as HiCache has it.
            "stripe_unit": slot,
            "throttle": int(bytes_per_second),
        }

    def moved() -> DiskBytes | None:
        if not bytes_per_second:
            return DiskBytes(0, 0)
        snapshot = get(port, "/server_info")["internal_states"][0]["swift_tiers"]
        if "throttled" not in snapshot["io_engine"]:
            return None
        devices = snapshot["devices"]
        return DiskBytes(sum(one["bytes_read"] for one in devices), sum(one["bytes_written"] for one in devices))

    return _Made(["--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)], {}, moved)
