"""What all views of keys on the bus have."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one key said when it was read."""

    #: Fields that gather those of the key that begin with their name and a colon: `refused:full` is in `refused`.
    families: ClassVar[tuple[str, ...]] = ()

    server: str
    time: float | None = None  # seconds since 1970 by the writer's clock
    age_seconds: float | None = None  # how old it is, by Redis' clock; None where that cannot be told


class RankedView(View, frozen=True):
    """What one rank of a server said."""

    rank: str
