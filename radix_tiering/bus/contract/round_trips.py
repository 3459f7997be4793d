"""Asking Redis many things at once, what time it is there, and whether it speaks our schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import redis

from ...base.errors import BusError
from .schema import SCHEMA_VERSION, Keys

#: Commands sent in one go. Redis keeps their answers in its memory until they are fetched.
BATCH = 500

#: Queues one command on a pipeline of redis-py, whose methods are typed as if they answered at once.
Question = Callable[[Any], object]


class RoundTrips:
    """One Redis and the keys under one prefix. Any thread may ask, several at once too."""

    def __init__(self, client: redis.Redis, keys: Keys, errors: Callable[[], AbstractContextManager[None]]) -> None:
        """`client` answers in text. Within `errors`, what it raises becomes a BusError."""
        self.keys = keys
        self._client = client
        self._errors = errors

    def ask(self, questions: Mapping[str, Question]) -> tuple[dict[str, Any], float]:
        """The answers by the questions' names, and the time by Redis' clock in seconds, taken after the last of them.

        One round trip for `BATCH` questions. Raises BusError, too, if the bus has another schema version than ours.
        """
        names = list(questions)
        answers: list[Any] = []
        schema: str | None = None
        seconds, microseconds = 0, 0
        with self._errors():
            for start in range(0, max(1, len(names)), BATCH):
                pipeline = self._client.pipeline(transaction=False)
                pipeline.get(self.keys.of("schema"))
                for name in names[start : start + BATCH]:
                    questions[name](pipeline)
                pipeline.time()
                schema, *part, (seconds, microseconds) = pipeline.execute()
                _check_schema(schema, self.keys)
                answers += part
        return dict(zip(names, answers, strict=True)), seconds + microseconds / 1e6

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _check_schema(version: str | None, keys: Keys) -> None:
    """An empty bus has none."""
    if version is not None and version != str(SCHEMA_VERSION):
        raise BusError(
            f"{keys.of('schema')}: the servers on this bus write schema version {version[:20]}, this program reads "
            f"{SCHEMA_VERSION}; use the release of swift-tiers that they run"
        )
