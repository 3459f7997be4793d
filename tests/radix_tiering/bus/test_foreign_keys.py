"""What others write about other servers, whatever it is, costs a rank that borrows none of its own words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import ResponseError

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract import neighbours
from swift_tiers.radix_tiering.bus.contract.commands import Flush, Order, read_order, write_order
from swift_tiers.radix_tiering.bus.contract.neighbours import Neighbours, lease_scope
from swift_tiers.radix_tiering.bus.contract.schema import Keys
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch

from support.bus import HandWritten
from support.examples import examples
from support.publishing import bus_config, wait_published
from support.redis import RealRedis, wait_for

INFO, RANK = "swift:beta:info", "swift:beta:dp0-tp0:rank"


class Borrower:
    """Alpha, which borrows and obeys, with a good neighbour, gamma, whose leases lie in a directory that there is."""

    def __init__(self, redis: RealRedis, publish: Callable[..., Any], directory: str) -> None:
        self.redis = redis
        self.address = f"ipc://{directory}/gamma.lease"
        self.events = EventLog(time.time)
        self.lenders: Mapping[str, str] = {}
        self.orders: list[dict[str, str]] = []
        self.asked = 0
        self.gamma = HandWritten(redis.admin, "gamma", lends=True).write()
        self.gamma.write_leases("dp0-tp0", lease_address=self.address, lease_scope=lease_scope(self.address))
        self.publisher = publish(
            bus_config(redis.url, control=True),
            events=self.events,
            on_order=self.orders.append,
            on_neighbours=self.hear,
        )
        wait_published(redis)

    def hear(self, lenders: Mapping[str, str]) -> None:
        self.lenders = dict(lenders)

    def check(self) -> None:
        """Its event, command and answer get through, and gamma is heard of."""
        self.asked += 1
        admin, word = self.redis.admin, f"{self.asked:064x}"
        failures = self.publisher.failures
        self.events.emit("test.probe", number=self.asked)
        now = admin.time()
        order = Order(id=word, author="ann", deadline=now[0] + 60.0, command=Flush())  # type: ignore[index]
        admin.xadd("swift:alpha:control", write_order(order))  # type: ignore[arg-type]
        admin.xadd("swift:alpha:questions", {"page": word})
        wait_for(lambda: admin.exists(f"swift:alpha:dp0-tp0:page:{word}"), "the answer")
        wait_for(lambda: word in [read_order(entry).id for entry in self.orders], "the command")
        wait_for(lambda: admin.hget(f"swift:alpha:command:{word}", "state") == "accepted", "what became of it")
        wait_for(self._told, "the event")
        wait_for(lambda: self.lenders.get("gamma.dp0-tp0") == self.address, "the good neighbour")
        assert self.publisher.failures == failures, "the bus was lost"

    def _told(self) -> bool:
        newest: Any = self.redis.admin.xrevrange("swift:alpha:events", count=50)
        return any(f'"number":{self.asked}}}' in entry["fields"].replace(" ", "") for _, entry in newest)


@pytest.fixture
def borrower(redis, publish, tmp_path) -> Borrower:
    return Borrower(redis, publish, str(tmp_path))


def spoil(redis: RealRedis, key: str, kind: str, words: Mapping[str, Any]) -> None:
    """Put something of this Redis type at a key of beta's, which is said to be there."""
    admin = redis.admin
    pipeline = admin.pipeline()
    pipeline.delete(INFO, RANK)
    pipeline.zadd("swift:servers", {"beta": time.time()})
    if key != INFO:
        pipeline.hset(INFO, mapping={"ranks": "dp0-tp0"})
    if kind == "hash":
        pipeline.hset(key, mapping=dict(words))
    elif kind == "string":
        pipeline.set(key, "hello")
    elif kind == "list":
        pipeline.rpush(key, "hello")
    elif kind == "set":
        pipeline.sadd(key, "hello")
    elif kind == "sorted set":
        pipeline.zadd(key, {"hello": 1.0})
    else:
        pipeline.xadd(key, {"hello": "x"})
    pipeline.execute()


