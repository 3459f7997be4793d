"""Waiting for the clocks of the system to move."""

from __future__ import annotations

import time
from pathlib import Path


def file_clock_moved(path: Path, within: float = 60.0) -> None:
    """Return once a file that is written now gets a later time than `path` has: these times go in steps."""
    probe = path.with_name(path.name + ".probe")
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        probe.write_bytes(b"x")
        later = probe.stat().st_ctime_ns > path.stat().st_ctime_ns
        probe.unlink()
        if later:
            return
    raise TimeoutError("the file system's clock does not move")
