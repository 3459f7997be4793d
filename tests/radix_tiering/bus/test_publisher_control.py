"""Commands over the bus: each is carried out once, in time, by all ranks or by none, and told what became of it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.commands import (
    CapLending,
    CommandRefusedError,
    Flush,
    Order,
    Pin,
    read_order,
    write_order,
)
from swift_tiers.radix_tiering.bus.contract.schema import SERVER_TTL
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.speak import command_book
from swift_tiers.radix_tiering.bus.speak.control_inbox import MOST_ORDERS
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher

from support.publishing import bus_config, wait_published
from support.redis import RealRedis, wait_for
from support.telemetry import PAGE

CONTROL = "swift:alpha:control"
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


@pytest.fixture
def events() -> EventLog:
    return EventLog(time.time)


class Operator:
    """Sends commands, and takes those that the server hands on."""

    def __init__(self, redis: RealRedis) -> None:
        self.redis = redis
        self.taken: list[dict[str, str]] = []

    def send(self, identifier: str, seconds: float = 60.0, **changes: str) -> str:
        """The entry's id."""
        now = self.redis.admin.time()
        order = Order(id=identifier, author="ann", deadline=now[0] + now[1] / 1e6 + seconds, command=Flush())
        return self.redis.admin.xadd(CONTROL, {**write_order(order), **changes})  # type: ignore

    def ids(self) -> list[str]:
        return [read_order(entry).id for entry in self.taken]

    def outcome(self, identifier: str) -> dict[str, str]:
        return self.redis.admin.hgetall(f"swift:alpha:command:{identifier}")  # type: ignore[return-value]

    def wait_for(self, identifier: str, state: str) -> dict[str, str]:
        wait_for(lambda: self.outcome(identifier).get("state") == state, f"{identifier} to be {state}")
        return self.outcome(identifier)


@pytest.fixture
def operator(redis: RealRedis) -> Operator:
    return Operator(redis)


@pytest.fixture
def obey(redis, publish, operator, events) -> Any:
    """Start a server that obeys: one rank, unless told otherwise."""

    def start(where: RealRedis = redis, **options: Any) -> BusPublisher:
        config = bus_config(where.url, control=True)
        options = {"events": events, "on_order": operator.taken.append, **options}
        one: BusPublisher = publish(config, **options)
        wait_published(where)
        return one

    return start


def test_a_command_is_handed_on_and_told_of(operator, obey, events) -> None:
    one = obey()
    operator.send("c1")
    wait_for(lambda: operator.ids() == ["c1"], "the command")
    operator.wait_for("c1", "accepted")
    assert read_order(operator.taken[0]).command == Flush()
    one.report("c1", "7 pages forgotten")
    said = operator.wait_for("c1", "done")
    assert (said["author"], said["type"], said["reason"]) == ("ann", "flush", "")
    assert said["rank:dp0-tp0"] == "done: 7 pages forgotten"
    assert 0 < operator.redis.admin.ttl(CONTROL) <= SERVER_TTL
    kinds = [event.kind for event in events.since()]
    assert kinds == ["command.accepted", "command.done"]


def test_as_an_operator_does_it(redis, operator, obey) -> None:
    def carry_out(entry: dict[str, str]) -> None:
        operator.taken.append(entry)
        order = read_order(entry)
        one.report(order.id, "" if isinstance(order.command, Pin) else CommandRefusedError("not today; try tomorrow"))

    one = obey(on_order=carry_out)
    with BusReader(redis.client()) as reader:
        done = reader.command("alpha", "ann", Pin(page=PAGE))
        refused = reader.command("alpha", "ann", Flush())
    assert (done.state, done.ranks) == ("done", {"dp0-tp0": "done"})
    assert (refused.state, refused.reason) == ("refused", "not today; try tomorrow")


def test_without_control_the_stream_is_not_even_read(redis, publish, operator) -> None:
    operator.send("c1")
    one = publish(bus_config(redis.url), on_order=operator.taken.append)
    one.report("c1", "")
    wait_published(redis)
    with redis.client() as client, client.monitor() as monitor:
        commands = [monitor.next_command()["command"] for _ in range(300)]
    assert any(command.startswith("XREAD ") for command in commands)
    assert not any(CONTROL in command for command in commands)
    assert operator.taken == []
    assert operator.outcome("c1") == {}
    assert redis.admin.hget("swift:alpha:info", "control") == "0"


