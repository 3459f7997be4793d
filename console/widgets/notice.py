"""What the console has to say just now, beneath the view: never over what the operator looks at, or decides about."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from swift_tiers.radix_tiering.bus.hear import figures

#: How long a word stays, seconds: good news, and what somebody has to read before he goes on.
STAYS, STAYS_BAD = 8.0, 15.0
#: Lines that it takes at most; as in the style sheet.
MOST = 6


class Notice(Static):
    """The newest message alone, in as many lines as it needs, for a while. Nothing is there else."""

    class Changed(Message):
        """It says something else: it may take more room, or less."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._text = ""
        self._timer: Timer | None = None

    @property
    def text(self) -> str:
        return self._text

    def lines(self, width: int) -> int:
        """How many it takes where it has so many cells."""
        return min(MOST, len(Text(self._text).wrap(self.app.console, max(1, width)))) if self._text else 0

    def say(self, text: str, style: Style, bad: bool = False, stays: bool = False) -> None:
        """`stays`: until something else is said, or `silence`. Names of others may be in it, and errors."""
        self._stop()
        text = figures.text(text)
        self._text = text
        self.update(Text(text, style))
        self.set_class(bool(text), "-open")
        self.post_message(self.Changed())
        if text and not stays:
            self._timer = self.set_timer(STAYS_BAD if bad else STAYS, self.silence)

    def silence(self) -> None:
        self._stop()
        if self._text:
            self._text = ""
            self.update("")
            self.remove_class("-open")
            self.post_message(self.Changed())

    def on_click(self) -> None:
        self.silence()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
