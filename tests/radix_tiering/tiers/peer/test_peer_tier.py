"""Pages in lent memory, with a real donor in the same process: where they go, when they are believed, what is told."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swift_tiers.radix_tiering.base.config import Duration, PeerConfig, Size
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.lending.donation import pace
from swift_tiers.radix_tiering.lending.donation.arena_client import ArenaClient
from swift_tiers.radix_tiering.lending.donation.arena_messages import (
    MAX_PACKET_BYTES,
    VERSION,
    Attached,
    Stored,
    StoresDone,
    encode,
)
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.arena_socket import arena_path, packet_socket, send
from swift_tiers.radix_tiering.lending.leases import Extent, Party, Timing, ipc_address
from swift_tiers.radix_tiering.tiers.peer import neighbour, worker
from swift_tiers.radix_tiering.tiers.peer.jobs import FAILED
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.peer.staging import Staging
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome, Tier

from support.peer_donor import OWN, PAGE, LocalDonor, local_donor
from support.peer_tier import Answer, Borrowing, Gate, read_page, write_page
from support.redis import wait_for
from support.threads import WatchedLock

#: So long that no lease ends by itself in a test.
LONG = Timing(term=300.0, recall_bound=20.0)


def test_it_is_a_tier(room) -> None:
    tier: Tier = room.borrower().tier
    assert tier.capacity_bytes == 0
    assert not tier.takes(PAGE)
    assert tier.reserve([PAGE]) == []


@pytest.mark.parametrize("planes", [1, 4])
def test_pages_go_there_and_come_back(room, planes: int) -> None:
    """Also where the donor's pages are cut into planes, and a quarter of ours."""
    donor = room.donor(pages=16, page_bytes=4 * PAGE, planes=planes, run_pages=4)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 64)
    places = [borrower.write(seed) for seed in range(64)]
    assert len(set(places)) == 64
    assert not borrower.tier.reserve([PAGE])
    for seed in (63, 0, 31):
        assert borrower.read(places[seed], seed) is ReadOutcome.OK
    assert {len(set(borrower.tier.links)), borrower.tier.links["host-d"].pages} == {4, 64}
    for name, pages in (("peer-host", 3), ("d-host", 3), ("host-peer", 64)):
        link = borrower.tier.links[name]
        assert (link.pages, link.bytes, link.transfers) == (pages, pages * PAGE, pages)
        assert link.seconds > 0
    snapshot = borrower.tier.snapshot()
    assert snapshot.capacity_bytes == snapshot.used_bytes == 64 * PAGE
    assert (snapshot.reads, snapshot.writes, snapshot.faults) == ({"ok": 3}, {"ok": 64}, 0)
    (facts,) = snapshot.donors
    assert facts.attached
    assert (facts.name, facts.leases, facts.reason) == ("d", 4, "")


def test_answers_come_on_the_tiers_own_thread(room) -> None:
    donor = room.donor()
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.reserve()
    written = borrower.begin_write(place, borrower.page(1))
    assert written.wait() == (True, "")
    read, _ = borrower.begin_read(place, b"")
    assert read.wait() is ReadOutcome.CHECKSUM
    assert written.thread == read.thread == "swift-peer"


def test_a_donor_may_come_later_and_several_lend(room) -> None:
    borrower = room.borrower()
    borrower.tier.want(16 * PAGE)
    addresses = {name: f"ipc://{room.directory}/{name}.lease" for name in ("d", "e", "b")}
    borrower.tier.neighbours({**addresses, "far": "tcp://127.0.0.1:5555", "odd": "nowhere"})
    wait_for(lambda: borrower.tier.snapshot().donors and borrower.tier.snapshot().donors[0].reason)
    assert [one.name for one in borrower.tier.snapshot().donors] == ["d", "e"]
    room.donor("d", pages=8)
    room.donor("e", pages=8)
    wait_for(lambda: borrower.tier.capacity_bytes == 16 * PAGE)
    places = [borrower.write(seed) for seed in range(10)]
    assert sorted(place.key.donor for place in places) == ["d"] * 5 + ["e"] * 5
    assert [borrower.read(place, seed) for seed, place in enumerate(places)] == [ReadOutcome.OK] * 10