@pytest.mark.parametrize("when", ["before it begins", "while it serves"])
def test_an_entry_that_none_can_follow_ends_no_commands(redis, operator, obey, when) -> None:
    """Ids only grow, and anybody who may write commands may give one; Redis takes none after the last."""
    if when == "before it begins":
        redis.admin.xadd(CONTROL, {"x": "y"}, id=LAST_ID)
    obey()
    if when != "before it begins":
        redis.admin.xadd(CONTROL, {"x": "y"}, id=LAST_ID)
    wait_for(lambda: not redis.admin.exists(CONTROL), "the stream to begin anew")
    operator.send("c1")
    operator.wait_for("c1", "accepted")


def test_what_no_command_has_is_not_handed_on(operator, obey) -> None:
    """SGLang's scheduler sends it to all ranks, between two batches."""
    obey()
    operator.send("c1", junk="x" * 1_000_000)
    operator.wait_for("c1", "accepted")
    assert set(operator.taken[0]) == {"id", "author", "deadline", "command"}
    assert read_order(operator.taken[0]).command == Flush()


# ---- turned away ----


@pytest.mark.parametrize(
    ("changes", "said", "kind"),
    [
        ({"command": '{"type": "format_disks"}'}, "command: ", ""),
        ({"command": "no json"}, "command: ", ""),
        ({"command": '{"type": "cap_tier", "tier": "ssd", "limit": 200}'}, "limit: 200 would be 200 bytes", "cap_tier"),
        (
            {"command": '{"type": "cap_lending", "limit": "8"}'},
            "limit: 8 would be 8 bytes; write its unit",
            "cap_lending",
        ),
        ({"command": '{"type": "pin", "page": "' + PAGE + '\\n"}'}, "command: ", "pin"),
        ({"command": "[" * 100_000}, "command: ", ""),
        ({"deadline": "tomorrow"}, "deadline: ", "flush"),
        ({"deadline": "nan"}, "deadline: ", "flush"),
        ({"deadline": "inf"}, "deadline: ", "flush"),
        ({"author": ""}, "author: ", "flush"),
        ({"author": "a\x1b[2J"}, "author: ", "flush"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused(
    operator, obey, events, changes: dict[str, str], said: str, kind
) -> None:
    obey()
    operator.send("c1", **changes)
    outcome = operator.wait_for("c1", "refused")
    assert outcome["reason"].startswith(said)
    assert outcome["type"] == kind
    assert outcome["rank:dp0-tp0"] == f"refused: {outcome['reason']}"
    assert all(value.isprintable() and len(value) < 600 for value in outcome.values())
    assert operator.taken == []
    (event,) = events.since()
    assert (event.kind, event.fields["id"], event.fields["reason"]) == ("command.refused", "c1", outcome["reason"])


@pytest.mark.parametrize("identifier", ["", "x" * 65, "a:b", "c1\n", "../../etc", "ä"])
def test_one_without_a_usable_id_leaves_only_an_event(redis, operator, obey, events, identifier: str) -> None:
    obey()
    operator.send("c1", id=identifier)
    wait_for(lambda: events.since(), "the event")
    (event,) = events.since()
    assert event.kind == "command.refused"
    assert event.fields["entry"] == redis.admin.xrange(CONTROL)[0][0]
    assert operator.taken == []
    assert redis.admin.keys("*command*") == []


def test_an_entry_with_other_fields_does_no_harm(redis, operator, obey) -> None:
    one = obey()
    redis.admin.xadd(CONTROL, {"hello": "world"})
    redis.admin.xadd(CONTROL, {b"\xff": b"\xfe", "id": b"\xff"})
    operator.send("c1")
    operator.wait_for("c1", "accepted")
    assert one.alive


def test_one_that_is_late_is_not_carried_out(operator, obey, events) -> None:
    obey()
    operator.send("c1", seconds=-0.5)
    outcome = operator.wait_for("c1", "expired")
    assert outcome["rank:dp0-tp0"] == "expired"
    assert operator.taken == []
    assert [event.kind for event in events.since()] == ["command.expired"]


@pytest.mark.parametrize("hours", [-3, 3])
def test_deadlines_are_by_redis_clock(operator, obey, hours: int) -> None:
    one = obey(wall=lambda: time.time() + hours * 3600)
    operator.send("late", seconds=-1)
    operator.send("early", seconds=60)
    operator.wait_for("late", "expired")
    operator.wait_for("early", "accepted")
    assert operator.ids() == ["early"]
    assert one.redis_time() == pytest.approx(operator.redis.admin.time()[0], abs=60)


def test_one_that_cannot_be_handed_on_is_refused(operator, obey) -> None:
    def fail(entry: dict[str, str]) -> None:
        raise RuntimeError("planted-secret")

    one = obey(on_order=fail)
    operator.send("c1")
    assert operator.wait_for("c1", "refused")["reason"] == "cannot be handed on: RuntimeError"
    operator.send("c2")
    operator.wait_for("c2", "refused")
    assert one.alive


def test_more_than_can_be_kept_in_mind_are_turned_away(operator, obey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_book, "MOST_UNDER_WAY", 2)
    one = obey()
    for number in range(3):
        operator.send(f"c{number}")
    assert operator.wait_for("c2", "refused")["reason"].startswith("too many commands are under way")
    assert operator.ids() == ["c0", "c1"]
    one.report("c0", "")
    operator.wait_for("c0", "done")
    operator.send("c3")
    operator.wait_for("c3", "accepted")


# ---- once ----


def test_one_for_a_rank_that_is_not_there_is_refused(operator, obey, redis) -> None:
    obey()
    now = redis.admin.time()
    order = Order(id="nobody", author="ann", deadline=now[0] + 60.0, command=CapLending(limit="8GiB", rank="dp0-tp7"))
    redis.admin.xadd(CONTROL, write_order(order))
    assert "dp0-tp7" in operator.wait_for("nobody", "refused")["reason"]
    assert not operator.taken


def test_the_same_id_is_not_carried_out_twice(operator, obey) -> None:
    one = obey()
    operator.send("c1")
    one.report("c1", "")
    operator.wait_for("c1", "done")
    operator.send("c1")
    operator.send("c1", command="no json")
    operator.send("c2")
    operator.wait_for("c2", "accepted")
    assert operator.ids() == ["c1", "c2"]
    assert operator.outcome("c1")["state"] == "done"


def test_what_was_meant_for_a_server_before_it_is_not_obeyed(operator, obey) -> None:
    for number in range(5):
        operator.send(f"old{number}")
    obey()
    operator.send("new")
    operator.wait_for("new", "accepted")
    assert operator.ids() == ["new"]


def test_many_at_once_are_taken_in_order(operator, obey) -> None:
    obey()
    ids = [f"c{number}" for number in range(3 * MOST_ORDERS + 1)]
    for identifier in ids:
        operator.send(identifier)
    wait_for(lambda: len(operator.taken) == len(ids), "the commands")
    assert operator.ids() == ids


def test_over_a_flush(redis, operator, obey, events) -> None:
    """What has become of a command is told again, and nothing is carried out again."""
    one = obey()
    operator.send("c1")
    operator.send("c2")
    one.report("c1", "")
    operator.wait_for("c1", "done")
    operator.wait_for("c2", "accepted")
    redis.admin.flushall()
    operator.send("c1")
    operator.send("c3")
    operator.wait_for("c3", "accepted")
    assert operator.wait_for("c1", "done")["rank:dp0-tp0"] == "done"
    operator.wait_for("c2", "accepted")
    one.report("c2", "")
    operator.wait_for("c2", "done")
    assert operator.ids() == ["c1", "c2", "c3"]


@pytest.mark.parametrize("empty", [True, False])
def test_over_a_restart_of_redis(own_redis, obey, empty: bool) -> None:
    operator = Operator(own_redis)
    one = obey(own_redis, on_order=operator.taken.append)
    operator.send("c1")
    operator.send("late", seconds=-1)
    one.report("c1", "")
    operator.wait_for("c1", "done")
    own_redis.restart(empty=empty)
    operator.send("c2")
    operator.wait_for("c2", "accepted")
    operator.wait_for("c1", "done")
    assert operator.ids() == ["c1", "c2"]


def test_reading_begins_anew_where_the_stream_is_behind(redis, operator, obey) -> None:
    """As on a Redis whose clock is behind that of the one before."""
    obey()
    order = Order(id="future", author="ann", deadline=time.time() + 7e6, command=Flush())
    ahead = int((time.time() + 5e6) * 1000)
    redis.admin.xadd(CONTROL, write_order(order), id=f"{ahead}-0")
    operator.wait_for("future", "accepted")
    redis.admin.flushall()
    wait_published(redis)
    operator.send("c1")
    operator.wait_for("c1", "accepted")
    assert operator.ids() == ["future", "c1"]


def test_commands_of_the_server_before_it_stay_as_they_are_where_the_stream_loses_its_end(redis, operator, obey):
    """It is read from its beginning then: as after a failover, or where an operator removes his last command."""
    operator.send("former", seconds=-1)
    operator.send("former-long", seconds=3600)
    redis.admin.hset("swift:alpha:command:former", mapping={"state": "done"})
    obey()
    last = operator.send("c1")
    operator.wait_for("c1", "accepted")
    redis.admin.xdel(CONTROL, last)
    redis.admin.client_kill_filter(_type="normal", skipme=True)
    wait_published(redis)
    operator.send("c2")
    operator.wait_for("c2", "accepted")
    assert operator.ids() == ["c1", "c2"]
    assert redis.admin.hget("swift:alpha:command:former", "state") == "done"


def test_a_command_sent_while_the_publisher_cannot_be_reached(own_redis, obey) -> None:
    """It is carried out if there is time left, and not afterwards."""
    operator = Operator(own_redis)
    obey(own_redis, on_order=operator.taken.append)
    own_redis.set_user("default", "off")
    own_redis.admin.client_kill_filter(user="default", skipme=False)
    operator.send("soon", seconds=0)
    operator.send("later", seconds=60)
    own_redis.set_user("default", "on", "nopass", "~*", "&*", "+@all")
    operator.wait_for("later", "accepted")
    operator.wait_for("soon", "expired")
    assert operator.ids() == ["later"]


# ---- several ranks ----


def test_two_ranks(redis, operator, obey) -> None:
    ranks = ("dp0-tp0", "dp0-tp1")
    leader = obey(ranks=ranks)
    peer = obey(rank="dp0-tp1", ranks=ranks, leader=False, events=EventLog(time.time), on_order=None)
    for identifier in ("both", "none", "one"):
        operator.send(identifier)
        operator.wait_for(identifier, "accepted")
    leader.report("both", "")
    wait_for(lambda: "rank:dp0-tp0" in operator.outcome("both"), "the first rank")
    assert operator.outcome("both")["state"] == "accepted"
    peer.report("both", "12 pages")
    assert operator.wait_for("both", "done")["rank:dp0-tp1"] == "done: 12 pages"
    for rank in (leader, peer):
        rank.report("none", CommandRefusedError("no such device"))
    assert operator.wait_for("none", "refused")["reason"] == "no such device"
    leader.report("one", "")
    peer.report("one", CommandRefusedError("no such device"))
    assert operator.wait_for("one", "partly")["reason"] == "dp0-tp1 refused: no such device"
    # What came too late is so for both.
    operator.send("late", seconds=-1)
    late = operator.wait_for("late", "expired")
    assert (late["rank:dp0-tp0"], late["rank:dp0-tp1"]) == ("expired", "expired")
    # As one that is found to be too late when it is about to be broadcast.
    operator.send("stuck")
    operator.wait_for("stuck", "accepted")
    leader.report("stuck", CommandRefusedError("its deadline passed"), for_group=True)
    operator.wait_for("stuck", "refused")
    assert operator.ids() == ["both", "none", "one", "stuck"]


def test_two_groups_both_get_it(redis, operator, obey) -> None:
    ranks = ("dp0-tp0", "dp1-tp0")
    taken: list[dict[str, str]] = []
    leader = obey(ranks=ranks)
    log = EventLog(time.time)
    other = obey(rank="dp1-tp0", ranks=ranks, leader=False, on_order=taken.append, events=log)
    wait_published(redis, "swift:alpha:dp1-tp0:rank")
    operator.send("c1")
    operator.send("nonsense", command="no json")
    wait_for(lambda: len(operator.taken) == len(taken) == 1, "both groups")
    leader.report("c1", "")
    other.report("c1", "")
    operator.wait_for("c1", "done")
    refused = operator.wait_for("nonsense", "refused")
    wait_for(lambda: "rank:dp1-tp0" in operator.outcome("nonsense"), "the other group")
    assert refused["rank:dp0-tp0"].startswith("refused: command: ")
    assert log.since() == [], "audited once"


def test_reports_from_many_threads(operator, obey) -> None:
    one = obey()
    ids = [f"c{number}" for number in range(40)]
    for identifier in ids:
        operator.send(identifier)
    wait_for(lambda: len(operator.taken) == len(ids), "the commands")
    threads = [threading.Thread(target=one.report, args=(identifier, "")) for identifier in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for identifier in ids:
        operator.wait_for(identifier, "done")


def test_a_server_that_ends_leaves_no_command_open(operator, obey) -> None:
    one = obey()
    operator.send("c1")
    operator.send("c2")
    operator.wait_for("c2", "accepted")
    one.report("c1", "")
    one.close(60)
    assert operator.outcome("c1")["state"] == "done"
    assert operator.outcome("c2")["state"] == "partly"
    assert operator.outcome("c2")["reason"] == "no answer from dp0-tp0"


def test_the_audit_says_who_and_what_and_no_more(redis, operator, obey, events) -> None:
    one = obey()
    command = json.dumps({"type": "add_device", "directory": "/planted-place"})
    operator.send("c1", command=command)
    one.report("c1", "")
    operator.wait_for("c1", "done")
    assert [(event.kind, event.fields) for event in events.since()] == [
        (kind, {"id": "c1", "author": "ann", "type": "add_device"}) for kind in ("command.accepted", "command.done")
    ]
