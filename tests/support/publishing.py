"""Publishers of the bus with made-up telemetry, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from swift_tiers.radix_tiering.bus.publisher import BusPublisher
from swift_tiers.radix_tiering.config import BusConfig, parse_config
from swift_tiers.radix_tiering.events import EventLog

from support.redis import RealRedis, wait_for
from support.telemetry import INFO, MadeUp

RANK = "swift:alpha:dp0-tp0:rank"


def bus_config(url: str | None, **fields: Any) -> BusConfig:
    """Publishing as often as can be, unless told otherwise."""
    where = {} if url is None else {"url": url}
    return parse_config({"bus": {"interval": "100ms", **where, **fields}}).bus


def make_publisher(
    config: BusConfig,
    telemetry: Any = None,
    events: EventLog | None = None,
    *,
    server: str = "alpha",
    rank: str = "dp0-tp0",
    ranks: tuple[str, ...] = ("dp0-tp0",),
    leader: bool = True,
    wall: Callable[[], float] = time.time,
    **options: Any,
) -> BusPublisher:
    """One with something to say, not started."""
    telemetry = telemetry or MadeUp()
    return BusPublisher(
        config,
        server,
        rank,
        msgspec.structs.replace(INFO, ranks=ranks),
        telemetry,
        events or EventLog(wall),
        facts=telemetry.facts,
        leader=leader,
        wall=wall,
        **options,
    )


def publishes(redis: RealRedis, key: str = RANK) -> int:
    """How often the rank had published when it last said so; -1 if it says nothing."""
    said = redis.admin.hget(key, "publishes")
    return -1 if said is None else int(said)  # type: ignore[arg-type]


def wait_published(redis: RealRedis, key: str = RANK) -> None:
    """Until everything that was told to the publisher before is on the bus."""
    before = max(0, publishes(redis, key))
    # The one under way may have begun earlier, and its number is told by the next one.
    wait_for(lambda: publishes(redis, key) >= before + 3, "the publisher")
