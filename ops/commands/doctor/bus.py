"""The Redis of the bus: one of the user's own, or the embedded one."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import redis

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.errors import BusError, ConfigError
from swift_tiers.radix_tiering.bus.contract.schema import SCHEMA_VERSION, Keys
from swift_tiers.radix_tiering.bus.redis.connection import bus_errors, check, connect, describe
from swift_tiers.radix_tiering.bus.redis.redis_binary import find_server
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis, socket_path

from .finding import Check, Finding, combined, note, ok, warning, wrong

#: Seconds that one look at Redis may take; connecting, and each answer, have shorter limits of their own.
REDIS_SECONDS = 20.0
#: Seconds between two machines' clocks: beyond the first, ages on the bus mislead; beyond the second, they say nothing.
SKEW_WARNING, SKEW_WRONG = 1.0, 30.0
#: An answer that takes longer than this, seconds, is worth a warning: a server publishes twice a second.
SLOW_ANSWER = 0.05
_NAME = "doctor"
#: Bytes. In a folder within a longer one, the name of the socket would be too long (107); /tmp will do then.
_LONGEST_FOLDER = 75
_KEY_SECONDS = 5  # how long what was written stays, should we be killed before we remove it


def checks(config: BusConfig) -> Iterator[Check]:
    if not config.enabled:
        yield Check("bus", _off)
    elif config.url is None:
        yield Check("embedded Redis", partial(explained, embedded, config), REDIS_SECONDS)
    else:
        yield Check("Redis", partial(explained, remote, config), REDIS_SECONDS)
        yield Check("clock skew", partial(clock, config), REDIS_SECONDS)


def _off() -> Finding:
    return note("off: bus.enabled is false")


def explained(look: Callable[[BusConfig], Finding], config: BusConfig) -> Finding:
    """What `look` finds. The bus's own errors say what is wrong and, behind the last semicolon, what to do."""
    try:
        return look(config)
    except (BusError, ConfigError) as error:
        found, _, remedy = str(error).rpartition("; ")
        return wrong(found or remedy, remedy)


def remote(config: BusConfig) -> Finding:
    """Whether a server could connect and publish. Raises BusError, ConfigError."""
    with connect(config, _NAME) as client, bus_errors(config):
        start = time.perf_counter()
        client.ping()
        seconds = time.perf_counter() - start
        _try_writing(client, f"{config.prefix}:{_NAME}:{os.getpid()}")
        name = Keys(config.prefix).of("schema")
        schema = client.get(name)
    found = schema.decode(errors="replace") if isinstance(schema, bytes) else schema
    if found not in (None, str(SCHEMA_VERSION)):
        return wrong(
            f"{name} is {str(found)[:20]!r}, of another version of swift-tiers (this one: {SCHEMA_VERSION}), so that a "
            "server would not speak there",
            f"set another bus.prefix, or, once no server of the other version is left, redis-cli DEL {name}",
        )
    return combined([ok(f"{describe(config)}, can be written"), answer_time(seconds)])


def answer_time(seconds: float) -> Finding:
    text = f"answers in {seconds * 1000:.1f} ms"
    if seconds > SLOW_ANSWER:
        return warning(text, "use a Redis that is nearer, or find out what keeps it busy (`redis-cli slowlog get`)")
    return ok(text)


def _try_writing(client: redis.Redis, prefix: str) -> None:
    """One key of each type that a server writes; gone again on return."""
    text, table, ranking, stream = names = [f"{prefix}:{kind}" for kind in ("string", "hash", "sorted-set", "stream")]
    client.set(text, _NAME)
    client.hset(table, mapping={"written": _NAME})
    client.zadd(ranking, {_NAME: 0})
    client.xadd(stream, {"written": _NAME}, maxlen=1)
    for name in names:
        client.expire(name, _KEY_SECONDS)
    client.delete(*names)


def clock(config: BusConfig) -> Finding:
    try:
        with connect(config, _NAME) as client, bus_errors(config):
            before = time.time()
            seconds, microseconds = client.time()
            after = time.time()
    except (BusError, ConfigError):
        return note("not known: Redis could not be asked")
    return skew(seconds + microseconds / 1e6 - (before + after) / 2, (after - before) / 2)


def skew(seconds: float, uncertainty: float) -> Finding:
    """By how much Redis' clock is ahead of ours, both arguments in seconds."""
    if abs(seconds) <= SKEW_WARNING:
        return ok(f"{abs(seconds) * 1000:.0f} ms, known to {uncertainty * 1000:.0f} ms")
    text = f"Redis' clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    remedy = "let both follow NTP (timedatectl set-ntp true, or chrony)"
    if abs(seconds) > SKEW_WRONG:
        return wrong(f"{text}: ages and times on the bus say nothing", remedy)
    return warning(f"{text}: ages and times on the bus mislead", remedy)


def embedded(config: BusConfig) -> Finding:
    """Whether a server could start one where it would, tried in a directory beside. Raises BusError, ConfigError."""
    try:
        check(config)
    except ConfigError as error:
        if config.directory is not None:
            raise
        found, _, remedy = str(error).rpartition("; ")
        return warning(f"{found}: servers serve without the bus, and lend no memory", f"{remedy}, or set bus.url")
    binary = find_server()
    home = socket_path(config.directory).parent
    try:
        with connect(config, _NAME) as client, bus_errors(config):
            client.ping()
        return ok(f"{describe(config)} runs already")
    except BusError:
        pass  # the usual thing: no server runs now
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=_beside(home)) as folder:
            return ok(f"{binary}, version {_start_and_stop(config, folder)}, starts and answers; socket in {home}")
    except OSError as error:
        return wrong(f"{home}: cannot be written: {error.strerror}", "name another bus.directory")


def _beside(home: Path) -> Path | None:
    """Where to try it: not in `home` itself, for a server that starts just now would find our lock there. None: in the
    usual place for what is temporary. Raises OSError where `home` could not be made or written."""
    folder = home if home.is_dir() else home.parent
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        os.rmdir(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else None


def _start_and_stop(config: BusConfig, folder: str) -> str:
    server = EmbeddedRedis(folder)
    try:
        server.ensure()
        with connect(msgspec.structs.replace(config, directory=folder), _NAME) as client, bus_errors(config):
            return str(client.info("server")["redis_version"])
    finally:
        server.close()
