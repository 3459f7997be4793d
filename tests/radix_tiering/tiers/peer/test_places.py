"""The book of places against a simple model of it, through any order of events."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.lending.donation.extents import CutRun
from swift_tiers.radix_tiering.lending.leases import Extent, LeaseKey
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.peer.places import UNSTEADY_SECONDS, PlaceBook

from support.engine import Clock
from support.examples import examples

PAGE = 64


def run_of(slots: int) -> CutRun:
    return CutRun([Extent(0, 0, slots * PAGE)], PAGE)


def key(lease: int, donor: str = "d") -> LeaseKey:
    return LeaseKey(donor, 1, lease)


class Places(RuleBasedStateMachine):
    """The model: which leases there are, who holds what, and what is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.book = PlaceBook()
        self.last = 0
        self.slots: dict[LeaseKey, int] = {}  # of the leases that are not over
        self.closed: set[LeaseKey] = set()
        self.lows: dict[str, int] = {}  # the least that donors lent when they had taken a lease back
        self.held: set[PeerPlace] = set()
        self.uses: list[PeerPlace] = []  # one entry for each

    def taken(self, lease: LeaseKey) -> set[PeerPlace]:
        """What of a lease must not go to another page."""
        return {place for place in self.held | set(self.uses) if place.key == lease}

    @rule(donor=st.sampled_from("de"), slots=st.integers(1, 4))
    def open(self, donor: str, slots: int) -> None:
        self.last += 1
        self.slots[key(self.last, donor)] = slots
        self.book.open(key(self.last, donor), run_of(slots))

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.slots)))
        assert self.book.close(lease) == (lease not in self.closed)
        self.taken_back(lease)

    def taken_back(self, lease: LeaseKey) -> None:
        if lease not in self.closed:
            self.closed.add(lease)
            left = sum(slots for one, slots in self.open_leases().items() if one.donor == lease.donor)
            self.lows[lease.donor] = min(left, self.lows.get(lease.donor, left))

    def open_leases(self) -> dict[LeaseKey, int]:
        return {lease: slots for lease, slots in self.slots.items() if lease not in self.closed}

    @rule(excess=st.integers(0, 8))
    def close_idle(self, excess: int) -> None:
        for lease in self.book.close_idle(excess):
            assert lease in self.slots
            assert lease not in self.closed
            assert not self.taken(lease)
            excess -= self.slots[lease]
            self.closed.add(lease)
        assert excess >= 0

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.slots)))
        assert self.book.forget(lease)
        assert not self.book.forget(lease)
        self.taken_back(lease)
        del self.slots[lease]
        self.closed.discard(lease)

    @rule()
    def reserve(self) -> None:
        room = [lease for lease, slots in self.open_leases().items() if len(self.taken(lease)) < slots]
        place = self.book.reserve()
        assert (place is None) == (not room)
        if place is not None:
            assert place not in self.held, "somebody else has it"
            assert place not in self.uses, "it is in use"
            assert 0 <= place.slot < self.slots[place.key]
            shares = {donor: self.share(donor) for donor in {lease.donor for lease in room}}
            assert shares[place.key.donor] == min(shares.values()), "another donor has more room, or takes less back"
            assert place.key == min(lease for lease in room if lease.donor == place.key.donor), "not the oldest lease"
            self.held.add(place)

    def share(self, donor: str) -> tuple[bool, float]:
        """How full it is, and whether beyond what it has not taken back."""
        leases = {lease: slots for lease, slots in self.open_leases().items() if lease.donor == donor}
        used, slots = sum(len(self.taken(lease)) for lease in leases), sum(leases.values())
        steady = min(slots, self.lows.get(donor, slots))
        return (False, used / steady) if used < steady else (True, used / slots)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        self.book.release(place)
        self.held.discard(place)
        if place.key in self.slots:
            with pytest.raises(ValueError, match="not held"):
                self.book.release(place)
            with pytest.raises(ValueError, match="not held"):
                self.book.begin(place)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        lives = place.key in self.slots
        assert self.book.begin(place) == lives
        if lives:
            self.uses.append(place)

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.uses)))
        self.book.end(place)
        self.uses.remove(place)

    @invariant()
    def counts_are_right(self) -> None:
        for donor in (None, "d", "e", "nobody"):
            leases = [one for one in self.slots if one not in self.closed and donor in (None, one.donor)]
            expected = (
                len(leases),
                sum(self.slots[one] for one in leases),
                sum(len(self.taken(one)) for one in leases),
            )
            assert self.book.occupancy(donor) == expected
        for donor in ("d", "e"):
            assert self.book.has_leases(donor) == any(one.donor == donor for one in self.slots)
        for lease, slots in self.slots.items():
            run = self.book.run(lease)
            assert run is not None
            assert run.slots == slots


