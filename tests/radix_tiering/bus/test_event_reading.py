"""No event is lost unnoticed: dropped by the server, trimmed from the stream, or gone with a Redis."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from swift_tiers.radix_tiering.bus.contract.schema import SERVER_TTL
from swift_tiers.radix_tiering.bus.hear.event_reading import (
    MOST_LIVES,
    Cursor,
    Gap,
    StreamEvent,
    read_event,
    with_gaps,
)
from swift_tiers.radix_tiering.bus.hear.event_tail import EventTail
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.bus import HandWritten
from support.redis import RealRedis


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    server = HandWritten(redis.admin)
    server.heartbeat()
    return server


@pytest.fixture
def reader(redis: RealRedis) -> Iterator[BusReader]:
    with BusReader(redis.client()) as reader:
        yield reader


def emit(server: HandWritten, *sequences: int, rank: str = "dp0-tp0") -> None:
    for sequence in sequences:
        server.event("test", rank, sequence=sequence)


def milliseconds(server: HandWritten) -> int:
    """Redis' clock."""
    seconds, microseconds = server.client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def told(items: tuple[StreamEvent | Gap, ...]) -> list[str]:
    """`3` for an event, `4-6` for a gap, with the rank's number before other ranks' than the first."""
    texts = []
    for item in items:
        mark = "" if item.rank == "dp0-tp0" else f"{item.rank}:"
        texts.append(f"{mark}{item.sequence}" if isinstance(item, StreamEvent) else f"{mark}{item.first}-{item.last}")
    return texts


def test_events_say_what_happened(reader: BusReader, alpha: HandWritten) -> None:
    entry = alpha.event("device.out", device="/ssd1", pages=12)
    (event,) = reader.events("alpha").items
    assert isinstance(event, StreamEvent)
    assert (event.server, event.rank, event.sequence, event.entry) == ("alpha", "dp0-tp0", 1, entry)
    assert (event.kind, event.fields) == ("device.out", {"device": "/ssd1", "pages": 12})


def test_reading_goes_on_where_it_ended(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, *range(1, 8))
    first = reader.events("alpha", count=3)
    assert (told(first.items), first.more) == (["1", "2", "3"], True)
    second = reader.events("alpha", first.cursor, count=3)
    third = reader.events("alpha", second.cursor, count=3)
    assert (told(second.items), told(third.items), third.more) == (["4", "5", "6"], ["7"], False)
    assert reader.events("alpha", third.cursor).items == ()
    emit(alpha, 8)
    assert told(reader.events("alpha", third.cursor).items) == ["8"]


def test_a_gap_is_told_where_it_is(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, 1, 2, 5)
    emit(alpha, 2, 3, rank="dp0-tp1")
    emit(alpha, 7)
    items = reader.events("alpha").items
    assert told(items) == ["1", "2", "3-4", "5", "dp0-tp1:1-1", "dp0-tp1:2", "dp0-tp1:3", "6-6", "7"]
    gap = items[2]
    assert isinstance(gap, Gap)
    assert gap.count == 2


def test_what_was_trimmed_before_it_was_read_is_a_gap(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, 1, 2)
    cursor = reader.events("alpha").cursor
    emit(alpha, *range(3, 10))
    alpha.client.xtrim(alpha.key("events"), maxlen=2, approximate=False)
    assert told(reader.events("alpha", cursor).items) == ["3-7", "8", "9"]
    assert told(reader.events("alpha").items) == ["1-7", "8", "9"], "and who comes now is told what there was"


def test_trimming_exactly_what_was_read_loses_nothing(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, 1, 2)
    cursor = reader.events("alpha").cursor
    emit(alpha, 3, 4)
    alpha.client.xtrim(alpha.key("events"), maxlen=2, approximate=False)
    assert told(reader.events("alpha", cursor).items) == ["3", "4"]


def test_beginning_with_the_newest_misses_nothing_before_them(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, *range(1, 10))
    newest = reader.newest_events("alpha", 3)
    assert told(newest.items) == ["7", "8", "9"]
    emit(alpha, 11)
    emit(alpha, 40, rank="dp0-tp1")
    after = reader.events("alpha", newest.cursor)
    assert told(after.items) == ["10-10", "11", "dp0-tp1:40"]
    emit(alpha, 42, rank="dp0-tp1")
    assert told(reader.events("alpha", after.cursor).items) == ["dp0-tp1:41-41", "dp0-tp1:42"]


