"""What follows from what the ranks say of a command, and when."""

from __future__ import annotations

import time

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError
from swift_tiers.radix_tiering.bus.contract.schema import COMMAND_TTL, Keys
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.command_book import (
    HURRY_SECONDS,
    LATE_SECONDS,
    MOST_NOTES,
    SETTLE_SECONDS,
    CommandBook,
    verdict,
)

from support.redis import RealRedis

RANKS = ("dp0-tp0", "dp0-tp1", "dp1-tp0")
ONE, OTHER, THIRD = RANKS
KEY = "swift:alpha:command:c1"


@pytest.mark.parametrize(
    ("said", "overdue", "state", "reason"),
    [
        ({}, False, "accepted", ""),
        ({ONE: "done", OTHER: "done"}, False, "accepted", ""),
        ({ONE: "refused: x"}, False, "accepted", ""),
        ({ONE: "done", OTHER: "done: 3 pages", THIRD: "done"}, False, "done", ""),
        ({ONE: "refused: no", OTHER: "refused: not here", THIRD: "expired"}, False, "refused", "no"),
        ({ONE: "expired", OTHER: "refused: it: ends", THIRD: "expired"}, False, "refused", "it: ends"),
        (dict.fromkeys(RANKS, "expired"), False, "expired", "its deadline had passed before it was begun"),
        ({ONE: "done", OTHER: "refused: x", THIRD: "done"}, False, "partly", "dp0-tp1 refused: x"),
        ({ONE: "done"}, True, "partly", "no answer from dp0-tp1, dp1-tp0"),
        ({ONE: "refused: x"}, True, "partly", "dp0-tp0 refused: x; no answer from dp0-tp1, dp1-tp0"),
        ({}, True, "partly", "no answer from dp0-tp0, dp0-tp1, dp1-tp0"),
        (dict.fromkeys(RANKS, "nonsense"), False, "refused", ""),
    ],
)
def test_verdicts(said: dict[str, str], overdue: bool, state: str, reason: str) -> None:
    assert verdict(RANKS, said, overdue=overdue) == (state, reason)


class World:
    """One book with a clock of its own, and a Redis."""

    def __init__(self, redis: RealRedis, rank: str = ONE, ranks: tuple[str, ...] = RANKS, leader: bool = True) -> None:
        self.redis = redis
        self.now = 1000.0
        self.events = EventLog(time.time)
        self.book = CommandBook(
            Keys("swift"),
            "alpha",
            rank,
            ranks,
            self.events,
            leader=leader,
            runner=ThreadRunner(lambda: self.now, lambda: self.now),
        )

    def turn(self, client: object = None) -> int:
        """As a publisher does it; the number of commands that were written."""
        asking, writing = RedisBatch(), RedisBatch()
        self.book.ask(asking)
        asking.run(client or self.redis.admin)  # type: ignore[arg-type]
        self.book.write(writing, self.now)
        writing.run(client or self.redis.admin)  # type: ignore[arg-type]
        return len(writing)

    def said(self, key: str = KEY) -> dict[str, str]:
        return self.redis.admin.hgetall(key)  # type: ignore[return-value]

    @property
    def audit(self) -> list[tuple[str, dict[str, str]]]:
        return [(event.kind, event.fields) for event in self.events.since()]


def test_one_rank_settles_at_once(redis) -> None:
    world = World(redis, ranks=(ONE,))
    world.book.accept("c1", "ann", "flush", 1005.0)
    world.turn()
    fields = {"state": "accepted", "author": "ann", "type": "flush", "reason": ""}
    assert world.said() == {**fields, "time": "1000.000000"}
    world.now += 1
    world.book.report("c1", "3 pages forgotten")
    assert world.book.hurries
    world.turn()
    done = {**fields, "state": "done", "rank:dp0-tp0": "done: 3 pages forgotten"}
    assert world.said() == {**done, "time": "1001.000000"}
    assert not world.book.hurries
    assert 0 < redis.admin.ttl(KEY) <= COMMAND_TTL
    who = {"id": "c1", "author": "ann", "type": "flush"}
    assert world.audit == [("command.accepted", who), ("command.done", who)]
    assert world.turn() == 0, "nothing is written twice"


def test_the_leader_waits_for_every_rank_wherever_it_is(redis) -> None:
    leader, peer = World(redis), World(redis, rank=OTHER, leader=False)
    leader.book.accept("c1", "ann", "drop", 1005.0)
    leader.book.report("c1", "")
    # A rank may be quicker than the leader in writing.
    peer.book.report("c1", CommandRefusedError("page: not\nheld; look elsewhere"))
    peer.turn()
    leader.turn()
    assert leader.said()["state"] == "accepted"
    assert leader.book.hurries
    redis.admin.hset(KEY, f"rank:{THIRD}", "done")
    leader.turn()
    said = leader.said()
    assert (said["state"], said["reason"]) == ("partly", "dp0-tp1 refused: page: not held; look elsewhere")
    assert (said["rank:dp0-tp0"], said["rank:dp0-tp1"]) == ("done", "refused: page: not held; look elsewhere")
    assert [kind for kind, _ in leader.audit] == ["command.accepted", "command.partly"]
    assert peer.audit == []


