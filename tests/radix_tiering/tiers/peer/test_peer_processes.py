"""Lending between real processes that are killed and stopped in the middle of reads and stores.

Each once with memory of the host, once with that of GPUs, which are fakes: their memory travels as descriptors, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swift_tiers.radix_tiering.tiers.peer import neighbour

from support.fake_device import FakeDeviceMemory
from support.lease_children import Child
from support.peer_children import PeerChildren
from support.peer_donor import PAGE
from support.peer_tier import Borrowing
from support.redis import wait_for

#: So long that only the kernel's word can end a lease in a test.
LONG = {"term": 300.0}
#: So short that a test may wait for its end.
SHORT = {"term": 2.0, "silence": 1.0}


@pytest.fixture(params=["host", pytest.param("gpus", marks=pytest.mark.exhaustive)])
def children(request: pytest.FixtureRequest) -> Iterator[PeerChildren]:
    with PeerChildren(on_gpus=request.param == "gpus") as running:
        yield running


def facts(borrower: Child) -> dict[str, Any]:
    return borrower.ask("facts")


def has(borrower: Child, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """The borrower's facts, as soon as this holds."""

    def look() -> dict[str, Any] | None:
        found = facts(borrower)
        return found if condition(found) else None

    found: dict[str, Any] = wait_for(look, what)
    return found


def borrow(borrower: Child, pages: int) -> dict[str, Any]:
    borrower.tell("borrow", pages)
    return has(borrower, lambda found: found["capacity"] == pages * PAGE, "the leases")


def read_some(borrower: Child, more: int = 50) -> None:
    """Wait for so many pages more that were read and right."""
    before = facts(borrower)["reads"].get("ok", 0)
    has(borrower, lambda found: found["reads"].get("ok", 0) >= before + more, "pages to be read")


def busy_borrower(children: PeerChildren) -> Child:
    """A borrower that has all 32 pages, and reads and stores all the time."""
    borrower = children.borrower()
    borrow(borrower, 32)
    borrower.tell("churn")
    read_some(borrower)
    return borrower


def test_a_donor_that_is_killed_under_reads_and_stores_is_replaced_and_leaves_nothing(children: PeerChildren) -> None:
    borrower = children.borrower()
    lives = []
    for life in range(3):
        donor = children.donor(timing=LONG)
        found = borrow(borrower, 32)
        assert found["arenas"] == 1, "an arena of a former life is mapped"
        if not life:
            borrower.tell("churn")
        read_some(borrower)
        lives.append(facts(borrower))
        donor.kill()
        # Not by time: terms are long.
        has(borrower, lambda found, life=life: found["ended"] == 4 * (life + 1), "the leases to be lost")
        has(borrower, lambda found: found["capacity"] == found["used"] == found["arenas"] == 0, "nothing to be left")
    result = borrower.ask("rest")
    assert result["wrong"] == 0
    assert "read corrupt: checksum" not in result
    assert result.get("write lease ended", 0) + result.get("read cancelled", 0) > 0
    assert {one["threads"] for one in lives} == {lives[0]["threads"]}
    assert {one["descriptors"] for one in lives} == {lives[0]["descriptors"]}
    assert facts(borrower)["faults"] == 0
    assert borrower.ask("close")["threads"] == []


