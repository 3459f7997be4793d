"""What was worked out of an answer, kept until the next one comes: a screen is painted many times between two."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Source = TypeVar("Source")
Made = TypeVar("Made")


class Remembered(Generic[Source, Made]):
    """A pure function of something that never changes, with the last results. One thread."""

    def __init__(self, make: Callable[[Source], Made], kept: int = 16) -> None:
        self._make = make
        self._most = kept
        self._kept: OrderedDict[int, tuple[Source, Made]] = OrderedDict()

    def of(self, source: Source) -> Made:
        """By identity: answers are long, and comparing them would cost what they cost."""
        kept = self._kept.pop(id(source), None)
        # The source is held, too: as long as it is, nothing else has its address.
        if kept is None:
            kept = (source, self._make(source))
        self._kept[id(source)] = kept
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return kept[1]
