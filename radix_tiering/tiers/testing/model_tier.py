"""A whole tier in one file: pages in a dictionary, moved by a thread of its own. What tests put beneath a tier stack,
and the shortest example of what a tier is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ...base.config import TiersConfig
from ...base.errors import CommandRefusedError
from ...base.page import HeldPages, page_digest
from ...base.runner import THREADS, Runner
from ...base.slot_map import SlotState, TierMap
from ...figures.counters import LinkCounters
from ..tier import Obeyed, Read, ReadOutcome, Tier, TierListener, TierOrder, Write, Written


class ModelTier(Tier):
    """Room for `pages` pages of `page_bytes`; a place is the number of a slot. All of it is one part, named "all"."""

    part_lost = "model.lost"

    def __init__(
        self,
        name: str,
        page_bytes: int,
        pages: int,
        *,
        runner: Runner = THREADS,
        seconds: float = 0.0,
        fingerprint: Callable[[np.ndarray], bytes] = page_digest,
    ) -> None:
        """`seconds` that each page takes, either way. `fingerprint`: the checksum of a page, as the stack has it."""
        self.name = name
        self._page_bytes = page_bytes
        self._runner = runner
        self._seconds = seconds
        self._fingerprint = fingerprint
        self._links = {f"host-{name}": LinkCounters(), f"{name}-host": LinkCounters()}
        self._bytes: dict[int, np.ndarray] = {}
        self._pages = pages
        self._free = list(range(pages - 1, -1, -1))
        self._reading: dict[int, int] = {}  # slots that reads are under way of, and how many
        self._left: set[int] = set()  # of these, given back meanwhile
        self._jobs: deque[Callable[[], None] | None] = deque()
        self._wake = runner.condition()
        self._closed = False
        self._listener: TierListener | None = None
        self._thread = runner.thread(self._run, f"swift-{name}")
        self._thread.start()

    # ---- what a test does ----

    def damage(self, place: int) -> None:
        """A bit of what lies there flips."""
        self._bytes[place][3] ^= 1

    def lose_all(self) -> None:
        """Everything in it is gone; it goes on, empty."""
        with self._wake:
            for page in self._bytes.values():
                page[:] = 0xDD
            listener = self._listener
            assert listener is not None
            self._jobs.append(lambda: listener.gone("all", "lost"))
            self._wake.notify_all()

    # ---- operators ----

    def commands(self, config: TiersConfig) -> Mapping[str, TierOrder]:
        """`lose`: what an operator would order of a real tier that breaks."""
        return {"lose": self._lose}

    def _lose(self, argument: str) -> Obeyed:
        if argument:
            raise CommandRefusedError(f"lose: takes no argument, and not {argument!r}")
        self.lose_all()
        return Obeyed("everything is lost", [("model.emptied", {"tier": self.name})])

    # ---- room ----

    @property
    def capacity_bytes(self) -> int:
        return self._pages * self._page_bytes

    def takes(self, length: int) -> bool:
        return self._pages > 0

    def reserve(self, lengths: Sequence[int]) -> list[int]:
        with self._wake:
            return [self._free.pop() for _ in lengths[: len(self._free)]]

    def release(self, places: Sequence[int]) -> None:
        with self._wake:
            for place in places:
                if place in self._reading:
                    self._left.add(place)
                else:
                    self._give_back(place)

    def _give_back(self, place: int) -> None:
        assert place not in self._free, "a place was given back twice"
        self._bytes.pop(place, None)
        self._free.append(place)

    def part_of(self, place: int) -> str:
        return "all"

    # ---- bytes ----

    def write(self, writes: Sequence[Write]) -> None:
        self._ask([partial(self._write, one) for one in writes])

    def _write(self, write: Write) -> None:
        page = write.data[: write.record.length].copy()
        self._moved(f"host-{self.name}", page.nbytes)
        with self._wake:
            self._bytes[write.place] = page
        with self.answers:
            write.done(Written(write.place, self._fingerprint(page)), "")

    def read(self, reads: Sequence[Read]) -> None:
        with self._wake:
            for one in reads:
                self._reading[one.copy.place] = self._reading.get(one.copy.place, 0) + 1
        try:
            self._ask([partial(self._read, one) for one in reads])
        except RuntimeError:
            for one in reads:
                self._no_longer(one.copy.place)
            raise

    def _read(self, read: Read) -> None:
        page = self._bytes[read.copy.place]
        read.into[: page.nbytes] = page
        self._moved(f"{self.name}-host", page.nbytes)
        self._no_longer(read.copy.place)
        intact = self._fingerprint(read.into[: page.nbytes]) == read.copy.digest
        with self.answers:
            read.done(ReadOutcome.OK if intact else ReadOutcome.CHECKSUM)

    def _no_longer(self, place: int) -> None:
        with self._wake:
            self._reading[place] -= 1
            if not self._reading[place]:
                del self._reading[place]
                if place in self._left:
                    self._left.discard(place)
                    self._give_back(place)

    def _moved(self, link: str, nbytes: int) -> None:
        began = self._runner.monotonic()
        self._runner.sleep(self._seconds)
        self._links[link].count(1, nbytes, self._runner.monotonic() - began)

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._links

    # ---- the rest ----

    def watch(self, listener: TierListener) -> None:
        self._listener = listener

    def slot_map(self, held: Callable[[], Sequence[int]], *, time: float) -> TierMap:
        with self._wake:
            states = np.full(self._pages, SlotState.LOADING, np.uint8)
            states[self._free] = SlotState.FREE
        states[held()] = SlotState.CACHED
        return TierMap(time=time, slot_bytes=self._page_bytes, states=states)

    def close(self, held: Iterable[HeldPages] | None, timeout: float | None = None) -> None:
        with self._wake:
            if self._closed:
                return
            self._closed = True
            self._jobs.append(None)
            self._wake.notify_all()
        self._thread.join()

    def _ask(self, jobs: Sequence[Callable[[], None]]) -> None:
        with self._wake:
            if self._closed:
                raise RuntimeError(f"the {self.name} tier is closed")
            self._jobs.extend(jobs)
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs)
                job = self._jobs.popleft()
            if job is None:
                return
            job()