def test_a_donor_that_sleeps_through_its_leases_is_borrowed_from_again(children: PeerChildren) -> None:
    donor = children.donor(timing=SHORT)
    borrower = busy_borrower(children)
    donor.stop()
    has(borrower, lambda found: found["ended"] == 4, "the leases to end")
    assert facts(borrower)["capacity"] == 0
    donor.resume()
    for _ in range(4):
        assert donor.expect("reclaimed")["back"] in ("expired", "returned")
    # Nothing that was asked for before is stored now.
    result = borrower.ask("rest")
    assert donor.ask("intact") == {"what": "intact", "runs": 4, "value": True}
    assert result["wrong"] == 0
    assert "read corrupt: checksum" not in result
    assert borrower.ask("close")["threads"] == []


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_borrower_in_the_middle_of_stores_changes_nothing_that_is_not_lent_any_more(
    children: PeerChildren, how: str
) -> None:
    """Its stores wait at the donor, for its bandwidth, when the leases end, and are still there afterwards."""
    donor = children.donor(pages=64, run_pages=64, bandwidth=10 * PAGE, timing=SHORT)
    borrower = children.borrower()
    borrow(borrower, 64)
    borrower.ask("impolite")
    borrower.ask("begin", 64)
    wait_for(lambda: donor.ask("counters").get("stored", 0) >= 4, "some stores")
    borrower.stop() if how == "stopped" else borrower.kill()
    assert donor.expect("reclaimed")["back"] == ("expired" if how == "stopped" else "gone")
    if how == "stopped":
        # Those that waited are refused, one by one.
        refused = donor.ask("counters").get("refused", 0)
        wait_for(lambda: donor.ask("counters").get("refused", 0) > refused, "stores to be refused")
        assert donor.ask("intact")["value"] is True
        borrower.resume()
        answered = borrower.ask("answered")
        # Of those that were stored it may not have heard before the end.
        outcomes = ("ok", "lease ended", "the donor refused")
        assert sum(answered.get(outcome, 0) for outcome in outcomes) == 64
        assert answered["lease ended"] > 0
    assert donor.ask("intact") == {"what": "intact", "runs": 1, "value": True}
    assert donor.ask("counters")["lent"] == 0


def test_a_borrower_that_sleeps_through_its_leases_serves_nothing_of_them(children: PeerChildren) -> None:
    donor = children.donor(timing=SHORT)
    borrower = busy_borrower(children)
    borrower.stop()
    for _ in range(4):
        assert donor.expect("reclaimed")["back"] == "expired"
    borrower.resume()
    has(borrower, lambda found: found["ended"] == 4, "the ends to be noticed")
    result = borrower.ask("rest")
    assert result["wrong"] == 0
    assert "read corrupt: checksum" not in result, "bytes of an ended lease were taken for damaged ones"
    assert donor.ask("intact") == {"what": "intact", "runs": 4, "value": True}


def test_both_stopped_in_the_middle_of_reads_and_stores(children: PeerChildren) -> None:
    donor = children.donor(timing=SHORT)
    borrower = busy_borrower(children)
    donor.stop()
    borrower.stop()
    time.sleep(1.2 * SHORT["term"])
    borrower.resume()
    has(borrower, lambda found: found["ended"] == 4, "the leases to end")
    donor.resume()
    for _ in range(4):
        donor.expect("reclaimed")
    assert borrower.ask("rest")["wrong"] == 0
    assert donor.ask("intact")["value"] is True


def test_a_donor_that_is_stopped_keeps_nobody_from_using_another(
    children: PeerChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages wait for it: it gets a part of the staging memory, not all."""
    monkeypatch.setattr(neighbour, "ANSWER_SECONDS", 600.0)
    page = 2**20
    donors = {name: children.donor(name, page_bytes=page, timing=LONG) for name in ("d", "e")}
    borrower = Borrowing(page_bytes=page, device=FakeDeviceMemory() if children.on_gpus else None)
    try:
        borrower.borrow({name: children.address(name) for name in donors}, 64)
        donors["d"].stop()
        data, stuck = borrower.page(1), []
        for _ in range(2):
            places = [borrower.reserve() for _ in range(64 - len(stuck))]
            answers = [(place, borrower.begin_write(place, data)) for place in places]
            stuck += [answer for place, answer in answers if place.key.donor == "d"]
            for place, answer in answers:
                if place.key.donor == "e":
                    assert answer.wait() == (True, "")
                    borrower.tier.release([place])
        assert len(stuck) == 32
        assert borrower.tier.snapshot().staging_bytes == 32 * page
        donors["d"].kill()
        assert {answer.wait() for answer in stuck} == {(False, "lease ended")}
    finally:
        borrower.close()


def test_a_recall_is_obeyed_while_pages_move(children: PeerChildren) -> None:
    donor = children.donor(timing={**LONG, "recall_bound": 5.0})
    borrower = busy_borrower(children)
    donor.tell("recall", 16 * PAGE)
    for _ in range(2):
        assert donor.expect("reclaimed")["back"] == "returned"
    read_some(borrower)
    result = borrower.ask("rest")
    assert result["wrong"] == 0
    assert "read corrupt: checksum" not in result
    assert donor.ask("intact") == {"what": "intact", "runs": 2, "value": True}
