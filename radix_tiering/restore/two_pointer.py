"""One restore under way: chunks computed from the front and loaded from the back until both meet (CacheFlow, 3.1).

A chunk is in one of these states:

    ABSENT --take_compute--> COMPUTING --computed--> COMPUTED
    ABSENT --take_load--> LOADING --loaded--> LOADED
                          LOADING --failed, abandon--> ABSENT, and never loaded again

A plan says where the two are expected to meet; here they meet where they do. No chunk is both computed and loaded: one
that is being loaded when the compute pointer reaches it is waited for, until somebody abandons the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto


class Chunk(Enum):
    ABSENT = auto()
    LOADING = auto()
    LOADED = auto()
    COMPUTING = auto()
    COMPUTED = auto()


PRESENT = frozenset({Chunk.LOADED, Chunk.COMPUTED})


class TwoPointer:
    """The chunks of one request. Not thread-safe; pure."""

    def __init__(self, sources: Sequence[str | None], lead: int = 0) -> None:
        """`sources[i]`: where chunk `i` can be loaded from; None: nowhere. The first `lead` chunks are loaded first,
        front to back, and computing starts behind them."""
        if not 0 <= lead <= len(sources) or any(source is None for source in sources[:lead]):
            raise ValueError(f"the first {lead} of {len(sources)} chunks cannot all be loaded")
        self._sources = list(sources)
        self._lead = lead
        self.state = [Chunk.ABSENT] * len(sources)

    def __len__(self) -> int:
        return len(self.state)

    @property
    def done(self) -> bool:
        return all(state in PRESENT for state in self.state)

    @property
    def computed_to(self) -> int:
        """Chunks from the front that are there without a gap."""
        return next((at for at, state in enumerate(self.state) if state not in PRESENT), len(self.state))

    @property
    def is_computing(self) -> bool:
        return Chunk.COMPUTING in self.state

    def remaining(self) -> Iterable[int]:
        """Chunks that are neither there nor on their way."""
        return (at for at, state in enumerate(self.state) if state is Chunk.ABSENT)

    def source(self, chunk: int) -> str | None:
        """Where it can still be loaded from."""
        return self._sources[chunk]

    # ---- the compute pointer ----

    def next_compute(self) -> int | None:
        """The chunk to compute next; None where everything is there or on its way, or something before it is.

        Chunks of the lead are computed only if they cannot be loaded.
        """
        at = self.computed_to
        if at == len(self.state) or self.state[at] is not Chunk.ABSENT:
            return None
        return None if at < self._lead and self._sources[at] is not None else at

    def take_compute(self) -> int:
        """-> COMPUTING. Raises ValueError if there is nothing to compute."""
        at = self.next_compute()
        if at is None:
            raise ValueError("there is no chunk to compute")
        self.state[at] = Chunk.COMPUTING
        return at

    def computed(self, chunk: int) -> None:
        self._move(chunk, Chunk.COMPUTING, Chunk.COMPUTED)

    # ---- the I/O pointer ----

    def next_load(self, source: str, computing: bool = True) -> int | None:
        """The chunk that this source should load next: of the lead from the front, then of the rest from the back.

        `computing`: the chunk that is computed next is left to that, since computing is about to begin.
        """
        for at in range(self._lead):
            if self.state[at] is Chunk.ABSENT and self._sources[at] == source:
                return at
        to_compute = self.next_compute() if computing else None
        for at in range(len(self.state) - 1, self._lead - 1, -1):
            if at != to_compute and self.state[at] is Chunk.ABSENT and self._sources[at] == source:
                return at
        return None

    def take_load(self, source: str, computing: bool = True) -> int:
        """-> LOADING. Raises ValueError if this source has nothing to load."""
        at = self.next_load(source, computing)
        if at is None:
            raise ValueError(f"there is no chunk to load from {source}")
        self.state[at] = Chunk.LOADING
        return at

    def loaded(self, chunk: int) -> None:
        self._move(chunk, Chunk.LOADING, Chunk.LOADED)

    def abandon(self, chunk: int) -> None:
        """The load failed, or is too late: the chunk will be computed. Whoever copies it must not write any more."""
        self._move(chunk, Chunk.LOADING, Chunk.ABSENT)
        self._sources[chunk] = None

    def abandon_source(self, source: str) -> list[int]:
        """Nothing more is expected of a source: its chunks that are not there will be computed; those under way."""
        under_way = []
        for at, state in enumerate(self.state):
            if self._sources[at] == source and state in (Chunk.ABSENT, Chunk.LOADING):
                if state is Chunk.LOADING:
                    under_way.append(at)
                    self.state[at] = Chunk.ABSENT
                self._sources[at] = None
        return under_way

    def _move(self, chunk: int, before: Chunk, after: Chunk) -> None:
        if self.state[chunk] is not before:
            raise ValueError(f"chunk {chunk} is {self.state[chunk].name}, not {before.name}")
        self.state[chunk] = after