def test_trimming_a_rank_that_was_not_heard_yet(reader: BusReader, alpha: HandWritten) -> None:
    emit(alpha, 1, 2, 3)
    cursor = reader.newest_events("alpha", 1).cursor
    emit(alpha, *range(1, 6), rank="dp0-tp1")
    alpha.client.xtrim(alpha.key("events"), maxlen=1, approximate=False)
    gap, event = reader.events("alpha", cursor).items
    assert isinstance(gap, Gap)
    assert (gap.rank, gap.first, gap.last, gap.count) == ("dp0-tp1", None, 4, None)
    assert told((event,)) == ["dp0-tp1:5"]


def test_a_rank_that_speaks_first_after_an_empty_beginning(reader: BusReader, alpha: HandWritten) -> None:
    cursor = reader.newest_events("alpha").cursor
    emit(alpha, 3)
    assert told(reader.events("alpha", cursor).items) == ["1-2", "3"]


def test_what_was_written_twice_is_told_once(reader: BusReader, alpha: HandWritten) -> None:
    """A writer that got no answer cannot know whether its events arrived."""
    start = alpha.now() - 100
    for sequence in (1, 2, 3, 2, 3, 4):
        alpha.event("test", sequence=sequence, at=start + sequence)
    page = reader.events("alpha")
    assert told(page.items) == ["1", "2", "3", "4"]
    alpha.event("test", sequence=4, at=start + 4)
    assert reader.events("alpha", page.cursor).items == ()


@pytest.mark.parametrize("lives", [("1-1.0", "2-1.0", "3-1.0"), ("", "", "")])
@pytest.mark.parametrize("offset", [0.0, -3600.0])
def test_a_server_that_begins_anew(
    reader: BusReader, alpha: HandWritten, offset: float, lives: tuple[str, str, str]
) -> None:
    """Under the same name, counting from 1 again; maybe on a machine whose clock is an hour behind. It may be one of an
    earlier release, whose events tell no life."""
    alpha.life = lives[0]
    for sequence in (1, 2, 3):
        alpha.event("test", sequence=sequence, ago=30)
    cursor = reader.events("alpha").cursor
    again = HandWritten(alpha.client, offset=offset, life=lives[1])
    again.heartbeat()
    emit(again, 1, 2)
    page = reader.events("alpha", cursor)
    assert told(page.items) == ["1", "2"]
    emit(again, 5)
    assert told(reader.events("alpha", page.cursor).items) == ["3-4", "5"]
    emit(HandWritten(alpha.client, offset=offset + 7200, life=lives[2]), 2)
    assert told(reader.events("alpha", page.cursor).items)[-2:] == ["1-1", "2"]


def lived(life: str, at: float, *sequences: int) -> list[StreamEvent]:
    """One a second, each written at once."""
    entries = [
        (
            f"{round((at + sequence) * 1000)}-0",
            {"rank": "dp0-tp0", "life": life, "sequence": str(sequence), "time": str(at + sequence)},
        )
        for sequence in sequences
    ]
    return [read_event("alpha", entry, at + 100, 0.0) for entry in entries]


def test_two_lives_that_write_by_turns_lack_nothing() -> None:
    """A rank that ends goes on telling while the next one begins."""
    old, new = lived("12-1.000000", 1000.0, *range(1, 9)), lived("13-2.000000", 1000.5, *range(1, 9))
    mixed = [event for pair in zip(old, new, strict=True) for event in pair]
    items, seen = with_gaps("alpha", mixed, Cursor(), trimmed=False)
    assert items == mixed
    assert with_gaps("alpha", mixed[-4:], Cursor(seen=seen), trimmed=False)[0] == [], "written twice"
    later = lived("12-1.000000", 1000.0, 11) + lived("13-2.000000", 1000.0, 10)
    items, _ = with_gaps("alpha", later, Cursor(seen=seen), trimmed=False)
    assert told(tuple(items)) == ["9-10", "11", "9-9", "10"], "each has its own gaps"
    items, _ = with_gaps("alpha", mixed[5:], Cursor(whole=False), trimmed=True, from_newest=True)
    assert items == mixed[5:], "what came before is not missed, of neither"


