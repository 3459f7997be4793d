"""kvikio without a GPU: its module, its driver's properties, and files that are read when a read is waited for."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch


class _Future:
    def __init__(self, fd: int, memory: torch.Tensor, size: int, offset: int, flips: tuple[int, ...]) -> None:
        self._what = fd, memory, size, offset
        self._flips = flips

    def get(self) -> int:
        fd, memory, size, offset = self._what
        data = bytearray(os.pread(fd, size, offset))
        for place in self._flips:
            if offset <= place < offset + len(data):
                data[place - offset] ^= 1
        memory[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
        return len(data)


def install(monkeypatch: pytest.MonkeyPatch, *, gds: bool = True, flips: tuple[int, ...] = ()) -> None:
    """As the module `kvikio`, until the test's end. `gds`: whether GPUDirect Storage works. `flips`: bytes of files
    that come wrong."""
    module, driver = ModuleType("kvikio"), ModuleType("kvikio.cufile_driver")
    registered: list[int] = []

    class CuFile:
        def __init__(self, path: str, flags: str) -> None:
            assert flags == "r"
            self._fd = os.open(path, os.O_RDONLY)

        def pread(self, memory: torch.Tensor, size: int, offset: int) -> _Future:
            assert registered, "memory was read into that is not registered"
            return _Future(self._fd, memory, size, offset, flips)

        def close(self) -> None:
            os.close(self._fd)

    contents: dict[str, Any] = {
        "CuFile": CuFile,
        "memory_register": lambda memory: registered.append(memory.data_ptr()),
        "memory_deregister": lambda memory: registered.remove(memory.data_ptr()),
        "cufile_driver": driver,
    }
    vars(module).update(contents)
    vars(driver)["get"] = {"is_gds_available": gds}.__getitem__
    monkeypatch.setitem(sys.modules, "kvikio", module)
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", driver)
