"""Three servers and two hundred readers on one Redis."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from swift_tiers.radix_tiering.base.events import Event, EventLog
from swift_tiers.radix_tiering.bus.contract.views import Snapshot
from swift_tiers.radix_tiering.bus.hear.event_reading import Cursor
from swift_tiers.radix_tiering.bus.hear.reader import BusReader

from support.publishing import PublisherProcess, bus_config, make_publisher, publishes, wait_published
from support.redis import RealRedis, wait_for

SERVERS = ("alpha", "beta", "gamma")
READERS = 200


@pytest.fixture
def servers(redis: RealRedis) -> Iterator[None]:
    with ExitStack() as stack:
        for name in SERVERS:
            stack.callback(PublisherProcess(name, redis.url).kill)
        for name in SERVERS:
            wait_for(lambda name=name: publishes(redis, f"swift:{name}:dp0-tp0:rank") > 1, name)
        yield


@pytest.mark.usefixtures("servers")
def test_everyone_sees_everything_and_nobody_is_held_up(redis: RealRedis) -> None:
    before = {name: publishes(redis, f"swift:{name}:dp0-tp0:rank") for name in SERVERS}
    together = threading.Barrier(READERS + 1)
    seen: Counter[str] = Counter()
    wrong: list[object] = []

    def look() -> None:
        try:
            with BusReader(redis.client()) as reader:
                reader.servers()
                together.wait(120)
                for _ in range(3):
                    wrong.extend(incomplete(reader.snapshot()))
                    reader.events("alpha", Cursor())
                    seen.update(server.server for server in reader.servers() if server.alive)
                together.wait(120)
        except Exception as error:  # of whatever kind: the test says which
            wrong.append(error)
            together.abort()
            raise

    threads = [threading.Thread(target=look) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    together.wait(120)
    assert redis.admin.info("clients")["connected_clients"] > READERS + len(SERVERS)
    together.wait(120)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert seen == Counter(dict.fromkeys(SERVERS, 3 * READERS))
    for name in SERVERS:
        wait_for(lambda name=name: publishes(redis, f"swift:{name}:dp0-tp0:rank") > before[name], name)


def incomplete(snapshot: Snapshot) -> list[object]:
    """What is missing of what each server has told."""
    found = {one.server.server: one for one in snapshot.servers}
    missing: list[object] = [name for name in SERVERS if name not in found]
    for name, server in found.items():
        for rank in server.ranks:
            parts = (rank.rank, rank.stripe_set, rank.tree, rank.directory)
            if None in parts or len(rank.tiers) != 4 or len(rank.devices) != 2 or len(rank.requests) != 1:
                missing.append((name, rank))
        if len(server.ranks) != 1:
            missing.append((name, server.ranks))
    return missing


def test_two_servers_of_one_name_are_noticed(redis: RealRedis) -> None:
    events = EventLog(time.time)
    ours = make_publisher(bus_config(redis.url), events=events)
    ours.start()
    try:
        wait_for(lambda: publishes(redis) > 1, "our publisher")
        assert not taken(events)
        other = PublisherProcess("alpha", redis.url)
        try:
            wait_for(lambda: taken(events), "notice of the other")
            assert taken(events)[0].fields["pid"] == str(other.pid)
        finally:
            other.kill()
    finally:
        ours.close()


def test_a_server_that_is_started_anew_under_its_name_is_alone(redis: RealRedis) -> None:
    first = PublisherProcess("alpha", redis.url)
    wait_for(lambda: publishes(redis) > 1, "the first")
    first.kill()
    events = EventLog(time.time)
    second = make_publisher(bus_config(redis.url), events=events)
    second.start()
    try:
        own = str(os.getpid())
        wait_for(lambda: redis.admin.hget("swift:alpha:info", "pid") == own, "the second")
        wait_published(redis)
        assert not taken(events)
    finally:
        second.close()


def taken(events: EventLog) -> list[Event]:
    return [event for event in events.since() if event.kind == "bus.name_taken"]