@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        (RANK, "hash", {"lease_address": "ipc:///tmp/\0x/y.lease", "lease_scope": "x"}),
        (RANK, "hash", {"lease_address": b"ipc:///\xff\xfe/y", "lease_scope": b"\xff"}),
        (RANK, "hash", {"lease_address": "ipc:///" + "x/" * 500_000, "lease_scope": "x"}),
        (RANK, "string", {}),
        (INFO, "string", {}),
        (INFO, "list", {}),
        (INFO, "stream", {}),
        (INFO, "hash", {"ranks": ",".join(f"dp{number}-tp0" for number in range(100_000))}),
        (INFO, "hash", {"ranks": "," * 1_000_000}),
        (INFO, "hash", {"ranks": "dp0-tp0:tree,\0,\n," + "x" * 1_000_000}),
    ],
    # Of their own: pytest says in the environment which test it runs, and what has no room there starts no process.
    ids=[
        "no-path",
        "no-text",
        "long-path",
        "string-of-rank",
        "string",
        "list",
        "stream",
        "many-ranks",
        "commas",
        "long-rank",
    ],
)
def test_a_bad_key_of_another_server_costs_a_rank_nothing(redis, borrower, key, kind, words) -> None:
    borrower.check()
    spoil(redis, key, kind, words)
    wait_published(redis)
    borrower.check()
    assert borrower.publisher.alive


_TEXTS = st.one_of(st.text(), st.binary(max_size=50), st.sampled_from(["", "\0", "ipc://\0", "x" * 5000, "dp0-tp0"]))
_WORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(("ranks", "lease_address", "lease_scope"), _TEXTS))
_KINDS = st.sampled_from(["hash", "hash", "string", "list", "set", "sorted set", "stream"])


def encoded(words: Mapping[str, str | bytes]) -> dict[str, bytes]:
    return {
        name: word if isinstance(word, bytes) else word.encode(errors="surrogatepass") for name, word in words.items()
    }


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from([INFO, RANK]), _KINDS, _WORDS.map(encoded), st.one_of(st.none(), st.text(max_size=200)))
def test_whatever_is_there_of_another_server(redis, borrower, key, kind, words, name) -> None:
    spoil(redis, key, kind, words or {"hello": "x"})
    if name is not None:
        redis.admin.zadd("swift:servers", {name.encode(errors="surrogatepass"): time.time() + 9})
    wait_published(redis)
    borrower.check()
    redis.admin.zremrangebyrank("swift:servers", 20, -1)


def test_a_key_that_cannot_be_read_is_told_once(redis, borrower) -> None:
    spoil(redis, INFO, "string", {})
    for _ in range(3):
        wait_published(redis)
    faults = [event.fields for event in borrower.events.since() if event.kind in ("bus.fault", "bus.lost")]
    assert faults == [{"where": "the neighbours", "error": "ResponseError"}]


def test_nobody_who_names_many_ranks_leaves_out_those_of_others(redis, monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "MOST_RANKS", 10)
    monkeypatch.setattr(neighbours, "MOST_RANKS_IN_ALL", 15)
    gamma = HandWritten(redis.admin, "gamma", lends=True).write()
    for name in ("alone", "beta", "delta"):
        redis.admin.zadd("swift:servers", {name: gamma.now() + 100})
        redis.admin.hset(f"swift:{name}:info", "ranks", ",".join(f"dp{number}-tp0" for number in range(50)))
    told: list[dict[str, str]] = []
    looks = Neighbours(
        Keys("swift"), "alpha.dp0-tp0", lambda at: "box/1234/1000", lambda all_: told.append(dict(all_)), time.monotonic
    )
    asked = []
    for _ in range(4):
        batch = RedisBatch()
        looks.ask(batch)
        asked.append(len(batch))
        batch.run(redis.admin)
        hurry = looks.settle()
    assert asked == [1, 5, 5 + 15, 5 + 15]
    assert not hurry
    assert [set(one) for one in told] == [{"gamma.dp0-tp0"}]


def test_who_lends_stays_as_long_as_the_list_of_servers_cannot_be_read(redis) -> None:
    HandWritten(redis.admin, "gamma", lends=True).write()
    now, told = 100.0, []
    looks = Neighbours(
        Keys("swift"), "alpha.dp0-tp0", lambda at: "box/1234/1000", lambda all_: told.append(dict(all_)), lambda: now
    )

    def look() -> None:
        batch = RedisBatch()
        looks.ask(batch)
        try:
            batch.run(redis.admin)
        finally:
            looks.settle()

    for _ in range(3):
        look()
    redis.admin.set("swift:servers", "hello")
    for _ in range(3):
        now += neighbours.PATIENCE_SECONDS
        with pytest.raises(ResponseError):
            look()
    assert [set(one) for one in told] == [{"gamma.dp0-tp0"}]


def test_no_text_is_an_address_that_fails() -> None:
    for address in ("\0", "ipc://\0/x", "ipc://\ud800/x", "ipc:///" + "x" * 5000, "", "ipc://"):
        lease_scope(address)
    assert lease_scope("ipc:///tmp/\0x/y.lease") == ""
