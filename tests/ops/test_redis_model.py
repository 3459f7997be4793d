"""The demo's model of a Redis answers as a real one does, as far as the bus asks it."""

from __future__ import annotations

from typing import Any

import pytest

from swift_tiers.ops.commands.console_demo.redis_model import RedisModel
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch

from support.redis import RealRedis

#: As publishers queue them.
WRITTEN: list[tuple[Any, ...]] = [
    ("SET", "schema", 1, "NX"),
    ("SET", "schema", 2, "NX"),
    ("GET", "schema"),
    ("GET", "nothing"),
    ("HSET", "hash", "a", "1", "b", 2),
    ("HSET", "hash", "b", 3, "c", 4),
    ("HDEL", "hash", "a", "x"),
    ("HMGET", "hash", "a", "b"),
    ("HGETALL", "hash"),
    ("HGETALL", "nothing"),
    ("EXISTS", "hash"),
    ("EXISTS", "nothing"),
    ("PEXPIRE", "hash", 60_000),
    ("PEXPIRE", "nothing", 60_000),
    ("ZADD", "set", "1.5", "one", "2.5", "two"),
    ("ZADD", "set", "3", "one", "0.25", "three"),
    ("ZRANGE", "set", 0, -1),
    ("ZRANGE", "set", 0, 1, "REV"),
    ("ZREMRANGEBYSCORE", "set", "-inf", "(2.5"),
    ("ZREM", "set", "two", "nobody"),
    ("ZRANGE", "set", 0, 255, "REV"),
    ("XLEN", "nothing"),
    ("XREAD", "COUNT", 2, "STREAMS", "nothing", "0-0"),
    ("XREVRANGE", "nothing", "+", "-", "COUNT", 1),
    ("UNLINK", "set"),
    ("EXISTS", "set"),
]


def told(client: Any) -> list[Any]:
    batch, found = RedisBatch(), list[Any]()
    for command in WRITTEN:
        batch.add(*command, reply=found.append)
    batch.run(client)
    return found


def streamed(client: Any) -> list[Any]:
    """What is read of a stream, with the numbers of entries in place of their ids."""
    ids: list[str] = []
    for number in range(5):
        batch = RedisBatch()
        words = ("MAXLEN", "~", 1000, "*", "number", number)
        batch.add("XADD", "stream", *words, reply=ids.append)
        batch.run(client)
    names = {one: f"entry {number}" for number, one in enumerate(ids)}
    assert ids == sorted(ids, key=lambda one: tuple(map(int, one.split("-"))))
    found: list[Any] = []
    batch = RedisBatch()
    batch.add("XLEN", "stream", reply=found.append)
    batch.add("XRANGE", "stream", ids[2], ids[2], reply=found.append)
    batch.add("XREVRANGE", "stream", "+", "-", "COUNT", 2, reply=found.append)
    batch.add("XREAD", "COUNT", 2, "STREAMS", "stream", ids[1], reply=found.append)
    batch.add("XREAD", "COUNT", 2, "STREAMS", "stream", ids[4], reply=found.append)
    batch.run(client)
    pipeline = client.pipeline(transaction=False)
    pipeline.xrange("stream", min=f"({ids[1]}", count=2)
    pipeline.xrevrange("stream", count=1)
    pipeline.zadd("scores", {"a": 1.5, "b": 2.5})
    pipeline.zrange("scores", 0, -1, withscores=True)
    pipeline.zrange("scores", repr(2.0), "+inf", byscore=True, withscores=True)
    pipeline.hset("fields", "time", "12.5")
    pipeline.hget("fields", "time")
    found += pipeline.execute()

    def named(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [named(one) for one in value]
        return names.get(value, value) if isinstance(value, str) else value

    return [named(one) for one in found]


def test_it_answers_as_a_real_one() -> None:
    with RealRedis() as real:
        client, model = real.client(), RedisModel(VirtualRunner())
        assert told(model.client()) == told(client)
        assert streamed(model.client()) == streamed(client)
        client.close()


def test_keys_go_when_their_time_is_over() -> None:
    runner = VirtualRunner()
    model = RedisModel(runner)
    for key in ("looked at", "left alone"):
        model.answer("HSET", key, "a", 1)
        model.answer("PEXPIRE", key, 1500)
    runner.sleep(1.0)
    assert model.answer("EXISTS", "looked at") == 1
    runner.sleep(1.0)
    assert model.answer("EXISTS", "looked at") == 0
    runner.sleep(10.0)
    assert model.answer("TIME")[0] == str(int(runner.time()))
    assert not model._keys, "nothing stays that nobody asks for any more"


def test_what_the_bus_does_not_use_it_does_not_know() -> None:
    with pytest.raises(KeyError):
        RedisModel(VirtualRunner()).answer("FLUSHALL")
