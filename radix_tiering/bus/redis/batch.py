"""Commands for Redis that travel together, each with who is told its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis
    from redis.exceptions import RedisError

#: Commands in one go. Redis keeps their replies in its memory, and we the packed commands in ours, until it is over.
MOST_COMMANDS = 512

Reply = Callable[[Any], None]


class RedisBatch:
    """To be filled, then run once. Not thread-safe."""

    def __init__(self) -> None:
        self._commands: list[tuple[tuple[Any, ...], Reply | None]] = []

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, *command: str | int | float, reply: Reply | None = None) -> None:
        """Queue a command. `reply` gets its answer as redis-py reads it; of a command that Redis refuses, none."""
        self._commands.append((command, reply))

    def run(self, client: redis.Redis) -> None:
        """One round trip, or one for each `MOST_COMMANDS`, in the order of adding. Not atomic.

        A command that is refused keeps none of the others from being carried out; then the first refusal is raised at
        the end. Raises what redis-py raises.
        """
        from redis.exceptions import RedisError, ResponseError  # a server without a bus runs without redis

        refusal: RedisError | None = None
        for start in range(0, len(self._commands), MOST_COMMANDS):
            part = self._commands[start : start + MOST_COMMANDS]
            pipeline = client.pipeline(transaction=False)
            for command, _ in part:
                pipeline.execute_command(*command)
            for answer, (command, reply) in zip(pipeline.execute(raise_on_error=False), part, strict=True):
                if isinstance(answer, RedisError):
                    if "WRONGTYPE" in str(answer):
                        answer = ResponseError(f"{answer}: {command[1]}")  # what to look for
                    refusal = refusal or answer
                elif reply is not None:
                    reply(answer)
        if refusal is not None:
            raise refusal
