"""The borrower's machine: what it may use until when, how it gives back, and what it does not believe."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.lending.leases import Donor, Letter, LinkState, Party, Use
from swift_tiers.radix_tiering.lending.leases.effects import (
    Back,
    DonorJoined,
    DonorLeft,
    DonorRefused,
    Ended,
    LeaseBegan,
    LeaseEnded,
    LeaseRecalled,
    Reclaimed,
)
from swift_tiers.radix_tiering.lending.leases.messages import (
    Expire,
    Extent,
    Grant,
    GrantedLease,
    Hello,
    Recall,
    Renew,
    Renewed,
    Request,
    Return,
    Welcome,
)
from swift_tiers.radix_tiering.lending.leases.timing import RENEWALS_PER_TERM

from support.lease_pair import PAGE, RUN, Pair


@pytest.fixture
def pair() -> Pair:
    """A borrower that holds one lease."""
    pair = Pair()
    pair.stock()
    pair.want(RUN)
    pair.effects["d"].clear()
    return pair


def hand(pair: Pair, body: object, epoch: int | None = None) -> None:
    """Give the borrower a letter of the donor by hand."""
    sender = Party("d", pair.donor.party.epoch if epoch is None else epoch)
    pair.do("b", pair.borrower.receive(Letter(sender, pair.borrower.party.epoch, body), pair.now))  # type: ignore[arg-type]


def test_bytes_are_believed_only_while_the_lease_lasts(pair: Pair) -> None:
    pair.hold = {Renew}
    key = pair.key()
    ticket = pair.borrower.check_before(key, pair.now)
    assert ticket is not None
    assert pair.borrower.check_after(ticket, pair.now + 1.9)
    ticket = pair.borrower.check_before(key, pair.now + 1.9)
    assert ticket is not None
    # No tick has told it: who was stopped for longer than the lease looks at the clock alone.
    assert not pair.borrower.check_after(ticket, pair.now + 2.0)
    assert pair.borrower.check_before(key, pair.now + 2.0) is None


def test_a_ticket_ends_once(pair: Pair) -> None:
    ticket = pair.borrower.check_before(pair.key(), pair.now)
    assert ticket is not None
    pair.borrower.check_after(ticket, pair.now)
    with pytest.raises(ValueError, match="exactly once"):
        pair.borrower.check_after(ticket, pair.now)


def test_a_term_counts_from_the_first_sending_of_the_request() -> None:
    pair = Pair()
    pair.hold = {Request, Renew}
    pair.stock()
    start = pair.now
    pair.want(RUN)
    pair.advance(0.75)
    assert len(pair.held) > 3, "it is asked again"
    pair.deliver(pair.held[-1])
    ticket = pair.borrower.check_before(pair.key(), pair.now)
    assert ticket is not None
    assert not pair.borrower.check_after(ticket, start + 2.0)


def test_a_grant_that_comes_too_late_is_returned() -> None:
    pair = Pair()
    pair.hold = {Grant}
    pair.stock()
    pair.want(RUN)
    late = pair.held[0]
    pair.advance(1.2)
    pair.hold = set()
    pair.deliver(late)
    assert not pair.told("b", LeaseBegan)
    assert Reclaimed(1, Back.RETURNED) in pair.effects["d"]


def test_leases_are_renewed_as_long_as_they_are_held(pair: Pair) -> None:
    pair.advance(30.0)
    assert pair.borrower.table("d") == pair.donor.table(pair.borrower.party) != {}
    assert pair.borrower.usable(pair.key(), pair.now)


def test_some_renewals_may_be_lost(pair: Pair) -> None:
    for _ in range(5):
        pair.hold = {Renewed}
        pair.advance(3 * pair.donor.timing.term / RENEWALS_PER_TERM)
        pair.hold = set()
        pair.advance(0.5)
    assert pair.borrower.held_bytes == RUN
    pair.hold = {Renewed}
    pair.advance(2.5)
    assert pair.told("b", LeaseEnded) == [LeaseEnded(pair.key(), Ended.EXPIRED)]


def test_an_old_renewal_counts_from_when_it_was_sent(pair: Pair) -> None:
    pair.hold = {Renewed}
    pair.advance(0.5)
    sent = 100.0 + pair.donor.timing.term / RENEWALS_PER_TERM
    (old,) = pair.held
    pair.now = 101.9
    pair.deliver(old)
    assert pair.borrower.usable(pair.key(), sent + 1.99)
    assert not pair.borrower.usable(pair.key(), sent + 2.0)


def test_a_recalled_lease_allows_demotion_until_it_is_released(pair: Pair) -> None:
    key = pair.key()
    reading = pair.borrower.check_before(key, pair.now)
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    (recalled,) = pair.told("b", LeaseRecalled)
    assert pair.now < recalled.until <= pair.now + pair.donor.timing.recall_bound
    assert pair.borrower.check_before(key, pair.now) is None
    assert pair.borrower.check_before(key, pair.now, Use.STORE) is None
    demoting = pair.borrower.check_before(key, pair.now, Use.DEMOTE)
    assert reading is not None
    assert demoting is not None
    assert pair.borrower.check_after(demoting, pair.now)
    pair.do("b", pair.borrower.release(key, pair.now))
    assert not pair.told("d", Reclaimed), "a read is under way"
    assert pair.borrower.check_before(key, pair.now, Use.DEMOTE) is None
    assert pair.borrower.check_after(reading, pair.now), "it ended before the return"
    pair.settle()
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.RECALLED)]


def test_a_recall_waits_for_no_read_longer_than_its_bound(pair: Pair) -> None:
    start = pair.now
    reading = pair.borrower.check_before(pair.key(), pair.now)
    assert reading is not None
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    pair.advance(pair.donor.timing.recall_bound)
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    assert not pair.borrower.check_after(reading, start), "cancelled, whatever the clock says"


def test_a_store_under_way_holds_the_return_back(pair: Pair) -> None:
    storing = pair.borrower.check_before(pair.key(), pair.now, Use.STORE)
    assert storing is not None
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    pair.advance(0.2)
    assert not pair.told("d", Reclaimed)
    assert pair.told("b", LeaseEnded) == [LeaseEnded(pair.key(), Ended.RECALLED)]
    assert not pair.borrower.check_after(storing, pair.now)
    pair.settle()
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]


def test_a_release_lets_reads_finish(pair: Pair) -> None:
    key = pair.key()
    reading = pair.borrower.check_before(key, pair.now)
    assert reading is not None
    pair.do("b", pair.borrower.release(key, pair.now))
    assert pair.borrower.check_before(key, pair.now) is None
    assert pair.borrower.check_after(reading, pair.now + 0.5)
    pair.now += 0.5
    pair.settle()
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.RELEASED)]
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]


def test_a_return_is_said_again_until_it_is_answered(pair: Pair) -> None:
    pair.hold = {Return}
    pair.do("b", pair.borrower.release(pair.key(), pair.now))
    pair.advance(0.35)
    assert len(pair.held) == 4
    pair.hold = set()
    pair.advance(0.2)
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    said = len(pair.said(Return))
    pair.advance(1.0)
    assert len(pair.said(Return)) == said
    assert pair.borrower.keys() == []


def test_a_return_that_nobody_answers_is_forgotten(pair: Pair) -> None:
    pair.hold = {Return}
    pair.do("b", pair.borrower.release(pair.key(), pair.now))
    pair.advance(2 * pair.donor.timing.term + 0.1)
    assert pair.borrower.keys() == []


def test_a_recall_that_overtakes_its_grant_wins() -> None:
    pair = Pair()
    pair.hold = {Grant}
    pair.stock()
    pair.want(RUN)
    (grant,) = pair.held
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    pair.hold = set()
    pair.deliver(grant)
    assert not pair.told("b", LeaseBegan)
    assert pair.borrower.held_bytes == 0


def test_a_grant_twice_begins_its_leases_once(pair: Pair) -> None:
    (grant,) = [letter for letter in pair.letters if isinstance(letter.body, Grant)]
    pair.do("b", pair.borrower.receive(grant, pair.now))
    assert len(pair.told("b", LeaseBegan)) == 1
    assert pair.borrower.table("d") == pair.donor.table(pair.borrower.party) != {}


def test_a_grant_of_broken_pages_is_returned() -> None:
    pair = Pair()
    pair.hold = {Grant, Return}
    pair.stock()
    pair.want(RUN)
    nonce = pair.held.pop().letter.body.nonce  # type: ignore[union-attr]
    hand(pair, Grant(nonce, 2.0, (GrantedLease(7, (Extent(0, 0, PAGE + 1),)),)))
    assert not pair.told("b", LeaseBegan)
    assert [send.letter.body for send in pair.held] == [Return((7,))]


def test_what_the_donor_has_ended_is_over(pair: Pair) -> None:
    key = pair.key()
    hand(pair, Expire((key.lease,)))
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.EXPIRED)]
    assert pair.borrower.check_before(key, pair.now) is None


def test_a_new_life_of_the_donor_ends_all_leases(pair: Pair) -> None:
    key, old = pair.key(), pair.donor.party
    pair.machines["d"] = Donor("d", PAGE, pair.random)
    pair.advance(1.0)
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.LOST)]
    assert pair.told("b", DonorLeft) == [DonorLeft("d", old.epoch)]
    assert pair.told("b", DonorJoined)[-1] == DonorJoined("d", pair.donor.party.epoch, PAGE)
    assert pair.borrower.check_before(key, pair.now) is None


def test_an_old_welcome_does_not_bring_a_former_life_back(pair: Pair) -> None:
    nonce = pair.said(Hello)[0].nonce
    hand(pair, Welcome(nonce, PAGE), epoch=4711)
    assert pair.borrower.usable(pair.key(), pair.now)
    assert pair.borrower.donors == {"d": LinkState.JOINED}


def test_a_donor_that_is_gone_takes_its_leases_along(pair: Pair) -> None:
    key, donor = pair.key(), pair.donor.party
    reading = pair.borrower.check_before(key, pair.now)
    assert reading is not None
    pair.do("b", pair.borrower.gone(Party("d", donor.epoch + 1), pair.now))
    assert pair.borrower.usable(key, pair.now), "that was another life"
    pair.do("b", pair.borrower.gone(donor, pair.now))
    assert not pair.borrower.check_after(reading, pair.now)
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.LOST)]
    assert pair.borrower.donors == {"d": LinkState.SEEKING}


def test_letters_to_a_former_life_of_the_borrower_change_nothing(pair: Pair) -> None:
    letter = Letter(pair.donor.party, pair.borrower.party.epoch + 1, Recall((pair.key().lease,), 0.05))
    assert pair.borrower.receive(letter, pair.now) == []
    assert pair.borrower.usable(pair.key(), pair.now)


def test_what_is_missing_is_asked_of_all_donors_who_offer() -> None:
    pair = Pair(donors=("d", "e"))
    pair.stock(4)
    pair.stock(4, donor="e")
    pair.advance(1.0)
    pair.want(6 * RUN)
    held = {donor: sum(e.length for x in pair.borrower.table(donor).values() for e in x) for donor in ("d", "e")}
    assert held == {"d": 3 * RUN, "e": 3 * RUN}
    pair.do("e", pair.machines["e"].set_limit(0, pair.now))
    pair.advance(1.0)
    assert len(pair.borrower.table("d")) == 4, "what one takes back, the other may have"
    assert pair.borrower.table("e") == {}


def test_who_leaves_returns_everything(pair: Pair) -> None:
    key = pair.key()
    pair.do("b", pair.borrower.disconnect("d", pair.now))
    pair.settle()
    assert pair.told("b", LeaseEnded) == [LeaseEnded(key, Ended.RELEASED)]
    assert pair.told("b", DonorLeft) == [DonorLeft("d", key.epoch)]
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    assert pair.borrower.donors == {}
    assert pair.borrower.disconnect("d", pair.now) == []


@pytest.mark.parametrize("lost", [frozenset(), frozenset({Return})])
def test_what_is_granted_to_who_is_leaving_is_returned_at_once_and_never_begins(lost: frozenset[type]) -> None:
    pair = Pair()
    pair.stock(2)
    pair.hold = {Grant}
    pair.want(2 * RUN)
    pair.do("b", pair.borrower.disconnect("d", pair.now))
    pair.settle()
    assert pair.borrower.donors == {"d": LinkState.LEAVING}, "it forgot that memory may be on its way"
    pair.hold = set(lost)
    pair.deliver(pair.held.pop())
    pair.settle()
    pair.hold = set()
    pair.advance(2 * pair.borrower.timing.retry)  # well before the leases end
    assert pair.told("d", Reclaimed) == [Reclaimed(run, Back.RETURNED) for run in (1, 2)]
    assert pair.told("b", LeaseBegan) == []
    assert pair.told("b", LeaseEnded) == []
    assert pair.borrower.donors == {}


def test_who_leaves_waits_for_an_answer_no_longer_than_it_could_begin_a_lease() -> None:
    pair = Pair()
    pair.stock()
    pair.hold = {Request}
    pair.want(RUN)
    pair.do("b", pair.borrower.disconnect("d", pair.now))
    pair.advance(pair.borrower.timing.term / 2)
    assert pair.borrower.donors == {}
    assert len(pair.held) == 1, "it asked again for what it would return"


def test_a_recall_of_what_is_granted_to_who_is_leaving_is_obeyed() -> None:
    pair = Pair()
    pair.stock()
    pair.hold = {Grant}
    pair.want(RUN)
    pair.do("b", pair.borrower.disconnect("d", pair.now))
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    pair.settle()
    assert pair.told("d", Reclaimed) == [Reclaimed(1, Back.RETURNED)]
    pair.hold = set()
    pair.deliver(pair.held.pop())
    pair.advance(1.0)
    assert pair.told("b", LeaseBegan) == []
    assert pair.borrower.donors == {}


def test_a_donor_that_cannot_be_talked_to_is_told_once_and_asked_again() -> None:
    pair = Pair()
    borrower = pair.machines["b"] = type(pair.borrower)("b", PAGE, pair.random)
    pair.hold = {Hello}
    pair.do("b", borrower.connect("d", pair.now))
    for _ in range(3):
        pair.do("b", borrower.refused("d", "version 2 there, 1 here", pair.now))
    assert pair.told("b", DonorRefused) == [DonorRefused("d", "version 2 there, 1 here")]
    before = len(pair.held)
    pair.advance(pair.borrower.timing.silence - 0.1)
    assert len(pair.held) == before
    pair.hold = set()
    pair.advance(0.5)
    assert borrower.donors == {"d": LinkState.JOINED}


def test_a_donor_is_connected_once(pair: Pair) -> None:
    with pytest.raises(ValueError, match="connected already"):
        pair.borrower.connect("d", pair.now)


def wanted_of(pair: Pair, *donors: str) -> list[int]:
    """What each donor makes room for."""
    return [pair.machines[donor].wanted_bytes(RUN) for donor in donors]


def test_donors_make_room_for_what_is_wanted_once() -> None:
    donors = ("d", "e", "f", "g")
    pair = Pair(donors=donors)
    pair.want(8 * RUN)
    assert wanted_of(pair, *donors) == [2 * RUN] * 4


def test_who_has_something_to_lend_is_asked_for_what_others_have_not() -> None:
    donors = ("d", "e", "f", "g")
    pair = Pair(donors=donors)
    pair.want(8 * RUN)
    looks = 0
    while pair.borrower.held_bytes < 8 * RUN:
        looks += 1
        assert looks < 12, f"{pair.borrower.held_bytes} bytes are lent after {looks / 4} s"
        pair.advance(0.25)
        (wanted,) = wanted_of(pair, "g")
        pair.stock(-(-wanted // RUN), donor="g")
    # Each of the others would tell at once if it had something, and makes room for no more than that.
    assert all(wanted <= PAGE for wanted in wanted_of(pair, "d", "e", "f"))


def test_donors_are_told_at_once_that_nothing_more_is_wanted() -> None:
    pair = Pair(donors=("d", "e"))
    pair.want(4 * RUN)
    pair.stock(4, donor="e")
    assert pair.borrower.held_bytes == 4 * RUN
    assert wanted_of(pair, "d", "e") == [0, 0]


def test_a_donor_that_had_nothing_is_asked_for_all_when_it_has_something() -> None:
    pair = Pair(donors=("d", "e"))
    pair.want(8 * RUN)
    pair.advance(3)
    assert wanted_of(pair, "d", "e") == [PAGE, PAGE], "nobody has anything"
    pair.stock(1, donor="e")
    pair.advance(0.5)
    assert wanted_of(pair, "d", "e") == [PAGE, 7 * RUN]
