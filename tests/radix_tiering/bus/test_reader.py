"""The reader against a real Redis, on which servers' keys are written by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import msgspec
import pytest
import redis as redis_py

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError, DrainDevice, Flush, read_order
from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.schema import BY_NAME, RedisKind
from swift_tiers.radix_tiering.bus.contract.view import seconds_since
from swift_tiers.radix_tiering.bus.contract.views import (
    CommandView,
    DeviceView,
    DirectoryView,
    LeaseEntry,
    LeasesView,
    LinkView,
    MapPart,
    MapView,
    NodeEntry,
    NodesView,
    PageView,
    PrefixPage,
    PrefixView,
    RankView,
    RequestView,
    ServerView,
    StripeSetView,
    TierView,
    TreeView,
    View,
)
from swift_tiers.radix_tiering.bus.hear.event_tail import EventTail
from swift_tiers.radix_tiering.bus.hear.reader import EVERYTHING, BusReader, Part
from swift_tiers.radix_tiering.bus.hear.troubles import server_troubles
from swift_tiers.radix_tiering.bus.redis import connection
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.bus import MAPS, NODES, PAGE, RID, HandWritten, documented_fields
from support.publishing import wait_published
from support.redis import PATIENCE, RealRedis, free_port, wait_for
from support.telemetry import MadeUp, ended

VIEWS: dict[str, type[View]] = {
    "info": ServerView,
    "rank": RankView,
    "tier": TierView,
    "stripe": StripeSetView,
    "ssd": DeviceView,
    "link": LinkView,
    "lent": LeasesView,
    "borrowed": LeasesView,
    "tree": TreeView,
    "directory": DirectoryView,
    "request": RequestView,
    "page": PageView,
    "prefix": PrefixView,
    "map": MapView,
    "nodes": NodesView,
    "command": CommandView,
    "gpu": GpuView,
    "reach": ReachView,
}
#: What views know from elsewhere than a field of the key.
FROM_ELSEWHERE = {
    "server", "rank", "age_seconds", "alive", "up_seconds", "tier", "number", "link", "rid", "key", "id", "donor",
    "borrower", "gpu",
}  # fmt: skip
#: Fields that a view has under another name.
RENAMED = {"rank:*": "ranks"}


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin, ranks=("dp0-tp0", "dp0-tp1")).write()


@pytest.fixture
def reader(redis: RealRedis) -> Iterator[BusReader]:
    with BusReader(redis.client()) as reader:
        yield reader


# ---- the contract ----


def test_every_hash_has_a_view_and_every_view_the_fields_of_its_hash() -> None:
    assert set(VIEWS) == {name for name, spec in BY_NAME.items() if spec.kind is RedisKind.HASH}
    for name, kind in VIEWS.items():
        documented = {RENAMED.get(field, field.removesuffix(":*")) for field in documented_fields(name)}
        assert {field.name for field in msgspec.structs.fields(kind)} - FROM_ELSEWHERE == documented, name


def test_the_hand_written_bus_has_every_documented_field(redis: RealRedis, alpha: HandWritten) -> None:
    """Else these tests would show less than they seem to."""
    alpha.write_leases("dp0-tp0")
    alpha.write_gpu("dp0-tp0")
    with alpha.answering(), alpha.obeying(), BusReader(redis.client()) as reader:
        reader.page(PAGE)
        reader.prefix(PAGE)
        reader.map("ssd")
        reader.nodes()
        reader.command("alpha", "tester", Flush())
    words = {"tier": {"tier": "host"}, "ssd": {"number": "0"}, "link": {"link": "host-ssd"}, "request": {"rid": RID}}
    words |= {"lent": {"borrower": "beta.dp0-tp0"}, "borrowed": {"donor": "beta.dp0-tp0"}, "command": {"id": "*"}}
    words |= {"reach": {"gpu": "GPU-1"}, "page": {"key": PAGE}, "prefix": {"key": PAGE}, "map": {"tier": "ssd"}}
    for name in VIEWS:
        word = words.get(name, {})
        (key,) = redis.admin.scan_iter(match=alpha.key(name, **word), count=1000)
        written = {field.partition(":")[0] for field in redis.admin.hgetall(key)}
        assert written == {field.partition(":")[0] for field in documented_fields(name)}, name


# ---- state ----


def test_a_snapshot_holds_everything_typed(reader: BusReader, alpha: HandWritten) -> None:
    (state,) = reader.snapshot().servers
    assert state.server.alive
    assert state.server.ranks == ("dp0-tp0", "dp0-tp1")
    assert state.server.control is True
    assert state.server.configuration == {"host": {"size": 2**30}}
    assert state.server.up_seconds == pytest.approx(7200, abs=60)
    assert [rank.name for rank in state.ranks] == ["dp0-tp0", "dp0-tp1"]
    rank = state.ranks[1]
    assert rank.rank is not None
    assert rank.rank.restores_started == 40
    assert [tier.tier for tier in rank.tiers] == ["device", "host", "ssd"]
    device, host, _ = rank.tiers
    assert host.refused == {"full": 0}
    assert host.recent_p99_seconds == 0.13
    assert device.recent_p99_seconds is None, "an empty field is none, not zero"
    assert rank.stripe_set is not None
    assert rank.stripe_set.reads == {"ok": 800}
    assert [one.number for one in rank.devices] == [0, 1]
    assert rank.devices[1].path == "/ssd1/swift-tiers-dp0-tp1.stripe"
    assert [link.link for link in rank.links] == ["device-host", "host-device", "host-ssd", "ssd-host"]
    assert rank.tree is not None
    assert rank.tree.complete is True
    assert rank.directory is not None
    assert rank.directory.both_pages == 956
    (request,) = rank.requests
    assert request.rid == RID
    assert request.tiers == (("device", 12), ("host", 30), ("compute", 4))
    assert request.block_table == ((17, 40), (3, 3), (90, 110))
    assert request.ended is None
    assert request.live
    for view in (rank.rank, host, rank.stripe_set, rank.devices[0], rank.links[0], rank.tree, rank.directory, request):
        assert (view.server, view.rank) == ("alpha", "dp0-tp1")
        assert view.age_seconds is not None
        assert view.age_seconds < 60


def test_the_parts_by_themselves(reader: BusReader, alpha: HandWritten) -> None:
    HandWritten(alpha.client, "beta").write()
    assert [one.server for one in reader.servers()] == ["alpha", "beta"]
    for part in (reader.ranks, reader.trees, reader.directories, reader.stripe_sets, reader.requests):
        assert [view.server for view in part()] == ["alpha", "alpha", "beta"]
        assert [view.server for view in part("beta")] == ["beta"]
        assert part("gamma") == ()
    assert [len(part("beta")) for part in (reader.tiers, reader.devices, reader.links)] == [3, 2, 4]
    (state,) = reader.snapshot(Part.TIERS, "beta").servers
    assert state.ranks[0].tiers
    assert state.ranks[0].rank is None
    assert state.ranks[0].requests == ()


def test_a_tier_of_another_name_is_read_where_its_rank_names_it(reader: BusReader, alpha: HandWritten) -> None:
    """A new kind of tier needs no new reader."""
    alpha.hash("tier", {"pages": 7, "refused:full": 2}, "dp0-tp1", tier="remote")
    assert "remote" not in {tier.tier for tier in reader.tiers()}, "nobody says that it is there"
    alpha.client.hset(alpha.key("rank", "dp0-tp1"), "tiers", "device,host,ssd,remote")
    for part in (Part.TIERS, EVERYTHING):
        first, second = reader.snapshot(part).servers[0].ranks
        assert [tier.tier for tier in first.tiers] == ["device", "host", "ssd"]
        assert [tier.tier for tier in second.tiers] == ["device", "host", "ssd", "remote"]
        assert (second.tiers[-1].pages, second.tiers[-1].refused) == (7, {"full": 2})


def test_leases_and_links_of_single_donors(reader: BusReader, alpha: HandWritten) -> None:
    alpha.write_leases("dp0-tp1")
    (state,) = reader.snapshot().servers
    assert (state.ranks[0].lent, state.ranks[0].borrowed) == ((), ())
    rank = state.ranks[1]
    assert rank.rank is not None
    assert (rank.rank.lends_to, rank.rank.lend_limit_bytes) == (("beta.dp0-tp0",), None)
    assert [tier.tier for tier in rank.tiers] == ["device", "peer", "host", "ssd"]
    assert [link.link for link in rank.links][4:] == [
        "peer-host", "host-peer", "beta.dp0-tp0-host", "host-beta.dp0-tp0",
    ]  # fmt: skip
    ((lent,), (borrowed,)) = rank.lent, rank.borrowed
    assert (lent.donor, lent.borrower) == ("alpha.dp0-tp1", "beta.dp0-tp0")
    assert (borrowed.donor, borrowed.borrower) == ("beta.dp0-tp0", "alpha.dp0-tp1")
    assert (lent.leases, lent.recalled_bytes, borrowed.pinned_bytes) == (3, 2**21, None)
    assert lent.table[1] == LeaseEntry(lease=13, bytes=2**21, state="recalled", seconds_left=0.1)
    assert [entry.pinned for entry in lent.table] == [False, False, True]
    assert [view.table for view in reader.leases("alpha")] == [lent.table, borrowed.table]
    assert reader.leases("beta") == ()


@pytest.mark.parametrize(
    "text", ["12", "12:x:lent:1.0", "a:1:lent:1.0", "12:1:lent:", "12:1:lent:nan", "12:1:lent:1e9"]
)
def test_leases_that_make_no_sense(reader: BusReader, alpha: HandWritten, text: str) -> None:
    alpha.write_leases("dp0-tp0")
    alpha.client.hset(alpha.key("lent", borrower="beta.dp0-tp0"), "table", text)
    (lent,) = [view for view in reader.leases() if view.borrower == "beta.dp0-tp0"]
    assert (lent.table, lent.leases) == ((), 3)


def test_a_lease_that_is_over(reader: BusReader, alpha: HandWritten) -> None:
    alpha.write_leases("dp0-tp0")
    alpha.client.hset(alpha.key("lent", borrower="beta.dp0-tp0"), "table", "12:4096:lent:-3.5")
    entries = [view.table for view in reader.leases() if view.borrower == "beta.dp0-tp0"]
    assert entries == [(LeaseEntry(lease=12, bytes=4096, state="lent", seconds_left=-3.5),)]


def test_a_request_as_every_rank_saw_it(reader: BusReader, alpha: HandWritten) -> None:
    alpha.request("other", "dp0-tp1", restore="expired", restore_seconds=2.0, first_token_seconds="")
    assert [view.rank for view in reader.request(RID)] == ["dp0-tp0", "dp0-tp1"]
    (view,) = reader.request("other")
    assert (view.restore, view.restore_seconds, view.first_token_seconds) == ("expired", 2.0, None)
    assert reader.request("unknown") == ()
    assert reader.request(RID, "beta") == ()


def test_requests_come_in_the_order_of_their_arrival(reader: BusReader, alpha: HandWritten) -> None:
    alpha.request("late", ago=1)
    alpha.request("early", ago=100, state="finished", ended=alpha.now() - 90)
    views = [view for view in reader.requests() if view.rank == "dp0-tp0"]
    assert [view.rid for view in views] == ["early", RID, "late"]
    assert [view.live for view in views] == [False, True, True]


def test_what_has_ended_is_read_once(redis: RealRedis, reader: BusReader, alpha: HandWritten) -> None:
    """Its age grows all the same; and an id that is used again is another request."""
    alpha.request("done", state="finished", ago=9.0, output_tokens=7)
    first = {request.rid: request for request in reader.requests()}
    redis.client().hset(alpha.key("request", rid="done"), "output_tokens", 8)  # which no server does
    again = {request.rid: request for request in reader.requests()}
    assert again["done"].output_tokens == 7
    assert again["done"].age_seconds > first["done"].age_seconds
    alpha.request("done", state="running", ago=1.0, output_tokens=1)
    assert {request.rid: request.output_tokens for request in reader.requests()}["done"] == 1
    alpha.request("done", state="finished", ago=0.5, output_tokens=2)
    reader.requests()
    redis.client().zrem(alpha.key("requests"), "done")
    assert "done" not in {request.rid for request in reader.requests()}
    assert not any("done" in rid for one in reader._memory._readings.values() for rid, _ in one.ended)


def test_requests_that_were_read_lately_are_not_read_again(
    redis: RealRedis, counted: Client, alpha: HandWritten
) -> None:
    """Until somebody wants them as they are now; everything else is as it is now."""
    reader = BusReader(counted)
    before = reader.snapshot()
    alpha.request("new", ago=0.0)
    redis.client().hset(alpha.key("request", rid=RID), "output_tokens", 999)
    redis.client().hset(alpha.key("tier", tier="host"), "hits", 4711)
    redis.admin.config_resetstat()
    lately = reader.snapshot(requests_seconds=1e6)
    assert redis.admin.info("commandstats")["cmdstat_zrange"]["calls"] == 1  # that of the servers
    assert [rank.requests for state in lately.servers for rank in state.ranks] == [
        rank.requests for state in before.servers for rank in state.ranks
    ]
    assert {tier.hits for tier in lately.servers[0].ranks[0].tiers if tier.tier == "host"} == {4711}
    now = {request.rid: request for request in reader.snapshot(requests_seconds=1e-9).servers[0].ranks[0].requests}
    assert "new" in now
    assert now[RID].output_tokens == 999


def test_a_list_that_was_read_lately_is_read_from_its_oldest_running_request_on(
    redis: RealRedis, reader: BusReader, alpha: HandWritten
) -> None:
    """What has ended before that one stays for so long, also if it has left the list; nothing else may be missed."""

    def told(ended_seconds: float) -> dict[str, RequestView]:
        rank = reader.snapshot(ended_seconds=ended_seconds).servers[0].ranks[0]
        return {request.rid: request for request in rank.requests}

    client, key = redis.client(), alpha.key("requests")
    alpha.request("over", ago=50.0, state="finished")
    alpha.request("runs", ago=40.0, output_tokens=1)
    alpha.request("over later", ago=30.0, state="finished")
    first = told(1e6)
    assert list(first) == ["over", "runs", "over later", RID]
    client.zrem(key, "over", "over later")
    client.hset(alpha.key("request", rid="runs"), "output_tokens", 2)
    alpha.request("new", ago=0.0)
    second = told(1e6)
    assert list(second) == ["over", "runs", RID, "new"]
    assert second["over"] == first["over"]
    assert second["runs"].output_tokens == 2
    client.hset(alpha.key("request", rid="runs"), mapping={"state": "finished", "output_tokens": 3})
    third = told(1e6)
    assert (third["runs"].live, third["runs"].output_tokens) == (False, 3)
    client.zrem(key, "runs", RID)
    assert RID not in told(1e6)  # it still ran: it is looked for
    assert list(told(0.0)) == ["new"]


@pytest.mark.parametrize("seed", range(5))
def test_what_runs_is_never_missed(redis: RealRedis, reader: BusReader, alpha: HandWritten, seed: int) -> None:
    """Requests come and end at random; ended ones leave the list at random, too."""
    random, client = Random(seed), redis.client()
    live: list[str] = []
    over: list[str] = []
    client.delete(alpha.key("requests"), alpha.key("requests", "dp0-tp1"))
    for step in range(40):
        for _ in range(random.randrange(3)):
            live.append(f"request-{step}-{len(live)}")
            alpha.request(live[-1], ago=0.0)
        if live and random.random() < 0.5:
            ended = live.pop(random.randrange(len(live)))
            client.hset(alpha.key("request", rid=ended), "state", "finished")
            over.append(ended)
        if over and random.random() < 0.3:
            client.zrem(alpha.key("requests"), over.pop(random.randrange(len(over))))
        told = reader.snapshot(ended_seconds=random.choice((0.0, 1e6))).servers[0].ranks[0].requests
        assert [request.rid for request in told if request.live] == live
        assert set(over) <= {request.rid for request in told if not request.live}
        assert [request.arrived for request in told] == sorted(request.arrived or 0.0 for request in told)


def test_an_empty_bus(reader: BusReader) -> None:
    assert reader.snapshot().servers == ()
    assert reader.servers() == ()
    assert reader.events("alpha").items == ()
    assert reader.newest_events("alpha").items == ()


def test_other_prefixes_and_other_keys_are_not_seen(reader: BusReader, redis: RealRedis, alpha: HandWritten) -> None:
    HandWritten(redis.admin, "stranger", prefix="swift:other").write()
    redis.admin.set("swift:alpha:dp0-tp0:tier:remote", "not a hash")
    assert [one.server for one in reader.servers()] == ["alpha"]
    with BusReader(redis.client(), "swift:other") as other:
        assert [state.server.server for state in other.snapshot().servers] == ["stranger"]
        assert other.request(RID, "stranger")


class Client(redis_py.Redis):
    """Counts round trips; `between` is called after each with their number."""

    trips = 0
    between: Callable[[int], None] = staticmethod(lambda number: None)

    def pipeline(self, *arguments: Any, **options: Any) -> Any:
        pipeline = super().pipeline(*arguments, **options)
        execute = pipeline.execute

        def counting(*arguments: Any, **options: Any) -> Any:
            answer = execute(*arguments, **options)
            self.trips += 1
            self.between(self.trips)
            return answer

        pipeline.execute = counting  # type: ignore[method-assign]
        return pipeline

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"outside of a pipeline: {arguments}")


@pytest.fixture
def counted(redis: RealRedis) -> Iterator[Client]:
    with Client(unix_socket_path=str(redis.socket), decode_responses=True, protocol=2) as client:
        yield client


def test_reading_on_takes_one_round_trip_where_nothing_has_happened(counted: Client, alpha: HandWritten) -> None:
    beta = HandWritten(alpha.client, "beta").write()
    reader, tail = BusReader(counted), EventTail(None, 10)
    assert len(tail.read(reader)) == 3
    counted.trips = 0
    assert tail.read(reader, ["alpha", "beta"]) == []
    assert counted.trips == 1
    beta.event("device.out", device=1)
    assert [item.server for item in tail.read(reader, ["alpha", "beta"])] == ["beta"]
    assert tail.read(reader, ["alpha", "beta"]) == []


def test_a_stream_that_is_begun_anew_is_read_on(counted: Client, alpha: HandWritten) -> None:
    """Its Redis came back without data: what is there now came after what was read."""
    reader, tail = BusReader(counted), EventTail(None, 10)
    tail.read(reader)
    alpha.client.delete(alpha.key("events"))
    assert tail.read(reader, ["alpha"]) == []
    alpha.event("device.out", device=1)
    assert [getattr(item, "kind", "gap") for item in tail.read(reader, ["alpha"])] == ["device.out"]


def test_a_snapshot_takes_few_round_trips_and_searches_for_nothing(redis: RealRedis, counted: Client) -> None:
    for name in ("alpha", "beta", "gamma"):
        server = HandWritten(redis.admin, name, ranks=("dp0-tp0", "dp1-tp0")).write()
        for number in range(100):
            server.request(f"{number:032x}")
    redis.admin.config_resetstat()
    snapshot = BusReader(counted).snapshot()
    assert sum(len(rank.requests) for state in snapshot.servers for rank in state.ranks) == 306
    assert counted.trips == 4
    used = {name.removeprefix("cmdstat_") for name in redis.admin.info("commandstats")}
    assert used & {"keys", "scan"} == set()


@pytest.mark.parametrize("trip", [1, 2, 3])
@pytest.mark.parametrize("flush", [False, True])
def test_keys_that_vanish_between_two_round_trips(alpha: HandWritten, counted: Client, trip: int, flush: bool) -> None:
    """All of a server's state at once, as it expires, or the whole Redis."""

    def vanish(number: int) -> None:
        if number == trip:
            alpha.client.flushall() if flush else alpha.die()

    counted.between = vanish
    (state,) = BusReader(counted).snapshot().servers
    assert state.server.server == "alpha"
    if trip == 1:
        assert not state.server.alive
        assert state.ranks == ()
    for rank in state.ranks:
        assert rank.requests == ()
        assert rank.devices == ()


