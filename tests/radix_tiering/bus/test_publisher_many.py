"""Three servers and two hundred readers on one Redis."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from swift_tiers.radix_tiering.bus.event_reading import Cursor
from swift_tiers.radix_tiering.bus.reader import BusReader
from swift_tiers.radix_tiering.bus.views import Snapshot

from support.publishing import PublisherProcess, publishes
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
                together.wait(60)
                for _ in range(3):
                    wrong.extend(incomplete(reader.snapshot()))
                    reader.events("alpha", Cursor())
                    seen.update(server.server for server in reader.servers() if server.alive)
                together.wait(60)
        except Exception as error:  # of whatever kind: the test says which
            wrong.append(error)
            together.abort()
            raise

    threads = [threading.Thread(target=look) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    together.wait(60)
    assert redis.admin.info("clients")["connected_clients"] > READERS + len(SERVERS)
    together.wait(60)
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
            if None in parts or len(rank.tiers) != 3 or len(rank.devices) != 2 or len(rank.requests) != 1:
                missing.append((name, rank))
        if len(server.ranks) != 1:
            missing.append((name, server.ranks))
    return missing
