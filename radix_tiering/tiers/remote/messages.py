"""What the remote tier and its child say to each other, by msgpack: no pickle on any wire."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

#: Of one message: some thousand names.
MOST_BYTES = 1 << 18


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the child, first of all: which engine, and how a rank's memory lies. Then come jobs (`engine.EngineJob`).
    Options may hold secrets, and are on no command line therefore."""

    driver: str  # "MODULE:NAME" of an `OpenDriver`
    engine: str
    options: dict[str, Any]
    slots: int
    stride: int


class LetIn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To a rank that has connected: its part of the slab; with it come descriptors of the slab and of the process."""

    place: int  # from 0, whose rank began the process
    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is there."""


class JobDone(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """See `engine.EngineAnswer`."""

    number: int
    done: list[bool]
    error: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot be used; the process ends."""

    reason: str


FromChild = LetIn | Ready | JobDone | Failed


def peer_user(connection: socket.socket) -> int:
    """Who is at the other end of a connection, or began to listen there."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", raw)[1]
    return user


def widen(connection: socket.socket) -> None:
    """Let it take the largest message, either way."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, MOST_BYTES)
