"""Whatever waits, wakes or tells time in the engine asks a runner for it: no module takes that from Python itself."""

from __future__ import annotations

import ast
from pathlib import Path

ENGINE = Path(__file__).parents[3] / "radix_tiering"
#: Where such things come from.
SOURCES = {"threading", "queue", "time", "select", "concurrent.futures", "sched", "asyncio"}
#: The runners themselves, and what blocks in the kernel, or in a driver, and has a model that takes its place.
REAL = {
    "base/runner.py", "base/virtual/primitives.py", "base/memory.py", "tiers/ssd/arrays/wrapping.py",
    "tiers/ssd/arrays/thread_array.py", "tiers/ssd/arrays/uring.py", "tiers/ssd/arrays/uring_array.py",
    "tiers/ssd/direct.py", "lending/donation/cuda_memory.py",
}  # fmt: skip
#: Which ask Python yet: leases and arenas, landing memory, the bus, samples of GPUs.
NOT_YET = {
    "base/waker.py", "tiers/host/landing.py", "tiers/ssd/direct_reads.py", "tiers/peer/places.py",
    "tiers/peer/worker.py", "lending/leases/service.py",
    "lending/donation/arena_client.py", "lending/donation/arena_guest.py", "lending/donation/arena_server.py",
    "lending/donation/device_arena.py", "gpus/sampler.py", "gpus/watch.py", "bus/speak/publisher.py",
    "bus/speak/request_board.py", "bus/speak/command_book.py", "bus/redis/redis_server.py", "bus/hear/waiting.py",
}  # fmt: skip


def sources_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found & SOURCES


def test_only_runners_ask_python() -> None:
    asking = {str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*.py") if sources_of(path)}
    assert asking <= REAL | NOT_YET, "take it from a runner"
    assert not (NOT_YET | REAL) - asking, "these ask no longer: take them from the list"
