"""The schema, held against what publishers write: every key and field is documented, and every documented one is seen;
nothing secret is among it; and the rights that are documented are enough."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError, Flush, Pin
from swift_tiers.radix_tiering.bus.contract.schema import KEYS, KeySpec, RedisKind
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.redis.connection import PASSWORD_VARIABLE
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher
from swift_tiers.radix_tiering.figures.counters import DEVICE_LINKS

from support.publishing import bus_config, wait_published
from support.redis import PATIENCE, RealRedis, redis_programs, wait_for
from support.telemetry import PAGE, MadeUp, ended, engine, gpu, request, stack


@pytest.fixture(scope="module", params=redis_programs())
def redis_program(request: pytest.FixtureRequest) -> Path:
    """Rights, types and times to live are a Redis's own: the contract holds with each."""
    return request.param


TYPES = {RedisKind.STRING: "string", RedisKind.HASH: "hash", RedisKind.SORTED_SET: "zset", RedisKind.STREAM: "stream"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "bus.md"

#: What a variable word of a key's name may be.
WORDS = {
    "SERVER": "alpha",
    "RANK": r"dp\d+-tp\d+",
    "TIER": "device|peer|host|ssd",
    "NUMBER": r"\d+",
    "FROM-TO": "device-host|host-device|host-ssd|ssd-host|ssd-device|peer-host|host-peer|peer-device|device-peer|"
    "beta.dp0-tp0-host|host-beta.dp0-tp0",
    "BORROWER": "(beta|gamma).dp0-tp0",
    "DONOR": "beta.dp0-tp0",
    "GPU": "(GPU|MIG)-[0-9a-f-]+",
    "RID": "[a-z]+",
    "KEY": "[0-9a-f]{64}",
    "ID": "[A-Za-z0-9._-]+",
}


def pattern_of(spec: KeySpec) -> re.Pattern[str]:
    parts = [f"({WORDS[part]})" if part in WORDS else re.escape(part) for part in spec.pattern.split(":")]
    return re.compile(":".join(["swift", *parts]))


PATTERNS = {spec.name: (spec, pattern_of(spec)) for spec in KEYS}


def exercise(redis: RealRedis, publish: Any, config: Any, told: MadeUp | None = None) -> None:
    """A server of two ranks, of which everything is used once."""
    ranks = ("dp0-tp0", "dp0-tp1")
    told = told or MadeUp()
    told.sample = engine(request("one"), request("two", queue_seconds=None))
    told.over = [ended("over", time.time())]
    events = EventLog(time.time)
    servers: list[BusPublisher] = []

    def carry_out(entry: dict[str, str]) -> None:
        for server in servers:
            server.report(
                entry["id"], "" if "flush" in entry["command"] else CommandRefusedError("it is not held; try another")
            )

    servers.append(
        publish(config, told, events, ranks=ranks, on_order=carry_out, lends=True, on_neighbours=print, gpu=gpu)
    )
    servers.append(publish(config, rank="dp0-tp1", ranks=ranks, leader=False))
    events.emit("device.out", device="/ssd1")
    for rank in ranks:
        wait_published(redis, f"swift:alpha:{rank}:rank")
    with BusReader(redis.client(username="admin", password="admin")) as reader:
        assert len(reader.page(PAGE, timeout=PATIENCE).answers) == 2
        assert len(reader.page("00" * 32, timeout=PATIENCE).answers) == 2
        assert len(reader.prefix(PAGE, timeout=PATIENCE).answers) == 2
        assert [one.reason for one in reader.map("ssd", timeout=PATIENCE).answers] == ["", ""]
        assert [one.reason for one in reader.map("peer", timeout=PATIENCE).answers] == ["there is no peer tier"] * 2
        assert [one.listed for one in reader.nodes(2, timeout=PATIENCE).answers] == [2, 2]
        assert reader.command("alpha", "ann", Flush(), timeout=PATIENCE).state == "done"
        assert reader.command("alpha", "ann", Pin(page=PAGE), timeout=PATIENCE).state == "refused"
    wait_for(lambda: redis.admin.xlen("swift:alpha:events") >= 5, "the events")
    wait_published(redis)


def fields_at(redis: RealRedis, key: str, kind: RedisKind) -> set[str]:
    if kind is RedisKind.HASH:
        return set(redis.admin.hkeys(key))  # type: ignore[arg-type]
    if kind is RedisKind.STREAM:
        return {name for _, entry in redis.admin.xrange(key) for name in entry}  # type: ignore[union-attr]
    return {"member", "score"} if kind is RedisKind.SORTED_SET else {"value"}


def is_documented(field: str, spec: KeySpec) -> str:
    """The name in the schema of a field of a key, or nothing."""
    for known in spec.fields:
        if known.name == field or (known.name.endswith("*") and field.startswith(known.name[:-1])):
            return known.name
    return ""


def test_every_key_is_documented_and_every_documented_key_is_seen(redis, publish) -> None:
    exercise(redis, publish, bus_config(redis.url, control=True))
    seen: dict[str, set[str]] = defaultdict(set)
    for key in redis.admin.scan_iter():
        specs = [spec for spec, pattern in PATTERNS.values() if pattern.fullmatch(key)]
        assert len(specs) == 1, f"{key} is documented {len(specs)} times"
        spec = specs[0]
        assert redis.admin.type(key) == TYPES[spec.kind], key
        for field in fields_at(redis, key, spec.kind):
            name = is_documented(field, spec)
            assert name, f"{key}: field {field} is not documented"
            seen[spec.name].add(name)
        lasting = redis.admin.ttl(key) == -1
        assert lasting == spec.ttl.startswith("none"), f"{key}: TTL is documented as {spec.ttl}"
    assert dict(seen) == {spec.name: {field.name for field in spec.fields} for spec in KEYS}


def test_an_optional_part_leaves_no_traces(redis, publish) -> None:
    """Without an ssd tier, memory of others, samples and control there is less, and nothing else."""
    told = MadeUp()
    told.sample = None
    whole = stack()
    links = {name: link for name, link in whole.links.items() if name in DEVICE_LINKS}
    told.tiers = stack(devices=0, stripe=None, io_engine="", tiers={"host": whole.tiers["host"]}, links=links)
    publish(redis, told)
    wait_published(redis)
    there = {key.removeprefix("swift:alpha:dp0-tp0:") for key in redis.admin.scan_iter("swift:alpha:dp0-tp0:*")}
    assert there == {"rank", "tier:host", "link:device-host", "link:host-device", "directory"}


def documented_rights(user: str) -> list[str]:
    (line,) = [line for line in DOCUMENT.read_text().splitlines() if f"ACL SETUSER {user} " in line]
    return [word for word in line.split()[3:] if not word.startswith(">")]


def test_the_documented_rights_are_enough(own_redis, publish, monkeypatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "planted-password")
    own_redis.set_user("swift-server", *documented_rights("swift-server"), ">planted-password")
    own_redis.set_user("default", "off")
    config = bus_config(own_redis.url, control=True, username="swift-server")
    exercise(own_redis, publish, config)
    own_redis.admin.flushall()
    wait_for(lambda: own_redis.admin.exists("swift:alpha:info"), "the state")
    wait_published(own_redis)
    assert own_redis.admin.execute_command("ACL", "LOG") == []


def everything(redis: RealRedis) -> str:
    """All that a Redis holds, and what it was told to do last."""
    found = []
    for key in redis.admin.scan_iter():
        kind = redis.admin.type(key)
        if kind == "hash":
            found.append((key, redis.admin.hgetall(key)))
        elif kind == "zset":
            found.append((key, redis.admin.zrange(key, 0, -1, withscores=True)))
        elif kind == "stream":
            found.append((key, redis.admin.xrange(key)))
        else:
            found.append((key, redis.admin.get(key)))
    return repr(found)


@pytest.mark.parametrize("where", ["file", "environment"])
def test_no_secret_is_in_anything(own_redis, publish, monkeypatch, tmp_path, caplog, where: str) -> None:
    """Passwords, and whatever texts faults may carry: planted, and looked for in a full dump."""
    marker = "planted-marker"
    own_redis.set_user("publisher", "on", f">{marker}", "~swift:*", "+@all")
    own_redis.set_user("default", "off")
    options = {"username": "publisher", "control": True}
    if where == "file":
        (tmp_path / "password").write_text(marker)
        (tmp_path / "password").chmod(0o600)
        options["password_file"] = str(tmp_path / "password")
    else:
        monkeypatch.setenv(PASSWORD_VARIABLE, marker)
    told = MadeUp()
    exercise(own_redis, publish, bus_config(own_redis.url, **options), told)
    assert marker not in caplog.text
    # An outage with a refused password, and faults with text in them.
    own_redis.set_user("publisher", "on", ">another", "~swift:*", "+@all")
    own_redis.admin.client_kill_filter(user="publisher")
    before = own_redis.admin.info("stats")["total_connections_received"]
    wait_for(lambda: own_redis.admin.info("stats")["total_connections_received"] > before + 3, "tries")
    own_redis.set_user("publisher", "on", f">{marker}", "~swift:*", "+@all")
    assert marker not in caplog.text
    told.tiers = ValueError(f"{marker}: [15, 16, 17]")
    told.facts = lambda key: {}[marker]  # type: ignore[method-assign]
    own_redis.admin.xadd("swift:alpha:questions", {"page": PAGE})
    for fault in ("ValueError", "KeyError"):  # of the snapshot, and of looking up a page
        wait_for(lambda fault=fault: fault in everything(own_redis), f"the {fault}")
    wait_published(own_redis)
    dump = everything(own_redis)
    assert marker not in dump
    own_redis.admin.save()
    assert marker.encode() not in (own_redis.directory / "dump.rdb").read_bytes()
