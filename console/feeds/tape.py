"""What was recorded, by time: the looks, what happened, what was asked."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from swift_tiers.radix_tiering.bus.contract.views import MapView, NodesView, PageView, PrefixView, Snapshot
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent

from .entries import Entries, State, check_numbers
from .feed import ViewAnswers, ViewQuestion
from .record_file import FrameKind, FramePlace, Reader, RecordingError
from .recording import RecordedAnswer

ANSWERS: dict[str, Any] = {
    "page": tuple[PageView, ...], "map": tuple[MapView, ...], "prefix": tuple[PrefixView, ...],
    "nodes": tuple[NodesView, ...],
}  # fmt: skip
#: Answers to one question that are remembered: a page that is looked at is asked for again and again.
REMEMBERED = 64


class Tape:
    """One recording. Looks are numbered from 0. One thread at a time. Methods raise RecordingError."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader(path)
        try:
            self.head, self.cut = self._reader.head, self._reader.cut
            frames = self._reader.frames
            looks = [frame for frame in frames if frame.kind in (FrameKind.WHOLE, FrameKind.CHANGES)]
            if not looks or looks[0].kind != FrameKind.WHOLE:
                raise RecordingError(f"{path}: holds no look: {self._why_none(frames)}")
            self._looks = looks
            self.times = [frame.at for frame in looks]
            self._events = [frame for frame in frames if frame.kind == FrameKind.EVENTS]
            self._answers = [frame for frame in frames if frame.kind == FrameKind.ANSWERS]
            self._losses = [frame for frame in frames if frame.kind == FrameKind.LOST]
            self.length = frames[-1].at
            self._state, self._at = State(), -1
            self._asked: dict[int, RecordedAnswer] = {}  # by the number of the answer
            self.snapshot(0)
        except BaseException:
            self._reader.close()
            raise

    def _why_none(self, frames: list[FramePlace]) -> str:
        """The last reason that was written in place of a look."""
        lost = [frame for frame in frames if frame.kind == FrameKind.LOST]
        return self._reader.read(lost[-1], str) if lost else "it ended before the first one"

    def close(self) -> None:
        self._reader.close()

    # ---- looks ----

    def number(self, seconds: float) -> int:
        """The last look by then; the first one before it."""
        return max(0, bisect_right(self.times, seconds) - 1)

    def snapshot(self, number: int) -> Snapshot:
        """As it was then, wherever the tape stood before."""
        start = number
        while self._looks[start].kind != FrameKind.WHOLE:
            start -= 1
        if not start <= self._at <= number:
            self._begin(start)
        while self._at < number:
            self._at += 1
            if self._looks[self._at].kind == FrameKind.WHOLE:
                self._begin(self._at)
            else:
                self._change(self._looks[self._at], whole=False)
        try:
            return self._state.snapshot()
        except (msgspec.MsgspecError, TypeError) as error:
            raise self._unreadable(self._looks[number], error) from None

    def _begin(self, number: int) -> None:
        self._change(self._looks[number], whole=True)
        self._at = number

    def _change(self, frame: FramePlace, whole: bool) -> None:
        entries = self._reader.read(frame, Entries)
        try:
            (self._state.begin if whole else self._state.change)(entries)
        except (KeyError, msgspec.ValidationError) as error:
            self._at = -1
            raise self._unreadable(frame, error) from None

    def lost(self, seconds: float) -> str:
        """Why there was no look just then; empty if there was one."""
        before = bisect_right([frame.at for frame in self._losses], seconds) - 1
        if before < 0:
            return ""
        loss = self._losses[before]
        looked = bisect_right(self.times, seconds) - 1
        return "" if looked >= 0 and self.times[looked] >= loss.at else self._reader.read(loss, str)

    # ---- events ----

    def items(self, after: int | None, number: int, most: int) -> tuple[StreamEvent | Gap, ...]:
        """What was told by look `number` and not by look `after`, oldest first, at most the newest so many."""
        found: deque[StreamEvent | Gap] = deque()
        for frame in self._told(after, number):
            items = self._reader.read(frame, tuple[StreamEvent | Gap, ...])
            try:
                check_numbers([one.happened for one in items if isinstance(one, StreamEvent)])
            except msgspec.ValidationError as error:
                raise self._unreadable(frame, error) from None
            found.extendleft(reversed(items))
            if len(found) >= most:
                break
        return tuple(found)[-most:]

    def _told(self, after: int | None, number: int) -> Iterator[FramePlace]:
        """The newest first. Events are written behind their look, at the same time."""
        since = -1.0 if after is None else self.times[after]
        for frame in reversed(self._events[: bisect_right(self._events, self.times[number], key=lambda one: one.at)]):
            if frame.at <= since:
                return
            yield frame

    # ---- answers ----

    def answers(self, question: ViewQuestion, seconds: float) -> tuple[ViewAnswers, float] | None:
        """What was answered last by then, and how many seconds before."""
        before = bisect_right(self._answers, seconds, key=lambda one: one.at)
        for number in range(before - 1, -1, -1):
            asked = self._asked_then(number)
            if asked.question == question:
                frame = self._answers[number]
                try:
                    views = msgspec.convert(asked.views, ANSWERS[question.kind])
                except msgspec.MsgspecError as error:
                    raise self._unreadable(frame, error) from None
                return ViewAnswers(views=views, silent=asked.silent), seconds - frame.at
        return None

    def _asked_then(self, number: int) -> RecordedAnswer:
        asked = self._asked.pop(number, None)
        if asked is None:
            asked = self._reader.read(self._answers[number], RecordedAnswer)
        self._asked[number] = asked
        while len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return asked

    def _unreadable(self, frame: FramePlace, error: Exception) -> RecordingError:
        return RecordingError(f"{self._reader.path}: byte {frame.offset}: is no recording of the bus: {error}")
