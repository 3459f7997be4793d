"""The donor's machine: what it lends to whom, when it comes back, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from swift_tiers.radix_tiering.lending.leases import Donor, Extent, Letter, Party, RunState, Timing
from swift_tiers.radix_tiering.lending.leases.donor import MOST_WANTED
from swift_tiers.radix_tiering.lending.leases.effects import (
    Back,
    BorrowerJoined,
    BorrowerLeft,
    DonorRefused,
    Fence,
    LeaseRecalled,
    Reclaimed,
    Send,
)
from swift_tiers.radix_tiering.lending.leases.messages import (
    MAX_EXTENTS,
    MAX_LEASES,
    Expire,
    Grant,
    Heartbeat,
    Hello,
    Offer,
    Reason,
    Recall,
    Refuse,
    Renew,
    Renewed,
    Request,
    Return,
)

from support.lease_pair import PAGE, RUN, Pair


def bodies(outputs: list[Any], kind: type) -> list[Any]:
    return [output.letter.body for output in outputs if isinstance(output, Send) and type(output.letter.body) is kind]


def hand(pair: Pair, body: Any, sender: Party | None = None) -> list[Any]:
    """Give the donor a letter by hand; what it says, which is not delivered."""
    return pair.donor.receive(Letter(sender or pair.borrower.party, pair.donor.party.epoch, body), pair.now)


def test_nothing_is_offered_or_granted_before_its_fence() -> None:
    pair = Pair()
    (run,) = pair.stock(fenced=False)
    pair.want(RUN)
    assert pair.told("d", Fence) == [Fence(run)]
    assert {offer.free_bytes for offer in pair.said(Offer)} == {0}
    other = Party("c", 5)
    hand(pair, Hello(1, PAGE), other)
    assert bodies(hand(pair, Request(2, RUN), other), Refuse) == [Refuse(2, Reason.NOTHING)]
    pair.do("d", pair.donor.fenced(run))
    pair.do("d", pair.donor.gone(other))
    pair.settle()
    assert pair.borrower.held_bytes == RUN
    assert pair.donor.bytes_in(RunState.LENT) == RUN


def test_a_fence_of_a_withdrawn_run_means_nothing() -> None:
    pair = Pair()
    (run,) = pair.stock(fenced=False)
    assert pair.donor.withdraw(1, pair.now) == [Reclaimed(run, Back.UNUSED)]
    assert pair.donor.fenced(run) == []
    assert pair.donor.bytes_in(*RunState) == 0


def test_run_numbers_are_not_used_again() -> None:
    pair = Pair()
    (run,) = pair.stock()
    pair.donor.withdraw(1, pair.now)
    with pytest.raises(ValueError, match="must grow"):
        pair.donor.stock(run, [Extent(0, 0, RUN)])


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ([], "0 extents"),
        ([Extent(0, 0, PAGE)] * (MAX_EXTENTS + 1), f"{MAX_EXTENTS + 1} extents"),
        ([Extent(0, 0, PAGE + 1)], "not whole pages"),
    ],
)
def test_what_cannot_be_lent_is_refused(extents: list[Extent], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Donor("d", PAGE, Random(1)).stock(1, extents)


def test_a_request_asked_again_is_answered_the_same() -> None:
    pair = Pair()
    pair.stock(3)
    first = bodies(hand(pair, Request(50, 2 * RUN)), Grant)
    assert len(first[0].leases) == 2
    assert bodies(hand(pair, Request(50, 2 * RUN)), Grant) == first
    assert pair.donor.bytes_in(RunState.LENT) == 2 * RUN
    assert hand(pair, Request(49, RUN)) == [], "late: a newer one has been answered"


def test_a_lease_ends_at_its_deadline_and_not_before() -> None:
    timing = Timing(drift=0.1, margin=0.5, term=2.0)
    pair = Pair(timing=timing)
    (run,) = pair.stock()
    hand(pair, Request(50, RUN))
    deadline = pair.now + 2.0 * 1.1 / 0.9 + 0.5
    assert pair.donor.wake <= deadline
    assert not [o for o in pair.donor.tick(deadline - 1e-6) if isinstance(o, Reclaimed)]
    assert pair.donor.wake == pytest.approx(deadline)
    outputs = pair.donor.tick(deadline)
    assert Reclaimed(run, Back.EXPIRED) in outputs
    assert len(bodies(outputs, Expire)) == 1


def test_renewals_lengthen_but_recalled_leases_are_not_renewed() -> None:
    pair = Pair()
    pair.stock(2)
    pair.want(2 * RUN)
    kept, recalled = pair.donor.table(pair.borrower.party)
    pair.hold = {Return, Renew, Recall}
    pair.do("d", pair.donor.recall([recalled], pair.now))
    pair.now += 1.5
    outputs = hand(pair, Renew(77, (kept, recalled, 4711)))
    assert bodies(outputs, Renewed) == [Renewed(77, pair.donor.timing.term, (kept,))]
    assert bodies(outputs, Expire) == [Expire((4711,))]
    assert [recall.leases for recall in bodies(outputs, Recall)] == [(recalled,)]
    pair.now += 1.0
    pair.do("d", pair.donor.tick(pair.now))
    assert list(pair.donor.table(pair.borrower.party)) == [kept]


def test_only_the_holder_can_return() -> None:
    pair = Pair("b", "c")
    pair.stock()
    pair.want(RUN)
    (lease,) = pair.donor.table(pair.borrower.party)
    hand(pair, Return((lease,)), pair.machines["c"].party)
    former = Party("b", pair.borrower.party.epoch + 1)
    hand(pair, Hello(1, PAGE), former)
    hand(pair, Return((lease,)), former)
    assert pair.donor.holds(pair.borrower.party, lease)
    assert not pair.donor.holds(former, lease)


def test_letters_for_a_former_epoch_change_nothing() -> None:
    pair = Pair()
    pair.stock()
    pair.want(RUN)
    (lease,) = pair.donor.table(pair.borrower.party)
    old = Letter(pair.borrower.party, pair.donor.party.epoch + 1, Return((lease,)))
    assert bodies(pair.donor.receive(old, pair.now), Refuse) == [Refuse(0, Reason.EPOCH)]
    assert pair.donor.holds(pair.borrower.party, lease)


def test_who_has_no_session_is_told_so() -> None:
    pair = Pair()
    assert bodies(hand(pair, Heartbeat(0), Party("x", 5)), Refuse) == [Refuse(0, Reason.UNKNOWN)]


def test_a_borrower_that_is_gone_holds_nothing() -> None:
    pair = Pair()
    runs = pair.stock(2)
    pair.want(2 * RUN)
    outputs = pair.donor.gone(pair.borrower.party)
    assert outputs == [*(Reclaimed(run, Back.GONE) for run in runs), BorrowerLeft(pair.borrower.party)]
    assert pair.donor.gone(pair.borrower.party) == []


def test_a_silent_session_is_kept_as_long_as_it_holds_a_lease() -> None:
    pair = Pair(timing=Timing(term=10.0, silence=1.0))
    pair.stock()
    hand(pair, Request(50, RUN))
    pair.donor.tick(pair.now + 5.0)
    assert pair.donor.borrowers == [pair.borrower.party]
    outputs = pair.donor.tick(pair.now + 20.0)
    assert BorrowerLeft(pair.borrower.party) in outputs
    assert pair.donor.borrowers == []


def test_recall_is_said_again_with_what_is_left_of_the_bound() -> None:
    pair = Pair()
    pair.stock()
    pair.want(RUN)
    pair.hold = {Return}
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    pair.advance(0.04)
    withins = [recall.within for recall in pair.said(Recall)]
    assert len(withins) >= 4
    assert withins[0] < pair.donor.timing.recall_bound
    assert all(later < earlier for earlier, later in pairwise(withins))


def test_withdraw_takes_what_is_not_lent_first_and_counts_what_is_recalled() -> None:
    pair = Pair()
    pair.stock(2)
    pair.want(2 * RUN)
    (spare,) = pair.stock()
    pair.hold = {Return}
    outputs = pair.donor.withdraw(2 * RUN, pair.now)
    assert [output for output in outputs if isinstance(output, Reclaimed)] == [Reclaimed(spare, Back.UNUSED)]
    assert pair.donor.bytes_in(RunState.RECALLED) == RUN
    assert pair.donor.withdraw(RUN, pair.now) == [], "as much is under way"
    pair.donor.withdraw(10 * RUN, pair.now)
    assert pair.donor.bytes_in(RunState.RECALLED) == 2 * RUN


def test_what_is_not_lent_can_be_withdrawn_alone() -> None:
    pair = Pair()
    pair.stock(3)
    pair.want(RUN)
    pair.stock(1, fenced=False)
    pair.do("d", pair.donor.withdraw_unused())
    assert [one.back for one in pair.told("d", Reclaimed)] == [Back.UNUSED] * 3
    assert pair.donor.bytes_in(RunState.LENT) == pair.donor.bytes_in(*RunState) == RUN
    assert pair.donor.withdraw_unused() == []
    assert not pair.said(Recall)


def test_runs_are_withdrawn_by_their_numbers() -> None:
    pair = Pair()
    pair.stock(2)
    pair.want(2 * RUN)
    (spare,) = pair.stock()
    assert pair.donor.unused() == [spare]
    chosen = pair.donor.to_withdraw(2 * RUN)
    assert chosen[0] == spare
    assert len(chosen) == 2
    assert pair.donor.bytes_in(RunState.RECALLED) == 0, "nothing is done by choosing"
    pair.hold = {Return}
    outputs = pair.donor.withdraw_runs([*chosen, 99], pair.now)
    assert [one for one in outputs if isinstance(one, Reclaimed)] == [Reclaimed(spare, Back.UNUSED)]
    assert pair.donor.bytes_in(RunState.RECALLED) == RUN
    assert pair.donor.withdraw_runs(chosen, pair.now) == [], "as before"


def test_it_knows_how_much_is_wanted_by_those_who_could_use_it() -> None:
    pair = Pair()
    pair.add("c", 3 * PAGE)
    pair.want(5 * RUN, "b")
    pair.want(7 * RUN, "c")
    assert pair.donor.wanted_bytes(3 * PAGE) == 12 * RUN
    assert pair.donor.wanted_bytes(PAGE) == 5 * RUN
    pair.stock(1)
    assert pair.donor.wanted_bytes(PAGE) == 4 * RUN, "what was granted is still counted"


def test_whatever_borrowers_say_they_want_fits_into_what_ranks_agree_on() -> None:
    pair = Pair("b", "c")
    pair.want(2**63 - 1, "b")
    pair.want(2**63 - 1, "c")
    assert pair.donor.wanted_bytes(PAGE) == MOST_WANTED < 2**62


def test_recalls_are_taken_from_who_holds_most() -> None:
    pair = Pair("b", "c")
    pair.stock(4)
    pair.want(3 * RUN, "b")
    pair.want(RUN, "c")
    youngest = max(pair.donor.table(pair.borrower.party))
    pair.hold = {Return}
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    assert [effect.key.lease for effect in pair.told("b", LeaseRecalled)] == [youngest]
    assert not pair.told("c", LeaseRecalled)


def test_pinned_leases_are_recalled_last() -> None:
    pair = Pair("b", "c")
    pair.stock(4)
    pair.want(3 * RUN, "b")
    pair.want(RUN, "c")
    *others, youngest = sorted(pair.donor.table(pair.borrower.party))
    (single,) = pair.donor.table(pair.machines["c"].party)
    assert pair.donor.pin(youngest, True)
    assert pair.donor.pin(single, True)
    assert {view.lease for view in pair.donor.leases(pair.now) if view.pinned} == {youngest, single}
    pair.hold = {Return}
    pair.do("d", pair.donor.withdraw(2 * RUN, pair.now))
    assert {effect.key.lease for effect in pair.told("b", LeaseRecalled)} == set(others)
    assert not pair.told("c", LeaseRecalled), "it holds less, but what it holds is pinned"
    pair.do("d", pair.donor.withdraw(3 * RUN, pair.now))
    assert [effect.key.lease for effect in pair.told("b", LeaseRecalled)] == [youngest], "of who holds most"
    pair.do("d", pair.donor.withdraw(4 * RUN, pair.now))
    assert [effect.key.lease for effect in pair.told("c", LeaseRecalled)] == [single]


def test_a_pin_is_taken_back_does_not_keep_from_a_recall_by_number_and_ends_with_its_lease() -> None:
    pair = Pair()
    pair.stock(2)
    pair.want(2 * RUN)
    older, younger = sorted(pair.donor.table(pair.borrower.party))
    assert pair.donor.pin(younger, True)
    assert pair.donor.pin(younger, False)
    pair.want(0)
    pair.do("d", pair.donor.withdraw(RUN, pair.now))
    pair.advance(1.0)
    assert list(pair.donor.table(pair.borrower.party)) == [older], "the youngest again"
    assert pair.donor.pin(older, True)
    pair.do("d", pair.donor.recall([older], pair.now))
    pair.advance(1.0)
    assert pair.donor.leases(pair.now) == []
    assert not pair.donor.pin(older, True)
    pair.stock()
    pair.want(RUN)
    assert [view.pinned for view in pair.donor.leases(pair.now)] == [False]


def test_no_more_than_the_limit_is_lent() -> None:
    pair = Pair(limit_bytes=2 * RUN)
    pair.stock(5)
    pair.want(5 * RUN)
    assert pair.borrower.held_bytes == 2 * RUN
    pair.do("d", pair.donor.set_limit(3 * RUN, pair.now))
    pair.advance(1.0)
    assert pair.borrower.held_bytes == 3 * RUN
    pair.do("d", pair.donor.set_limit(RUN, pair.now))
    pair.advance(1.0)
    assert pair.borrower.held_bytes == RUN
    assert len(pair.told("d", Reclaimed)) == 2
    pair.do("d", pair.donor.set_limit(None, pair.now))
    pair.advance(1.0)
    assert pair.borrower.held_bytes == 3 * RUN


def test_what_is_free_is_shared_among_all_who_want_it() -> None:
    pair = Pair("b", "c")
    pair.stock(6, fenced=False)
    pair.want(6 * RUN, "b")
    pair.want(6 * RUN, "c")
    for run in range(1, 7):
        pair.do("d", pair.donor.fenced(run))
    pair.settle()
    pair.advance(2.0)
    assert pair.machines["b"].held_bytes == 3 * RUN
    assert pair.machines["c"].held_bytes == 3 * RUN


def test_who_holds_least_is_served_first() -> None:
    pair = Pair("b", "c")
    pair.stock(4)
    pair.want(8 * RUN, "b")
    assert pair.machines["b"].held_bytes == 4 * RUN
    pair.want(8 * RUN, "c")
    pair.stock(4)
    pair.advance(2.0)
    assert pair.machines["c"].held_bytes == 4 * RUN


def test_a_borrower_gets_only_whole_pages_of_its_own() -> None:
    pair = Pair()
    odd = pair.add("odd", page_bytes=3 * PAGE)
    pair.do("odd", odd.want(10 * RUN, pair.now))
    pair.stock(2, size=4 * PAGE)
    assert odd.held_bytes == 0
    pair.stock(2, size=6 * PAGE)
    assert odd.held_bytes == 12 * PAGE
    assert BorrowerJoined(odd.party, 3 * PAGE) in pair.effects["d"]


def test_pages_without_a_sensible_unit_are_refused() -> None:
    pair = Pair()
    pair.add("huge", page_bytes=2**32 + 1)
    assert pair.told("huge", DonorRefused) == [DonorRefused("d", "page")]


def test_a_donor_takes_only_so_many_borrowers() -> None:
    pair = Pair("b", "c", "e", max_borrowers=2)
    assert pair.told("e", DonorRefused) == [DonorRefused("d", "full")]
    pair.do("d", pair.donor.gone(pair.machines["c"].party))
    pair.machines.pop("c")
    pair.advance(pair.donor.timing.silence + 0.5)
    assert pair.machines["e"].party in pair.donor.borrowers


def test_messages_stay_within_their_limits() -> None:
    """Thousands of runs, or runs of thousands of extents: several grants, recalls, returns."""
    pair = Pair()
    pair.stock(MAX_LEASES + 10)
    pair.want((MAX_LEASES + 10) * RUN)
    pair.advance(0.5)
    assert len(pair.donor.table(pair.borrower.party)) == MAX_LEASES + 10
    assert pair.borrower.table("d") == pair.donor.table(pair.borrower.party)
    for grant in pair.said(Grant):
        assert len(grant.leases) <= MAX_LEASES
    pair.do("d", pair.donor.withdraw(2**40, pair.now))
    pair.advance(0.5)
    assert pair.donor.bytes_in(*RunState) == 0
    assert len(pair.said(Recall)) >= 2


def test_a_grant_holds_only_so_many_extents() -> None:
    pair = Pair()
    for run in range(1, 4):
        extents = [Extent(0, PAGE * index, PAGE) for index in range(MAX_EXTENTS // 2)]
        pair.do("d", pair.donor.stock(run, extents))
        pair.do("d", pair.donor.fenced(run))
    (grant,) = bodies(hand(pair, Request(50, 2**40)), Grant)
    assert len(grant.leases) == 2


def test_timing_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="drift"):
        Timing(drift=0.5)
    with pytest.raises(ValueError, match="term"):
        Timing(term=0.0)
    with pytest.raises(ValueError, match="recall_bound"):
        Timing(recall_bound=3.0)
