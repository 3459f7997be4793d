"""Elastic donation: how much of its KV memory a server lends, in what units, and when it takes it back (SwiftCache)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .arena import ArenaError, ExportedArena, SharedArena
    from .arena_client import ArenaClient
    from .arena_server import ArenaServer
    from .cuda_memory import CudaDeviceMemory
    from .device_arena import AttachedDevice, DeviceArena
    from .device_memory import DeviceMemory
    from .extents import CutRun, PoolLayout, Span
    from .lender import Lender
    from .sizing import ElasticSizer
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ArenaClient",
    "ArenaError",
    "ArenaServer",
    "AttachedDevice",
    "CudaDeviceMemory",
    "CutRun",
    "DeviceArena",
    "DeviceMemory",
    "ElasticSizer",
    "ExportedArena",
    "Lender",
    "PoolLayout",
    "SharedArena",
    "Span",
]
