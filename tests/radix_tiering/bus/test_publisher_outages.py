"""Whatever becomes of Redis, the publisher lives, says so once, and says everything anew when Redis is back."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import RedisError

from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.redis import connection
from swift_tiers.radix_tiering.bus.redis.connection import PASSWORD_VARIABLE
from swift_tiers.radix_tiering.bus.redis.outage import LONGEST_PAUSE, Outage
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis
from swift_tiers.radix_tiering.bus.speak import publisher

from support.publishing import PublisherProcess, between_turns, bus_config, wait_published, within
from support.redis import TLS, RealRedis, free_port, tls_proxy, wait_for
from support.telemetry import MadeUp, engine, request

EVENTS = "swift:alpha:events"
#: One key of each kind that a rank keeps.
STATE = ("servers", "schema", "alpha:info", "alpha:dp0-tp0:rank", "alpha:dp0-tp0:tier:host", "alpha:dp0-tp0:tree")
STATE_KEYS = tuple(f"swift:{key}" for key in (*STATE, "alpha:dp0-tp0:requests", "alpha:dp0-tp0:request:one"))


@pytest.fixture
def events() -> EventLog:
    return EventLog(time.time)


@pytest.fixture(autouse=True)
def _no_password_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


def kinds(events: EventLog) -> list[str]:
    return [event.kind for event in events.since() if event.kind.startswith("bus.")]


def wait_whole(redis: RealRedis) -> None:
    """Until all state is there, and nothing but whole hashes."""
    wait_for(lambda: redis.admin.exists(*STATE_KEYS) == len(STATE_KEYS), "the state")
    wait_published(redis)
    assert redis.admin.hget("swift:alpha:info", "model") == "/models/SmolLM2"
    assert redis.admin.hget("swift:alpha:dp0-tp0:tier:host", "capacity_bytes") == str(2**30)
    assert redis.admin.hget("swift:alpha:dp0-tp0:request:one", "block_table") == "17-40 3 90-110"
    for key in redis.admin.scan_iter("swift:alpha:*"):
        assert redis.admin.pttl(key) > 0, f"{key} stays for ever"


@contextmanager
def one_outage(events: EventLog, caplog: pytest.LogCaptureFixture, reason: str) -> Iterator[None]:
    """Within it Redis is lost, and back; it is told so, in words that say why and what to do, without repetition."""
    before = len(kinds(events))
    caplog.clear()
    caplog.set_level(logging.INFO)
    yield
    wait_for(lambda: kinds(events)[before:] == ["bus.lost", "bus.returned"], "the return")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert ";" in warnings[0], "no remedy"
    assert "\n" not in warnings[0]
    assert "planted" not in caplog.text


def wait_tries(events: EventLog, count: int, publishing: publisher.BusPublisher) -> None:
    """Until so many tries more have failed: the outage is more than a moment."""
    before = publishing.failures
    wait_for(lambda: publishing.failures >= before + count, "tries")


# ---- pauses and words ----


def test_pauses_grow_and_stay_below_what_a_return_may_take() -> None:
    outage = Outage(EventLog(time.time), lambda: 0.0)
    assert [outage.failed(BusError("x")) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    outage.succeeded()
    assert outage.failed(BusError("x")) == 0.1
    # What was promised: the state is there two seconds after Redis is back, or was emptied, at the latest.
    assert LONGEST_PAUSE <= 1
    assert publisher.LONGEST_TURN + publisher.SHORTEST_RETURN <= 1.5


def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events, now = EventLog(lambda: 0.0), [100.0]
    outage = Outage(events, lambda: now[0])
    outage.succeeded()
    for number in range(5):
        outage.failed(BusError(f"try {number}; do something"))
        now[0] += 2
    outage.succeeded()
    outage.succeeded()
    assert [(event.kind, event.fields) for event in events.since()] == [
        ("bus.lost", {"reason": "try 0; do something"}),
        ("bus.returned", {"seconds": 10.0, "failures": 5}),
    ]
    assert len(caplog.records) == 2
    assert outage.failures == 5


def test_what_is_about_to_be_started_is_not_lost_yet() -> None:
    events, now = EventLog(lambda: 0.0), [100.0]
    outage = Outage(events, lambda: now[0])
    for _ in range(3):
        outage.failed(BusError("x"), patience=2.0)
        now[0] += 0.6
    assert not events.since()
    now[0] += 0.3
    outage.failed(BusError("x"), patience=2.0)
    assert [event.kind for event in events.since()] == ["bus.lost"]


# ---- Redis ----


def test_killed_and_started_again_empty(own_redis, publish, events, caplog) -> None:
    one = publish(own_redis, events=events)
    events.emit("test.before")
    wait_whole(own_redis)
    with one_outage(events, caplog, "not reachable"):
        own_redis.kill()
        wait_tries(events, 3, one)
        events.emit("test.during")
        own_redis.start()
        wait_whole(own_redis)
    wait_published(own_redis)
    stream = [entry["kind"] for _, entry in own_redis.admin.xrange(EVENTS)]
    assert stream == ["test.before", "bus.lost", "test.during", "bus.returned"]
    assert own_redis.admin.hget("swift:alpha:dp0-tp0:rank", "publish_failures") == str(one.failures)


def test_restarted_so_quickly_that_no_try_fails(own_redis, publish, events) -> None:
    publish(own_redis, events=events)
    events.emit("test")
    wait_whole(own_redis)
    for _ in range(5):
        own_redis.restart()
        wait_whole(own_redis)
        wait_for(lambda: own_redis.admin.xlen(EVENTS) >= 1, "the event")


def test_an_older_copy_in_its_place(own_redis, publish, events) -> None:
    """As after a failover behind one address: the connection ends, and redis-py would make another unseen."""
    publish(own_redis, events=events)
    wait_whole(own_redis)
    pid = own_redis.admin.hget("swift:alpha:dp0-tp0:rank", "pid")
    own_redis.admin.hset("swift:alpha:dp0-tp0:rank", "pid", "as it was before")
    wait_published(own_redis)
    assert own_redis.admin.hget("swift:alpha:dp0-tp0:rank", "pid") == "as it was before", "only changes are sent"
    own_redis.admin.client_kill_filter(_type="normal", skipme=True)
    wait_for(lambda: own_redis.admin.hget("swift:alpha:dp0-tp0:rank", "pid") == pid, "all of it, anew")


def test_restarted_with_what_it_had(own_redis, publish, events) -> None:
    publish(own_redis, events=events)
    events.emit("test")
    wait_whole(own_redis)
    own_redis.restart(empty=False)
    wait_whole(own_redis)
    told = [entry["sequence"] for _, entry in own_redis.admin.xrange(EVENTS)]
    assert told == sorted(set(told), key=int), "sent twice without need"


def test_there_from_the_start_or_not(own_redis, publish, events, caplog) -> None:
    own_redis.kill()
    with one_outage(events, caplog, "not reachable"):
        one = publish(own_redis, events=events)
        wait_tries(events, 2, one)
        own_redis.start()
        wait_whole(own_redis)


def test_emptied_without_a_break_in_the_connection(redis, publish, events) -> None:
    publish(redis, events=events)
    wait_whole(redis)
    for _ in range(5):
        redis.admin.flushall()
        wait_whole(redis)
    assert kinds(events) == []


@pytest.mark.parametrize("interval", ["100ms", "60s"])
def test_emptied_however_rarely_state_is_published(redis, publish, interval: str) -> None:
    publish(bus_config(redis.url, interval=interval))
    wait_for(lambda: redis.admin.exists(*STATE_KEYS) == len(STATE_KEYS), "the state")
    with within(50.0):
        for _ in range(3):
            redis.admin.flushall()
            wait_for(lambda: redis.admin.exists(*STATE_KEYS) == len(STATE_KEYS), "the state")


@pytest.mark.parametrize("key", STATE_KEYS)
def test_one_key_removed(redis, publish, key: str) -> None:
    told = MadeUp()
    publish(redis, told)
    wait_whole(redis)
    redis.admin.delete(key)
    told.sample = engine(request("one"))
    wait_whole(redis)


@pytest.fixture
def _impatient(publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """As servers are."""
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 1.0)


@pytest.mark.usefixtures("_impatient")
def test_asleep(own_redis, publish, events, caplog) -> None:
    """It takes what is sent, and does not answer for a while."""
    one = publish(own_redis, events=events)
    events.emit("test")
    wait_whole(own_redis)
    with one_outage(events, caplog, "no answer within"):
        own_redis.sleep(4)
        wait_tries(events, 1, one)
        events.emit("test")
        wait_whole(own_redis)
    sequences = [int(entry["sequence"]) for _, entry in own_redis.admin.xrange(EVENTS)]
    assert set(range(1, events.emitted + 1)) == set(sequences)


@pytest.mark.usefixtures("_impatient")
def test_paused(own_redis, publish, events, caplog) -> None:
    one = publish(own_redis, events=events)
    wait_whole(own_redis)
    with one_outage(events, caplog, "no answer within"):
        own_redis.pause(4)
        wait_tries(events, 1, one)
        wait_whole(own_redis)


def test_its_memory_is_full(own_redis, publish, events, caplog) -> None:
    one = publish(own_redis, events=events)
    wait_whole(own_redis)
    with one_outage(events, caplog, "memory is full"):
        own_redis.fill()
        wait_tries(events, 3, one)
        # What it has is kept, and as old as it says: the server has not ended.
        old = own_redis.admin.hget("swift:alpha:info", "time")
        own_redis.admin.pexpire("swift:alpha:info", 4000)
        wait_for(lambda: own_redis.admin.pttl("swift:alpha:info") > 4000, "its TTL to be renewed")
        assert own_redis.admin.hget("swift:alpha:info", "time") == old
        own_redis.admin.config_set("maxmemory", 0)
        wait_whole(own_redis)


def test_keys_are_evicted(own_redis, publish, events) -> None:
    """With a policy that evicts, no write is refused, but anything may vanish at any time: it comes back."""
    publish(own_redis, events=events)
    wait_whole(own_redis)
    own_redis.admin.config_set("maxmemory-policy", "allkeys-random")
    own_redis.admin.config_set("maxmemory", own_redis.admin.info("memory")["used_memory"] + 500_000)

    def fill() -> bool:
        own_redis.admin.set(f"filler:{os.urandom(4).hex()}", "x" * 10_000)
        return int(own_redis.admin.info("stats")["evicted_keys"]) > 300

    wait_for(fill, "evictions")
    own_redis.admin.config_set("maxmemory", 0)
    wait_whole(own_redis)
    assert kinds(events) == []


def test_a_replica(own_redis, publish, events, caplog) -> None:
    one = publish(own_redis, events=events)
    wait_whole(own_redis)
    with one_outage(events, caplog, "replica"):
        own_redis.admin.replicaof("127.0.0.1", str(free_port()))
        wait_tries(events, 2, one)
        own_redis.admin.replicaof("NO", "ONE")
        wait_whole(own_redis)


def test_a_key_of_another_type_is_in_the_way(own_redis, publish, events, caplog) -> None:
    own_redis.admin.set("swift:servers", "mine")
    with one_outage(events, caplog, "swift:servers); remove that key"):
        one = publish(own_redis, events=events)
        wait_tries(events, 2, one)
        own_redis.admin.delete("swift:servers")
        wait_whole(own_redis)


def test_another_schema(own_redis, publish, events, caplog) -> None:
    own_redis.admin.set("swift:schema", "99")
    with one_outage(events, caplog, "schema 99"):
        one = publish(own_redis, events=events)
        wait_tries(events, 2, one)
        assert own_redis.admin.keys() == ["swift:schema"]
        own_redis.admin.delete("swift:schema")
        wait_whole(own_redis)


# ---- rights ----


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("planted-password\n")
    path.chmod(0o600)
    return path


def test_a_user_without_rights_then_with(own_redis, publish, events, caplog, password_file) -> None:
    own_redis.set_user("publisher", "on", ">planted-password")
    own_redis.set_user("default", "off")
    config = bus_config(own_redis.url, username="publisher", password_file=str(password_file))
    with one_outage(events, caplog, "not permitted"):
        one = publish(config, events=events)
        wait_tries(events, 2, one)
        own_redis.set_user("publisher", "on", ">planted-password", "~swift:*", "+@all")
        wait_whole(own_redis)
    with one_outage(events, caplog, "not permitted"):
        own_redis.set_user("publisher", "on", ">planted-password", "~swift:*", "+@all", "-hset")
        wait_tries(events, 2, one)
        own_redis.set_user("publisher", "on", ">planted-password", "~swift:*", "+@all")
        wait_whole(own_redis)


def test_a_password_that_has_changed(own_redis, publish, events, caplog, password_file) -> None:
    own_redis.set_user("publisher", "on", ">planted-password", "~swift:*", "+@all")
    config, told = bus_config(own_redis.url, username="publisher", password_file=str(password_file)), MadeUp()
    one = publish(config, told, events=events)
    wait_whole(own_redis)
    with one_outage(events, caplog, "user or password refused"):
        # Else it might be told first that its connection was closed before an answer.
        with between_turns(told):
            own_redis.set_user("publisher", "on", ">planted-anew", "~swift:*", "+@all")
            own_redis.admin.client_kill_filter(user="publisher")
        wait_tries(events, 2, one)
        password_file.write_text("planted-anew\n")
        wait_whole(own_redis)


def test_tls_with_a_wrong_certificate_then_the_right_one(own_redis, publish, events, caplog, tmp_path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes((TLS / "other-authority.pem").read_bytes())
    with tls_proxy(own_redis) as port:
        config = bus_config(f"rediss://localhost:{port}", ca_file=str(authority))
        with one_outage(events, caplog, "certificate is not valid"):
            one = publish(config, events=events)
            wait_tries(events, 2, one)
            assert own_redis.admin.keys() == []
            authority.write_bytes((TLS / "authority.pem").read_bytes())
            wait_whole(own_redis)
        one.close()


# ---- the embedded Redis ----


@pytest.fixture
def serve(directory: Path) -> Iterator[Callable[[str], PublisherProcess]]:
    servers: list[PublisherProcess] = []

    def start(name: str) -> PublisherProcess:
        servers.append(PublisherProcess(name, None, directory=str(directory)))
        return servers[-1]

    yield start
    for one in servers:
        one.kill()


@pytest.fixture
def alive(directory: Path) -> Callable[[str], int]:
    """Says the embedded Redis' process, if a server is on it; else 0."""

    def ask(name: str) -> int:
        with Redis(unix_socket_path=str(directory / "redis.sock"), protocol=2) as client:
            try:
                return int(client.info("server")["process_id"]) if client.exists(f"swift:{name}:info") else 0
            except RedisError:
                return 0

    return ask