def test_fields_that_are_missing_or_make_no_sense(reader: BusReader, alpha: HandWritten) -> None:
    client = alpha.client
    client.hdel(alpha.key("info"), "started", "configuration", "control")
    client.hset(alpha.key("tier", tier="host"), mapping={"hits": "many", "used_bytes": "nan", "unheard_of": "1"})
    client.hset(alpha.key("tier", tier="ssd"), mapping={"restore_seconds": "inf", "refused:full": "x"})
    client.hset(alpha.key("request", rid=RID), mapping={"tiers": "device", "block_table": "1-x"})
    client.hset(alpha.key("rank"), "time", "yesterday")
    client.hset(alpha.key("stripe"), "devices", "999999999")
    (state,) = reader.snapshot().servers
    assert (state.server.started, state.server.up_seconds, state.server.control) == (None, None, None)
    assert state.server.configuration == {}
    rank = state.ranks[0]
    _, host, ssd = rank.tiers
    assert (host.hits, host.used_bytes, host.misses) == (None, None, 100)
    assert (ssd.restore_seconds, ssd.refused, ssd.hits) == (None, {}, 900)
    assert (rank.requests[0].tiers, rank.requests[0].block_table) == ((), ())
    assert rank.rank is not None
    assert (rank.rank.time, rank.rank.age_seconds, rank.rank.events) == (None, None, 1)
    assert len(rank.devices) == 2


