"""What the remote tier asks of an engine: three verbs, over memory that both see. `ChildEngine` is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

Verb = Literal["exists", "get", "put"]


class EngineJob(NamedTuple):
    """Something to do for objects of these names; `get` and `put` into or from a slot each."""

    number: int
    verb: Verb
    names: Sequence[str]
    slots: Sequence[int]


class EngineAnswer(NamedTuple):
    """A job is done, and its slots are nobody's any more. Of each name whether it is there, has come, or was taken."""

    number: int
    done: Sequence[bool]
    error: str = ""  # why the engine failed, of all names then; empty: it did not


def leading(there: Sequence[bool]) -> int:
    """How many objects are there, from the first on, by the answer to `exists`."""
    return next((index for index, one in enumerate(there) if not one), len(there))


class EngineReady(NamedTuple):
    """It can be asked from now on."""


class EngineGone(NamedTuple):
    """It answers nothing any more, and writes nowhere."""

    reason: str


EngineEvent = EngineAnswer | EngineReady | EngineGone


class RemoteEngine(Protocol):
    """One life of an engine. For one thread; tells events on any, none before it was made, and none after `end`."""

    @property
    def memory(self) -> np.ndarray:
        """Slots of one object each: uint8 [slots, stride]."""

    def ask(self, job: EngineJob) -> bool:
        """Begin with it; waits for nothing. False where it takes no more now."""

    def end(self) -> None:
        """Let it die: when this returns it writes nowhere any more. Idempotent."""


#: Begins a life: told where its events go.
OpenEngine = Callable[[Callable[[EngineEvent], None]], RemoteEngine]


class Driver(Protocol):
    """What speaks to an engine, in the child. For several threads; each may hang, or end the process."""

    @property
    def spins(self) -> bool:
        """Whether `get` and `put` wait by asking the engine over and over, which keeps a processor busy."""

    def exists(self, names: Sequence[str]) -> int:
        """How many objects are there, from the first on."""

    def get(self, names: Sequence[str], slots: Sequence[int]) -> Sequence[bool]:
        """Read each object into a slot; of each whether it says that it has."""

    def put(self, names: Sequence[str], slots: Sequence[int]) -> Sequence[bool]:
        """Write each object from a slot; of each whether it is there now."""


#: Makes one: the engine's name, its options, and the slots, uint8 [slots, stride].
OpenDriver = Callable[[str, dict[str, object], np.ndarray], Driver]
