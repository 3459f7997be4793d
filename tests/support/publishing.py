"""Publishers of the bus with made-up telemetry, and waiting for what they do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.redis import PATIENCE, RealRedis, wait_for
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
    lends: bool = False,
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
        answerer=telemetry,
        leases=(lambda: telemetry.leases()) if lends else None,
        leader=leader,
        runner=ThreadRunner(wall=wall),
        **options,
    )


_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from support.publishing import bus_config, make_publisher
one = make_publisher(bus_config(**json.loads(sys.argv[2])), server=sys.argv[3])
one.start()
print("started", flush=True)
sys.stdin.read()
one.close()
"""


class PublisherProcess:
    """A publisher in a process of its own."""

    def __init__(self, server: str, url: str | None, **fields: Any) -> None:
        """Fields as of `bus_config`. Returns when it was started."""
        tests = Path(__file__).parents[1]
        command = [sys.executable, "-c", _PROCESS, str(tests), json.dumps({"url": url, **fields}), server]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "started\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """As a server ends that is told to."""
        self._process.communicate(timeout=PATIENCE)

    def kill(self) -> None:
        """Safe to call twice, and after `end`."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def between_turns(told: MadeUp) -> Iterator[None]:
    """Within it the publisher that `told` tells is about to ask Redis, and waits for no answer."""
    reached, go_on, stack = threading.Event(), threading.Event(), told.stack

    def wait() -> Any:
        reached.set()
        assert go_on.wait(PATIENCE)
        return stack()

    told.stack = wait  # type: ignore[method-assign]
    try:
        assert reached.wait(PATIENCE), "the publisher does nothing"
        yield
    finally:
        told.stack = stack  # type: ignore[method-assign]
        go_on.set()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A generous bound on what must not wait for the next publishing."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def publishes(redis: RealRedis, key: str = RANK) -> int:
    """How often the rank had published when it last said so; -1 if it says nothing."""
    said = redis.admin.hget(key, "publishes")
    return -1 if said is None else int(said)  # type: ignore[arg-type]


def wait_published(redis: RealRedis, key: str = RANK) -> None:
    """Until everything that was told to the publisher before is on the bus."""
    before = max(0, publishes(redis, key))
    # The one under way may have begun earlier, and its number is told by the next one.
    wait_for(lambda: publishes(redis, key) >= before + 3, "the publisher")
