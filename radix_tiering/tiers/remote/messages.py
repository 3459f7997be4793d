"""What the remote tier and its child say to each other, by msgpack: no pickle on any wire."""

from __future__ import annotations

from typing import Any

import msgspec

#: Of one message: some thousand names.
MOST_BYTES = 1 << 18


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the child, first of all: which engine, and how its memory lies. Then come jobs (`engine.EngineJob`). Options
    may hold secrets, and are on no command line therefore."""

    driver: str  # "MODULE:NAME" of an `OpenDriver`
    engine: str
    options: dict[str, Any]
    slots: int
    stride: int


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is there."""


class JobDone(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """See `engine.EngineAnswer`."""

    number: int
    done: list[bool]


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot be used; the process ends."""

    reason: str


FromChild = Ready | JobDone | Failed
