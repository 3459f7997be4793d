"""Whatever waits, wakes or tells time in the engine asks a runner for it: no module takes that from Python itself."""

from __future__ import annotations

import ast
from pathlib import Path

ENGINE = Path(__file__).parents[3] / "radix_tiering"
#: Where such things come from.
SOURCES = {"threading", "queue", "time", "select", "concurrent.futures", "sched", "asyncio"}
#: The runners themselves, and what waits in the kernel, in a driver or for another program, and has a model that takes
#: its place, or none to take.
REAL = {
    "base/runner.py", "base/poller.py", "base/virtual/primitives.py", "base/memory.py",
    "tiers/ssd/arrays/wrapping.py", "tiers/ssd/arrays/device_file.py", "tiers/ssd/arrays/thread_array.py",
    "tiers/ssd/arrays/uring.py", "tiers/ssd/arrays/uring_array.py", "tiers/ssd/direct.py",
    "lending/donation/cuda_memory.py", "tiers/remote/child.py", "tiers/remote/child_engine.py",
    "tiers/remote/child_process.py", "bus/redis/redis_server.py",
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
    assert asking <= REAL, "take it from a runner"
    assert not REAL - asking, "these ask no longer: take them from the list"