def test_a_key_of_another_type_is_an_error_of_one_line(redis: RealRedis, alpha: HandWritten) -> None:
    redis.admin.delete(alpha.key("tree"))
    redis.admin.set(alpha.key("tree"), "a string")
    with BusReader.open(BusConfig(url=redis.url)) as reader, pytest.raises(BusError, match="WRONGTYPE"):
        reader.snapshot()


def test_another_schema_version_is_refused(reader: BusReader, alpha: HandWritten) -> None:
    reader.snapshot()
    alpha.client.set("swift:schema", "2")
    for read in (reader.snapshot, reader.servers, lambda: reader.events("alpha"), lambda: reader.request(RID)):
        with pytest.raises(BusError, match="schema version 2, this program reads 1; use the release"):
            read()
    with pytest.raises(BusError, match="schema version 2"):
        reader.command("alpha", "tester", Flush())
    assert alpha.client.exists(alpha.key("control")) == 0


# ---- what a publisher writes ----


def test_what_a_publisher_writes_is_read_whole(redis: RealRedis, publish: Callable[..., BusPublisher]) -> None:
    telemetry, log = MadeUp(), EventLog(time.time)
    telemetry.over = [ended("two", time.time() - 1)]
    log.emit("device.out", device="/ssd1", pages=12)
    publish(redis, telemetry, log, lends=True, scope=lambda address: "box/1/2:3")
    wait_published(redis)
    with BusReader(redis.client()) as reader:
        (state,) = reader.snapshot().servers
        (event,) = reader.events("alpha").items
        ((page,), silent) = reader.page(PAGE, timeout=PATIENCE)
    (rank,) = state.ranks
    views: list[View] = [state.server, *rank.tiers, *rank.devices, *rank.links, *rank.requests, page]
    views += [view for view in (rank.rank, rank.stripe_set, rank.tree, rank.directory) if view is not None]
    views += [*rank.lent, *rank.borrowed]
    assert len(views) == 1 + 4 + 2 + 11 + 2 + 1 + 4 + 3
    assert silent == ()
    missing = {
        f"{type(view).__name__}.{name}"
        for view in views
        for name in view.__struct_fields__
        if getattr(view, name) in (None, "", (), {})
    }
    assert missing == {
        "TierView.refused", "TierView.recent_p50_seconds", "TierView.recent_p99_seconds", "DeviceView.reason",
        "RequestView.ended", "RequestView.block_table",
        # Of the tier `device`, from which nothing is restored.
        "TierView.restores", "TierView.restore_seconds", "TierView.recent_restores", "TierView.checksum_failures",
        "TierView.only_pages", "TierView.unread_pages",
        # The borrower does not know.
        "LeasesView.pinned_bytes",
    }  # fmt: skip
    assert all(view.age_seconds < 60 for view in views if view.age_seconds is not None)
    assert (event.kind, event.fields) == ("device.out", {"device": "/ssd1", "pages": 12})  # type: ignore[union-attr]


