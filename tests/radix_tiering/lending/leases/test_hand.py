"""An operator's hand on real services: what it shows of both sides, and what it does to the donor's leases."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from swift_tiers.radix_tiering.lending.leases import (
    Borrower,
    Donor,
    Extent,
    LeaseService,
    RunState,
    Timing,
    ipc_address,
)
from swift_tiers.radix_tiering.lending.leases.hand import LeaseHand

from support.lease_hand import BORROWER, LENDER, PAGE, Both
from support.redis import wait_for


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="swift-lease-") as name:
        yield Path(name)


@pytest.fixture
def both(directory: Path) -> Iterator[Both]:
    made = Both(directory)
    yield made
    made.close()


def test_both_sides_show_the_same_leases(both: Both) -> None:
    lending, borrowing = both.lending.snapshot(), both.borrowing.snapshot()
    assert (lending.name, lending.address, borrowing.address) == (LENDER, both.address, "")
    assert {view.lease for view in lending.lent} == {view.lease for view in borrowing.borrowed}
    assert [view.bytes for view in lending.lent] == [PAGE] * 3
    assert {(view.donor.name, view.borrower.name) for view in lending.lent} == {(LENDER, BORROWER)}
    assert (lending.borrowed, borrowing.lent) == ((), ())
    assert (lending.lendable_bytes, lending.limit_bytes, borrowing.lendable_bytes) == (PAGE, None, 0)


def test_a_service_that_does_both_is_asked_once(directory: Path) -> None:
    address, timing = ipc_address(directory, LENDER), Timing(term=60.0)
    donor = Donor(LENDER, PAGE, Random(1), timing=timing)
    service = LeaseService(donor=donor, listen=address, borrower=Borrower(LENDER, PAGE, Random(2)))
    other = LeaseService(borrower=Borrower(BORROWER, PAGE, Random(3), timing=timing))
    try:
        service.stock(1, [Extent(0, 0, PAGE)])
        service.fenced(1)
        other.connect(LENDER, address)
        other.want(PAGE)
        hand = LeaseHand(LENDER, service=service, address=address, borrower=service)
        wait_for(hand.leases, "a lease")
        assert len(hand.snapshot().lent) == 1
    finally:
        other.close()
        service.close()


def test_a_lease_is_recalled_by_its_number(both: Both) -> None:
    both.borrower.want(0)
    first, *others = both.numbers()
    assert both.lending.recall([first, 4711]) == 1
    wait_for(lambda: both.numbers() == others, "the return")
    wait_for(lambda: len(both.borrowing.leases()) == 2, "the borrower's word for it")


def test_all_leases_of_one_borrower_are_recalled(both: Both) -> None:
    both.borrower.want(0)
    assert both.lending.recall(borrower="web-3.dp0-tp0") == 0
    pinned = both.numbers()[0]
    assert both.lending.pin(pinned, True)
    assert both.lending.recall(borrower=BORROWER) == 3, "a pin keeps nothing from being recalled by command"
    wait_for(lambda: both.numbers() == [], "the return")


def test_those_that_are_recalled_already_do_not_count(both: Both) -> None:
    both.borrower.want(0)
    first = both.numbers()[0]
    assert both.lending.recall([first]) == 1
    assert both.lending.recall([first]) == 0
    assert both.lending.recall() == 2


def test_what_is_lent_can_be_capped(both: Both) -> None:
    both.lending.cap(PAGE)
    wait_for(lambda: len(both.numbers()) == 1, "the return of what is beyond")
    assert both.lending.snapshot().limit_bytes == PAGE
    both.lending.cap(None)
    assert both.lending.snapshot().limit_bytes is None


def test_who_decides_how_much_is_lent_is_told(both: Both) -> None:
    class Lender:
        peak_bytes, window_seconds = 5, 30.0
        caps: ClassVar[list[int | None]] = []
        rests = 0

        def cap(self, limit_bytes: int | None) -> None:
            self.caps.append(limit_bytes)

        def rest(self) -> None:
            self.rests += 1

    lender = Lender()
    hand = LeaseHand(LENDER, service=both.donor, address=both.address, lender=lambda: lender)
    hand.cap(PAGE)
    assert lender.caps == [PAGE]
    assert both.donor.bytes_in(RunState.LENT) == 3 * PAGE
    assert (hand.snapshot().peak_bytes, hand.snapshot().window_seconds) == (5, 30.0)
    assert not lender.rests
    assert hand.recall() == 3
    assert lender.rests == 1


def test_who_lends_nothing_yet_cannot_be_capped(both: Both) -> None:
    hand = LeaseHand(LENDER, service=both.donor, address=both.address)
    assert hand.lends
    with pytest.raises(ValueError, match="does not lend yet"):
        hand.cap(PAGE)


def test_a_pin_is_shown_at_its_donor(both: Both) -> None:
    first = both.numbers()[0]
    assert both.lending.pin(first, True)
    assert [view.lease for view in both.lending.leases() if view.pinned] == [first]
    assert both.lending.pin(first, False)
    assert not any(view.pinned for view in both.lending.leases())
    assert not both.lending.pin(4711, True)


def test_who_lends_nothing_has_nothing_to_recall(both: Both) -> None:
    assert both.lending.lends
    assert not both.borrowing.lends
    for act in (both.borrowing.recall, lambda: both.borrowing.pin(1, True), lambda: both.borrowing.cap(None)):
        with pytest.raises(ValueError, match="does not lend"):
            act()


def test_it_says_what_was_ignored_of_whoever_wrote_it(both: Both) -> None:
    of_pages = {"garbled": 2, "other version": 3, "faults": 1, "stored": 9}
    hand = LeaseHand(LENDER, service=both.donor, address=both.address, counters=lambda: [of_pages, {"faults": 1}])
    both.donor._wire.counters.update({"strangers": 4, "oversized": 1, "other version": 1})
    said = hand.snapshot()
    assert (said.lend_ignored, said.lend_other_releases, said.lend_faults) == (7, 4, 2)
    assert both.borrowing.snapshot().lend_ignored == 0
