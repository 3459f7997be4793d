"""Events on the bus: in order, each once, and none lost without a trace."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise

import msgspec
import pytest
from redis.exceptions import ResponseError

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.schema import SERVER_TTL
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.event_feed import MOST_EVENTS, EventFeed

from support.publishing import RANK, between_turns, bus_config, wait_published
from support.redis import PATIENCE, RealRedis, wait_for
from support.telemetry import MadeUp

EVENTS = "swift:alpha:events"


@pytest.fixture
def events() -> EventLog:
    return EventLog(time.time)


def entries(redis: RealRedis, rank: str = "dp0-tp0") -> list[int]:
    return [int(entry["sequence"]) for _, entry in redis.admin.xrange(EVENTS) if entry["rank"] == rank]  # type: ignore[union-attr]


def read(redis: RealRedis) -> tuple[list[int], list[tuple[int | None, int]]]:
    """Numbers of the events and gaps that a reader sees who begins now."""
    with BusReader(redis.client()) as reader:
        items = reader.events("alpha", count=100_000).items
    seen = [item.sequence for item in items if isinstance(item, StreamEvent)]
    return seen, [(item.first, item.last) for item in items if isinstance(item, Gap)]


# ---- the log ----


def test_the_log_tells_what_came_after_a_number() -> None:
    log = EventLog(lambda: 1.5, capacity=5)
    assert log.since() == []
    for number in range(8):
        log.emit("test", number=number)
    assert [event.sequence for event in log.since()] == [4, 5, 6, 7, 8]
    assert [event.sequence for event in log.since(5)] == [6, 7, 8]
    assert [event.sequence for event in log.since(2, most=2)] == [4, 5]
    assert log.since(8) == log.since(99) == []
    assert log.since(7)[0].fields == {"number": 7}


# ---- the way to the stream ----


def test_an_event_is_written_as_it_happened(redis, publish, events) -> None:
    publish(redis, events=events)
    events.emit("device.out", device="/ssd1", pages=12)
    ((_, entry),) = wait_for(lambda: redis.admin.xrange(EVENTS), "the event")
    assert (entry["rank"], entry["sequence"], entry["kind"]) == ("dp0-tp0", "1", "device.out")
    assert json.loads(entry["fields"]) == {"device": "/ssd1", "pages": 12}
    assert float(entry["time"]) == pytest.approx(events.since()[0].time, abs=1e-6)
    assert 0 < redis.admin.ttl(EVENTS) <= SERVER_TTL


def test_many_at_once_arrive_in_order_each_once(redis, publish, events) -> None:
    count = 5 * MOST_EVENTS + 7
    for _ in range(count):
        events.emit("test")
    publish(redis, events=events)
    wait_for(lambda: redis.admin.xlen(EVENTS) >= count, "the events")
    wait_published(redis)
    assert entries(redis) == list(range(1, count + 1))


def test_ranks_number_their_events_each_for_itself(redis, publish) -> None:
    logs = {f"dp0-tp{number}": EventLog(time.time) for number in range(3)}
    for rank, log in logs.items():
        publish(redis, events=log, rank=rank, ranks=tuple(logs), leader=rank == "dp0-tp0")

    def emit(log: EventLog) -> None:
        for _ in range(300):
            log.emit("test")

    threads = [threading.Thread(target=emit, args=(log,)) for log in logs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: redis.admin.xlen(EVENTS) >= 900, "the events")
    for rank in logs:
        assert entries(redis, rank) == list(range(1, 301))


def test_the_stream_is_capped(redis, publish, events) -> None:
    publish(bus_config(redis.url, events=50), events=events)
    for _ in range(2000):
        events.emit("test")
    wait_for(lambda: entries(redis)[-1:] == [2000], "the events")
    length = redis.admin.xlen(EVENTS)
    assert 50 <= length < 400
    wait_published(redis)
    assert redis.admin.xlen(EVENTS) == length, "a stream that was trimmed is not one that has vanished"
    assert read(redis)[1] == [(1, 2000 - length)]


def test_what_the_log_dropped_is_counted_and_leaves_a_gap(redis, publish) -> None:
    events = EventLog(time.time, capacity=20)
    for _ in range(50):
        events.emit("test")
    publish(redis, events=events)
    wait_for(lambda: redis.admin.xlen(EVENTS) == 20, "the events")
    wait_published(redis)
    assert redis.admin.hmget(RANK, "events", "events_lost") == ["50", "30"]
    assert read(redis) == (list(range(31, 51)), [(1, 30)])


def test_nothing_is_sent_twice_without_need(redis, publish, events) -> None:
    publish(redis, events=events)
    for number in range(1, 30):
        events.emit("test")
        wait_for(lambda number=number: redis.admin.xlen(EVENTS) == number, "the event")
    assert entries(redis) == list(range(1, 30))


def test_each_life_of_a_rank_has_a_name_of_its_own(redis, publish) -> None:
    """By which its numbers are told from those of the one before."""
    for life in (1, 2):
        log = EventLog(time.time)
        for _ in range(3):
            log.emit("test")
        publisher = publish(redis, events=log)
        wait_for(lambda life=life: redis.admin.xlen(EVENTS) == 3 * life, "the events")
        publisher.close(60)
    lives = [entry["life"] for _, entry in redis.admin.xrange(EVENTS)]
    assert lives == [lives[0]] * 3 + [lives[3]] * 3
    assert lives[0] != lives[3]
    assert read(redis) == ([1, 2, 3, 1, 2, 3], [])


# ---- a stream that vanishes ----


def test_what_is_kept_is_sent_again_where_the_stream_has_vanished(redis, publish) -> None:
    events, told = EventLog(time.time, capacity=10), MadeUp()
    publish(redis, told, events=events)
    for number in range(1, 16):
        events.emit("test")
        wait_for(lambda number=number: redis.admin.xlen(EVENTS) == number, "the event")
    # Not after it was seen that the stream is there, and before what is new is sent.
    with between_turns(told):
        redis.admin.delete(EVENTS)
        events.emit("test")
    wait_for(lambda: entries(redis)[-1:] == [16], "the events")
    wait_published(redis)
    assert entries(redis) == list(range(7, 17))
    assert redis.admin.hget(RANK, "events_lost") == "0", "they were published once"
    assert read(redis)[1] == [(1, 6)]


def test_a_flush_is_noticed_without_a_new_event(redis, publish, events) -> None:
    publish(redis, events=events)
    for _ in range(5):
        events.emit("test")
    wait_for(lambda: redis.admin.xlen(EVENTS) == 5, "the events")
    wait_published(redis)
    redis.admin.flushall()
    wait_for(lambda: redis.admin.xlen(EVENTS) == 5, "the events")
    assert entries(redis) == [1, 2, 3, 4, 5]


def test_a_full_stream_that_has_lost_its_end_is_not_one_that_has_lost_its_beginning(redis) -> None:
    """As of an older copy, after a failover: what was sent since is sent again."""
    log = EventLog(time.time)
    feed = EventFeed(log, EVENTS, "dp0-tp0", "7-1.500000", 3)
    for emitted in (6, 0):
        for _ in range(emitted):
            log.emit("test")
        batch = RedisBatch()
        feed.check(batch)
        feed.send(batch)
        batch.run(redis.admin)
    kept = redis.admin.xrange(EVENTS)
    redis.admin.xdel(EVENTS, *[entry for entry, _ in kept[-2:]])
    for _ in range(2):  # what is missing is seen, and then sent
        batch = RedisBatch()
        feed.check(batch)
        feed.send(batch)
        batch.run(redis.admin)
    assert entries(redis)[-1] == 6
    redis.admin.xtrim(EVENTS, maxlen=2, approximate=False)
    redis.admin.xdel(EVENTS, redis.admin.xrange(EVENTS)[0][0])
    batch = RedisBatch()
    feed.check(batch)
    batch.run(redis.admin)
    assert not feed.waiting, "it is there"


def test_each_rank_finds_out_for_itself(redis, publish) -> None:
    """After a flush another rank is quicker: that there is a stream again does not mean that one's own events are."""
    slow, quick = EventLog(time.time), EventLog(time.time)
    ranks = ("dp0-tp0", "dp0-tp1")
    publish(redis, events=slow, ranks=ranks)
    publish(redis, events=quick, rank="dp0-tp1", ranks=ranks, leader=False)
    for _ in range(5):
        slow.emit("test")
        quick.emit("test")
    wait_for(lambda: redis.admin.xlen(EVENTS) == 10, "the events")
    wait_published(redis)
    pipeline = redis.admin.pipeline()
    pipeline.flushall()
    pipeline.xadd(EVENTS, {"rank": "dp0-tp1", "sequence": 5, "kind": "test"})
    pipeline.execute()
    wait_for(lambda: entries(redis) == [1, 2, 3, 4, 5], "the events")


