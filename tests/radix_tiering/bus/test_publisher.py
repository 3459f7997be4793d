"""The state on the bus: what is told is there, what is over vanishes, and nothing is said that is not so."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.schema import (
    ENDED_REQUEST_TTL,
    ENDED_REQUESTS,
    LINKS,
    SCHEMA_VERSION,
    SERVER_TTL,
)
from swift_tiers.radix_tiering.bus.hear.reader import BusReader

from support.publishing import bus_config, make_publisher, publishes, wait_published
from support.redis import RealRedis, wait_for
from support.telemetry import STORY, MadeUp, ended, engine, request, stack, tier

ALPHA = "swift:alpha:dp0-tp0"


@pytest.fixture
def told() -> MadeUp:
    return MadeUp()


def fields(redis: RealRedis, key: str) -> dict[str, str]:
    return redis.admin.hgetall(key)  # type: ignore[return-value]


def listed(redis: RealRedis) -> set[str]:
    return set(redis.admin.zrange(f"{ALPHA}:requests", 0, -1))  # type: ignore[arg-type]


def commands(redis: RealRedis, name: str) -> int:
    """How often Redis has carried out the command."""
    return int(redis.admin.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])  # type: ignore[union-attr]


# ---- what is there ----


def test_everything_that_is_told_is_there(redis, publish) -> None:
    publish(redis)
    wait_published(redis)
    here = {key.removeprefix("swift:") for key in redis.admin.scan_iter()}
    state = ["rank", "stripe", "ssd:0", "ssd:1", "tree", "directory", "requests", "request:one"]
    state += [f"tier:{name}" for name in ("device", "peer", "host", "ssd")]
    state += [f"link:{name}" for name in (*LINKS, "beta.dp0-tp0-host", "host-beta.dp0-tp0")]
    assert here == {"schema", "servers", "alpha:info", *(f"alpha:dp0-tp0:{name}" for name in state)}
    assert redis.admin.get("swift:schema") == str(SCHEMA_VERSION)
    assert fields(redis, "swift:alpha:info")["pid"] == str(os.getpid())
    assert fields(redis, f"{ALPHA}:request:one")["block_table"] == "17-40 3 90-110"
    assert redis.admin.zscore(f"{ALPHA}:requests", "one") == 1_700_000_100.0


def test_a_reader_reads_what_was_told(redis, publish, told) -> None:
    publish(redis, told)
    wait_published(redis)
    with BusReader(redis.client()) as reader:
        (server,) = reader.snapshot().servers
    (rank,) = server.ranks
    assert server.server.alive
    assert rank.rank is not None
    assert rank.rank.restores_expired == told.stack().restores.restores_expired
    capacities = {"device": 2**31, "peer": 2**30, "host": 2**30, "ssd": 2**34}
    assert {one.tier: one.capacity_bytes for one in rank.tiers} == capacities
    assert [one.path for one in rank.devices] == [one.path for one in told.stack().devices]
    assert [one.block_table for one in rank.requests] == [((17, 40), (3, 3), (90, 110))]
    assert [one.restore_story for one in rank.requests] == [STORY]


def test_state_vanishes_with_its_server_and_is_kept_until_then(redis, publish) -> None:
    publish(redis, wall=time.time)
    wait_published(redis)
    for key in redis.admin.scan_iter("swift:alpha:*"):
        assert 0 < redis.admin.pttl(key) <= 5000, key
    # What does not change any more is kept as well.
    redis.admin.pexpire(f"{ALPHA}:tree", 4100)
    wait_for(lambda: redis.admin.pttl(f"{ALPHA}:tree") > 4100, "the TTL to be renewed")


def test_the_ttl_follows_the_interval(redis, publish) -> None:
    publish(bus_config(redis.url, interval="30s"))
    left = wait_for(lambda: max(0, redis.admin.pttl("swift:alpha:info")), "the server")
    assert 100_000 < left <= 120_000


def test_changes_arrive_and_the_rest_is_not_sent_again(redis, publish, told) -> None:
    publish(redis, told)
    wait_published(redis)
    redis.admin.hset(f"{ALPHA}:tier:host", "hits", "not sent again")
    told.tiers = stack(tiers={"host": tier(misses=101, refusals={"full": 4, "prefix not held": 1})})
    wait_published(redis)
    host = fields(redis, f"{ALPHA}:tier:host")
    assert (host["misses"], host["refused:full"], host["refused:prefix not held"]) == ("101", "4", "1")
    assert host["hits"] == "not sent again"


def test_a_field_that_is_not_said_any_more_is_removed(redis, publish, told) -> None:
    publish(redis, told)
    wait_published(redis)
    told.tiers = stack(tiers={"host": tier(refusals={})})
    wait_published(redis)
    assert "refused:full" not in fields(redis, f"{ALPHA}:tier:host")


def test_what_an_earlier_process_of_the_name_left_does_not_mix_with_it(redis, publish) -> None:
    redis.admin.hset(f"{ALPHA}:tier:host", mapping={"refused:long ago": 7, "pages": 1})
    redis.admin.zadd(f"{ALPHA}:requests", {"long-gone": 1.0})
    publish(redis)
    wait_published(redis)
    assert "refused:long ago" not in fields(redis, f"{ALPHA}:tier:host")
    assert listed(redis) == {"one"}


def test_a_sample_is_as_old_as_it_says(redis, publish, told) -> None:
    """A scheduler that is stuck takes no samples: what was sampled stays, and does not get younger."""
    told.sample = engine(request("one"), at=1_700_000_200.0)
    publish(redis, told)
    wait_published(redis)
    first = fields(redis, f"{ALPHA}:rank")["time"]
    wait_published(redis)
    assert fields(redis, f"{ALPHA}:rank")["time"] > first
    for key in ("tree", "tier:device", "request:one"):
        assert fields(redis, f"{ALPHA}:{key}")["time"] == "1700000200.000000"


def test_without_samples_nothing_is_said_of_requests(redis, publish, told) -> None:
    told.sample = None
    publish(redis, told)
    wait_published(redis)
    assert not redis.admin.exists(f"{ALPHA}:tree", f"{ALPHA}:tier:device", f"{ALPHA}:requests")
    rank = fields(redis, f"{ALPHA}:rank")
    assert (rank["running_requests"], rank["sample_seconds"]) == ("", "")
    assert rank["restores_started"] == "40"


def test_how_long_a_server_is_up_does_not_follow_its_clock(redis, publish, told) -> None:
    skew = [0.0]
    publish(redis, told, wall=lambda: time.time() + skew[0])
    wait_published(redis)
    with BusReader(redis.client()) as reader:
        (first,) = reader.servers()
        wait_published(redis)
        (before,) = reader.servers()
        skew[0] = -8 * 3600.0
        wait_published(redis)
        (after,) = reader.servers()
    assert before.started == first.started, "told once, as long as nobody sets the clock"
    assert after.started == pytest.approx(before.started - 8 * 3600, abs=60)
    assert after.up_seconds == pytest.approx(before.up_seconds, abs=60)


# ---- requests ----


def test_requests_come_change_and_go(redis, publish, told) -> None:
    told.sample = engine(request("one"), request("two", arrived=1_700_000_101.0))
    publish(redis, told)
    wait_published(redis)
    told.sample = engine(request("one", output_tokens=13, block_table=(17, 40, 3, 4)))
    wait_published(redis)
    assert listed(redis) == {"one"}
    assert not redis.admin.exists(f"{ALPHA}:request:two")
    one = fields(redis, f"{ALPHA}:request:one")
    assert (one["output_tokens"], one["block_table"], one["pages"]) == ("13", "17-40 3-4", "26")


def test_an_ended_request_is_kept_for_a_while(redis, publish, told) -> None:
    publish(redis, told)
    wait_published(redis)
    told.over = [ended("one", time.time() - 100, output_tokens=99)]
    wait_published(redis)
    # The sample is older than its end, which is what counts.
    one = fields(redis, f"{ALPHA}:request:one")
    assert (one["state"], one["output_tokens"], one["block_table"]) == ("finished", "99", "")
    left = redis.admin.pttl(f"{ALPHA}:request:one")
    assert 0 < left <= (ENDED_REQUEST_TTL - 100) * 1000
    told.sample = engine()
    wait_published(redis)
    assert redis.admin.pttl(f"{ALPHA}:request:one") <= left, "it is not kept for longer"
    assert listed(redis) == {"one"}


def test_an_ended_request_leaves_the_list_when_it_is_too_old(redis, publish, told) -> None:
    skew = [0.0]
    told.sample = engine()
    told.over = [ended("one", time.time())]
    publish(redis, told, wall=lambda: time.time() + skew[0])
    wait_published(redis)
    assert listed(redis) == {"one"}
    skew[0] = ENDED_REQUEST_TTL + 1
    wait_published(redis)
    assert listed(redis) == set()


def test_no_more_ended_requests_than_there_is_room_for(redis, publish, told) -> None:
    told.sample = engine()
    now = time.time()
    told.over = [ended(f"r{number}", now + number / 1000) for number in range(ENDED_REQUESTS + 44)]
    publish(redis, told)
    wait_published(redis)
    kept = {f"r{number}" for number in range(44, ENDED_REQUESTS + 44)}
    assert listed(redis) == kept
    told.over = [ended("newest", now + 1)]
    wait_published(redis)
    assert listed(redis) == kept - {"r44"} | {"newest"}
    assert not redis.admin.exists(f"{ALPHA}:request:r44")


def test_the_name_of_an_ended_request_may_come_again(redis, publish, told) -> None:
    publish(redis, told)
    told.over = [ended("one", time.time())]
    wait_published(redis)
    assert fields(redis, f"{ALPHA}:request:one")["state"] == "finished"
    told.sample = engine(request("one", arrived=1_700_000_500.0, output_tokens=1))
    wait_published(redis)
    one = fields(redis, f"{ALPHA}:request:one")
    assert (one["state"], one["output_tokens"]) == ("running", "1")
    assert redis.admin.zscore(f"{ALPHA}:requests", "one") == 1_700_000_500.0
    told.over = [ended("one", time.time(), arrived=1_700_000_500.0)]
    wait_published(redis)
    assert fields(redis, f"{ALPHA}:request:one")["state"] == "finished"


def test_requests_that_did_not_change_are_not_sent_again(redis, publish, told) -> None:
    told.sample = engine(*(request(f"r{number}") for number in range(300)))
    publish(redis, told)
    wait_published(redis)
    before, from_ = commands(redis, "hset"), publishes(redis)
    wait_published(redis)
    assert commands(redis, "hset") - before <= 20 * (publishes(redis) - from_ + 1)


# ---- several ----


def test_only_the_leader_speaks_for_the_server(redis, publish) -> None:
    ranks = ("dp0-tp0", "dp0-tp1")
    publish(redis, rank="dp0-tp1", ranks=ranks, leader=False)
    wait_published(redis, "swift:alpha:dp0-tp1:rank")
    assert not redis.admin.exists("swift:alpha:info", "swift:servers")
    publish(redis, ranks=ranks)
    wait_published(redis)
    assert fields(redis, "swift:alpha:info")["ranks"] == "dp0-tp0,dp0-tp1"


def test_a_server_is_forgotten_an_hour_after_its_end(redis, publish) -> None:
    now = redis.admin.time()[0]
    redis.admin.zadd("swift:servers", {"lately": now - SERVER_TTL + 60, "long-ago": now - SERVER_TTL - 1})
    publish(redis)
    wait_published(redis)
    assert set(redis.admin.zrange("swift:servers", 0, -1)) == {"alpha", "lately"}


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_off_makes_no_difference(redis, publish, hours: int) -> None:
    publish(redis, wall=lambda: time.time() + hours * 3600)
    redis.admin.zadd("swift:servers", {"other": redis.admin.time()[0]})
    wait_published(redis)
    info = fields(redis, "swift:alpha:info")
    assert float(info["clock_offset_seconds"]) == pytest.approx(hours * 3600, abs=60)
    assert float(info["time"]) == pytest.approx(time.time() + hours * 3600, abs=60)
    assert redis.admin.zscore("swift:servers", "alpha") == pytest.approx(redis.admin.time()[0], abs=60)
    with BusReader(redis.client()) as reader:
        views = {one.server.server: one for one in reader.snapshot().servers}
    assert views["alpha"].server.alive
    assert views["other"].server.server == "other", "forgotten because of another server's clock"
    assert 0 <= views["alpha"].ranks[0].rank.age_seconds < 60  # type: ignore[union-attr, operator]


def test_a_step_of_the_clock_shows_at_once(redis, publish) -> None:
    step = [0.0]
    publish(redis, wall=lambda: time.time() + step[0])
    wait_published(redis)
    step[0] = -7200
    wait_published(redis)
    info = fields(redis, "swift:alpha:info")
    assert float(info["clock_offset_seconds"]) == pytest.approx(-7200, abs=60)
    assert redis.admin.zscore("swift:servers", "alpha") == pytest.approx(redis.admin.time()[0], abs=60)


# ---- the end ----


def test_an_ended_server_is_gone_at_once_and_its_history_stays(redis, publish, told) -> None:
    events = EventLog(time.time)
    told.sample = engine(request("live"))
    told.over = [ended("over", time.time())]
    one = publish(redis, told, events)
    wait_published(redis)
    events.emit("test.last")
    one.close(60)
    left = {key.removeprefix("swift:") for key in redis.admin.scan_iter()}
    assert left == {"schema", "servers", "alpha:events", "alpha:dp0-tp0:requests", "alpha:dp0-tp0:request:over"}
    assert listed(redis) == {"over"}
    assert redis.admin.pttl(f"{ALPHA}:requests") <= ENDED_REQUEST_TTL * 1000
    assert [entry["kind"] for _, entry in redis.admin.xrange("swift:alpha:events")] == ["test.last"]
    assert 0 < redis.admin.ttl("swift:alpha:events") <= SERVER_TTL
    with BusReader(redis.client()) as reader:
        assert [server.server.alive for server in reader.snapshot().servers] == [False]


def test_a_publisher_may_be_closed_twice_and_before_it_was_started(redis, publish) -> None:
    one = publish(redis)
    one.close()
    one.close()
    make_publisher(bus_config(redis.url)).close()


# ---- faults in what it calls ----


def test_a_fault_in_one_thing_keeps_the_rest_going(redis, publish, told) -> None:
    events = EventLog(time.time)
    one = publish(redis, told, events)
    wait_published(redis)
    told.tiers = RuntimeError("planted-secret")
    wait_published(redis)
    before = fields(redis, f"{ALPHA}:tree")["time"]
    told.sample = engine(request("two"))
    wait_published(redis)
    assert one.alive
    assert fields(redis, f"{ALPHA}:tree")["time"] > before
    assert fields(redis, f"{ALPHA}:rank")["namespace"] == "", "not known now"
    told.tiers = stack(tiers={"host": tier(pages=701)})
    wait_published(redis)
    assert fields(redis, f"{ALPHA}:tier:host")["pages"] == "701"
    faults = [event.fields for event in events.since() if event.kind == "bus.fault"]
    assert faults == [{"where": "the tiers' snapshot", "error": "RuntimeError"}], "told once, without its text"


@pytest.mark.parametrize("name", ["stack", "engine", "ended"])
def test_whatever_telemetry_raises_the_thread_lives(redis, publish, told, name: str) -> None:
    working, raised = getattr(told, name), [Exception("x")]

    def fail() -> Any:
        raise raised[0]

    setattr(told, name, fail)
    one = publish(redis, told)
    for error in (KeyError(1), RecursionError(), MemoryError(), UnicodeDecodeError("utf-8", b"", 0, 1, "x")):
        raised[0] = error
        wait_published(redis)
        assert one.alive
    setattr(told, name, working)
    told.tiers = stack(write_queue_pages=77)
    told.sample = engine(request("three"))
    wait_published(redis)
    assert fields(redis, f"{ALPHA}:rank")["write_queue_pages"] == "77"
    assert listed(redis) == {"three"}


@pytest.mark.parametrize("odd", ["no snapshot at all", msgspec.structs.replace(stack(), devices=(None,))])
def test_a_snapshot_that_is_none_is_told_as_far_as_it_goes(redis, publish, told, odd: Any) -> None:
    told.tiers = odd
    one = publish(redis, told)
    wait_for(lambda: listed(redis) == {"one"}, "the requests")
    assert redis.admin.exists("swift:alpha:info")
    told.tiers = stack()
    wait_published(redis)
    assert redis.admin.exists(f"{ALPHA}:tier:host", f"{ALPHA}:ssd:1") == 2
    assert one.alive
