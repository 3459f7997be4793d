"""Questions about pages are answered by every rank, whatever else comes in."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.slot_map import TierMap
from swift_tiers.radix_tiering.bus.contract.faults import Faults
from swift_tiers.radix_tiering.bus.contract.schema import ANSWER_TTL, SERVER_TTL, Keys
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.question_inbox import (
    MOST_QUESTIONS,
    MOST_WAITING,
    WAITING_SECONDS,
    QuestionInbox,
)
from swift_tiers.radix_tiering.figures.counters import PageFacts
from swift_tiers.radix_tiering.figures.telemetry import NotYet, PageAnswer

from support.publishing import RANK, bus_config, wait_published
from support.redis import PATIENCE, RealRedis, wait_for
from support.telemetry import FACTS, PAGE, MadeUp

QUESTIONS = "swift:alpha:questions"


def answer_key(page: str, rank: str = "dp0-tp0") -> str:
    return f"swift:alpha:{rank}:page:{page}"


def ask(redis: RealRedis, page: str) -> None:
    redis.admin.xadd(QUESTIONS, {"page": page})


def answer(redis: RealRedis, page: str, rank: str = "dp0-tp0") -> dict[str, str]:
    return wait_for(lambda: redis.admin.hgetall(answer_key(page, rank)), "the answer")


def page(number: int) -> str:
    return f"{number:064x}"


def test_where_a_page_is(redis, publish) -> None:
    publish(redis)
    wait_published(redis)
    ask(redis, PAGE)
    said = answer(redis, PAGE)
    assert (said["held"], said["depth"], said["ssd_placement"], said["host_slot"]) == ("1", "12", "0:17 1:4", "77")
    assert float(said["time"]) == pytest.approx(time.time(), abs=60)
    assert 0 < redis.admin.pttl(answer_key(PAGE)) <= ANSWER_TTL * 1000
    assert 0 < redis.admin.ttl(QUESTIONS) <= SERVER_TTL


def test_an_entry_that_none_can_follow_ends_no_questions(redis, publish) -> None:
    publish(redis)
    wait_published(redis)
    redis.admin.xadd(QUESTIONS, {"x": "y"}, id=f"{2**64 - 1}-{2**64 - 1}")
    wait_for(lambda: not redis.admin.exists(QUESTIONS), "the stream to begin anew")
    ask(redis, PAGE)
    assert answer(redis, PAGE)["held"] == "1"


def test_a_page_that_has_left_in_the_meantime(redis, publish) -> None:
    told = MadeUp()
    publish(redis, told)
    wait_published(redis)
    ask(redis, PAGE)
    assert answer(redis, PAGE)["held"] == "1"
    told.pages.clear()
    ask(redis, PAGE)
    wait_for(lambda: redis.admin.hget(answer_key(PAGE), "held") == "0", "the answer")
    assert set(answer(redis, PAGE)) == {"time", "held", "whole_key"}


def test_a_page_by_the_beginning_of_its_key(redis, publish) -> None:
    publish(redis)
    wait_published(redis)
    with BusReader(redis.client()) as reader:
        (found,), _ = reader.page(PAGE[:16], timeout=PATIENCE)
        (unknown,), _ = reader.page("0" * 18, timeout=PATIENCE)
    assert (found.key, found.whole_key, found.held, found.host_slot) == (PAGE[:16], PAGE, True, 77)
    assert (unknown.key, unknown.whole_key, unknown.held) == ("0" * 18, "", False)


def test_maps_prefixes_and_nodes(redis, publish) -> None:
    publish(redis)
    wait_published(redis)
    with BusReader(redis.client()) as reader:
        (striped,), _ = reader.map("ssd", timeout=PATIENCE)
        (none,), _ = reader.map("peer", timeout=PATIENCE)
        (prefix,), _ = reader.prefix(PAGE, timeout=PATIENCE)
        (unknown,), _ = reader.prefix(page(1), timeout=PATIENCE)
        (nodes,), _ = reader.nodes(2, timeout=PATIENCE)
    assert striped.cells == (("cached", 3), ("free", 5), ("out", 8))
    assert (striped.slots, [tuple(part) for part in striped.parts]) == (16, [("0", 8), ("1", 8)])
    assert (none.reason, none.slots) == ("there is no peer tier", None)
    assert [(one.depth, one.device, one.host, one.peer, one.ssd) for one in prefix.table] == [
        (4999, None, None, "", ()),
        (5000, 17, 3, "beta.dp0-tp0/12/4", ((0, 5), (1, 9))),
    ]
    assert (unknown.pages, unknown.table) == (0, ())
    assert [(one.node, one.parent, one.idle_seconds, one.key) for one in nodes.table] == [
        (7, None, 12.5, PAGE[:16]),
        (9, 7, None, ""),
    ]
    assert (nodes.nodes, nodes.listed, nodes.complete) == (3, 2, True)
    assert 0 < redis.admin.pttl("swift:alpha:dp0-tp0:map:ssd") <= ANSWER_TTL * 1000


def test_a_question_that_the_engine_has_to_look_into_is_answered_when_it_has(redis, publish) -> None:
    """Soon, and others meanwhile."""
    told, asked = MadeUp(), []
    made = told.map

    def later(tier: str) -> TierMap:
        asked.append(tier)
        if tier == "host" and len(asked) < 4:
            raise NotYet
        return made(tier)

    told.map = later  # type: ignore[method-assign]
    publish(bus_config(redis.url, interval="60s"), told)
    wait_for(lambda: redis.admin.exists(RANK), "the server")
    pipeline = redis.admin.pipeline()  # so that both are read in one turn
    pipeline.xadd(QUESTIONS, {"map": "host"})
    pipeline.xadd(QUESTIONS, {"map": "ssd"})
    pipeline.execute()
    wait_for(lambda: redis.admin.exists("swift:alpha:dp0-tp0:map:host"), "the answer")
    assert asked.index("ssd") == 1
    assert redis.admin.exists("swift:alpha:dp0-tp0:map:ssd")
    assert not redis.admin.xrange("swift:alpha:events", "-", "+") or all(
        "bus.fault" not in entry["kind"] for _, entry in redis.admin.xrange("swift:alpha:events")
    )


def test_a_question_that_nobody_can_answer_is_given_up(batch_of_one) -> None:
    """Whoever asked is gone; and there is room for new ones."""
    inbox, asked = batch_of_one
    for turn in range(4):
        inbox.answer(RedisBatch(), 100.0 + turn * WAITING_SECONDS / 2)
    assert len(asked) == 3
    assert not inbox.waits


def test_a_flood_of_questions_that_wait_pushes_out_the_oldest(batch_of_one) -> None:
    inbox, asked = batch_of_one
    for number in range(2 * MOST_WAITING):
        inbox.inbox._entries.append((f"{number}-0", {"page": page(number)}))
    inbox.answer(RedisBatch(), 100.0)
    asked.clear()
    inbox.answer(RedisBatch(), 101.0)
    assert asked == [page(number) for number in range(MOST_WAITING, 2 * MOST_WAITING)]


@pytest.fixture
def batch_of_one() -> tuple[QuestionInbox, list[str]]:
    """An inbox with one question in it, and an engine that never gets to any."""
    asked: list[str] = []

    class Busy(MadeUp):
        def page(self, key: bytes) -> PageAnswer:
            asked.append(key.hex())
            raise NotYet

    inbox = QuestionInbox(Keys("swift"), "alpha", "dp0-tp0", Busy(), Faults(EventLog(time.time)))
    inbox.inbox._entries.append(("0-0", {"page": PAGE}))
    return inbox, asked


def test_every_rank_answers_for_itself(redis, publish) -> None:
    ranks = ("dp0-tp0", "dp0-tp1")
    other = MadeUp()
    other.pages[bytes.fromhex(PAGE)] = msgspec.structs.replace(FACTS, host_slot=None, generation=None)
    publish(redis, ranks=ranks)
    publish(redis, other, rank="dp0-tp1", ranks=ranks, leader=False)
    for rank in ranks:
        wait_published(redis, f"swift:alpha:{rank}:rank")
    with BusReader(redis.client()) as reader:
        found = reader.page(PAGE, timeout=PATIENCE)
    assert found.silent == ()
    assert {one.rank: one.host_slot for one in found.answers} == {"dp0-tp0": 77, "dp0-tp1": None}


def test_what_is_no_question_is_counted_and_left(redis, publish) -> None:
    odd: list[dict[Any, Any]] = [
        {"page": "short"},
        {"page": PAGE.upper()},
        {"page": PAGE[:14]},
        {"page": PAGE[:17]},
        {"page": PAGE + "\n"},
        {"page": ""},
        {"other": PAGE},
        {b"\xff": b"\xfe"},
        {"page": "swift:alpha:info"},
        {"page": PAGE, "map": "host"},
        {"map": "no tier"},
        {"map": ""},
        {"prefix": "short"},
        {"nodes": "0"},
        {"nodes": "1001"},
        {"nodes": "-1"},
        {"nodes": "all"},
    ]
    publish(redis)
    wait_published(redis)
    before = set(redis.admin.keys())
    for entry in odd:
        redis.admin.xadd(QUESTIONS, entry)
    ask(redis, PAGE)
    answer(redis, PAGE)
    wait_published(redis)
    assert redis.admin.hmget(RANK, "questions", "questions_ignored") == ["1", str(len(odd))]
    assert set(redis.admin.keys()) - before == {QUESTIONS, answer_key(PAGE)}


def test_a_flood_is_taken_in_portions(redis, publish) -> None:
    """However many are asked, one turn looks up a bounded number, and state goes on being published."""
    told = MadeUp()
    times: list[float] = []
    publishes: list[str | None] = []
    lookup = told.facts

    def facts(key: bytes) -> PageFacts | None:
        times.append(time.monotonic())
        publishes.append(redis.admin.hget(RANK, "time"))
        return lookup(key)

    told.facts = facts  # type: ignore[method-assign]
    publish(redis, told)
    wait_published(redis)
    count = 10 * MOST_QUESTIONS
    pipeline = redis.admin.pipeline()
    for number in range(count):
        pipeline.xadd(QUESTIONS, {"page": page(number)})
    pipeline.execute()
    answer(redis, page(count - 1))
    assert len(times) == count
    assert max(publishes.count(one) for one in set(publishes)) <= 4 * MOST_QUESTIONS


def test_the_same_page_asked_often_is_looked_up_once_a_turn(redis, publish) -> None:
    told = MadeUp()
    looked_up: list[bytes] = []
    told.facts = lambda key: looked_up.append(key)  # type: ignore[method-assign]
    publish(redis, told)
    wait_published(redis)
    pipeline = redis.admin.pipeline()
    for _ in range(MOST_QUESTIONS):
        pipeline.xadd(QUESTIONS, {"page": PAGE})
    pipeline.execute()
    wait_published(redis)
    answer(redis, PAGE)
    assert 1 <= len(looked_up) <= 2


def test_a_question_asked_before_is_not_answered(redis, publish) -> None:
    ask(redis, page(1))
    publish(redis)
    wait_published(redis)
    ask(redis, page(2))
    answer(redis, page(2))
    assert not redis.admin.exists(answer_key(page(1)))


def test_questions_go_on_over_a_restart(own_redis, publish) -> None:
    publish(own_redis)
    wait_published(own_redis)
    ask(own_redis, page(1))
    answer(own_redis, page(1))
    own_redis.restart()
    wait_published(own_redis)
    ask(own_redis, page(2))
    answer(own_redis, page(2))


def test_answers_come_soon_however_rarely_state_is_published(redis, publish) -> None:
    publish(bus_config(redis.url, interval="60s"))
    wait_for(lambda: redis.admin.exists(RANK), "the server")
    ask(redis, PAGE)
    answer(redis, PAGE)


def test_a_page_that_cannot_be_looked_up_has_no_answer(redis, publish) -> None:
    """To say that it is not held would not be so."""
    told = MadeUp()
    lookup = told.facts

    def facts(key: bytes) -> PageFacts | None:
        if key == bytes.fromhex(page(1)):
            raise RuntimeError("planted")
        return lookup(key)

    told.facts = facts  # type: ignore[method-assign]
    one = publish(redis, told)
    wait_published(redis)
    ask(redis, page(1))
    ask(redis, PAGE)
    answer(redis, PAGE)
    assert not redis.admin.exists(answer_key(page(1)))
    assert one.alive
