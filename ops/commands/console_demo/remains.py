"""What a server that died has said stays on the bus until it is too old."""

from __future__ import annotations

from typing import Any

import msgspec

from swift_tiers.radix_tiering.bus.contract.schema import STATE_TTL_LOWEST
from swift_tiers.radix_tiering.bus.contract.views import RankState, ServerState, ServerView, View


def remains(last: ServerState | None, age: float) -> ServerState | None:
    """What is still there of a server that died `age` seconds after it said this; None: nothing any more."""
    if last is None or age >= STATE_TTL_LOWEST:
        return None
    return ServerState(server=_older(last.server, age), ranks=tuple(_rank(rank, age) for rank in last.ranks))


def gone(name: str, age: float) -> ServerState:
    """Of which only the last heartbeat is known."""
    return ServerState(server=ServerView(server=name, alive=False, age_seconds=age))


def _rank(rank: RankState, age: float) -> RankState:
    older: dict[str, Any] = {}
    for name in rank.__struct_fields__:
        said = getattr(rank, name)
        if isinstance(said, tuple):
            older[name] = tuple(_older(one, age) for one in said)
        elif isinstance(said, View):
            older[name] = _older(said, age)
    return msgspec.structs.replace(rank, **older)


def _older(view: Any, age: float) -> Any:
    return view if view.age_seconds is None else msgspec.structs.replace(view, age_seconds=view.age_seconds + age)
