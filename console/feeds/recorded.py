"""A recording as a feed, with what it can be played with."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import msgspec

from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import CommandView

from ..model.events import KEPT
from ..model.history import LOOKS
from .feed import Feed, Look, Nature, Player, ViewAnswers, ViewQuestion
from .tape import Tape

SLOWEST, FASTEST = 1 / 16, 64.0


class TapePlayer(Player):
    """Where a tape stands, by a clock. It stops at its end; to play on from there is to begin anew."""

    def __init__(self, times: list[float], length: float, monotonic: Callable[[], float]) -> None:
        """`times`: of the looks, ascending; there is one at least."""
        self.length = length
        self._times = times
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._speed = 1.0
        self._since: float | None = None  # it plays since then, by the clock
        self._from = times[0]  # where it stood then

    @property
    def position(self) -> float:
        with self._lock:
            return self._now()

    def _now(self) -> float:
        if self._since is None:
            return self._from
        now = min(self.length, self._from + (self._monotonic() - self._since) * self._speed)
        if now >= self.length:
            self._from, self._since = self.length, None
        return now

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def playing(self) -> bool:
        with self._lock:
            self._now()
            return self._since is not None

    def play(self, playing: bool) -> None:
        with self._lock:
            self._from = self._now()
            if playing and self._from >= self.length:
                self._from = self._times[0]
            self._since = self._monotonic() if playing else None

    def set_speed(self, speed: float) -> None:
        with self._lock:
            self._stand(self._now())
            self._speed = max(SLOWEST, min(FASTEST, speed))

    def seek(self, seconds: float) -> None:
        with self._lock:
            self._now()
            self._stand(max(self._times[0], min(self.length, seconds)))

    def step(self, looks: int) -> None:
        with self._lock:
            now = self._now()
            at = max(0, bisect_right(self._times, now) - 1)
            self._since = None
            self._from = self._times[max(0, min(len(self._times) - 1, at + looks))]

    def _stand(self, seconds: float) -> None:
        self._from = seconds
        if self._since is not None:
            self._since = self._monotonic()


class RecordedFeed(Feed):
    """Plays a recording. Whatever is jumped to is shown as it was when it had been watched until then."""

    nature = Nature.RECORDING

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises RecordingError."""
        self._tape = Tape(path)
        head = self._tape.head
        demo = "of the demo" if head.nature == Nature.DEMO.value else f"of {head.name}"
        self.name = f"{path} {demo}{', cut at its end' if self._tape.cut else ''}"
        self.player: TapePlayer = TapePlayer(self._tape.times, self._tape.length, monotonic)
        self._lock = threading.Lock()
        self._shown: int | None = None  # the number of the look that was given last

    def look(self) -> Look:
        with self._lock:
            position = self.player.position
            lost = self._tape.lost(position)
            if lost:
                raise BusError(f"at that time: {lost}")
            return self._look(self._tape.number(position))

    def _look(self, number: int) -> Look:
        shown, tape = self._shown, self._tape
        # What is played on is told piece by piece; what was jumped to, with all that has led to it.
        anew = shown is None or not shown <= number <= shown + LOOKS
        after = None if anew else shown
        passed = range(max(0, number - LOOKS + 1) if anew or shown is None else shown + 1, number)
        look = Look(
            passed=tuple(tape.snapshot(one) for one in passed),
            snapshot=tape.snapshot(number),
            items=tape.items(after, number, KEPT),
            anew=anew,
        )
        self._shown = number
        return look

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        with self._lock:
            found = self._tape.answers(question, self.player.position)
        if found is None:
            raise BusError("nobody had asked this when it was recorded: maps, prefixes and trees are told on demand")
        answers, age = found
        views = tuple(
            msgspec.structs.replace(view, age_seconds=None if view.age_seconds is None else view.age_seconds + age)
            for view in answers.views
        )
        return ViewAnswers(views=views, silent=answers.silent)

    def command(self, server: str, command: AnyCommand) -> CommandView:
        raise BusError("a recording cannot be steered")

    def close(self) -> None:
        with self._lock:
            self._tape.close()
