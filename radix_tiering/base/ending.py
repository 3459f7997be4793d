"""Ending several parts, one after the other, in a time that they share."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .runner import Runner


class Ending:
    """Ends parts: what one of them raises keeps no other from being ended. One thread."""

    def __init__(self, seconds: float, runner: Runner) -> None:
        """`seconds`: until then all of it should be over, by the runner's clock."""
        self._clock = runner.monotonic
        self._until = self._clock() + seconds
        self._errors: list[Exception] = []

    def left(self, most: float = inf) -> float:
        """Seconds that are left, or `most` of them."""
        return max(0.0, min(most, self._until - self._clock()))

    def end(self, part: Callable[..., object], *arguments: object) -> None:
        """Call what ends a part."""
        try:
            part(*arguments)
        except Exception as error:  # noqa: BLE001 - raised by `over`
            self._errors.append(error)

    def over(self) -> None:
        """Raise the first error of a part."""
        if self._errors:
            raise self._errors[0]