def test_of_lives_that_come_and_go_the_last_few_are_remembered() -> None:
    seen: dict = {}
    for life in range(100):
        _, seen = with_gaps("alpha", lived(f"{life}-1.000000", 1000.0, 1, 2), Cursor(seen=seen), trimmed=False)
    assert [one.life for one in seen["dp0-tp0"]] == [f"{life}-1.000000" for life in range(100 - MOST_LIVES, 100)]


def test_a_life_is_told_from_the_one_before_though_both_clocks_were_set_back() -> None:
    """Its events have numbers that were read, and happened before those by either clock."""
    _, seen = with_gaps("alpha", lived("1-500.0", 10_000.0, *range(1, 40)), Cursor(), trimmed=False)
    anew = lived("2-530.0", 7_000.0, *range(1, 40))
    items, seen = with_gaps("alpha", anew, Cursor(seen=seen), trimmed=False)
    assert items == anew
    assert with_gaps("alpha", anew[-3:], Cursor(seen=seen), trimmed=False)[0] == [], "that was written twice"
    items, _ = with_gaps("alpha", lived("3-560.0", 4_000.0, 60), Cursor(seen=seen), trimmed=False)
    assert told(tuple(items)) == ["1-59", "60"], "it began at 1, though the one before had come to 39"


def test_a_tail_goes_on_where_stream_and_server_have_begun_anew_after_both_clocks_were_set_back(
    reader: BusReader, redis: RealRedis, alpha: HandWritten
) -> None:
    far = {"rank": "dp0-tp0", "life": alpha.life, "sequence": 3, "time": 99_999_999_999.0, "kind": "test"}
    redis.admin.xadd(alpha.key("events"), far, id="99999999999999-0")  # type: ignore[arg-type]
    tail = EventTail(None, 10)
    assert told(tuple(tail.read(reader))) == ["3"]
    redis.admin.delete(alpha.key("events"))
    again = HandWritten(alpha.client, life="77-9.000000")
    again.heartbeat()
    emit(again, 1, 2)
    assert told(tuple(tail.read(reader))) == ["1", "2"]
    emit(again, 3)
    assert told(tuple(tail.read(reader))) == ["3"]


def test_events_from_before_their_servers_clock_was_set_back(reader: BusReader, alpha: HandWritten) -> None:
    """The offset is today's: what was stamped before happened when it was written, at the latest."""
    alpha.event("before", ago=-8 * 3600)
    alpha.event("after")
    before, after = EventTail(None, 10).read(reader)
    assert isinstance(before, StreamEvent)
    assert isinstance(after, StreamEvent)
    assert (before.kind, after.kind) == ("before", "after")
    assert before.happened == int(before.entry.partition("-")[0]) / 1000
    assert before.age_seconds is not None
    assert before.age_seconds < 60


def test_events_from_before_redis_clock_was_set_back(reader: BusReader, alpha: HandWritten) -> None:
    """Nobody knows when that was."""
    entry = {"rank": "dp0-tp0", "sequence": 1, "time": 99_999_999_999.0, "kind": "test"}
    alpha.client.xadd(alpha.key("events"), entry, id="99999999999999-0")  # type: ignore[arg-type]
    (event,) = reader.events("alpha").items
    assert isinstance(event, StreamEvent)
    assert event.age_seconds is None


def test_a_redis_that_came_back_empty(reader: BusReader, redis: RealRedis, alpha: HandWritten) -> None:
    emit(alpha, 1, 2, 3)
    cursor = reader.events("alpha").cursor
    redis.admin.flushall()
    page = reader.events("alpha", cursor)
    assert page.items == ()
    emit(alpha, 6)
    page = reader.events("alpha", page.cursor)
    assert told(page.items) == ["4-5", "6"]


def test_a_redis_whose_clock_is_behind_that_of_the_one_before(
    reader: BusReader, redis: RealRedis, alpha: HandWritten
) -> None:
    """Its entries have smaller ids than those that were read."""
    far = {"rank": "dp0-tp0", "life": alpha.life, "sequence": 3, "time": 1.0, "kind": "test", "fields": "{}"}
    redis.admin.xadd(alpha.key("events"), far, id="99999999999999-0")  # type: ignore[arg-type]
    cursor = reader.events("alpha").cursor
    redis.admin.delete(alpha.key("events"))
    emit(alpha, 4, 7)
    assert told(reader.events("alpha", cursor).items) == ["4", "5-6", "7"]


