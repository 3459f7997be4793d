"""A peer tier as a test uses it: what is asked is waited for, and what is told is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.config import Duration, PeerConfig
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord, page_digest
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Tier, Write

from support.peer_donor import PAGE
from support.redis import wait_for

#: A guard against hanging, not a measure.
PATIENCE = 60.0


class Answer:
    """What `done` is called with; a second call fails the test that looks."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.thread = ""
        self._came = threading.Event()

    def __call__(self, *what: Any) -> None:
        self.calls.append(what)
        self.thread = threading.current_thread().name
        self._came.set()

    @property
    def came(self) -> bool:
        return self._came.is_set()

    def wait(self) -> Any:
        """The answer: a tuple, or what is in it if that is one thing."""
        assert self._came.wait(PATIENCE), "never answered"
        assert len(self.calls) == 1, f"answered {len(self.calls)} times"
        (call,) = self.calls
        return call[0] if len(call) == 1 else call


class Gate:
    """A checksum that stops the tier's thread in the middle of a read."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.shut = False

    def __call__(self, page: np.ndarray) -> bytes:
        if self.shut:
            self.reached.release()
            assert self.go_on.acquire(timeout=60)
        return page_digest(page)


def write_page(
    tier: Tier, place: PeerPlace, data: np.ndarray, done: Callable[[bool, str], object], digest: bytes
) -> None:
    """Put one page there; `done(whether it is there, why not)`."""
    tier.write(
        [Write(record_of(data.nbytes), place, data, digest, lambda written, why: done(written is not None, why))]
    )


def record_of(length: int) -> PageRecord:
    """Of any page: lent memory does not look at it."""
    return PageRecord(b"k" * 32, ROOT_KEY, b"n" * 32, 1, length)


def read_page(
    tier: Tier,
    place: PeerPlace,
    into: np.ndarray,
    digest: bytes,
    done: Callable[[ReadOutcome], object],
    *,
    saving: bool = False,
) -> None:
    """Fetch one page with this checksum."""
    tier.read([Read(record_of(into.nbytes), Copy(place, digest, 0, whole=True), into, done, saving)])


class Borrowing:
    """A `PeerTier` and everything that its listener was told, in order. `on_recall` is what the listener does then."""

    def __init__(
        self, name: str = "b", page_bytes: int = PAGE, *, config: PeerConfig | None = None, **options: Any
    ) -> None:
        self.page_bytes = page_bytes
        self.told: list[tuple[str, Any]] = []
        self.on_recall: Callable[[LeaseKey], Iterable[None] | None] = lambda key: None
        # It waits long for its first grant: what a slow machine lets come late would be returned, and not lent again.
        self.tier = PeerTier(name, page_bytes, config or PeerConfig(borrow=True, term=Duration(20.0)), **options)
        self.tier.watch(self)

    # What the tier tells

    def room(self) -> None:
        self.told.append(("began", None))

    def full(self, part: LeaseKey, reason: str) -> None:
        """A lease never is."""

    def leaving(self, part: LeaseKey, until: float) -> Iterator[None]:
        self.told.append(("recalled", part))
        return iter(self.on_recall(part) or ())

    def gone(self, part: LeaseKey, reason: str) -> None:
        self.told.append(("ended", part))

    def back(self, part: LeaseKey) -> None:
        raise AssertionError("a lease that has ended does not come back")

    def keys(self, what: str) -> list[LeaseKey]:
        return [key for said, key in list(self.told) if said == what]

    # What a stack would ask

    def borrow(self, donors: dict[str, str], pages: int) -> None:
        """Hold so many pages, from these donors."""
        self.tier.neighbours(donors)
        self.tier.want(pages * self.page_bytes)
        wait_for(lambda: self.tier.capacity_bytes >= pages * self.page_bytes, f"{pages} lent pages")

    def reserve(self) -> PeerPlace:
        places = self.tier.reserve([self.page_bytes])
        assert places, "no place is free"
        return places[0]

    def page(self, seed: int) -> np.ndarray:
        """A page like no other."""
        return np.random.default_rng(seed).integers(0, 256, self.page_bytes, np.uint8)

    def begin_write(self, place: PeerPlace, data: np.ndarray) -> Answer:
        answer = Answer()
        write_page(self.tier, place, data, answer, page_digest(data))
        return answer

    def begin_read(self, place: PeerPlace, digest: bytes, *, saving: bool = False) -> tuple[Answer, np.ndarray]:
        answer, into = Answer(), np.zeros(self.page_bytes, np.uint8)
        read_page(self.tier, place, into, digest, answer, saving=saving)
        return answer, into

    def land(self, place: PeerPlace) -> Answer | None:
        """Have a page come to landing memory; None where it cannot."""
        answer = Answer()
        return answer if self.tier.land(record_of(self.page_bytes), Copy(place, None, 0, whole=True), answer) else None

    def write(self, seed: int) -> PeerPlace:
        """Put the page of this seed somewhere."""
        place = self.reserve()
        assert self.begin_write(place, self.page(seed)).wait() == (True, "")
        return place

    def read(self, place: PeerPlace, seed: int, *, saving: bool = False) -> ReadOutcome:
        """Fetch the page of this seed from there. What is OK must be that page."""
        page = self.page(seed)
        answer, into = self.begin_read(place, page_digest(page), saving=saving)
        outcome: ReadOutcome = answer.wait()
        if outcome is ReadOutcome.OK:
            assert (into == page).all(), "another page was served"
        return outcome

    def close(self) -> None:
        self.tier.close()
