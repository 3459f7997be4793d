"""Questions about pages are answered by every rank, whatever else comes in."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.bus.question_inbox import MOST_QUESTIONS
from swift_tiers.radix_tiering.bus.reader import BusReader
from swift_tiers.radix_tiering.bus.schema import ANSWER_TTL, SERVER_TTL
from swift_tiers.radix_tiering.counters import PageFacts

from support.publishing import RANK, bus_config, wait_published
from support.redis import RealRedis, wait_for
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


def test_a_page_that_has_left_in_the_meantime(redis, publish) -> None:
    told = MadeUp()
    publish(redis, told)
    wait_published(redis)
    ask(redis, PAGE)
    assert answer(redis, PAGE)["held"] == "1"
    told.pages.clear()
    ask(redis, PAGE)
    wait_for(lambda: redis.admin.hget(answer_key(PAGE), "held") == "0", "the answer")
    assert set(answer(redis, PAGE)) == {"time", "held"}


def test_every_rank_answers_for_itself(redis, publish) -> None:
    ranks = ("dp0-tp0", "dp0-tp1")
    other = MadeUp()
    other.pages[bytes.fromhex(PAGE)] = msgspec.structs.replace(FACTS, host_slot=None, generation=None)
    publish(redis, ranks=ranks)
    publish(redis, other, rank="dp0-tp1", ranks=ranks, leader=False)
    for rank in ranks:
        wait_published(redis, f"swift:alpha:{rank}:rank")
    with BusReader(redis.client()) as reader:
        found = reader.page(PAGE)
    assert found.silent == ()
    assert {one.rank: one.host_slot for one in found.answers} == {"dp0-tp0": 77, "dp0-tp1": None}


def test_what_is_no_question_is_counted_and_left(redis, publish) -> None:
    odd: list[dict[Any, Any]] = [
        {"page": "short"},
        {"page": PAGE.upper()},
        {"page": PAGE + "\n"},
        {"page": ""},
        {"other": PAGE},
        {b"\xff": b"\xfe"},
        {"page": "swift:alpha:info"},
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
