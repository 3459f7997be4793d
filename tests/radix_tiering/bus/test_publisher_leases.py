"""What a rank says of its leases and links, and how lenders of one machine find out about each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract import neighbours
from swift_tiers.radix_tiering.bus.contract.neighbours import Neighbours
from swift_tiers.radix_tiering.bus.contract.recent import LinkRates
from swift_tiers.radix_tiering.bus.contract.schema import LINKS, MOST_DONOR_LINKS, Keys
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.bus import HandWritten
from support.publishing import bus_config, wait_published, within
from support.redis import RealRedis, wait_for
from support.telemetry import MadeUp, lease, leases, stack

ALPHA = "swift:alpha:dp0-tp0"
Publish = Callable[..., BusPublisher]


@pytest.fixture
def told() -> MadeUp:
    return MadeUp()


def fields(redis: RealRedis, key: str) -> dict[str, str]:
    return redis.admin.hgetall(f"{ALPHA}:{key}")  # type: ignore[return-value]


def keys(redis: RealRedis, name: str) -> set[str]:
    return {key.removeprefix(f"{ALPHA}:{name}:") for key in redis.admin.scan_iter(f"{ALPHA}:{name}:*")}


# ---- leases ----


def test_leases_come_change_and_go(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    publish(redis, told, lends=True)
    wait_published(redis)
    assert keys(redis, "lent") == {"beta.dp0-tp0", "gamma.dp0-tp0"}
    assert keys(redis, "borrowed") == {"beta.dp0-tp0"}
    rank = fields(redis, "rank")
    assert (rank["lent_bytes"], rank["borrowed_bytes"], rank["lendable_bytes"]) == (str(2**23), str(2**21), str(2**23))
    assert (rank["lends_to"], rank["borrows_from"]) == ("beta.dp0-tp0,gamma.dp0-tp0", "beta.dp0-tp0")
    assert rank["lease_address"] == "ipc:///run/swift/alpha.dp0-tp0.lease"
    told.lending = leases(lent=(lease(15, "alpha.dp0-tp0", "gamma.dp0-tp0"),), borrowed=(), limit_bytes=None)
    wait_published(redis)
    assert (keys(redis, "lent"), keys(redis, "borrowed")) == ({"gamma.dp0-tp0"}, set())
    assert fields(redis, "lent:gamma.dp0-tp0")["table"] == "15:2097152:lent:1.8"
    assert (fields(redis, "rank")["lends_to"], fields(redis, "rank")["lend_limit_bytes"]) == ("gamma.dp0-tp0", "")


def test_leases_vanish_with_their_server(redis: RealRedis, publish: Publish) -> None:
    one = publish(redis, lends=True)
    wait_published(redis)
    assert 0 < redis.admin.pttl(f"{ALPHA}:lent:beta.dp0-tp0") <= 5000  # type: ignore[operator]
    one.close(20)
    assert keys(redis, "lent") | keys(redis, "borrowed") == set()


def test_leases_are_said_anew_when_redis_was_emptied(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    publish(redis, told, lends=True)
    wait_published(redis)
    redis.admin.flushall()
    wait_for(lambda: keys(redis, "lent") == {"beta.dp0-tp0", "gamma.dp0-tp0"}, "the leases")
    told.lending = leases(lent=())
    wait_for(lambda: keys(redis, "lent") == set(), "the end of the leases")


def test_who_neither_lends_nor_borrows_says_nothing_of_it(redis: RealRedis, publish: Publish) -> None:
    publish(redis)
    wait_published(redis)
    rank = fields(redis, "rank")
    assert {rank[name] for name in rank if name.startswith(("le", "borrow"))} == {""}
    assert keys(redis, "lent") | keys(redis, "borrowed") == set()


def test_a_fault_in_what_tells_of_leases_keeps_the_rest_going(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    events = EventLog(time.time)
    told.lending = RuntimeError("planted")
    publish(redis, told, events, lends=True)
    wait_published(redis)
    assert fields(redis, "rank")["lent_bytes"] == ""
    assert fields(redis, "tier:host")
    told.lending = leases()
    wait_published(redis)
    assert fields(redis, "rank")["lent_bytes"] == str(2**23)
    assert [event.fields["where"] for event in events.since()] == ["the leases' snapshot"]


# ---- links ----


def test_links_of_single_donors_come_and_go(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    publish(redis, told)
    wait_published(redis)
    donors = {"beta.dp0-tp0-host", "host-beta.dp0-tp0"}
    assert keys(redis, "link") == {*LINKS, *donors} == set(fields(redis, "rank")["links"].split(","))
    assert 0.004096 < float(fields(redis, "link:peer-host")["recent_p99_seconds"]) <= 0.008192
    assert isinstance(told.tiers, msgspec.Struct)
    told.tiers = stack(links={name: link for name, link in told.tiers.links.items() if name in LINKS})
    wait_published(redis)
    assert keys(redis, "link") == set(LINKS)


def test_links_of_many_donors_are_those_with_the_most_bytes(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    link = stack().links["host-ssd"]
    many = {f"d{n:04}.dp0-tp0-host": msgspec.structs.replace(link, bytes=n) for n in range(2 * MOST_DONOR_LINKS)}
    told.tiers = stack(links={"host-ssd": link} | many)
    publish(redis, told)
    wait_published(redis)
    found = keys(redis, "link")
    assert len(found) == 1 + MOST_DONOR_LINKS
    assert {"host-ssd", f"d{2 * MOST_DONOR_LINKS - 1:04}.dp0-tp0-host"} <= found


def test_the_rate_of_a_link_is_that_of_the_last_interval() -> None:
    now = 100.0
    rates = LinkRates(lambda: now)
    assert rates.of("peer-host", 5000) is None, "nothing is known of the time before"
    now = 102.0
    assert rates.of("peer-host", 9000) == 2000
    assert rates.of("peer-host", 9000) is None, "no time has passed"
    now = 102.5
    assert rates.of("peer-host", 9000) == 0
    assert rates.of("host-peer", 9000) is None
    rates.only(["host-peer"])
    now = 103.0
    assert rates.of("peer-host", 9000) is None, "a donor that went is forgotten"


def test_a_link_that_is_busy_shows_its_rate(redis: RealRedis, publish: Publish, told: MadeUp) -> None:
    publish(redis, told)
    wait_published(redis)
    assert fields(redis, "link:host-ssd")["bytes_per_second"] == "0"
    link = stack().links["host-ssd"]

    def copied() -> bool:
        """As much again in each interval: a rate of the last interval is never zero then."""
        assert isinstance(told.tiers, msgspec.Struct)
        grown = told.tiers.links["host-ssd"].bytes + 10**6
        told.tiers = stack(links={"host-ssd": msgspec.structs.replace(link, bytes=grown)})
        return fields(redis, "link:host-ssd")["bytes_per_second"] not in ("", "0")

    wait_for(copied, "a rate")


# ---- neighbours ----


class Lookers:
    """Servers that lend, look, or both; what each was told last, and how often."""

    def __init__(self, publish: Publish, config: BusConfig) -> None:
        self._publish = publish
        self._config = config
        self.told: dict[str, list[dict[str, str]]] = {}

    def start(self, name: str, *, lends: bool = True, scope: str = "here", **options: Any) -> BusPublisher:
        heard = self.told[name] = []
        told = MadeUp()
        told.lending = leases(f"{name}.dp0-tp0", address=address(name) if lends else "")
        return self._publish(
            self._config,
            told,
            server=name,
            lends=True,
            on_neighbours=lambda lenders: heard.append(dict(lenders)),
            scope=lambda address: scope,
            **options,
        )

    def now(self, name: str) -> set[str]:
        heard = list(self.told[name])
        return set(heard[-1]) if heard else set()


def address(name: str) -> str:
    return f"ipc:///run/{name}.dp0-tp0.lease"


@pytest.fixture
def lookers(redis: RealRedis, publish: Publish) -> Lookers:
    return Lookers(publish, bus_config(redis.url, interval="500ms"))


@pytest.mark.parametrize("first", ["borrower", "lender"])
def test_lender_and_borrower_find_each_other_whoever_comes_first(
    lookers: Lookers, redis: RealRedis, first: str
) -> None:
    second = {"borrower": "lender", "lender": "borrower"}[first]
    for name in (first, second):
        lookers.start(name, lends=name == "lender")
        wait_published(redis, f"swift:{name}:dp0-tp0:rank")
    wait_for(lambda: lookers.now("borrower") == {"lender.dp0-tp0"}, "the lender")
    assert lookers.told["borrower"] == [{"lender.dp0-tp0": address("lender")}], "told once"
    assert lookers.told["lender"] == [], "the borrower lends nothing, and it is no neighbour of its own"


class Look:
    """Neighbours of `alpha`, looked for by hand."""

    def __init__(self, redis: RealRedis) -> None:
        self.redis = redis
        self.now = 100.0
        self.told: list[dict[str, str]] = []
        self._neighbours = Neighbours(
            Keys("swift"),
            "alpha.dp0-tp0",
            lambda address: "box/1234/1000",
            lambda all_: self.told.append(dict(all_)),
            lambda: self.now,
        )

    def __call__(self, seconds: float = 0.0) -> bool:
        """So much later; whether there is to be another look soon."""
        self.now += seconds
        batch = RedisBatch()
        self._neighbours.ask(batch)
        batch.run(self.redis.admin)
        return self._neighbours.settle()


def test_three_looks_find_everybody_and_the_third_needs_no_further_one(redis: RealRedis) -> None:
    """Looks that found somebody new are followed by others at once."""
    for name in ("beta", "gamma"):
        HandWritten(redis.admin, name, lends=True).write()
    look = Look(redis)
    assert [(look(), len(look.told)) for _ in range(4)] == [(True, 0), (True, 0), (False, 1), (False, 1)]
    assert set(look.told[0]) == {"beta.dp0-tp0", "gamma.dp0-tp0"}


def test_a_lender_that_comes_back_is_believed_in_anew(redis: RealRedis) -> None:
    beta = HandWritten(redis.admin, "beta", lends=True).write()
    look = Look(redis)
    while look():
        pass
    for _ in range(3):
        beta.die()
        look(), look(neighbours.PATIENCE_SECONDS - 1)
        beta.write()
        while look(0.1):
            pass
    assert len(look.told) == 1
    beta.die()
    look(), look(neighbours.PATIENCE_SECONDS + 1)
    assert look.told[1:] == [{}]


def test_a_lender_with_another_address_is_told_with_that(redis: RealRedis) -> None:
    beta = HandWritten(redis.admin, "beta", lends=True).write()
    look = Look(redis)
    while look():
        pass
    beta.write_leases("dp0-tp0", lease_address="ipc:///elsewhere.lease")
    look()
    assert look.told[1:] == [{"beta.dp0-tp0": "ipc:///elsewhere.lease"}]


def test_a_lender_is_found_soon_however_rarely_state_is_published(redis: RealRedis, publish: Publish) -> None:
    """At once by one who comes later; within a turn of a second by one who is there."""
    lookers = Lookers(publish, bus_config(redis.url, interval="30s"))
    lookers.start("early")
    wait_for(lambda: redis.admin.exists("swift:early:dp0-tp0:rank"), "the state")
    with within(25.0):
        lookers.start("late")
        wait_for(lambda: lookers.now("late") == {"early.dp0-tp0"}, "the one that was there")
        wait_for(lambda: lookers.now("early") == {"late.dp0-tp0"}, "the one that came")


def test_only_lenders_of_this_machine_and_user_are_neighbours(lookers: Lookers, redis: RealRedis) -> None:
    lookers.start("one")
    lookers.start("two")
    lookers.start("elsewhere", scope="there")
    wait_for(lambda: lookers.now("one") == {"two.dp0-tp0"} and lookers.now("two") == {"one.dp0-tp0"}, "each other")
    wait_published(redis, "swift:elsewhere:dp0-tp0:rank")
    wait_published(redis, "swift:one:dp0-tp0:rank")
    assert [lookers.now(name) for name in ("one", "two", "elsewhere")] == [{"two.dp0-tp0"}, {"one.dp0-tp0"}, set()]


@pytest.mark.parametrize(
    ("rank", "ranks", "others", "expected"),
    [
        ("dp0-tp1", "dp0-tp0 dp0-tp1", "dp0-tp0 dp0-tp1", "dp0-tp1"),
        ("dp0-tp1", "dp0-tp0 dp0-tp1", "dp0-tp0 dp0-tp1 dp1-tp0 dp1-tp1", "dp0-tp1 dp1-tp1"),
        ("dp0-tp1", "dp0-tp0 dp0-tp1", "dp0-tp0", "dp0-tp0"),
        ("dp0-tp0", "dp0-tp0", "dp0-tp0 dp0-tp1", "dp0-tp0 dp0-tp1"),
        ("dp0-tp0", "dp0-tp0 dp1-tp0", "dp0-tp0 dp1-tp0", "dp0-tp0 dp1-tp0"),
        ("dp0-tp3", "dp0-tp2 dp0-tp3", "dp0-tp0 dp0-tp1", "dp0-tp0 dp0-tp1"),
        ("dp0-tp0", "dp0-tp0 dp0-tp1", "", ""),
    ],
)
def test_ranks_deal_with_their_counterparts_where_there_are_as_many(
    rank: str, ranks: str, others: str, expected: str
) -> None:
    assert neighbours.counterparts(rank, ranks.split(), others.split()) == expected.split()


def test_ranks_of_one_server_are_neighbours_of_each_other(redis: RealRedis, publish: Publish) -> None:
    ranks = ("dp0-tp0", "dp1-tp0")
    heard: dict[str, dict[str, str]] = {}
    for rank in ranks:
        told = MadeUp()
        told.lending = leases(f"alpha.{rank}")
        options = {
            "rank": rank,
            "ranks": ranks,
            "leader": rank == ranks[0],
            "lends": True,
            "scope": lambda address: "here",
        }
        publish(redis, told, **options, on_neighbours=lambda lenders, rank=rank: heard.update({rank: dict(lenders)}))
    wait_for(lambda: len(heard) == 2, "each other")
    assert {rank: set(lenders) for rank, lenders in heard.items()} == {
        "dp0-tp0": {"alpha.dp1-tp0"},
        "dp1-tp0": {"alpha.dp0-tp0"},
    }


def test_a_lender_that_ended_is_forgotten_in_a_while(
    lookers: Lookers, redis: RealRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "PATIENCE_SECONDS", 0.5)
    gone = lookers.start("gone")
    lookers.start("stays")
    lookers.start("looks")
    wait_for(lambda: lookers.now("looks") == {"gone.dp0-tp0", "stays.dp0-tp0"}, "both")
    gone.close(20)
    wait_for(lambda: lookers.now("looks") == {"stays.dp0-tp0"}, "the end of one")


def test_an_emptied_redis_changes_no_neighbours(lookers: Lookers, redis: RealRedis) -> None:
    lookers.start("one")
    lookers.start("two")
    wait_for(lambda: lookers.now("one") and lookers.now("two"), "each other")
    redis.admin.flushall()
    for name in ("one", "two"):
        wait_for(lambda name=name: redis.admin.exists(f"swift:{name}:dp0-tp0:rank"), "the return")
        wait_published(redis, f"swift:{name}:dp0-tp0:rank")
    assert [len(heard) for heard in lookers.told.values()] == [1, 1]


def test_as_long_as_redis_is_away_neighbours_stay_as_they_were(
    own_redis: RealRedis, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that is: only looks that were answered count."""
    monkeypatch.setattr(neighbours, "PATIENCE_SECONDS", 0.3)
    lookers = Lookers(publish, bus_config(own_redis.url))
    one = lookers.start("one")
    two = lookers.start("two")
    wait_for(lambda: lookers.now("one") and lookers.now("two"), "each other")
    own_redis.kill()
    failures = one.failures, two.failures
    wait_for(lambda: one.failures >= failures[0] + 3 and two.failures >= failures[1] + 3, "tries")
    assert [len(heard) for heard in lookers.told.values()] == [1, 1]
    monkeypatch.setattr(neighbours, "PATIENCE_SECONDS", 10.0)
    own_redis.start()
    for name in ("one", "two"):
        wait_for(lambda name=name: own_redis.admin.exists(f"swift:{name}:dp0-tp0:rank"), "the return")
        wait_published(own_redis, f"swift:{name}:dp0-tp0:rank")
    assert [len(heard) for heard in lookers.told.values()] == [1, 1]