def test_damage_is_told_from_a_lease_that_has_ended(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    first, second = borrower.write(1), borrower.write(2)
    donor.arena.array[:] ^= 1
    assert borrower.read(first, 1) is ReadOutcome.CHECKSUM
    donor.arena.array[:] ^= 1
    assert borrower.read(second, 2) is ReadOutcome.OK
    borrower.on_recall = borrower.tier.give_up
    donor.recall(8 * PAGE)
    wait_for(lambda: borrower.keys("ended"))
    assert borrower.read(first, 1) is ReadOutcome.CANCELLED
    assert borrower.begin_write(second, borrower.page(3)).wait() == (False, "lease ended")
    assert borrower.tier.snapshot().reads == {"ok": 1, "corrupt: checksum": 1, "cancelled": 1}


def test_a_recalled_lease_is_read_to_save_its_pages_and_given_up(room) -> None:
    donor = room.donor(pages=16, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(16)]
    outcomes = []

    def save(key) -> None:
        """On the tier's thread, as a stack does: give up when the last page is there."""
        doomed = [(seed, place) for seed, place in enumerate(places) if place.key == key]
        for seed, place in doomed:
            page = borrower.page(seed)
            read.append(borrower.begin_read(place, page_digest(page))[0])
            saved = np.zeros(PAGE, np.uint8)

            def done(outcome, seed=seed, saved=saved) -> None:
                outcomes.append((outcome, (saved == borrower.page(seed)).all()))
                if len(outcomes) == len(doomed):
                    borrower.tier.give_up(key)

            read_page(borrower.tier, place, saved, page_digest(page), done, saving=True)

    read: list = []
    borrower.on_recall = save
    donor.recall(8 * PAGE)
    wait_for(lambda: donor.reclaimed)
    assert [effect.back.value for effect in donor.reclaimed] == ["returned"]
    assert outcomes == [(ReadOutcome.OK, True)] * 8
    assert [answer.wait() for answer in read] == [ReadOutcome.OK] * 8, "who asks for a page meanwhile has it saved, too"
    # The donor has the memory before its end is told here.
    (key,) = wait_for(lambda: borrower.keys("ended"))
    assert borrower.keys("recalled") == [key]
    assert borrower.tier.capacity_bytes == 8 * PAGE
    # The rest is untouched, and what came back can be lent again.
    for seed, place in enumerate(places):
        if place.key != key:
            assert borrower.read(place, seed) is ReadOutcome.OK
    donor.restock()
    wait_for(lambda: borrower.tier.capacity_bytes == 16 * PAGE)


def test_what_is_found_first_is_saved_before_more_is_looked_for(room) -> None:
    """Both leases of a donor are recalled at once; were all pages found first, the time to save any could be over."""
    donor = room.donor(pages=16, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(16)]
    order = []

    def save(key):
        for seed, place in enumerate(places):
            if place.key == key:
                order.append(("found", seed))

                def done(outcome, seed=seed) -> None:
                    order.append((outcome, seed))

                page = borrower.page(seed)
                read_page(borrower.tier, place, np.zeros(PAGE, np.uint8), page_digest(page), done, saving=True)
                yield
        borrower.tier.give_up(key)

    borrower.on_recall = save
    donor.recall(16 * PAGE)
    wait_for(lambda: len(donor.reclaimed) == 2)
    assert sorted(seed for said, seed in order if said == "found") == list(range(16))
    assert order[1::2] == [(ReadOutcome.OK, seed) for _, seed in order[::2]]


def test_a_lease_that_ends_while_its_pages_are_looked_for(room) -> None:
    """The rest is looked for after it is gone, and it is told so first."""
    donor = room.donor(pages=8, timing=Timing(term=300.0, recall_bound=0.1))
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place, page, after = borrower.write(1), borrower.page(1), []

    def save(key):
        read_page(borrower.tier, place, np.zeros(PAGE, np.uint8), page_digest(page), after.append, saving=True)
        borrower.tier._worker.copier.read = lambda neighbour, reads: neighbour.demotes.put(reads[0])  # none is copied
        yield
        after.append(borrower.keys("ended") == [key])

    borrower.on_recall = save
    donor.recall(8 * PAGE)
    wait_for(lambda: len(after) == 2)
    assert after == [ReadOutcome.CANCELLED, True]


def test_of_a_recalled_lease_pages_are_read_and_nothing_is_stored(room) -> None:
    """Whoever reads one saves it by that."""
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place, other = borrower.write(1), borrower.reserve()
    donor.recall(8 * PAGE)
    wait_for(lambda: borrower.keys("recalled"))
    assert not borrower.tier.reserve([PAGE])
    assert borrower.tier.capacity_bytes == 0
    assert borrower.begin_write(other, borrower.page(2)).wait() == (False, "lease ended")
    assert borrower.read(place, 1) is ReadOutcome.OK
    assert borrower.read(place, 1, saving=True) is ReadOutcome.OK


def test_nothing_is_copied_while_a_borrower_is_to_be_still(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    borrower.tier._worker.rounds = rounds = WatchedLock(borrower.tier._worker.rounds)
    with borrower.tier.still():
        waiting, _ = borrower.begin_read(place, page_digest(borrower.page(1)))
        assert rounds.awaited.wait(60)
        assert not waiting.came
    assert waiting.wait() is ReadOutcome.OK


def test_what_is_to_be_saved_goes_before_reads_and_these_before_stores(room) -> None:
    donor = room.donor(pages=32, timing=LONG)
    gate = Gate()
    borrower = room.borrower(fingerprint=gate)
    borrower.borrow({"d": donor.address}, 32)
    places = [borrower.write(seed) for seed in range(4)]
    empty = borrower.reserve()
    order: list[str] = []
    gate.shut = True
    read_page(borrower.tier, places[0], np.zeros(PAGE, np.uint8), b"", lambda outcome: order.append("held"))
    assert gate.reached.acquire(timeout=60)
    write_page(borrower.tier, empty, borrower.page(9), lambda ok, why: order.append("write"), b"")
    read_page(borrower.tier, places[1], np.zeros(PAGE, np.uint8), b"", lambda outcome: order.append("read"))
    read_page(
        borrower.tier, places[2], np.zeros(PAGE, np.uint8), b"", lambda outcome: order.append("save"), saving=True
    )
    gate.shut = False
    gate.go_on.release()
    wait_for(lambda: len(order) == 4)
    assert order == ["held", "save", "read", "write"]


def test_a_place_is_not_reused_while_it_is_read(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    gate = Gate()
    borrower = room.borrower(fingerprint=gate)
    borrower.borrow({"d": donor.address}, 8)
    places = [borrower.write(seed) for seed in range(8)]
    gate.shut = True
    held, _ = borrower.begin_read(places[0], b"")
    assert gate.reached.acquire(timeout=60)
    queued, _ = borrower.begin_read(places[3], page_digest(borrower.page(3)))
    for place in (places[0], places[3]):
        borrower.tier.release([place])
    assert not borrower.tier.reserve([PAGE]), "a place was given away under a read"
    gate.shut = False
    gate.go_on.release()
    assert (held.wait(), queued.wait()) == (ReadOutcome.CHECKSUM, ReadOutcome.OK)
    assert {borrower.reserve(), borrower.reserve()} == {places[0], places[3]}


def test_what_waits_for_a_lease_that_ends_is_answered_before_its_end_is_told(room) -> None:
    donor = room.donor(pages=8, bandwidth=1.0, timing=LONG)  # one page, and then no more for hours
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    answers = []
    for asked in range(3):
        if asked:
            answers.append(borrower.begin_write(borrower.reserve(), borrower.page(asked)))
        answers.append(borrower.begin_read(place, b"")[0])
    assert not any(answer.came for answer in answers)
    before_end = []
    borrower.gone = lambda key, *_: before_end.append(all(answer.came for answer in answers))
    borrower.on_recall = borrower.tier.give_up
    donor.recall(8 * PAGE)
    assert [answer.wait() for answer in answers].count((False, "lease ended")) == 2
    assert [answer.wait() for answer in answers].count(ReadOutcome.CANCELLED) == 3
    wait_for(lambda: before_end)
    assert before_end == [True]


def test_the_donors_bandwidth_is_kept_for_reads_and_not_for_what_is_to_be_saved(room) -> None:
    donor = room.donor(pages=8, bandwidth=1.0, timing=LONG)
    other = room.donor("e", pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address, "e": other.address}, 16)
    places = {place.key.donor: place for place in (borrower.write(1), borrower.write(1))}
    waiting, _ = borrower.begin_read(places["d"], page_digest(borrower.page(1)))
    # Another donor's pages, and pages to be saved, pass.
    assert borrower.read(places["e"], 1) is ReadOutcome.OK
    donor.recall(8 * PAGE)
    assert waiting.wait() is ReadOutcome.OK, "it is saved by who waits for it"
    assert borrower.read(places["d"], 1, saving=True) is ReadOutcome.OK
    assert {one.name: one.bandwidth for one in borrower.tier.snapshot().donors} == {"d": 1.0, "e": None}


def test_what_a_donors_pace_makes_reads_wait_is_known_before(room) -> None:
    donor = room.donor(pages=8, bandwidth=PAGE / 100, timing=LONG)  # 100 s a page
    other = room.donor("e", pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address, "e": other.address}, 16)
    places = {place.key.donor: place for place in (borrower.write(1), borrower.write(1))}
    one = borrower.tier.paced_seconds("d", 1)
    assert 0 < one <= 100
    assert borrower.tier.paced_seconds("d", 3) == pytest.approx(one + 200, abs=20)
    waiting, _ = borrower.begin_read(places["d"], page_digest(borrower.page(1)))
    wait_for(lambda: borrower.tier.paced_seconds("d", 1) > one + 80)
    assert not waiting.came
    assert borrower.tier.paced_seconds("e", 1000) == 0
    assert borrower.tier.paced_seconds("unknown", 1) == 0


def test_while_its_donor_computes_a_borrower_spends_a_part_of_its_time(room, monkeypatch: pytest.MonkeyPatch) -> None:
    """So small a part that one page is enough for hours, but not for what is to be saved."""
    monkeypatch.setattr(pace, "REST_SECONDS", 1e6)
    donor = room.donor(pages=8, interference=1e-9, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place, digest = borrower.write(1), page_digest(borrower.page(1))

    def share() -> float | None:
        (one,) = borrower.tier.snapshot().donors
        return one.share

    assert share() is None
    donor.server.computing(True)
    wait_for(lambda: share() == 0.5e-9, "the word for it")
    assert borrower.read(place, 1) is ReadOutcome.OK
    waiting = [borrower.begin_read(place, digest)[0] for _ in range(3)]
    assert borrower.read(place, 1, saving=True) is ReadOutcome.OK
    assert not any(answer.came for answer in waiting)
    donor.server.computing(False)
    assert {answer.wait() for answer in waiting} == {ReadOutcome.OK}
    assert share() is None


def test_no_more_is_borrowed_than_may_be(room) -> None:
    """Runs of 8 pages: with a limit of 20 there is room for two, and the third is returned."""
    donor = room.donor(pages=64)
    borrower = room.borrower(config=PeerConfig(borrow=True, borrow_limit=Size(20 * PAGE), term=Duration(20.0)))
    borrower.tier.neighbours({"d": donor.address})
    borrower.tier.want(64 * PAGE)
    wait_for(lambda: borrower.tier.snapshot().wanted_bytes == 16 * PAGE, "the limit to be noticed")
    wait_for(lambda: donor.lent_bytes == 16 * PAGE)
    assert borrower.tier.capacity_bytes == 16 * PAGE
    # Not even if more is wanted: the donor would make room for it again.
    borrower.tier.want(65 * PAGE)
    place = borrower.write(1)
    borrower.tier.want(8 * PAGE)
    wait_for(lambda: donor.lent_bytes == 8 * PAGE)
    assert borrower.read(place, 1) is ReadOutcome.OK
    assert len(donor.reclaimed) == 2


def test_a_donor_that_lends_more_at_a_time_than_may_be_borrowed_is_left(room) -> None:
    donor = room.donor(pages=16, run_pages=4)
    events = EventLog(time.monotonic)
    borrower = room.borrower(
        config=PeerConfig(borrow=True, borrow_limit=Size(2 * PAGE), term=Duration(20.0)), events=events
    )
    borrower.tier.neighbours({"d": donor.address})
    borrower.tier.want(100 * PAGE)
    (reason,) = wait_for(lambda: [event.fields["reason"] for event in events.since() if event.kind == "donor.away"])
    assert reason == "lends 16KiB at a time, and peer.borrow_limit is 8KiB"
    assert borrower.tier.snapshot().donors[0].reason == reason
    wait_for(lambda: donor.reclaimed)
    # It is not asked again when more is wanted, and others are.
    borrower.tier.want(200 * PAGE)
    borrower.tier.neighbours({"d": donor.address, "e": room.donor("e", pages=2, run_pages=1).address})
    wait_for(lambda: borrower.tier.capacity_bytes == 2 * PAGE)
    assert len(donor.reclaimed) == 1


def test_who_wants_less_returns_leases_without_pages(room) -> None:
    donor = room.donor(pages=32)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 32)
    place = borrower.write(1)
    borrower.tier.want(8 * PAGE)
    wait_for(lambda: donor.lent_bytes == 8 * PAGE)
    assert borrower.read(place, 1) is ReadOutcome.OK
    borrower.tier.want(0)
    borrower.tier.release([borrower.write(2)])
    assert donor.lent_bytes == 8 * PAGE, "a lease with a page in it was returned"
    borrower.tier.give_up(place.key)
    wait_for(lambda: donor.lent_bytes == 0)
    assert borrower.read(place, 1) is ReadOutcome.CANCELLED


def test_a_neighbour_that_is_not_named_any_more_keeps_lending_until_it_has_its_memory_back(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    borrower.tier.neighbours({})
    assert borrower.read(place, 1) is ReadOutcome.OK
    borrower.tier.give_up(place.key)
    wait_for(lambda: not borrower.tier.snapshot().donors)
    assert borrower.read(place, 1) is ReadOutcome.CANCELLED
    assert "d-host" not in borrower.tier.links
    wait_for(lambda: donor.server.guests == [] and donor.reclaimed)
    donor.restock()
    borrower.tier.neighbours({"d": donor.address})
    wait_for(lambda: borrower.tier.capacity_bytes == 8 * PAGE)


def test_a_donor_that_has_moved_is_followed(room, directory: Path) -> None:
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    key = borrower.write(1).key
    elsewhere = directory / "x"
    elsewhere.mkdir(mode=0o700)
    with local_donor(elsewhere, pages=8, timing=LONG) as moved:
        borrower.tier.neighbours({"d": moved.address})
        wait_for(lambda: borrower.keys("ended"))
        assert borrower.keys("ended") == [key]
        wait_for(lambda: borrower.tier.capacity_bytes == 8 * PAGE)
        place = borrower.write(2)
        assert borrower.read(place, 2) is ReadOutcome.OK
        assert place.key.epoch == moved.party.epoch
        wait_for(lambda: donor.server.guests == [])
        borrower.close()


def test_everything_is_answered_when_it_closes_and_nothing_is_taken_in_afterwards(room) -> None:
    donor = room.donor(pages=8, bandwidth=1.0, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    reads = [borrower.begin_read(place, b"")[0] for _ in range(3)]
    writes = [borrower.begin_write(borrower.reserve(), borrower.page(2)) for _ in range(3)]
    borrower.close()
    assert [read.wait() for read in reads] == [ReadOutcome.CANCELLED] * 3
    assert [write.wait() for write in writes] == [(False, "the server is ending")] * 3
    wait_for(lambda: donor.lent_bytes == 0)
    assert [effect.back.value for effect in donor.reclaimed] == ["returned"]
    for ask in (lambda: borrower.begin_read(place, b""), lambda: borrower.begin_write(place, borrower.page(1))):
        with pytest.raises(RuntimeError, match="closed"):
            ask()
    borrower.tier.give_up(place.key)
    borrower.tier.want(0)
    borrower.tier.neighbours({})
    borrower.close()


def test_what_is_asked_for_just_before_it_closes_is_answered(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    gate = Gate()
    borrower = room.borrower(fingerprint=gate)
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    gate.shut = True
    held, _ = borrower.begin_read(place, page_digest(borrower.page(1)))
    assert gate.reached.acquire(timeout=60)
    late = [borrower.begin_read(place, b"")[0], borrower.begin_write(borrower.reserve(), borrower.page(2))]
    closing = threading.Thread(target=borrower.close)
    closing.start()

    def refuses() -> bool:
        try:
            late.append(borrower.begin_read(place, b"")[0])
        except RuntimeError:
            return True
        return False

    wait_for(refuses)
    gate.shut = False
    gate.go_on.release()
    closing.join(60)
    assert held.wait() is ReadOutcome.OK
    answers = [answer.wait() for answer in late]
    assert answers.count((False, "the server is ending")) == 1
    assert answers.count(ReadOutcome.CANCELLED) == len(late) - 1


def test_no_more_jobs_wait_than_may(room, monkeypatch: pytest.MonkeyPatch) -> None:
    donor = room.donor(pages=8, bandwidth=1.0, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    monkeypatch.setattr(worker, "MAX_JOBS", 3)
    waiting = [borrower.begin_read(place, b"")[0] for _ in range(3)]
    # Not while one is on its way from where it was put to where it waits.
    wait_for(lambda: borrower.tier.snapshot().donors[0].queued == 3)
    with pytest.raises(RuntimeError, match="wait already"):
        borrower.begin_read(place, b"")
    borrower.tier.release([place])
    borrower.close()
    assert [one.wait() for one in waiting] == [ReadOutcome.CANCELLED] * 3


def test_who_raises_in_an_answer_harms_nobody(room) -> None:
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)

    def fail(*_: object) -> None:
        raise KeyError("injected")

    read_page(borrower.tier, place, np.zeros(PAGE, np.uint8), b"", fail)
    write_page(borrower.tier, borrower.reserve(), borrower.page(1), fail, b"")
    borrower.on_recall = fail
    donor.recall(8 * PAGE)
    wait_for(lambda: borrower.tier.snapshot().faults == 3)
    assert borrower.read(place, 1, saving=True) is ReadOutcome.OK


@pytest.mark.parametrize(
    "page",
    [np.zeros(PAGE - 1, np.uint8), np.zeros(PAGE, np.int8), np.zeros(2 * PAGE, np.uint8)[::2]],
    ids=["short", "signed", "strided"],
)
def test_what_is_no_page_is_refused_at_once(room, page: np.ndarray) -> None:
    donor = room.donor(pages=8)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.reserve()
    with pytest.raises(ValueError, match="a page is uint8"):
        write_page(borrower.tier, place, page, lambda ok, why: None, b"")
    with pytest.raises(ValueError, match="a page is uint8"):
        read_page(borrower.tier, place, page, b"", lambda outcome: None)
    borrower.tier.release([place])
    with pytest.raises(ValueError, match="not held"):
        borrower.begin_write(place, borrower.page(1))


def test_a_donor_that_lends_what_it_has_not_got_is_left_alone(room) -> None:
    donor = room.donor(pages=8)
    donor.recall(8 * PAGE)
    donor.service.stock(100, [Extent(0, 4 * PAGE, 8 * PAGE)])
    donor.service.fenced(100)
    borrower = room.borrower()
    borrower.tier.neighbours({"d": donor.address})
    borrower.tier.want(8 * PAGE)
    wait_for(
        lambda: "not handed out" in borrower.tier.snapshot().donors[0].reason if borrower.tier.snapshot().donors else ""
    )
    assert borrower.tier.capacity_bytes == 0
    assert (donor.arena.array == OWN).all()


def test_leases_end_with_the_connection_to_the_memory(room) -> None:
    """Though the donor's part in the lease protocol goes on."""
    donor = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    donor.server.close()
    wait_for(lambda: borrower.keys("ended"))
    assert borrower.read(place, 1) is ReadOutcome.CANCELLED
    assert borrower.tier.capacity_bytes == 0
    wait_for(lambda: donor.reclaimed)
    assert [effect.back.value for effect in donor.reclaimed] == ["returned"]


def test_a_new_life_is_followed_though_the_former_ones_connection_stays_open(room) -> None:
    """As where a child of the dead process has inherited it."""
    former = room.donor(pages=8, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": former.address}, 8)
    borrower.write(1)
    borrower.on_recall = borrower.tier.give_up
    former.service.close()
    assert former.server.guests
    latter = room.donor(pages=8, timing=LONG)
    # What is granted before the new memory is attached goes back, and is lent again.
    wait_for(lambda: latter.restock() or borrower.tier.capacity_bytes == 8 * PAGE)
    place = borrower.write(2)
    assert place.key.epoch == latter.party.epoch
    assert borrower.read(place, 2) is ReadOutcome.OK
    assert latter.server.counters["stored"] == 1
    wait_for(lambda: former.server.guests == [])


class HangingServer(ArenaServer):
    """Does not come back from a copy until it may."""

    go_on = threading.Event()

    def _copy(self, *arguments: Any) -> None:
        assert self.go_on.wait(60)
        super()._copy(*arguments)


@pytest.fixture
def hanging(room, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalDonor, Borrowing, PeerPlace, Answer]:
    """A donor in the middle of a store."""
    monkeypatch.setattr(HangingServer, "go_on", threading.Event())
    donor = room.donor(pages=16, timing=Timing(term=300.0, recall_bound=0.2), server=HangingServer)
    room.opened.append(Release(HangingServer.go_on))
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 16)
    place = borrower.reserve()
    return donor, borrower, place, borrower.begin_write(place, borrower.page(1))


class Release:
    """Closed first: lets go what a test holds."""

    def __init__(self, event: threading.Event) -> None:
        self.close = event.set


def test_a_donor_that_does_not_answer_is_asked_anew(hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    donor, borrower, place, write = hanging
    monkeypatch.setattr(neighbour, "ANSWER_SECONDS", 0.2)
    # The first store was given more time, the next one is not.
    other = borrower.begin_write(borrower.reserve(), borrower.page(2))
    assert (write.wait(), other.wait()) == ((False, "lease ended"),) * 2
    wait_for(lambda: "does not answer" in borrower.tier.snapshot().donors[0].reason)
    wait_for(lambda: len(borrower.keys("ended")) == 2)
    monkeypatch.setattr(neighbour, "ANSWER_SECONDS", 60.0)  # from now on it answers, however slowly
    HangingServer.go_on.set()
    wait_for(lambda: donor.restock() or borrower.tier.capacity_bytes)
    assert borrower.write(2).key != place.key


def test_a_store_that_hangs_at_its_donor_ends_with_its_lease(hanging) -> None:
    donor, borrower, _, write = hanging
    before_end: list[bool] = []
    borrower.gone = lambda key, *_: before_end.append(write.came)
    donor.recall(16 * PAGE)
    assert write.wait() == (False, "lease ended")
    wait_for(lambda: len(before_end) == 2)
    assert any(before_end)
    assert len(write.calls) == 1


def test_a_store_that_was_made_too_late_is_not_believed(room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The donor says that the page is there; the lease is over by the time that is heard."""
    monkeypatch.setattr(HangingServer, "go_on", threading.Event())
    donor = room.donor(pages=8, timing=Timing(term=300.0, recall_bound=0.1), server=HangingServer)
    room.opened.append(Release(HangingServer.go_on))
    gate = Gate()
    borrower = room.borrower(fingerprint=gate)
    borrower.borrow({"d": donor.address}, 8)
    written = borrower.begin_write(borrower.reserve(), borrower.page(1))
    wait_for(lambda: borrower.tier.snapshot().donors[0].storing == 1)
    gate.shut = True
    borrower.begin_read(borrower.reserve(), b"")
    assert gate.reached.acquire(timeout=60)
    HangingServer.go_on.set()
    wait_for(lambda: donor.server.counters["stored"] == 1)
    donor.recall(8 * PAGE)
    wait_for(lambda: donor.reclaimed)
    gate.shut = False
    gate.go_on.release()
    assert written.wait() == (False, "lease ended")


def test_a_read_that_outlasts_its_lease_is_thrown_away_though_its_bytes_are_right(
    room, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = room.donor(pages=8, timing=Timing(term=300.0, recall_bound=0.1))
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    place = borrower.write(1)
    copied, go_on = threading.Event(), threading.Event()
    copy = ArenaClient.copy

    def slow_copy(*arguments: Any) -> None:
        copy(*arguments)
        copied.set()
        assert go_on.wait(60)

    monkeypatch.setattr(ArenaClient, "copy", slow_copy)
    answer, into = borrower.begin_read(place, page_digest(borrower.page(1)))
    assert copied.wait(60)
    donor.recall(8 * PAGE)
    wait_for(lambda: donor.reclaimed)
    go_on.set()
    assert answer.wait() is ReadOutcome.CANCELLED
    assert (into == borrower.page(1)).all()


class RefusingServer(ArenaServer):
    """Stores nothing."""

    def _store(self, *arguments: Any) -> list[Any]:
        return []


def test_a_page_that_its_donor_has_not_stored_is_not_there(room) -> None:
    donor = room.donor(pages=8, server=RefusingServer)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    assert borrower.begin_write(borrower.reserve(), borrower.page(1)).wait() == (False, "the donor refused")
    assert borrower.tier.links["host-peer"].pages == 0


def test_a_page_that_cannot_be_staged_costs_none_of_the_others(room) -> None:
    # Nobody gives a lease up here before the bound that its donor sets.
    donor = room.donor(pages=8, timing=Timing(term=LONG.term, recall_bound=1.0))
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 8)
    staging = borrower.tier._worker.staging
    put, puts = staging.put, []

    def fail_once(page: np.ndarray) -> int:
        puts.append(page)
        if len(puts) == 2:
            raise MemoryError("injected")
        return put(page)

    staging.put = fail_once
    with borrower.tier.still():  # so that they are one batch
        answers = [borrower.begin_write(borrower.reserve(), borrower.page(seed)) for seed in range(4)]
    assert [answer.wait() for answer in answers] == [(True, ""), (False, FAILED), (True, ""), (True, "")]
    (one,) = borrower.tier.snapshot().donors
    assert (one.storing, staging.room, borrower.tier.snapshot().faults) == (0, staging.slots, 1)
    donor.recall(8 * PAGE)
    wait_for(lambda: [each.back.value for each in donor.reclaimed] == ["returned"])


def test_memory_that_cannot_be_copied_from_takes_no_staging() -> None:
    staging = Staging(PAGE)
    try:
        with pytest.raises(ValueError, match="broadcast"):
            staging.put(np.zeros(PAGE - 1, np.uint8))
        assert staging.room == staging.slots
    finally:
        staging.close()


def test_stores_that_cannot_be_sent_are_answered_and_the_donor_is_joined_anew(
    room, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = room.donor(pages=16, timing=LONG)
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 16)

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError("injected")

    monkeypatch.setattr(ArenaClient, "store", fail)
    with borrower.tier.still():
        answers = [borrower.begin_write(borrower.reserve(), borrower.page(seed)) for seed in range(4)]
    assert [answer.wait() for answer in answers] == [(False, "lease ended")] * 4
    wait_for(lambda: len(donor.reclaimed) == 2 and not borrower.tier.capacity_bytes)
    donor.restock()
    wait_for(lambda: borrower.tier.capacity_bytes)
    assert borrower.read(borrower.write(5), 5) is ReadOutcome.OK


class FakeDonor:
    """Listens where a donor should, and says what the test wants."""

    def __init__(self, directory: Path) -> None:
        self.address = ipc_address(directory, "d")
        self.listener = packet_socket()
        self.listener.bind(str(arena_path(self.address)))
        self.listener.listen()
        self.connection: Any = None

    def accept(self) -> None:
        def accepted() -> bool:
            try:
                self.connection = self.listener.accept()[0]
            except BlockingIOError:
                return False
            return True

        wait_for(accepted)

    def close(self) -> None:
        for one in (self.listener, self.connection):
            if one is not None:
                one.close()


def test_what_is_not_a_donor_is_ignored_and_left(room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour, "ANSWER_SECONDS", 2.0)  # time enough to say all that follows
    fake = FakeDonor(room.directory)
    room.opened.append(fake)
    events = EventLog(time.time)
    borrower = room.borrower(events=events)
    borrower.tier.neighbours({"d": fake.address})
    borrower.tier.want(8 * PAGE)

    def reason() -> str:
        return "".join(one.reason for one in borrower.tier.snapshot().donors)

    # Garbage, packets out of place, answers to what nobody has asked: nothing comes of it, until patience ends.
    fake.accept()
    attached = Attached(Party("d", 1), PAGE, "host", "", None)
    for packet in (b"x", bytes(MAX_PACKET_BYTES + 1), encode(attached), encode(StoresDone((Stored(1, True),)))):
        send(fake.connection, packet)
    with open(os.devnull) as device:
        send(fake.connection, b"x", device.fileno())  # is closed: the fixture counts
    wait_for(lambda: "does not answer" in reason())
    # Memory that could be taken away.
    fake.accept()
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, PAGE)
    send(fake.connection, encode(attached), unsealed)
    os.close(unsealed)
    wait_for(lambda: "sealed" in reason())
    # Another version.
    fake.accept()
    send(fake.connection, msgspec.msgpack.encode([VERSION + 1, {"type": "attached"}]))
    wait_for(lambda: "same release" in reason())
    # A real donor that takes its place is found.
    fake.close()
    room.donor(pages=8)
    wait_for(lambda: borrower.tier.capacity_bytes == 8 * PAGE)
    assert borrower.tier.snapshot().faults == 0
    told = [event.fields["reason"] for event in events.since() if event.kind == "donor.away"]
    assert len(told) == len(set(told)), "each is told once"
    for words in ("does not answer", "sealed", "same release"):
        assert any(words in one for one in told)


def test_leases_are_renewed_while_pages_move(room) -> None:
    """For longer than a term, with both threads busy."""
    term = 5.0
    donor = room.donor(pages=32, timing=Timing(term=term))
    borrower = room.borrower()
    borrower.borrow({"d": donor.address}, 32)
    places = {seed: borrower.write(seed) for seed in range(16)}
    until = time.monotonic() + 1.4 * term
    rounds = 0
    while time.monotonic() < until:
        for seed, place in places.items():
            assert borrower.read(place, seed) is ReadOutcome.OK
        rounds += 1
    assert rounds
    assert borrower.keys("ended") == []
