"""Where looks come from. The console knows nothing else of the world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import CommandView, Snapshot
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent


class Nature(Enum):
    """What the operator looks at. It is always on the screen."""

    LIVE = "live"
    RECORDING = "recording"
    DEMO = "demo"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The state of everything at one time, and the events since the look before.

    Where a player has jumped, `anew`, it has nothing to do with the look before: `items` are all events until then.
    `passed`: looks that came since and are not shown, or have led to where it jumped, oldest first; for histories.
    """

    snapshot: Snapshot
    items: tuple[StreamEvent | Gap, ...] = ()
    anew: bool = False
    passed: tuple[Snapshot, ...] = ()


class ViewQuestion(NamedTuple):
    """Something that servers tell only when they are asked. `what`: the key of a page, a tier, or how many nodes."""

    kind: Literal["page", "map", "prefix", "nodes"]
    what: str
    server: str | None = None  # None: every one that is alive


class ViewAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks said: views of the question's kind. `silent`: server and rank that did not answer in time."""

    views: tuple[Any, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()


class Player(ABC):
    """What can be done with a feed that has an end: a recording. Any thread. Times are seconds from its beginning."""

    length: float  # seconds

    @property
    @abstractmethod
    def position(self) -> float:
        """What the next look shows."""

    @property
    @abstractmethod
    def speed(self) -> float:
        """Seconds of the recording in one second."""

    @property
    @abstractmethod
    def playing(self) -> bool: ...

    @abstractmethod
    def play(self, playing: bool) -> None: ...

    @abstractmethod
    def set_speed(self, speed: float) -> None:
        """Between 1/16 and 64."""

    @abstractmethod
    def seek(self, seconds: float) -> None:
        """To the look before this time, or the first, or the last. What comes next has nothing to do with before."""

    @abstractmethod
    def step(self, looks: int) -> None:
        """So many looks on, or back; stops playing."""


class Feed(ABC):
    """Every method may be called from any thread, may wait, and raises BusError for what cannot be had now."""

    nature: Nature = Nature.LIVE
    #: What is looked at, in a few words: the address of a Redis, the name of a file.
    name: str = ""
    #: Whether commands can be sent.
    steers: bool = False
    #: What it can be played with; None where time goes on by itself.
    player: Player | None = None
    #: How old requests may be in a look, seconds: they are most of what there is to read. Set by who looks; what a feed
    #: has anyway may be newer.
    requests_seconds: float = 0.0

    @abstractmethod
    def look(self) -> Look:
        """Everything as it is now."""

    @abstractmethod
    def ask(self, question: ViewQuestion) -> ViewAnswers:
        """Wait for the answers, a few seconds at most."""

    @abstractmethod
    def command(self, server: str, command: AnyCommand) -> CommandView:
        """Send a command and wait for what becomes of it."""

    def close(self) -> None:  # noqa: B027 - not every feed holds something
        """Nothing is asked of it any more."""
