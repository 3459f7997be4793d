"""What is believed of an engine, that others write to: which runs are there, which objects are gone or bad."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from ...base.runner import Runner

#: Of each kind so many are remembered: some MiB at most.
MOST = 1 << 14
#: How long an object that was not there is not asked for, seconds: somebody may write it again.
GONE_SECONDS = 60.0
#: How long a run is believed to be there, seconds: engines drop what is old, and a store that was emptied tells nobody.
BELIEVED_SECONDS = 600.0


class Rumours:
    """Any thread."""

    def __init__(self, runner: Runner) -> None:
        self._lock = runner.lock()
        self._clock = runner.monotonic
        self._there: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()  # namespace, last key of runs: until when
        self._lost: OrderedDict[str, float] = OrderedDict()  # objects, by name: until when

    def is_there(self, namespace: bytes, key: bytes) -> None:
        """The run that ends with this page."""
        with self._lock:
            self._there[namespace, key] = self._clock() + BELIEVED_SECONDS
            self._there.move_to_end((namespace, key))
            while len(self._there) > MOST:
                self._there.popitem(last=False)

    def is_not_there(self, namespace: bytes, key: bytes) -> None:
        """The run that ends with this page."""
        with self._lock:
            self._there.pop((namespace, key), None)

    def lacks(self, namespace: bytes, key: bytes) -> bool:
        """Whether nobody has said of late that this run is there."""
        with self._lock:
            return self._there.get((namespace, key), -math.inf) <= self._clock()

    def engine_ended(self) -> None:
        """Its store may be another one when it is begun again."""
        with self._lock:
            self._there.clear()

    def is_gone(self, name: str, now: float) -> None:
        """An object that should be there is not: what is believed of all runs is too old to be believed."""
        self._lose(name, now + GONE_SECONDS)
        with self._lock:
            self._there.clear()

    def is_bad(self, name: str) -> None:
        """An object is not what it should be, and stays so: engines keep what came first."""
        self._lose(name, math.inf)

    def _lose(self, name: str, until: float) -> None:
        with self._lock:
            self._lost[name] = until
            self._lost.move_to_end(name)
            while len(self._lost) > MOST:
                self._lost.popitem(last=False)

    @property
    def any_lost(self) -> bool:
        return bool(self._lost)

    def first_lost(self, objects: Sequence[tuple[int, str]], now: float) -> int:
        """Of objects, each with a number, that of the first that is gone or bad; more than any number if none is."""
        with self._lock:
            for number, name in objects:
                until = self._lost.get(name)
                if until is not None:
                    if now < until:
                        return number
                    del self._lost[name]
        return 1 << 62