TestPlaces = Places.TestCase
TestPlaces.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_donors_are_filled_evenly_whatever_they_lend() -> None:
    book = PlaceBook()
    book.open(key(1, "small"), run_of(4))
    book.open(key(1, "large"), run_of(12))
    places = [book.reserve() for _ in range(8)]
    assert sorted(place.key.donor for place in places if place) == ["large"] * 6 + ["small"] * 2


def test_what_a_donor_took_back_is_filled_last_until_it_has_long_been_lent() -> None:
    """It may take as much again, and would have to take what lies there with it."""
    clock = Clock()
    book = PlaceBook(ThreadRunner(clock))
    for donor in ("steady", "unsteady"):
        for lease in range(1, 4):
            book.open(key(lease, donor), run_of(4))
    for lease in (3, 2):
        book.close(key(lease, "unsteady"))
        book.forget(key(lease, "unsteady"))
    book.open(key(4, "unsteady"), run_of(8))

    def filled(count: int) -> Counter[str]:
        places = [book.reserve() for _ in range(count)]
        found = Counter(place.key.donor for place in places if place is not None)
        for place in places:
            assert place is not None
            book.release(place)
        return found

    assert filled(16) == {"steady": 12, "unsteady": 4}
    clock.now += UNSTEADY_SECONDS + 1
    assert filled(16) == {"steady": 8, "unsteady": 8}


def test_a_donor_of_which_there_is_no_lease_is_remembered() -> None:
    clock = Clock()
    book = PlaceBook(ThreadRunner(clock))
    book.open(key(1, "steady"), run_of(1))
    book.open(key(1), run_of(4))
    book.forget(key(1))
    assert not book.has_leases("d")
    book.open(key(2), run_of(4))
    place = book.reserve()
    assert place is not None
    assert place.key.donor == "steady"


def test_what_is_returned_unasked_is_no_sign_of_more() -> None:
    book = PlaceBook()
    book.open(key(1, "generous"), run_of(4))
    book.open(key(2, "generous"), run_of(4))
    book.open(key(1, "other"), run_of(4))
    assert book.close_idle(4) == [key(1, "other")]
    book.forget(key(1, "other"))
    book.open(key(2, "other"), run_of(4))
    places = [book.reserve() for _ in range(6)]
    assert Counter(place.key.donor for place in places if place) == {"generous": 4, "other": 2}


def test_a_lease_begins_once() -> None:
    book = PlaceBook()
    book.open(key(1), run_of(1))
    with pytest.raises(ValueError, match="before"):
        book.open(key(1), run_of(1))


class CountedKey(LeaseKey):
    """A key whose comparisons are calls, which a profile counts."""

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return tuple.__lt__(self, other)


def test_more_leases_do_not_make_a_page_take_longer() -> None:
    def calls(leases: int) -> int:
        book, counted = PlaceBook(), 0
        for lease in range(leases):
            book.open(CountedKey("d", 1, lease), run_of(4))

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            places = [book.reserve() for _ in range(6)]
            assert places[0] is not None
            book.release(places[0])
            book.occupancy()
        finally:
            sys.setprofile(None)
        return counted

    assert calls(2048) <= 2 * calls(8)