def test_a_silent_rank_is_not_waited_for_for_ever_but_may_still_come(redis) -> None:
    world = World(redis)
    world.book.accept("c1", "ann", "drop", 1005.0)
    world.book.report("c1", "", for_group=True)
    world.turn()
    world.now += HURRY_SECONDS + 1
    assert not world.book.hurries, "looking all the time would cost more than it is worth"
    world.now = 1005.0 + SETTLE_SECONDS
    world.turn()
    assert world.said()["state"] == "accepted"
    world.now += 1
    world.turn()
    assert (world.said()["state"], world.said()["reason"]) == ("partly", "no answer from dp1-tp0")
    redis.admin.hset(KEY, f"rank:{THIRD}", "done: at last")
    world.turn()
    assert (world.said()["state"], world.said()["reason"]) == ("done", "")
    assert [kind for kind, _ in world.audit] == ["command.accepted", "command.partly", "command.done"]


def test_a_rank_that_never_comes_is_given_up(redis) -> None:
    world = World(redis)
    world.book.accept("c1", "ann", "drop", 1005.0)
    world.now = 1005.0 + SETTLE_SECONDS + LATE_SECONDS + 1
    world.turn()
    asking = RedisBatch()
    world.book.ask(asking)
    assert len(asking) == 0


@pytest.mark.parametrize(("reason", "state"), [(None, "expired"), ("it is nonsense", "refused")])
def test_turned_away_is_final_at_once(redis, reason: str | None, state: str) -> None:
    world = World(redis)
    world.book.turn_away("c1", "ann", "drop", reason, 999.0)
    world.turn()
    said = world.said()
    assert (said["state"], said["reason"]) == (state, reason or "its deadline had passed before it was begun")
    # Of all ranks that would have got it from here.
    assert {name for name in said if name.startswith("rank:")} == {"rank:dp0-tp0", "rank:dp0-tp1"}
    world.turn()
    assert world.said()["state"] == state, "another group that is silent changes nothing yet"
    redis.admin.hset(KEY, f"rank:{THIRD}", said["rank:dp0-tp0"])
    world.turn()
    assert world.said()["state"] == state
    assert [kind for kind, _ in world.audit] == [f"command.{state}"]


def test_turned_away_here_and_carried_out_there_is_told(redis) -> None:
    world = World(redis)
    world.book.turn_away("c1", "ann", "drop", None, 999.9)
    world.turn()
    redis.admin.hset(KEY, f"rank:{THIRD}", "done")
    world.turn()
    assert (world.said()["state"], world.said()["reason"]) == ("partly", "dp0-tp0 expired; dp0-tp1 expired")


def test_what_redis_has_lost_is_written_again(redis) -> None:
    leader, peer = World(redis), World(redis, rank=OTHER, leader=False)
    leader.book.accept("c1", "ann", "drop", 1005.0)
    leader.book.report("c1", "")
    peer.book.report("c1", "")
    leader.turn(), peer.turn()
    before = leader.said()
    redis.admin.flushall()
    leader.book.forget(), peer.book.forget()
    leader.turn(), peer.turn()
    assert leader.said() == before
    assert redis.admin.ttl(KEY) > 0


def test_what_was_not_written_is_written_later(own_redis) -> None:
    world = World(own_redis, ranks=(ONE,))
    world.book.accept("c1", "ann", "drop", 1005.0)
    own_redis.fill()
    with pytest.raises(Exception, match="maxmemory"):
        world.turn()
    own_redis.admin.config_set("maxmemory", 0)
    world.turn()
    assert world.said()["state"] == "accepted"


def test_no_more_is_kept_than_there_is_room_for(redis) -> None:
    """But whatever is under way: nobody else tells what becomes of it."""
    world = World(redis, ranks=(ONE,))
    for number in range(MOST_NOTES + 10):
        world.book.accept(f"c{number}", "ann", "drop", 1005.0)
        world.turn()
    world.book.forget()
    # Each is written by two commands.
    assert world.turn() == 2 * (MOST_NOTES + 10)
    for number in range(MOST_NOTES + 10):
        world.book.report(f"c{number}", "")
    world.turn()
    assert {world.said(f"swift:alpha:command:c{number}")["state"] for number in range(MOST_NOTES + 10)} == {"done"}
    assert len([kind for kind, _ in world.audit if kind == "command.done"]) == MOST_NOTES + 10
    world.turn()
    world.book.forget()
    assert world.turn() == 2 * MOST_NOTES
    world.now += COMMAND_TTL + 1
    world.book.forget()
    assert world.turn() == 0, "older than they are kept on Redis"
