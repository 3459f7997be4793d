"""A Redis, publishers that write to it, and the end of both."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.redis import connection
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.publishing import bus_config, make_publisher
from support.redis import RealRedis, outliving

Publish = Callable[..., BusPublisher]


@pytest.fixture(scope="module")
def redis_program() -> Path | None:
    """The server's program; None: the suite's own. Tests of the contract name others as well."""
    return None


@pytest.fixture(scope="module")
def shared_redis(redis_program: Path | None) -> Iterator[RealRedis]:
    with RealRedis(redis_program) as server:
        yield server


@pytest.fixture
def redis(shared_redis: RealRedis) -> RealRedis:
    """Empty; not to be changed in any other way than by writing to it."""
    shared_redis.admin.flushall()
    return shared_redis


@pytest.fixture
def own_redis(redis_program: Path | None) -> Iterator[RealRedis]:
    """For tests that kill it, fill it, or change its users."""
    with RealRedis(redis_program) as server:
        yield server


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Start a publisher, with the arguments of `support.publishing.make_publisher`; it is closed in the end.

    It waits for an answer for longer than a machine does something else. Where that is the matter, a test sets it back.
    """
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 20.0)
    started: list[BusPublisher] = []

    def start(where: RealRedis | BusConfig, *args: Any, **options: Any) -> BusPublisher:
        config = where if isinstance(where, BusConfig) else bus_config(where.url)
        made = make_publisher(config, *args, **options)
        started.append(made)
        made.start()
        return made

    yield start
    for one in started:
        one.close(60)
        assert not one.alive, "the publisher's thread goes on"


@pytest.fixture
def directory() -> Iterator[Path]:
    """For an embedded Redis; the name is short enough for a socket, which those of `tmp_path` are not."""
    parent = Path(tempfile.mkdtemp(prefix="swift-bus-"))
    yield parent / "d"
    left = outliving(str(parent))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(parent)
    assert not left, "a process outlived its test"