def test_a_reader_misses_nothing_over_flushes(redis, publish, events) -> None:
    """Whatever is not in what a reader has read is in its gaps."""
    publish(redis, events=events)
    stop = threading.Event()

    def emit() -> None:
        while not stop.wait(0.002):
            events.emit("test")

    thread = threading.Thread(target=emit)
    thread.start()
    try:
        with BusReader(redis.client()) as reader:
            seen: list[int] = []
            missed: list[Gap] = []
            cursor, turn, until = None, 0, time.monotonic() + PATIENCE
            while turn < 60 or len(seen) <= 100:
                turn += 1
                assert time.monotonic() < until, f"{len(seen)} events came"
                if turn in (10, 30, 50):
                    redis.admin.flushall()
                found = reader.events("alpha", cursor) if cursor else reader.events("alpha")
                cursor = found.cursor
                seen += [item.sequence for item in found.items if isinstance(item, StreamEvent)]
                missed += [item for item in found.items if isinstance(item, Gap)]
                time.sleep(0.02)
    finally:
        stop.set()
        thread.join()
    assert all(one < other for one, other in pairwise(seen)), "in order, each once"
    lost = {number for gap in missed for number in range(gap.first or 1, gap.last + 1)}
    assert set(seen) | lost == set(range(1, seen[-1] + 1))