def owner(directory: Path) -> int | None:
    """The process that runs the embedded Redis."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(directory / "redis.sock") in word for word in process.info["cmdline"] or []):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                return int(process.ppid())
    return None


@pytest.mark.parametrize("how", ["end", "kill"])
def test_the_owner_of_the_embedded_redis_goes_and_another_takes_over(directory, serve, alive, how: str) -> None:
    first = serve("first")
    wait_for(lambda: alive("first"), "the first server")
    second = serve("second")
    wait_for(lambda: alive("second"), "the second server")
    assert owner(directory) == first.pid
    getattr(first, how)()
    wait_for(lambda: alive("second"), "the second server, on its own Redis")
    wait_for(lambda: owner(directory) == second.pid, "the new owner")
    assert not alive("first")
    third = serve("third")
    wait_for(lambda: alive("third"), "the third server")
    assert owner(directory) == second.pid
    second.end()
    wait_for(lambda: alive("third"), "the third server, on its own Redis")
    third.end()
    assert owner(directory) is None
    assert not (directory / "redis.sock").exists()


def test_an_embedded_redis_that_is_killed_is_started_again(directory, publish, alive) -> None:
    publish(bus_config(None, directory=str(directory)))
    killed = 0
    for _ in range(4):
        (killed,) = wait_for(lambda killed=killed: {alive("alpha")} - {0, killed}, "the server, on a Redis that runs")
        os.kill(killed, signal.SIGKILL)
    wait_for(lambda: alive("alpha") not in (0, killed), "the server")


def test_a_rank_that_comes_before_the_owner_of_its_redis_has_lost_nothing(
    directory, publish, events, alive, monkeypatch
) -> None:
    tries = 0
    ensure = EmbeddedRedis.ensure

    def too_early(self: EmbeddedRedis) -> bool:
        nonlocal tries
        tries += 1
        return ensure(self) if tries > 3 else False

    monkeypatch.setattr(EmbeddedRedis, "ensure", too_early)
    publish(bus_config(None, directory=str(directory)), events=events)
    wait_for(lambda: alive("alpha"), "the server")
    assert tries > 3
    assert "bus.lost" not in [event.kind for event in events.since()]


def test_an_embedded_redis_that_cannot_be_started(directory, publish, events, caplog, monkeypatch) -> None:
    def refuse(self: EmbeddedRedis) -> bool:
        raise BusError("embedded Redis: no room; make some")

    with monkeypatch.context() as patched, one_outage(events, caplog, "no room"):
        patched.setattr(EmbeddedRedis, "ensure", refuse)
        one = publish(bus_config(None, directory=str(directory)), events=events)
        wait_tries(events, 2, one)
        patched.undo()


@pytest.mark.usefixtures("_impatient")
def test_the_end_does_not_wait_for_a_redis_that_does_not_answer(own_redis, publish) -> None:
    one = publish(own_redis)
    wait_whole(own_redis)
    own_redis.sleep(100)
    one.close(60)
    assert not one.alive
