"""Two real processes and a real clock: normal life, kill -9, SIGSTOP, and an interpreter that is busy for too long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support.lease_children import PAGE, Child, Children
from support.redis import wait_for

#: So long that only the kernel's word can end a lease in a test.
LONG = {"term": 300.0}
#: So short that a test may wait for its end.
SHORT = {"term": 2.5, "silence": 1.0}


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as running:
        yield running


def borrow(borrower: Child, pages: int = 2) -> None:
    """Have the borrower hold so many pages, and its bytes in them."""
    borrower.tell("want", pages * PAGE)
    borrower.expect("DonorJoined")
    for _ in range(pages):
        borrower.expect("LeaseBegan")
    assert borrower.ask("store", answer="stored")["leases"] == pages


def test_a_life_without_accidents(children: Children) -> None:
    donor = children.donor(**SHORT)
    borrower = children.borrower()
    borrow(borrower)
    # Longer than a term: it is renewed meanwhile.
    borrower.tell("read", SHORT["term"] + 0.5)
    assert borrower.expect("read") == {"what": "read", "valid": True, "found": "B"}
    assert donor.ask("leases")["leases"] == [[1, PAGE, "lent"], [2, PAGE, "lent"]]
    assert borrower.ask("leases")["leases"] == [[1, PAGE, "active"], [2, PAGE, "active"]]
    donor.tell("withdraw", PAGE)
    borrower.expect("LeaseRecalled", key=2)
    borrower.expect("LeaseEnded", key=2, ended="recalled")
    donor.expect("Reclaimed", run=2, back="returned")
    borrower.tell("read", 0)
    assert borrower.expect("read") == {"what": "read", "valid": True, "found": "B"}
    assert borrower.ask("close", answer="closed") == {"what": "closed", "clean": True}
    donor.expect("Reclaimed", run=1, back="returned")
    assert donor.ask("close", answer="closed") == {"what": "closed", "clean": True}
    assert donor.ask("counters").get("faults", 0) == 0


def test_a_borrower_may_be_there_first(children: Children) -> None:
    borrower = children.borrower()
    borrower.tell("want", 2 * PAGE)
    children.donor()
    borrower.expect("DonorJoined", donor="d", unit_bytes=PAGE)
    borrower.expect("LeaseBegan")


def test_a_killed_borrower_gives_everything_back_at_once(children: Children) -> None:
    donor = children.donor(**LONG)
    borrower = children.borrower()
    borrow(borrower)
    borrower.kill()
    for run in (1, 2):
        donor.expect("Reclaimed", run=run, back="gone")
    donor.expect("BorrowerLeft")
    assert donor.ask("lent")["bytes"] == 0


def test_a_killed_donor_is_lost_at_once_and_found_again(children: Children) -> None:
    donor = children.donor(**LONG)
    borrower = children.borrower()
    borrow(borrower)
    borrower.tell("read", 3.0)
    borrower.expect("reading")
    donor.kill()
    for lease in (1, 2):
        borrower.expect("LeaseEnded", key=lease, ended="lost")
    borrower.expect("DonorLeft", donor="d")
    assert borrower.expect("read")["valid"] is False
    children.donor(**LONG)
    borrower.expect("DonorJoined", donor="d")
    borrower.expect("LeaseBegan")


@pytest.mark.parametrize("how", ["stopped", "busy"])
def test_a_borrower_that_sleeps_through_its_lease_serves_no_byte(children: Children, how: str) -> None:
    donor = children.donor(**SHORT)
    borrower = children.borrower()
    borrow(borrower)
    if how == "stopped":
        # Not so short that it could be over before it is stopped.
        borrower.tell("read", 2.0)
        borrower.expect("reading")
        borrower.stop()
    else:
        borrower.tell("hog", 2 * SHORT["term"])
    for run in (1, 2):
        donor.expect("Reclaimed", run=run, back="expired")
    if how == "stopped":
        borrower.resume()
    # It has read a byte that is the donor's by now, and knows.
    assert borrower.expect("read") == {"what": "read", "valid": False, "found": "D"}
    for lease in (1, 2):
        borrower.expect("LeaseEnded", key=lease, ended="expired")
    assert donor.ask("lent")["bytes"] == 0
    # It returns them nevertheless, in a new session since the donor has forgotten it, and is answered.
    wait_for(lambda: borrower.ask("leases")["leases"] == [], "the returns to be answered")


def test_a_donor_that_sleeps_through_its_leases_finds_them_ended(children: Children) -> None:
    donor = children.donor(**SHORT)
    borrower = children.borrower()
    borrow(borrower)
    donor.stop()
    for lease in (1, 2):
        borrower.expect("LeaseEnded", key=lease, ended="expired")
    donor.resume()
    for run in (1, 2):
        # By the borrower's return, which waited for it, or by its own clock: whichever it sees first.
        assert donor.expect("Reclaimed", run=run)["back"] in ("expired", "returned")
    assert donor.ask("lent")["bytes"] == 0


def test_both_stopped_at_once(children: Children) -> None:
    donor = children.donor(**SHORT)
    borrower = children.borrower()
    borrow(borrower)
    borrower.tell("read", 2.0)
    borrower.expect("reading")
    donor.stop()
    borrower.stop()
    time.sleep(1.2 * SHORT["term"])  # nobody is left who could tell that the leases have ended
    borrower.resume()
    assert borrower.expect("read")["valid"] is False
    donor.resume()
    for run in (1, 2):
        donor.expect("Reclaimed", run=run)
    assert donor.ask("lent")["bytes"] == 0


def test_two_borrowers_share_one_donor(children: Children) -> None:
    donor = children.donor(**LONG)
    first, second = children.borrower("b"), children.borrower("c")
    borrow(first, 1)
    borrow(second, 1)
    assert donor.ask("lent")["bytes"] == 2 * PAGE
    first.kill()
    donor.expect("Reclaimed", run=1, back="gone")
    second.tell("read", 0)
    assert second.expect("read")["valid"] is True


def test_a_donor_that_closes_gets_its_memory_back_first(children: Children) -> None:
    # Closing waits for a few recall bounds.
    donor = children.donor(**LONG, recall_bound=1.0)
    borrower = children.borrower()
    borrow(borrower)
    assert donor.ask("close", answer="closed") == {"what": "closed", "clean": True}
    assert [said["back"] for said in donor.heard if said["what"] == "Reclaimed"] == ["returned", "returned"]


def test_a_donor_that_closes_says_what_it_did_not_get_back(children: Children) -> None:
    donor = children.donor(**LONG)
    borrower = children.borrower()
    borrow(borrower)
    borrower.stop()
    assert donor.ask("close", answer="closed") == {"what": "closed", "clean": False}
    borrower.resume()
