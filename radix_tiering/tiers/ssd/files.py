"""Arrays of real devices: files and block devices, by io_uring or, where that is not allowed, by threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ...base.errors import ConfigError
from .arrays.device_file import (
    HELD_SECONDS,
    DeviceFile,
    check_owner,
    create_device_file,
    half_made,
    is_empty_file,
    open_device_file,
    remove_half_made,
)
from .arrays.file_array import FileArray
from .arrays.thread_array import ThreadArray
from .arrays.uring import probe
from .arrays.uring_array import UringArray

__all__ = [
    "HELD_SECONDS",
    "DeviceFile",
    "Engine",
    "FileArray",
    "ThreadArray",
    "UringArray",
    "check_owner",
    "create_device_file",
    "half_made",
    "is_empty_file",
    "open_array",
    "open_device_file",
    "remove_half_made",
]

Engine = Literal["auto", "io_uring", "threads"]


def open_array(paths: Sequence[Path | str], *, engine: Engine = "auto", depth: int = 256) -> UringArray | ThreadArray:
    """Open and lock `paths` as one array, device i being `paths[i]`.

    "auto" takes io_uring where this process may use it, else threads, and `description` says why. `depth` is how many
    requests the system is given at once; more wait in user space. Raises ConfigError (also for engine "io_uring" where
    it does not work) and StripeSetBusyError, with nothing left open.
    """
    reason = probe() if engine != "threads" else "as configured"
    if reason is None:
        return UringArray(paths, depth=depth)
    if engine == "io_uring":
        raise ConfigError(f"ssd engine io_uring cannot be used: {reason}; use engine auto or threads")
    return ThreadArray(paths, depth=depth, reason=reason)
