"""Restores of several requests side by side: who computes next, and whom each source serves (CacheFlow, Algorithm 1).

One device computes one chunk at a time, in order of admission: SGLang has one chunked request at a time. Each source
serves the request that has most recomputation left, looked at anew for every chunk, since loading for it saves most. A
request that has been passed over for `patience` chunks of a source is served before that, so that none starves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from swift_tiers.radix_tiering.restore.two_pointer import TwoPointer

#: Chunks that a source may give to others before a request that waits for it gets one.
PATIENCE = 16


class Work(NamedTuple):
    """One chunk of one request."""

    request: str
    chunk: int


class Member:
    """A request of the batch."""

    __slots__ = ("chunk_seconds", "passed_over", "pointers")

    def __init__(self, pointers: TwoPointer, chunk_seconds: Callable[[int], float]) -> None:
        self.pointers = pointers
        self.chunk_seconds = chunk_seconds  # what computing a chunk takes, estimated
        self.passed_over: dict[str, int] = {}  # by source: chunks given to others while it waited

    @property
    def recomputation_left(self) -> float:
        """Seconds of computing that loading could still save."""
        return sum(map(self.chunk_seconds, self.pointers.remaining()))


class Batch:
    """All restores under way, in order of admission. Pure and deterministic; not thread-safe.

    Both the executor and the simulator ask it what to do and tell it what happened.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        if patience < 1:
            raise ValueError(f"patience of {patience} chunks would serve nobody by need")
        self._patience = patience
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: str) -> bool:
        return request in self._members

    def add(self, request: str, pointers: TwoPointer, chunk_seconds: Callable[[int], float]) -> None:
        """Raises ValueError for a request that is here already."""
        if request in self._members:
            raise ValueError(f"request {request} is being restored already")
        self._members[request] = Member(pointers, chunk_seconds)

    def remove(self, request: str) -> None:
        """It is done, or was aborted. Unknown ones are left alone."""
        self._members.pop(request, None)

    def pointers(self, request: str) -> TwoPointer:
        return self._members[request].pointers

    def next_compute(self) -> Work | None:
        """The chunk to compute next, taken: of the oldest request that has one."""
        for request, member in self._members.items():
            if member.pointers.next_compute() is not None:
                return Work(request, member.pointers.take_compute())
        return None

    def next_load(self, source: str) -> Work | None:
        """The chunk that `source` is to load next, taken; None if nobody needs anything from it."""
        # Its next chunk is about to be computed; those of others are not, for the device is busy with it.
        first = self._computed_now()
        waiting = {
            request: member
            for request, member in self._members.items()
            if member.pointers.next_load(source, computing=request == first) is not None
        }
        if not waiting:
            return None
        starving = [request for request, one in waiting.items() if one.passed_over.get(source, 0) >= self._patience]
        if starving:
            chosen = max(starving, key=lambda request: waiting[request].passed_over[source])
        else:
            # The oldest wins a draw.
            chosen = max(waiting, key=lambda request: waiting[request].recomputation_left)
        for request, member in waiting.items():
            member.passed_over[source] = 0 if request == chosen else member.passed_over.get(source, 0) + 1
        return Work(chosen, waiting[chosen].pointers.take_load(source, computing=chosen == first))

    def _computed_now(self) -> str | None:
        """The request that the device works on, or would if it had nothing to do."""
        for request, member in self._members.items():
            if member.pointers.is_computing or member.pointers.next_compute() is not None:
                return request
        return None
