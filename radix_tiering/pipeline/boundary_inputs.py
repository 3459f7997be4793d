"""What goes into a stage's first layer, brought up from boundary pages chunk by chunk, ahead of the compute pointer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..stack import TierStack
from ..way.request_restore import Readiness, Restore

#: Chunks that are asked for beyond the one that is computed next. More would be read in vain where the pointers meet.
AHEAD = 2


class BoundaryInputs:
    """The boundary pages of one prefix. Used by the thread that drives the stage's device.

    Every chunk is a plain restore of its own, front to back. What it brings stays pinned until the pointer has passed,
    so the stack needs room for `AHEAD + 1` chunks in host memory; what finds none is as if it were not stored.
    """

    def __init__(self, stack: TierStack, keys: Sequence[bytes], chunk: int) -> None:
        """`keys` of the prefix's pages; `chunk`: pages. The stack's `restore.strategy` must not be `recompute`."""
        self._stack = stack
        self._keys = keys
        self._chunk = chunk
        self._asked: dict[int, Restore] = {}

    def available(self, first: int, end: int) -> int | None:
        """How many of pages `[first, end)`, from the first on and in its chunk, can be computed: verified in host
        memory. None: not known yet. Does not wait; no answer takes longer than the stack's restore deadline."""
        number = first // self._chunk
        for ahead in range(number, number + 1 + AHEAD):
            self._ask(ahead)
        restore = self._asked[number]
        if self._stack.restorer.poll(restore) is not Readiness.READY:
            return None
        return max(0, min(end, number * self._chunk + restore.pages) - first)

    def slots(self, first: int, end: int) -> np.ndarray:
        """Where pages `[first, end)`, as far as they are available, lie in host memory: int64."""
        number = first // self._chunk
        before = number * self._chunk
        return self._asked[number].slots[first - before : end - before]

    def passed(self, front: int) -> None:
        """Pages before `front` are needed no more."""
        for number in [number for number in self._asked if (number + 1) * self._chunk <= front]:
            self._stack.restorer.release(self._asked.pop(number))

    def close(self) -> None:
        """Nothing is needed any more. Idempotent."""
        while self._asked:
            self._stack.restorer.release(self._asked.popitem()[1])

    def _ask(self, number: int) -> None:
        first = number * self._chunk
        if number not in self._asked and first < len(self._keys):
            self._asked[number] = self._stack.restore(self._keys[first : first + self._chunk], self._keys[:first])
