"""Reads from a device straight into a GPU's memory: GPUDirect Storage, by NVIDIA's kvikio where it is installed."""

from __future__ import annotations

import importlib
import threading
from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol

import torch

from ...base.errors import ConfigError

#: What GPUDirect Storage moves without a detour: multiples of so many bytes, at multiples of it in the file.
DIRECT_BLOCK = 4096


class PendingRead(Protocol):
    """A read under way."""

    def get(self) -> int:
        """Wait for it; how many bytes have come. Raises OSError or RuntimeError where it failed. Once."""


class DirectFiles(ABC):
    """Files that are read into device memory. Any thread."""

    @abstractmethod
    def read(self, path: str, memory: torch.Tensor, offset: int) -> PendingRead:
        """Begin to read `len(memory)` bytes of a file or block device from byte `offset` into `memory`, uint8 [n],
        contiguous, on the device; it must stay until the read has been waited for. Raises OSError or RuntimeError."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. Nothing may be under way. Idempotent."""


class KvikioFiles(DirectFiles):
    """By kvikio: cuFile where the driver and file system can, else its own copies through page-locked memory."""

    def __init__(self, kvikio: Any, memory: torch.Tensor) -> None:
        """`kvikio`: the module. `memory`: what will be read into, which is registered so that no detour is made."""
        self._kvikio = kvikio
        self._files: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._memory: torch.Tensor | None = memory
        kvikio.memory_register(memory)

    def read(self, path: str, memory: torch.Tensor, offset: int) -> PendingRead:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._kvikio.CuFile(path, "r")
        pending: PendingRead = file.pread(memory, len(memory), offset)
        return pending

    def close(self) -> None:
        with self._lock:
            files, self._files = self._files, {}
            memory, self._memory = self._memory, None
        for file in files.values():
            file.close()
        if memory is not None:
            self._kvikio.memory_deregister(memory)


def find_kvikio(wanted: Literal["auto", "on", "off"]) -> Any:
    """The module, as `ssd.gpu_direct` wants it: None for "off"; for "auto" only where GPUDirect Storage itself works on
    this machine; for "on" also where kvikio has to copy through host memory. Raises ConfigError for "on" without it."""
    if wanted == "off":
        return None
    try:
        kvikio = importlib.import_module("kvikio")
        available = bool(importlib.import_module("kvikio.cufile_driver").get("is_gds_available"))
    except (ImportError, OSError, RuntimeError) as error:
        if wanted == "on":
            raise ConfigError(
                f"ssd.gpu_direct: kvikio cannot be used ({error}); install it (pip install kvikio-cu13), or remove the "
                "setting"
            ) from None
        return None
    return kvikio if available or wanted == "on" else None
