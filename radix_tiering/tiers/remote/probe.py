"""What a read of the engine takes, where nobody knows it: found out by an object that all servers have in common.

    idle --(due)--> getting --(it is there, again and again)--> idle: told
                      '--(it is not)--> putting --> getting
    any --(not in time, not taken, not what it should be)--> idle: tried again later

No request waits for that. Without it the first one whose pages lie there would wait for them whatever they take; and an
engine that was slow once would be left out for ever, since what nobody reads teaches nobody that it is faster now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...base.page import KEY_BYTES, NAMESPACE_BYTES, page_digest
from ..tier import ReadOutcome
from .engine import Verb
from .line import EngineLine
from .objects import ObjectHeader, ObjectShape, blank, probe_name, unwrap, wrap

#: Reads of it that are told one after the other: as many loads as a cost is learnt from.
READS = 3
#: How long one of them, or writing it, may take, seconds.
PROBE_SECONDS = 5.0
#: After so long it is tried again, where it failed, or where pages were found and none was read; seconds.
PROBE_AGAIN = 60.0

_NAMESPACE, _KEY = bytes(NAMESPACE_BYTES), bytes(KEY_BYTES)


class CostProbe:
    """Used by the tier's thread alone."""

    def __init__(
        self,
        shape: ObjectShape,
        line: EngineLine,
        clock: Callable[[], float],
        told: Callable[[int, float], None],
        writes: bool,
    ) -> None:
        """`told(bytes, seconds)`: of each read; `writes`: whether the object may be written where it is missing."""
        self._shape = shape
        self._line = line
        self._clock = clock
        self._told = told
        self._writes = writes
        self._under_way = False
        self._known = False
        self._not_before = 0.0
        self._unread_since: float | None = None  # pages were found, and nobody has read any since

    def found(self) -> None:
        """Pages were found."""
        if self._unread_since is None:
            self._unread_since = self._clock()

    def read(self) -> None:
        """An object was read: whoever reads learns."""
        self._unread_since = None

    @property
    def due(self) -> float | None:
        """When it is to begin; None: nothing is to be found out."""
        if self._under_way:
            return None
        if not self._known:
            return self._not_before
        return None if self._unread_since is None else max(self._not_before, self._unread_since + PROBE_AGAIN)

    def begin(self) -> None:
        """The engine answers, and it is due."""
        slots = self._line.slots.take(1)
        if not slots:
            self._over(known=self._known)
            return
        self._under_way = True
        self._get(slots, READS, self._writes)

    def _get(self, slots: list[int], reads: int, writes: bool) -> None:
        """So many reads; `writes`: it may be written where it is not there."""
        blank(self._line.slots[slots[0]])
        began = self._clock()

        def done(came: Sequence[bool]) -> None:
            if not came[0] and writes:
                self._put(slots)
            elif not came[0] or not self._sound(slots[0]):
                self._line.slots.give_back(slots)
                self._over(known=self._known)
            else:
                self._told(self._shape.pages * self._shape.page_bytes, self._clock() - began)
                if reads > 1:
                    self._get(slots, reads - 1, False)
                else:
                    self._line.slots.give_back(slots)
                    self._over(known=True)

        self._ask("get", slots, done)

    def _put(self, slots: list[int]) -> None:
        memory, shape, digests = self._line.slots[slots[0]], self._shape, []
        for index in range(shape.pages):
            page = shape.page(memory, index)
            page[:] = np.arange(index, index + len(page)) % 251
            digests.append(page_digest(page))
        wrap(memory, ObjectHeader(_NAMESPACE, shape.pages, shape.page_bytes, (_KEY,) * shape.pages, tuple(digests)))

        def done(taken: Sequence[bool]) -> None:
            if taken[0]:
                self._get(slots, READS, False)
            else:
                self._line.slots.give_back(slots)
                self._over(known=self._known)

        self._ask("put", slots, done)

    def _ask(self, verb: Verb, slots: list[int], done: Callable[[Sequence[bool]], None]) -> None:
        until = self._clock() + PROBE_SECONDS
        if not self._line.ask(verb, [probe_name(self._shape)], slots, until, done, lambda: self._over(self._known)):
            self._line.slots.give_back(slots)
            self._over(known=self._known)

    def _sound(self, slot: int) -> bool:
        memory = self._line.slots[slot]
        header = unwrap(memory, self._shape, _NAMESPACE, _KEY)
        return not isinstance(header, ReadOutcome) and all(
            page_digest(self._shape.page(memory, index)) == digest for index, digest in enumerate(header.digests)
        )

    def _over(self, known: bool) -> None:
        self._under_way, self._known, self._unread_since = False, known, None
        self._not_before = self._clock() + PROBE_AGAIN