def test_entries_that_make_no_sense_are_shown_as_they_are(reader: BusReader, alpha: HandWritten) -> None:
    alpha.client.xadd(alpha.key("events"), {"sequence": "x", "time": "nan", "fields": "[1]"})
    alpha.client.xadd(alpha.key("events"), {"kind": "odd", "sequence": "9" * 5000, "fields": "[" * 100_000})
    first, second = reader.events("alpha").items
    assert isinstance(first, StreamEvent)
    assert isinstance(second, StreamEvent)
    assert (first.sequence, first.time, first.fields, second.kind) == (0, None, {}, "odd")
    assert (second.sequence, second.fields) == (0, {})
    assert first.age_seconds is not None
    assert first.age_seconds < 60, "as old as its entry"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_unnoticed(reader: BusReader, redis: RealRedis, alpha: HandWritten, seed: int) -> None:
    """Two ranks say things at random, some are dropped, the stream is trimmed, Redis is emptied, entries are repeated:
    what the reader was given and what it was told to be missing make up every number once, in order."""
    chance = random.Random(seed)
    ranks = ("dp0-tp0", "dp0-tp1")
    said = dict.fromkeys(ranks, 0)
    cursor = Cursor()
    heard: dict[str, list[int]] = {rank: [] for rank in ranks}
    written: list[tuple[str, int, float]] = []
    start = alpha.now() - 1000

    def write(rank: str, sequence: int, at: float) -> None:
        alpha.event("test", rank, sequence=sequence, at=at)

    def read() -> None:
        nonlocal cursor
        while True:
            page = reader.events("alpha", cursor, count=chance.randint(1, 5))
            cursor = page.cursor
            for item in page.items:
                if isinstance(item, StreamEvent):
                    heard[item.rank].append(item.sequence)
                else:
                    assert item.first is not None
                    heard[item.rank] += range(item.first, item.last + 1)
            if not page.more:
                return

    for _ in range(120):
        action = chance.random()
        rank = chance.choice(ranks)
        if action < 0.65:
            said[rank] += 1
            written.append((rank, said[rank], start + len(written)))
            write(*written[-1])
        elif action < 0.7:
            for entry in written[-chance.randint(1, 4) :]:
                write(*entry)
        elif action < 0.75:
            said[rank] += chance.randint(1, 3)
        elif action < 0.8:
            alpha.client.xtrim(alpha.key("events"), maxlen=chance.randint(0, 3), approximate=False)
        elif action < 0.83:
            alpha.client.delete(alpha.key("events"))
            # Ids are milliseconds. Those of a stream that was begun anew in the very one that was read last could be
            # below the cursor: no Redis is lost, started and written to again within a millisecond.
            emptied = milliseconds(alpha)
            assert wait_for(lambda emptied=emptied: milliseconds(alpha) > emptied or None, 10)
        else:
            read()
    for rank in ranks:
        said[rank] += 1
        emit(alpha, said[rank], rank=rank)
    read()
    for rank in ranks:
        assert heard[rank] == list(range(1, said[rank] + 1))


def test_servers_that_are_gone_for_good_are_asked_for_no_more(
    redis: RealRedis, reader: BusReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a name of its own for each life there is no end of them."""
    now, asked = 0.0, list[int]()
    tail = EventTail(None, 10, monotonic=lambda: now)
    ask = reader.newest_entries
    monkeypatch.setattr(reader, "newest_entries", lambda names: (asked.append(len(names)), ask(names))[1])
    for number in range(20):
        server = HandWritten(redis.admin, name=f"pod-{number}")
        emit(server, 1)
        assert told(tuple(tail.read(reader, [f"pod-{number}"]))) == ["1"]
        redis.admin.flushall()
        now += SERVER_TTL / 4
    assert max(asked) <= 6


def test_a_server_that_comes_back_to_an_empty_redis_is_read_on(redis: RealRedis, reader: BusReader) -> None:
    now = 0.0
    tail, server = EventTail(None, 10, monotonic=lambda: now), HandWritten(redis.admin)
    emit(server, 1, 2)
    assert told(tuple(tail.read(reader, ["alpha"]))) == ["1", "2"]
    redis.admin.flushall()
    for _ in range(3):
        now += SERVER_TTL / 4
        assert tail.read(reader, []) == []
    emit(server, 2, 3)
    assert told(tuple(tail.read(reader, ["alpha"]))) == ["3"], "nothing is told twice, and nothing is missing"
