"""The way to a Redis: connections, transactions, outages, and an embedded server where none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .batch import RedisBatch, Reply
    from .connection import address_of, bus_errors, connect, describe
    from .outage import Outage
    from .redis_binary import find_cli, find_server
    from .redis_clock import RedisClock
    from .redis_server import EmbeddedRedis, socket_path
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "EmbeddedRedis",
    "Outage",
    "RedisBatch",
    "RedisClock",
    "Reply",
    "address_of",
    "bus_errors",
    "connect",
    "describe",
    "find_cli",
    "find_server",
    "socket_path",
]
