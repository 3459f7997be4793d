"""Progress on stderr of whatever takes more than two seconds: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from swift_tiers.radix_tiering.bus.hear import figures

#: Seconds between two lines about the same work where there is no terminal.
LINE_INTERVAL = 15.0


class Bar(Protocol):
    """One piece of work that is under way."""

    def update(
        self, done: float, total: float | None = None, text: str | None = None, detail: str | None = None
    ) -> None:
        """`done` of `total` is done; `total` None: as before. `text` replaces the description: something else is under
        way; `detail` is what is told beside it whenever something is told."""


@contextmanager
def progress(text: str, total: float | None = None, unit: str = "") -> Iterator[Bar]:
    """Shows that `text` is under way until the block ends; `total` None: nobody knows how long it takes."""
    if sys.stderr.isatty():
        with _terminal_bar(text, total) as bar:
            yield bar
    else:
        yield _Lines(text, total, unit)


def note(text: str) -> None:
    """One line on stderr."""
    print(figures.text(text), file=sys.stderr, flush=True)


class _Lines:
    def __init__(
        self, text: str, total: float | None, unit: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._text, self._total, self._unit, self._clock = text, total, unit, clock
        self._shown = clock()
        note(text)

    def update(
        self, done: float, total: float | None = None, text: str | None = None, detail: str | None = None
    ) -> None:
        self._total = self._total if total is None else total
        changed = text is not None and text != self._text
        self._text = self._text if text is None else text
        now = self._clock()
        if changed or now - self._shown >= LINE_INTERVAL:
            self._shown = now
            told = f"{self._text}: {done:.0f} of {self._total:.0f}{self._unit}" if self._total else self._text
            note(f"{told}; {detail}" if detail else told)


@contextmanager
def _terminal_bar(text: str, total: float | None) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total)

        class TerminalBar:
            described = text

            def update(
                self, done: float, total: float | None = None, text: str | None = None, detail: str | None = None
            ) -> None:
                self.described = self.described if text is None else text
                told = f"{self.described}; {detail}" if detail else self.described
                shown.update(task, completed=done, total=total, description=told)

        yield TerminalBar()
