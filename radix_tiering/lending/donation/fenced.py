"""Runs of memory that wait until nothing uses them any more, without a thread that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

#: Called when memory changes hands; gives a function that says whether everything that had begun to use that memory by
#: then has ended. Both take a short lock at most.
Fence = Callable[[], Callable[[], bool]]
#: The runs that something is being copied to now. It takes a short lock at most.
Copying = Callable[[], Collection[int]]


#: A copy of some pages ends sooner than this, seconds, or its device hangs.
COPY_SECONDS = 1.0


class _Waiting(NamedTuple):
    runs: tuple[int, ...]
    passed: Callable[[], bool]


class FencedRuns:
    """Runs by their numbers, each until its fence has passed; in the order in which they were added. One thread."""

    def __init__(self, fence: Fence) -> None:
        """`fence` is called once for all runs that are added together."""
        self._fence = fence
        self._unfenced: list[int] = []
        self._waiting: deque[_Waiting] = deque()

    def add(self, runs: Iterable[int]) -> None:
        """These, if there are any, wait from now on, even if this raises what the fence does."""
        self._unfenced += runs
        self._begin()

    def take_passed(self) -> list[int]:
        """The runs that nothing uses any more; they are forgotten here. Raises what the fence does."""
        self._begin()
        passed: list[int] = []
        while self._waiting and self._waiting[0].passed():
            passed += self._waiting.popleft().runs
        return passed

    def _begin(self) -> None:
        if self._unfenced:
            self._waiting.append(_Waiting(tuple(self._unfenced), self._fence()))
            self._unfenced.clear()


class ReturningRuns:
    """Runs that no lease holds any more, by their numbers, each until what is copied there has ended: nothing begins to
    be. In the order in which they were added. One thread."""

    def __init__(self, copying: Copying) -> None:
        self._copying = copying
        self._runs: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def add(self, runs: Iterable[int]) -> None:
        """These wait from now on."""
        self._runs += runs

    def take_over(self) -> list[int]:
        """The runs that nothing is copied to any more; they are forgotten here. Raises what `copying` does."""
        if not self._runs:
            return []
        copying = self._copying()
        over = [run for run in self._runs if run not in copying]
        self._runs = [run for run in self._runs if run in copying]
        return over


class ReturnsAwaited:
    """For how long runs that are on their way back count as if they were there."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def soon(self, runs: Iterable[int], now: float) -> list[int]:
        """Those of `runs`, all that are on their way, that this was not asked about `COPY_SECONDS` ago already."""
        self._since = {run: self._since.get(run, now) for run in runs}
        return [run for run, since in self._since.items() if now - since < COPY_SECONDS]