# ---- ages ----


@pytest.mark.parametrize("offset", [0.0, 3600.0, -3600.0])
def test_ages_are_by_redis_clock(redis: RealRedis, reader: BusReader, offset: float) -> None:
    """A server whose clock is an hour off says how far; what it wrote is not an hour older or younger for that."""
    alpha = HandWritten(redis.admin, offset=offset).write()
    alpha.heartbeat(ago=20)
    alpha.hash("tier", {}, tier="host", ago=50)
    alpha.event("device.out", ago=100)
    (server,) = reader.servers()
    host = next(tier for tier in reader.tiers() if tier.tier == "host")
    event = reader.newest_events("alpha").items[-1]
    assert server.up_seconds == pytest.approx(7200, abs=15)
    for age, expected in ((server.age_seconds, 20), (host.age_seconds, 50), (event.age_seconds, 100)):
        assert age == pytest.approx(expected, abs=15)


def test_an_age_that_cannot_be_told_is_not_told(reader: BusReader, alpha: HandWritten) -> None:
    alpha.client.hdel(alpha.key("info"), "clock_offset_seconds")
    (server,) = reader.servers()
    assert server.age_seconds is not None, "heartbeats are by Redis' clock"
    assert server.up_seconds is None
    assert [tier.age_seconds for tier in reader.tiers()] == [None] * 6


