"""Two servers of one name, host and process, as of containers of one image: one obeys, and the other says why not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.commands import Flush, Order, read_order, write_order
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.publishing import RANK, PublisherProcess, bus_config, publishes, wait_published
from support.redis import RealRedis, wait_for
from support.telemetry import MadeUp

CONTROL = "swift:alpha:control"


class Server:
    """One called alpha, of host `box` and this process."""

    def __init__(self, publish: Callable[..., BusPublisher], redis: RealRedis, **options: Any) -> None:
        self.events = EventLog(time.time)
        self.orders: list[dict[str, str]] = []
        config = bus_config(redis.url, control=True)
        options = {"on_order": self.orders.append, **options}
        self.publisher: BusPublisher = publish(config, MadeUp(), self.events, **options)

    @property
    def obeyed(self) -> list[str]:
        return [read_order(entry).id for entry in self.orders]

    @property
    def taken(self) -> list[dict[str, Any]]:
        """What it told of others of its name."""
        return [event.fields for event in self.events.since() if event.kind == "bus.name_taken"]


@pytest.fixture
def begin(publish, redis) -> Callable[..., Server]:
    """The publisher of a server, which has the name by the time that this returns."""

    def begin(**options: Any) -> Server:
        server = Server(publish, redis, **options)
        wait_for(lambda: server.publisher._numbers.publishes, "the server")
        wait_published(redis)
        return server

    return begin


def command(redis: RealRedis, identifier: str) -> None:
    now = redis.admin.time()
    order = Order(id=identifier, author="ann", deadline=now[0] + 60.0, command=Flush())
    redis.admin.xadd(CONTROL, write_order(order))  # type: ignore[arg-type]


def test_of_two_with_one_process_and_host_the_later_obeys_and_the_earlier_says_so(redis, begin) -> None:
    first = begin()
    command(redis, "c1")
    wait_for(lambda: first.obeyed == ["c1"], "the first")
    second = begin()
    wait_for(lambda: first.taken, "notice of the second")
    command(redis, "c2")
    wait_for(lambda: second.obeyed == ["c2"], "the second")
    wait_published(redis)
    assert first.obeyed == ["c1"]
    assert (len(first.taken), len(second.taken)) == (1, 0)
    assert first.taken[0] == {"host": "box", "pid": redis.admin.hget(RANK, "pid")}


def test_what_another_server_says_of_itself_is_one_line_of_the_log(redis, begin, caplog) -> None:
    begin()
    redis.admin.hset("swift:alpha:info", "host", "h\n[2026-01-01] CRITICAL forged\x1b]0;title\x07")
    redis.admin.hset(RANK, mapping={"life": "other", "pid": "1\x1b[2J"})
    wait_for(lambda: "another server" in caplog.text, "the log")
    (message,) = [record.getMessage() for record in caplog.records if "another server" in record.getMessage()]
    assert message.isprintable()


def test_who_has_lost_its_name_says_nothing_of_its_state(redis, begin) -> None:
    first = begin()
    second = begin()
    wait_for(lambda: first.taken, "notice of the second")
    told = first.publisher._numbers.publishes
    wait_published(redis)
    assert first.publisher._numbers.publishes == told
    assert publishes(redis) <= second.publisher._numbers.publishes
    first.publisher.close(60)
    wait_published(redis)
    assert redis.admin.exists(RANK, "swift:alpha:info") == 2, "the end of the one took away the other's state"


def test_a_name_that_is_free_again_is_taken_up(redis, begin) -> None:
    first = begin()
    second = begin()
    wait_for(lambda: first.taken, "notice of the second")
    second.publisher.close(60)
    wait_for(lambda: redis.admin.exists(RANK, "swift:alpha:info") == 2, "the first one's state")
    wait_published(redis)
    command(redis, "c1")
    wait_for(lambda: first.obeyed == ["c1"], "the first")
    assert len(first.taken) == 1


def test_a_redis_that_loses_everything_leaves_one_of_two(redis, begin) -> None:
    servers = [begin()]
    servers.append(begin())
    wait_for(lambda: servers[0].taken, "notice of the second")
    redis.admin.flushall()
    wait_for(lambda: redis.admin.exists(RANK), "the state")

    def settled() -> bool:
        wait_published(redis)
        return [server.publisher._guard.taken for server in servers].count(False) == 1

    wait_for(settled, "one of them")
    command(redis, "c1")
    wait_for(lambda: servers[0].obeyed + servers[1].obeyed, "a server that obeys")
    wait_published(redis)
    assert servers[0].obeyed + servers[1].obeyed == ["c1"]


def test_other_ranks_than_the_leader_obey_in_one_server_alone(redis, publish) -> None:
    """A group of each server: the second ones of both have no leader, and one process."""
    ranks, key = ("dp0-tp0", "dp1-tp0"), "swift:alpha:dp1-tp0:rank"
    servers = []
    for _ in range(2):
        server = Server(publish, redis, rank=ranks[1], ranks=ranks, leader=False)
        servers.append(server)
        wait_for(lambda server=server: server.publisher._numbers.publishes, "the rank")
    wait_for(lambda: servers[0].publisher._guard.taken, "notice of the second")
    command(redis, "c1")
    wait_for(lambda: servers[1].obeyed == ["c1"], "the second")
    wait_published(redis, key)
    assert servers[0].obeyed == []
    assert servers[0].taken == servers[1].taken == [], "the leaders tell of it"


def test_ranks_that_the_later_server_has_not_got_do_not_obey_for_it(redis, publish) -> None:
    ranks = ("dp0-tp0", "dp1-tp0")
    first, second = (Server(publish, redis, rank=rank, ranks=ranks, leader=rank == ranks[0]) for rank in ranks)
    for server in (first, second):
        wait_for(lambda server=server: server.publisher._numbers.publishes, "a rank of the earlier server")
    later = Server(publish, redis, rank=ranks[0], ranks=ranks[:1])
    wait_for(lambda: first.publisher._guard.taken and second.publisher._guard.taken, "notice of the later one")
    command(redis, "c1")
    wait_for(lambda: later.obeyed == ["c1"], "the later server")
    wait_published(redis)
    assert first.obeyed == second.obeyed == []
    assert (len(first.taken), len(second.taken)) == (1, 0), "the leader tells of it"
    later.publisher.close(60)
    wait_for(lambda: not first.publisher._guard.taken and not second.publisher._guard.taken, "the name to be free")


def test_a_server_that_is_begun_anew_at_once_is_not_taken_for_another(redis, begin) -> None:
    """What one left that was killed, and what one takes away that ends while the next one begins."""
    killed = PublisherProcess("alpha", redis.url)
    wait_for(lambda: publishes(redis) > 1, "one that is killed")
    killed.kill()
    first = begin()
    second = begin()
    first.publisher.close(60)
    wait_published(redis)
    command(redis, "c1")
    wait_for(lambda: second.obeyed == ["c1"], "the second")
    assert second.taken == []
