"""The state that this rank keeps on Redis: only what has changed is sent, and a loss shows in the replies.

A key that has vanished (Redis emptied, the key evicted, its TTL passed) is noticed with the next change that is sent to
it: Redis says how many of the fields are new, which is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..redis.batch import RedisBatch, Reply

Fields = Mapping[str, str]

#: The TTL of a key that has not changed is renewed once this share of it has passed.
RENEWED = 0.2


class Mirror:
    """What the keys hold, if everything that was sent has arrived. One thread."""

    def __init__(self, ttl: float, monotonic: Callable[[], float]) -> None:
        """`ttl`: how long a key outlives its last writing, seconds, where nothing else is said."""
        self.lost = False  # some key is not there, or not as it was sent: `forget`, and write everything anew
        self._ttl = ttl
        self._monotonic = monotonic
        self._hashes: dict[str, Fields] = {}
        self._sets: dict[str, Mapping[str, float]] = {}
        self._whole: set[str] = set()  # keys that were written in full since the last `forget`
        self._renewed: dict[str, float] = {}

    def forget(self) -> None:
        """Redis may hold none of it, or some: from here on every key is written in full."""
        self.lost = False
        self._whole.clear()

    def write(self, batch: RedisBatch, key: str, fields: Fields, ttl: float | None = None) -> None:
        """Make the hash at `key` these fields. The mapping must not be changed any more."""
        before = self._hashes.get(key)
        self._hashes[key] = fields
        if before is None:
            # Whatever an earlier process of this name has left.
            batch.add("UNLINK", key)
            before = {}
        if key in self._whole:
            changed = {name: value for name, value in fields.items() if before.get(name) != value}
            expected = sum(name not in before for name in changed)
            check = self._expect(expected)
        else:
            # Not unlinked: if Redis has room for no more, the former state, which says of when it is, is left.
            changed, check = dict(fields), None
        self._whole.add(key)
        if changed:
            batch.add("HSET", key, *(word for pair in changed.items() for word in pair), reply=check)
        if gone := before.keys() - fields.keys():
            batch.add("HDEL", key, *gone)
        self._renew(batch, key, ttl)

    def write_members(
        self, batch: RedisBatch, key: str, members: Mapping[str, float], ttl: float | None = None
    ) -> None:
        """Make the sorted set at `key` these members with their scores. The mapping must not be changed any more."""
        before = self._sets.get(key)
        self._sets[key] = members
        if before is None:
            batch.add("UNLINK", key)
            before = {}
        if key in self._whole:
            changed = {name: score for name, score in members.items() if before.get(name) != score}
            check = self._expect(sum(name not in before for name in changed))
        else:
            changed, check = dict(members), None
        self._whole.add(key)
        if changed:
            batch.add("ZADD", key, *(word for name, score in changed.items() for word in (score, name)), reply=check)
        if gone := before.keys() - members.keys():
            batch.add("ZREM", key, *gone)
        if members:
            self._renew(batch, key, ttl)

    def is_whole(self, key: str) -> bool:
        """Whether `key` was written since the last `forget`."""
        return key in self._whole

    def keep(self, batch: RedisBatch, key: str) -> None:
        """Nothing has changed at `key`, which is whole: renew its TTL, if it is time."""
        if self._monotonic() - self._renewed[key] >= RENEWED * self._ttl:
            self._renew(batch, key)

    def check(self, batch: RedisBatch, key: str) -> None:
        """See whether `key`, if it was written, is still there."""
        if key in self._whole:
            batch.add("EXISTS", key, reply=self._expect(1))

    def release(self, key: str) -> None:
        """`key` stays as it is until its TTL has passed; no more is kept of it here."""
        self._hashes.pop(key, None)
        self._sets.pop(key, None)
        self._renewed.pop(key, None)
        self._whole.discard(key)

    def remove(self, batch: RedisBatch, key: str) -> None:
        """Nothing is to be said at `key` any more."""
        batch.add("UNLINK", key)
        self.release(key)

    def remove_all(self, batch: RedisBatch) -> None:
        for key in [*self._hashes, *self._sets]:
            self.remove(batch, key)

    def _renew(self, batch: RedisBatch, key: str, ttl: float | None = None) -> None:
        self._renewed[key] = self._monotonic()
        batch.add("PEXPIRE", key, round((ttl or self._ttl) * 1000), reply=self._expect(1))

    def _expect(self, count: int) -> Reply:
        def check(answer: Any) -> None:
            if int(answer) != count:
                self.lost = True

        return check