def test_events_go_on_behind_one_that_was_refused(redis) -> None:
    """What comes after it is sent again with it: rather twice than not at all, or only out of order."""
    log = EventLog(time.time)
    feed = EventFeed(log, EVENTS, "dp0-tp0", "7-1.500000", 1000)
    for _ in range(4):
        log.emit("test")
    batch = RedisBatch()
    feed.send(batch)
    with pytest.raises(ResponseError):
        batch.run(_Refusing(redis, 1))  # type: ignore[arg-type]
    assert entries(redis) == [1, 3, 4]
    assert feed.waiting
    batch = RedisBatch()
    feed.check(batch)
    feed.send(batch)
    batch.run(redis.admin)
    assert entries(redis) == [1, 3, 4, 2, 3, 4]
    assert not feed.waiting
    assert feed.lost == 0


class _Refusing:
    """A client to whose pipelines Redis refuses one command."""

    def __init__(self, redis: RealRedis, number: int) -> None:
        self._redis, self._number = redis, number

    def pipeline(self, *, transaction: bool) -> object:
        pipeline, count = self._redis.admin.pipeline(transaction=transaction), iter(range(1000))
        queue = pipeline.execute_command

        def execute_command(*command: object) -> object:
            return queue("XADD", "too few words") if next(count) == self._number else queue(*command)

        pipeline.execute_command = execute_command  # type: ignore[method-assign]
        return pipeline


def test_an_entry_that_none_can_follow_ends_no_events(redis, publish, events) -> None:
    """Neither of the server, nor for somebody who has read it."""
    last = f"{2**64 - 1}-{2**64 - 1}"
    publish(redis, events=events)
    events.emit("one")
    wait_for(lambda: entries(redis) == [1], "the first event")
    with BusReader(redis.client()) as reader:
        before = reader.events("alpha").cursor
        redis.admin.xadd(EVENTS, {"kind": "x", "rank": "x", "sequence": "1"}, id=last)
        cursor = msgspec.structs.replace(before, entry=last)
        events.emit("two")
        wait_for(lambda: entries(redis) == [1, 2], "events again, in a stream that has begun anew")
        found = reader.events("alpha", cursor)
    assert [item.sequence for item in found.items if isinstance(item, StreamEvent)] == [2]


def test_a_reader_waits_behind_an_entry_that_none_can_follow(redis) -> None:
    """Of a server that is gone."""
    redis.admin.xadd(EVENTS, {"kind": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    with BusReader(redis.client()) as reader:
        cursor = reader.events("alpha").cursor
        for _ in range(2):
            found = reader.events("alpha", cursor)
            assert (found.items, found.cursor, found.more) == ((), cursor, False)
