"""A feed that writes down everything that another one says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import CommandView
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent
from swift_tiers.radix_tiering.bus.hear.figures import size

from . import entries
from .feed import Feed, Look, ViewAnswers, ViewQuestion
from .record_file import FrameKind, Head, Writer

#: A look is written as a whole after so many seconds: who plays begins there.
WHOLE_SECONDS = 20.0
#: A recording that has grown to this ends, so that a console that was forgotten fills no disk, bytes.
MOST_BYTES = 2 << 30
#: Questions whose answers are remembered, so that those that stay are written once.
MOST_ANSWERS = 1024


class RecordedAnswer(msgspec.Struct, frozen=True):
    """What was asked, and what was answered: views of the question's kind."""

    question: ViewQuestion
    views: tuple[Any, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()


class RecordingFeed(Feed):
    """Hands on what the other feed says. Where it cannot be written any more, it goes on without, and says so."""

    def __init__(
        self,
        feed: Feed,
        path: Path,
        version: str,
        *,
        monotonic: Callable[[], float] = THREADS.boot_time,
        wall: Callable[[], float] = time.time,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Raises RecordingError."""
        self.nature, self.steers, self.player = feed.nature, feed.steers, feed.player
        self.name = f"{feed.name}, recorded to {path}"
        self._feed = feed
        self._path = path
        self._monotonic = monotonic
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._began = monotonic()
        self._before: dict[entries.Path, entries.Fields] | None = None
        self._whole_at = 0.0
        self._lost = ""
        self._seen = False  # a look at all
        self._answers: dict[ViewQuestion, list[Any]] = {}  # as they were written last, without what time alone changes
        self._writer: Writer | None = Writer(path, Head(feed.name, feed.nature.value, wall(), version))

    def look(self) -> Look:
        try:
            look = self._feed.look()
        except BusError as error:
            with self._lock:
                if str(error) != self._lost:
                    self._lost = str(error)
                    self._write(self._at(), FrameKind.LOST, self._lost)
            raise
        with self._lock:
            self._lost = ""
            self._write_look(look)
        return look

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        answers = self._feed.ask(question)
        with self._lock:
            said = [_timeless(view) for view in answers.views]
            if self._writer is not None and self._answers.get(question) != said:
                if len(self._answers) >= MOST_ANSWERS:
                    self._answers.clear()
                self._answers[question] = said
                self._write(self._at(), FrameKind.ANSWERS, RecordedAnswer(question, answers.views, answers.silent))
        return answers

    def command(self, server: str, command: AnyCommand) -> CommandView:
        return self._feed.command(server, command)

    def close(self) -> None:
        with self._lock:
            self._end()
        self._feed.close()

    def _write_look(self, look: Look) -> None:
        self._seen = True
        found, now = entries.entries_of(look.snapshot), self._at()
        if self._before is None or now - self._whole_at >= WHOLE_SECONDS:
            self._whole_at = now
            frame = (FrameKind.WHOLE, entries.changes({}, found, look.snapshot.time))
        else:
            frame = (FrameKind.CHANGES, entries.changes(self._before, found, look.snapshot.time))
        reason = self._write(now, *frame)
        # Behind one that is not there nobody could play changes.
        self._before = None if reason else found
        if reason:
            self._write(now, FrameKind.LOST, reason)
        if self._writer is not None:
            told = f"NOT RECORDED: {reason}" if reason else f"recorded to {self._path}"
            self.name = f"{self._feed.name}, {told}"
        if look.items and self._write(now, FrameKind.EVENTS, look.items):
            self._write(now, FrameKind.EVENTS, tuple(map(_recordable, look.items)))

    def _write(self, at: float, kind: FrameKind, content: Any) -> str:
        """Why it cannot be recorded; empty: it is, or nothing is any more. Neither a disk that is full nor what no file
        can hold must take the console from the operator."""
        if self._writer is None:
            return ""
        try:
            self._writer.append(kind, at, content)
        except OSError as error:
            self._end(f"NOT RECORDED any more: {self._path}: {error.strerror}")
            return ""
        except Exception as error:  # noqa: BLE001 - whatever somebody has put onto the bus
            return f"it cannot be recorded: {error}"
        if self._writer.size >= self._most_bytes:
            self._end(f"NOT RECORDED any more: {self._path} has grown to {size(self._writer.size)}")
        return ""

    def _end(self, why: str = "") -> None:
        if self._writer is not None:
            if self._seen:
                self._writer.close()
            else:  # there is nothing to play, and the name is free for the next time
                self._writer.discard()
            self._writer = None
            self._answers.clear()
            self.name = f"{self._feed.name}, {why}" if why else self._feed.name

    def _at(self) -> float:
        return self._monotonic() - self._began


def _recordable(item: StreamEvent | Gap) -> StreamEvent | Gap:
    """The event; or, where no file can hold it, that it is missing."""
    if isinstance(item, Gap):
        return item
    try:
        msgspec.msgpack.encode(item)
    except Exception:  # noqa: BLE001 - as in `_write`
        return Gap(server=item.server, rank=item.rank, first=item.sequence or None, last=item.sequence)
    return item


def _timeless(view: Any) -> Any:
    return msgspec.structs.replace(view, time=None, age_seconds=None)
