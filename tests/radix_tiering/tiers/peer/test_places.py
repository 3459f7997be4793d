"""The book of places against a simple model of it, through any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.lending.donation.extents import CutRun
from swift_tiers.radix_tiering.lending.leases import Extent, LeaseKey
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.peer.places import PlaceBook

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
        self.closed.add(lease)

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
        del self.slots[lease]
        self.closed.discard(lease)

    @rule()
    def reserve(self) -> None:
        shares, room = {}, []
        for lease, slots in self.slots.items():
            if lease not in self.closed:
                used, all_slots = shares.get(lease.donor, (0, 0))
                shares[lease.donor] = (used + len(self.taken(lease)), all_slots + slots)
                if len(self.taken(lease)) < slots:
                    room.append(lease)
        place = self.book.reserve()
        assert (place is None) == (not room)
        if place is not None:
            assert place not in self.held, "somebody else has it"
            assert place not in self.uses, "it is in use"
            assert 0 <= place.slot < self.slots[place.key]
            share = {donor: used / slots for donor, (used, slots) in shares.items()}
            assert share[place.key.donor] == min(share.values()), "another donor has more room"
            assert place.key == min(lease for lease in room if lease.donor == place.key.donor), "not the oldest lease"
            self.held.add(place)

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


def test_a_lease_begins_once() -> None:
    book = PlaceBook()
    book.open(key(1), run_of(1))
    with pytest.raises(ValueError, match="before"):
        book.open(key(1), run_of(1))
