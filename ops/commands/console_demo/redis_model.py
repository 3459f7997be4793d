"""A Redis that is not there: the commands that the bus uses, on dictionaries, by the clock of a runner.

Publishers and readers get clients of redis-py, which write commands and read replies as ever; only nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis
from redis.client import Pipeline

from swift_tiers.radix_tiering.base.runner import Runner

#: How often keys are looked through for those whose time is over, seconds.
SWEEP_SECONDS = 5.0

Entry = tuple[tuple[int, int], dict[str, str]]


class RedisModel:
    """Hashes, sorted sets, streams and times to live. One thread of the runner's at a time."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._keys: dict[str, Any] = {}
        self._ends: dict[str, float] = {}  # when a key goes, by the runner's time
        self._swept = runner.monotonic()
        names = [name for name in dir(self) if name.startswith("_do_")]
        self._commands: dict[str, Callable[..., Any]] = {
            name.removeprefix("_do_").upper(): getattr(self, name) for name in names
        }

    def client(self) -> redis.Redis:
        """Text in, text out."""
        return _Client(self)

    def answer(self, *command: Any) -> Any:
        """What Redis replies, in the shapes of its protocol's second version."""
        name, *words = map(str, command)
        now = self._runner.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._forget([key for key, end in self._ends.items() if end <= now])
        return self._commands[name](*words)

    def _forget(self, keys: Iterable[str]) -> int:
        gone = [key for key in keys if key in self._keys]
        for key in gone:
            del self._keys[key]
            self._ends.pop(key, None)
        return len(gone)

    def _at(self, key: str) -> Any:
        if self._ends.get(key, float("inf")) <= self._runner.monotonic():
            self._forget([key])
        return self._keys.get(key)

    def _made(self, key: str, kind: type) -> Any:
        found = self._at(key)
        if found is None:
            found = self._keys[key] = kind()
        return found

    # ---- keys ----

    def _do_time(self) -> list[str]:
        seconds, rest = divmod(self._runner.time(), 1.0)
        return [str(int(seconds)), str(int(rest * 1e6))]

    def _do_get(self, key: str) -> str | None:
        found: str | None = self._at(key)
        return found

    def _do_set(self, key: str, value: str, *how: str) -> str | None:
        if "NX" in how and self._at(key) is not None:
            return None
        self._keys[key] = value
        return "OK"

    def _do_unlink(self, *keys: str) -> int:
        return self._forget(keys)

    def _do_exists(self, *keys: str) -> int:
        return sum(self._at(key) is not None for key in keys)

    def _do_pexpire(self, key: str, milliseconds: str) -> int:
        if self._at(key) is None:
            return 0
        self._ends[key] = self._runner.monotonic() + int(milliseconds) / 1000
        return 1

    # ---- hashes ----

    def _do_hset(self, key: str, *words: str) -> int:
        fields = self._made(key, dict)
        before = len(fields)
        fields.update(zip(words[::2], words[1::2], strict=True))
        return len(fields) - before

    def _do_hdel(self, key: str, *names: str) -> int:
        fields = self._at(key) or {}
        return sum(fields.pop(name, None) is not None for name in names)

    def _do_hget(self, key: str, name: str) -> str | None:
        return self._do_hmget(key, name)[0]

    def _do_hmget(self, key: str, *names: str) -> list[str | None]:
        fields = self._at(key) or {}
        return [fields.get(name) for name in names]

    def _do_hgetall(self, key: str) -> list[str]:
        return [word for pair in (self._at(key) or {}).items() for word in pair]

    # ---- sorted sets ----

    def _do_zadd(self, key: str, *words: str) -> int:
        scores = self._made(key, dict)
        before = len(scores)
        scores.update((name, float(score)) for score, name in zip(words[::2], words[1::2], strict=True))
        return len(scores) - before

    def _do_zrem(self, key: str, *names: str) -> int:
        return self._do_hdel(key, *names)

    def _do_zremrangebyscore(self, key: str, low: str, high: str) -> int:
        inside = _within(low, high)
        scores = self._at(key) or {}
        return self._do_hdel(key, *[name for name, score in scores.items() if inside(score)])

    def _do_zrange(self, key: str, first: str, last: str, *how: str) -> list[str]:
        members = sorted((self._at(key) or {}).items(), key=lambda pair: (pair[1], pair[0]), reverse="REV" in how)
        if "BYSCORE" in how:
            inside = _within(first, last)
            members = [pair for pair in members if inside(pair[1])]
        else:
            members = members[int(first) : int(last) + 1 or None]
        if "WITHSCORES" in how:
            return [word for name, score in members for word in (name, repr(score))]
        return [name for name, _ in members]

    # ---- streams ----

    def _do_xadd(self, key: str, *words: str) -> str:
        most, star = None, words.index("*")
        if star:
            most = int(words[star - 1])
        entries: list[Entry] = self._made(key, list)
        milliseconds, last = int(self._runner.time() * 1000), entries[-1][0] if entries else (0, 0)
        number = (milliseconds, 0) if milliseconds > last[0] else (last[0], last[1] + 1)
        fields = words[star + 1 :]
        entries.append((number, dict(zip(fields[::2], fields[1::2], strict=True))))
        if most is not None and len(entries) > most:
            del entries[:-most]
        return _id(number)

    def _do_xlen(self, key: str) -> int:
        return len(self._at(key) or ())

    def _do_xrange(self, key: str, first: str, last: str, *how: str) -> list[Any]:
        after, begin = first.startswith("("), _number(first.lstrip("("), (0, 0))
        end = _number(last, (1 << 62, 0))
        found = [
            entry for entry in self._at(key) or () if begin <= entry[0] <= end and not (after and entry[0] == begin)
        ]
        return _told(found[: int(how[1]) if how else None])

    def _do_xrevrange(self, key: str, last: str, first: str, *how: str) -> list[Any]:
        return self._do_xrange(key, first, last)[::-1][: int(how[1]) if how else None]

    def _do_xread(self, *words: str) -> list[Any] | None:
        most, (key, after) = int(words[1]), words[-2:]
        found = self._do_xrange(key, f"({after}", "+", "COUNT", str(most))
        return [[key, found]] if found else None


def _within(low: str, high: str) -> Callable[[float], bool]:
    """Whether a score lies between these; a bracket before one leaves it out."""
    least, most = float(low.lstrip("(")), float(high.lstrip("("))
    return lambda score: (
        (least < score if low[0] == "(" else least <= score) and (score < most if high[0] == "(" else score <= most)
    )


def _number(text: str, unknown: tuple[int, int]) -> tuple[int, int]:
    if text in ("-", "+"):
        return unknown
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number or 0)


def _id(number: tuple[int, int]) -> str:
    return f"{number[0]}-{number[1]}"


def _told(entries: Sequence[Entry]) -> list[Any]:
    return [[_id(number), [word for pair in fields.items() for word in pair]] for number, fields in entries]


class _Client(redis.Redis):
    """Its pipelines ask the model."""

    def __init__(self, model: RedisModel) -> None:
        super().__init__(protocol=2, decode_responses=True)
        self._model = model

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return _Pipeline(self._model, self)


class _Pipeline(Pipeline):
    def __init__(self, model: RedisModel, client: redis.Redis) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        self._model = model

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self.command_stack = self.command_stack, []
        return [self._answer(*words, **options) for words, options in commands]

    def _answer(self, *words: Any, **options: Any) -> Any:
        reply, read = self._model.answer(*words), self.response_callbacks.get(words[0])
        options.pop("keys", None)  # for the client's own cache
        return reply if read is None else read(reply, **options)