def test_who_could_not_be_told_is_told_again(redis: RealRedis, publish: Publish) -> None:
    events, calls = EventLog(time.time), []

    def fail_twice(lenders: Any) -> None:
        calls.append(dict(lenders))
        if len(calls) < 3:
            raise OSError("planted")

    one = publish(redis, MadeUp(), events, lends=True, on_neighbours=fail_twice, scope=lambda address: "here")
    other = MadeUp()
    other.lending = leases("beta.dp0-tp0", address=address("beta"))
    publish(redis, other, server="beta", lends=True, scope=lambda address: "here")
    wait_for(lambda: len(calls) == 3, "the third time")
    wait_published(redis)
    assert calls == [{"beta.dp0-tp0": address("beta")}] * 3
    assert one.alive
    faults = [event.fields for event in events.since() if event.kind == "bus.fault"]
    assert faults == [{"where": "the neighbours", "error": "OSError"}]


def test_who_does_not_borrow_does_not_look(redis: RealRedis, publish: Publish) -> None:
    redis.admin.config_resetstat()
    publish(redis, lends=True)
    wait_published(redis)
    assert "cmdstat_zrange" not in redis.admin.info("commandstats")  # type: ignore[operator]


def test_the_scope_is_this_boot_user_and_directory(tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.mkdir(), others.mkdir()
    boot, user, directory = neighbours.lease_scope(f"ipc://{mine}/alpha.lease").split("/")
    assert boot
    assert user.isdecimal()
    assert directory
    (tmp_path / "link").symlink_to(mine)  # as a container mounts it under another name
    assert neighbours.lease_scope(f"ipc://{tmp_path}/link/beta.lease") == f"{boot}/{user}/{directory}"
    assert neighbours.lease_scope(f"ipc://{others}/alpha.lease") not in ("", f"{boot}/{user}/{directory}")
    assert neighbours.lease_scope(f"ipc://{tmp_path}/gone/alpha.lease") == ""


def test_an_address_that_nobody_can_be_reached_at_is_no_neighbours(redis: RealRedis, publish: Publish) -> None:
    """As of a lender in a container whose directory of this name is not ours, or that we do not have."""
    heard: list[dict[str, str]] = []
    other, third = MadeUp(), MadeUp()
    other.lending = leases("beta.dp0-tp0", address=address("beta"))
    third.lending = leases("gamma.dp0-tp0", address=address("gamma"))
    own = {address("beta"): "", address("gamma"): "here"}
    publish(redis, lends=True, on_neighbours=lambda all_: heard.append(dict(all_)), scope=lambda at: own.get(at, "-"))
    publish(redis, other, server="beta", lends=True, scope=lambda at: "")
    publish(redis, third, server="gamma", lends=True, scope=lambda at: "here")
    wait_published(redis, "swift:beta:dp0-tp0:rank")
    wait_for(lambda: heard and "gamma.dp0-tp0" in heard[-1], "the one that can be")
    assert all("beta.dp0-tp0" not in told for told in heard)
