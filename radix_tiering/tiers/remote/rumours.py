"""What is believed of an engine, that others write to: which runs are there, which objects are gone or bad."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ...base.runner import Runner

#: Of each kind so many are remembered: some MiB at most.
MOST = 1 << 14
#: How long an object that was not there is not asked for, seconds: somebody may write it again. And no sooner than that
#: after one that was gone are all runs doubted again: a store that is full drops objects all the time.
GONE_SECONDS = 60.0
#: How long a run is believed to be there, seconds: engines drop what is old, and a store that was emptied tells nobody.
BELIEVED_SECONDS = 600.0


class RunKey(NamedTuple):
    """What a run is called here."""

    namespace: bytes
    last: bytes  # the key of its last page


class _Belief(NamedTuple):
    """That a run is there."""

    heard: float  # when it was last said
    until: float  # when it is not believed any more


_UNHEARD = _Belief(-math.inf, -math.inf)


class Rumours:
    """Any thread."""

    def __init__(self, runner: Runner) -> None:
        self._lock = runner.lock()
        self._clock = runner.monotonic
        self._there: OrderedDict[RunKey, _Belief] = OrderedDict()
        self._doubted = -math.inf  # since when what had been said before is doubted
        self._lost: OrderedDict[str, float] = OrderedDict()  # objects, by name: until when

    def is_there(self, run: RunKey) -> None:
        """All of it, as far as anybody knows."""
        with self._lock:
            now = self._clock()
            self._there[run] = _Belief(now, now + BELIEVED_SECONDS)
            self._there.move_to_end(run)
            while len(self._there) > MOST:
                self._there.popitem(last=False)

    def is_still_there(self, run: RunKey) -> None:
        """Its last object, of one that was doubted: it is believed no longer for that."""
        with self._lock:
            if run in self._there:
                self._there[run] = self._there[run]._replace(heard=self._clock())

    def is_not_there(self, run: RunKey) -> None:
        """Its last object."""
        with self._lock:
            self._there.pop(run, None)

    def lacks(self, run: RunKey) -> bool:
        """Whether nobody has said of late that it is there, or it is doubted."""
        with self._lock:
            belief = self._there.get(run, _UNHEARD)
            return belief.until <= self._clock() or belief.heard <= self._doubted

    def doubts(self, run: RunKey) -> bool:
        """Whether it is lacking only for being doubted."""
        with self._lock:
            belief = self._there.get(run, _UNHEARD)
            return belief.heard <= self._doubted and self._clock() < belief.until

    def engine_ended(self) -> None:
        """Its store may be another one when it is begun again."""
        with self._lock:
            self._there.clear()

    def is_gone(self, name: str, run: RunKey, now: float) -> None:
        """An object of this run that should be there is not: neither is the run, and what is believed of others is too
        old to be believed."""
        self._lose(name, now + GONE_SECONDS)
        with self._lock:
            self._there.pop(run, None)
            if now >= self._doubted + GONE_SECONDS:
                self._doubted = now

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