def test_nothing_comes_from_the_future(reader: BusReader, alpha: HandWritten) -> None:
    """A clock was set back, and by how much nobody knows; a little of it is how clocks are compared."""
    assert [seconds_since(then, 100.0) for then in (90.0, 100.5, 102.0)] == [10.0, 0.0, None]
    alpha.hash("tree", {}, ago=-600.0)
    assert reader.trees()[0].age_seconds is None


def test_a_server_that_was_gone_before_redis_clock_was_set_back(reader: BusReader, alpha: HandWritten) -> None:
    alpha.heartbeat(ago=-8 * 3600)
    alpha.die()
    (server,) = reader.servers()
    assert (server.alive, server.age_seconds) == (False, None)
    (trouble,) = server_troubles(server)
    assert "last heard of ? ago" in trouble.what


def test_a_server_that_is_gone(reader: BusReader, alpha: HandWritten) -> None:
    alpha.heartbeat(ago=40)
    alpha.die()
    (server,) = reader.servers()
    assert not server.alive
    assert server.age_seconds == pytest.approx(40, abs=15)
    assert server.ranks == ()
    assert [event.kind for event in reader.events("alpha").items] == ["stripe.opened", "stripe.opened"]


# ---- asking about pages ----


def test_a_page(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.answering():
        answers, silent = reader.page(PAGE)
    assert silent == ()
    assert [(view.server, view.rank, view.key) for view in answers] == [
        ("alpha", "dp0-tp0", PAGE), ("alpha", "dp0-tp1", PAGE),
    ]  # fmt: skip
    assert answers[0].held is True
    assert answers[0].host_slot == 77
    assert answers[0].ssd_placement == ((0, 17), (1, 4))
    assert answers[0].age_seconds is not None


def test_a_page_that_is_not_held(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.answering(held=0):
        (first, _), _ = reader.page(PAGE, "alpha")
    assert first.held is False


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written by hand is an answer to what is asked next, however long that takes."""
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.asking.FRESH_SECONDS", 25.0)


@pytest.mark.usefixtures("_slow")
def test_ranks_that_do_not_answer_are_named(reader: BusReader, alpha: HandWritten) -> None:
    alpha.hash("page", {"held": 1}, "dp0-tp1", key=PAGE)
    alpha.hash("page", {"held": 1}, "dp0-tp0", key=PAGE, ago=30)
    answers, silent = reader.page(PAGE, timeout=0.2)
    assert [view.rank for view in answers] == ["dp0-tp1"], "it answered another reader just now"
    assert silent == (("alpha", "dp0-tp0"),)


@pytest.mark.parametrize("page", ["", "ab", "AB" * 32, PAGE + "0", f"{PAGE[:-1]}\n"])
def test_what_is_no_page_key_is_not_asked(reader: BusReader, alpha: HandWritten, page: str) -> None:
    with pytest.raises(BusError, match="64 digits"):
        reader.page(page)
    assert alpha.client.exists(alpha.key("questions")) == 0


def test_nobody_to_ask(reader: BusReader, alpha: HandWritten) -> None:
    alpha.die()
    assert reader.page(PAGE) == ((), ())
    with pytest.raises(BusError, match="server alpha: is gone; alive are: none"):
        reader.page(PAGE, "alpha")


# ---- commands ----


def test_a_command_that_is_done(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.obeying():
        view = reader.command("alpha", "me@here", Flush(tiers="all"))
    assert (view.state, view.author, view.type) == ("done", "me@here", "flush")
    assert view.ranks == {"dp0-tp0": "done", "dp0-tp1": "done"}
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    order = read_order(entry)
    assert (order.id, order.command) == (view.id, Flush(tiers="all"))
    assert order.deadline == pytest.approx(alpha.now() + 10, abs=20)


def test_every_command_has_an_id_of_its_own(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.obeying("refused", "no such device"):
        views = [reader.command("alpha", "me", DrainDevice(device=7)) for _ in range(3)]
    assert len({view.id for view in views}) == 3
    assert {(view.state, view.reason) for view in views} == {("refused", "no such device")}


def test_ranks_that_disagree(reader: BusReader, alpha: HandWritten) -> None:
    ranks = {"dp0-tp0": "done", "dp0-tp1": "refused: no room"}
    with alpha.obeying("partly", ranks=ranks):
        view = reader.command("alpha", "me", Flush())
    assert (view.state, view.ranks) == ("partly", ranks)


def test_a_rank_that_is_late_is_waited_for(
    reader: BusReader, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.STRAGGLER_SECONDS", 60.0)
    with alpha.obeying(ranks={"dp0-tp0": "done"}), ThreadPoolExecutor(1) as pool:
        future = pool.submit(reader.command, "alpha", "me", Flush())
        (key,) = wait_for(lambda: list(alpha.client.scan_iter(match="swift:alpha:command:*", count=1000)))
        wait_for(lambda: alpha.client.hget(key, "state") == "done")
        alpha.client.hset(key, "rank:dp0-tp1", "done")
        assert future.result().ranks == {"dp0-tp0": "done", "dp0-tp1": "done"}


def test_a_server_that_does_not_obey(reader: BusReader, alpha: HandWritten) -> None:
    alpha.control = False
    alpha.heartbeat()
    with pytest.raises(BusError, match="obeys no commands; start it with"):
        reader.command("alpha", "me", Flush())
    assert alpha.client.exists(alpha.key("control")) == 0


def test_nobody_to_command(reader: BusReader, alpha: HandWritten) -> None:
    with pytest.raises(BusError, match="server beta: is not known here; alive are: alpha"):
        reader.command("beta", "me", Flush())
    alpha.die()
    with pytest.raises(BusError, match="server alpha: is gone; alive are: none"):
        reader.command("alpha", "me", Flush())


def test_a_server_that_says_nothing(reader: BusReader, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.PATIENCE_SECONDS", 0.1)
    with pytest.raises(BusError, match="nobody answered within"):
        reader.command("alpha", "me", Flush(), timeout=0.1)


def test_a_server_that_accepts_and_never_finishes(
    reader: BusReader, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.PATIENCE_SECONDS", 2.0)  # to accept it
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.FINISH_SECONDS", 0.1)
    said = r"has not finished it \(no word from dp0-tp1\); see .* hgetall swift:alpha:command:"
    with alpha.obeying("accepted", ranks={"dp0-tp0": "done"}), pytest.raises(BusError, match=said):
        reader.command("alpha", "me", Flush(), timeout=0.1)


def test_an_author_that_no_server_would_take_is_refused_here(reader: BusReader, alpha: HandWritten) -> None:
    with pytest.raises(CommandRefusedError, match="author"):
        reader.command("alpha", "two\nlines", Flush())
    assert alpha.client.exists(alpha.key("control")) == 0


# ---- a Redis in trouble, and many readers ----


def test_a_redis_that_is_not_there() -> None:
    with pytest.raises(BusError, match="not reachable"):
        BusReader.open(BusConfig(url=f"redis://127.0.0.1:{free_port()}"))


def test_a_redis_that_goes_and_comes_back(redis: RealRedis, alpha: HandWritten) -> None:
    with BusReader.open(BusConfig(url=redis.url)) as reader:
        assert reader.servers()
        redis.kill()
        with pytest.raises(BusError, match="not reachable"):
            reader.snapshot()
        redis.start()
        assert reader.servers() == ()
        alpha.write()
        assert reader.snapshot().servers[0].ranks


def test_a_redis_that_does_not_answer(redis: RealRedis, alpha: HandWritten) -> None:
    with BusReader.open(BusConfig(url=redis.url)) as reader:
        redis.sleep(3)
        with pytest.raises(BusError, match="no answer within"):
            reader.snapshot()


def test_two_hundred_readers_of_three_servers(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a connection of its own, all at once, while the servers write and one of them comes and goes."""
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 60.0)  # this is not about how quick a machine is
    servers = [HandWritten(redis.admin, name).write() for name in ("alpha", "beta", "gamma")]
    stop = threading.Event()
    together = threading.Barrier(200)

    def serve() -> None:
        with redis.client() as client:
            mine = [HandWritten(client, server.name) for server in servers]
            while not stop.is_set():
                for server in mine:
                    server.write()
                mine[2].die()

    def read(number: int) -> tuple[int, set[str]]:
        with BusReader.open(BusConfig(url=redis.url), f"reader{number}") as reader:
            together.wait(120)
            snapshots = [reader.snapshot(EVERYTHING) for _ in range(3)]
            events = reader.newest_events("alpha", 10).items
        alive = {state.server.server for one in snapshots for state in one.servers if state.server.alive}
        return len(events), alive

    writer = threading.Thread(target=serve)
    writer.start()
    try:
        with ThreadPoolExecutor(200) as pool:
            results = list(pool.map(read, range(200)))
    finally:
        stop.set()
        writer.join(60)
    assert len(results) == 200
    for events, alive in results:
        assert events >= 1
        assert {"alpha", "beta"} <= alive <= {"alpha", "beta", "gamma"}


# ---- maps, prefixes, nodes ----


def test_a_map_is_read_as_runs(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.answering():
        (first, _), silent = reader.map("device")
        (striped, _), _ = reader.map("ssd")
        (missing, _), _ = reader.map("peer")
    assert silent == ()
    assert (first.slots, first.first_slot, first.slot_bytes, first.slots_per_cell) == (152, 1, 368640, 1)
    assert first.cells == (("free", 120), ("cached", 30), ("pinned", 2))
    assert (striped.parts, striped.slots_per_cell) == ((MapPart("0", 9), MapPart("1", 11)), 2)
    assert sum(cells for _, cells in striped.cells) == 5 + 6
    assert (missing.reason, missing.slots, missing.cells) == ("there is no such tier here", None, ())


def test_a_prefix_is_read_page_by_page(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.answering():
        (view, _), _ = reader.prefix(PAGE)
    assert (view.pages, view.listed) == (5000, 3)
    assert view.table == (
        PrefixPage(4998, "12" * 8),
        PrefixPage(4999, "34" * 8, host=3, ssd=((0, 5), (1, 9))),
        PrefixPage(5000, PAGE[:16], device=17, peer="beta.dp0-tp0/12/4"),
    )


def test_nodes_are_read_with_what_is_not_known_of_them(reader: BusReader, alpha: HandWritten) -> None:
    with alpha.answering():
        (view, _), _ = reader.nodes(3)
    assert (view.nodes, view.complete, view.listed) == (3, True, 3)
    assert view.table == (
        NodeEntry(7, None, 1024, 4096, 3, 1, 12.5, PAGE[:16]),
        NodeEntry(9, 7, 3072, 3072, 1, 0, None, ""),
        NodeEntry(11, None, 64, 64, 1, 0, 0.2, "34" * 8),
    )


@pytest.mark.usefixtures("_slow")
def test_an_answer_to_who_wanted_fewer_nodes_is_waited_past(reader: BusReader, alpha: HandWritten) -> None:
    """It is as new as ours would be, and says less."""
    few = {**NODES, "listed": 1, "table": "7::1024:4096:3:1:12.5:"}
    for rank in alpha.ranks:
        alpha.hash("nodes", few, rank)
    (view, _), silent = reader.nodes(1, timeout=0.3)
    assert (view.listed, silent) == (1, ())
    assert reader.nodes(2, timeout=0.3).answers == ()
    with alpha.answering():
        assert [one.listed for one in reader.nodes(2).answers] == [3, 3]


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        (lambda reader: reader.map("no tier"), "tier 'no tier'"),
        (lambda reader: reader.nodes(0), "0 nodes"),
        (lambda reader: reader.nodes(1001), "1001 nodes"),
        (lambda reader: reader.prefix("abc"), "page 'abc'"),
    ],
)
def test_what_no_server_would_answer_is_not_asked(redis: RealRedis, reader: BusReader, alpha: HandWritten, ask, wrong):
    with pytest.raises(BusError, match=wrong):
        ask(reader)
    assert not redis.admin.exists(alpha.key("questions"))


def test_what_nobody_can_read_blinds_nobody(reader: BusReader, alpha: HandWritten) -> None:
    """A thousand brackets, a number of thousands of digits: each counts as not said."""
    alpha.hash("info", {"configuration": "[" * 100_000})
    (server,) = reader.snapshot().servers
    assert server.server.configuration == {}
    assert server.server.model


def test_a_number_that_no_file_can_hold_counts_as_not_said(reader: BusReader, alpha: HandWritten) -> None:
    for large in (1 << 63, -(1 << 63) - 1, 10**30):
        alpha.client.hset(alpha.key("tier", tier="host"), mapping={"used_bytes": str(large), "hits": "7"})
        alpha.client.hset(alpha.key("tier", tier="ssd"), mapping={"refused:full": str(large), "hits": "9"})
        snapshot = reader.snapshot()
        _, host, ssd = snapshot.servers[0].ranks[0].tiers
        assert (host.hits, host.used_bytes, ssd.hits, ssd.refused) == (7, None, 9, {})
        assert msgspec.msgpack.encode(snapshot)


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("said", ["free", "free x", "free -1", "free 1 cached", "12 free 3"])
def test_cells_that_cannot_be_read_are_none(reader: BusReader, alpha: HandWritten, said: str) -> None:
    alpha.hash("map", {**MAPS["ssd"], "cells": said}, tier="ssd")
    alpha.hash("map", {**MAPS["ssd"], "cells": said}, "dp0-tp1", tier="ssd")
    assert [one.cells for one in reader.map("ssd", timeout=0.3).answers] == [(), ()]


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("prefix", "1:12:-"),
        ("prefix", f"1:{'12' * 8}:host"),
        ("prefix", f"1:{'12' * 8}:host=1,ssd=0"),
        ("prefix", f"x:{'12' * 8}:-"),
        pytest.param("prefix", f"{'1' * 5000}:{'12' * 8}:-", id="digits"),
        ("nodes", "1:2:3"),
        ("nodes", "1:2:3:4:5:6:seven:"),
        ("nodes", "1:2::4:5:6:7:"),
    ],
)
def test_tables_that_cannot_be_read_are_empty(reader: BusReader, alpha: HandWritten, spec: str, said: str) -> None:
    words = {"key": PAGE} if spec == "prefix" else {}
    for rank in alpha.ranks:
        alpha.hash(spec, {"table": said}, rank, **words)
    found = reader.prefix(PAGE, timeout=0.3) if spec == "prefix" else reader.nodes(timeout=0.3)
    assert [one.table for one in found.answers] == [(), ()]
