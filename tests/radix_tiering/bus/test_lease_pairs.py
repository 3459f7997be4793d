"""Both sides' words about leases, put together."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from swift_tiers.radix_tiering.bus.contract.views import LeaseEntry, LeasesView
from swift_tiers.radix_tiering.bus.hear.lease_pairs import FITTING, difference, differences, leases_of, pairs_of
from swift_tiers.radix_tiering.lending.leases.lease import LeaseState
from swift_tiers.radix_tiering.lending.leases.runs import RunState

DONOR, BORROWER = "alpha.dp0-tp0", "beta.dp0-tp0"


def entry(number: int = 1, state: str = "lent", **changes: object) -> LeaseEntry:
    return msgspec.structs.replace(LeaseEntry(lease=number, bytes=4096, state=state, seconds_left=1.5), **changes)


def lent(*entries: LeaseEntry, leases: int | None = None) -> LeasesView:
    return _view("alpha", entries, leases)


def borrowed(*entries: LeaseEntry, leases: int | None = None) -> LeasesView:
    return _view("beta", entries, leases)


def _view(server: str, entries: tuple[LeaseEntry, ...], leases: int | None) -> LeasesView:
    return LeasesView(
        server=server,
        rank="dp0-tp0",
        donor=DONOR,
        borrower=BORROWER,
        table=entries,
        listed=len(entries),
        leases=len(entries) if leases is None else leases,
        bytes=sum(one.bytes for one in entries),
    )


def test_both_sides_meet_in_one_pair_and_one_side_alone_is_one_too() -> None:
    other = msgspec.structs.replace(borrowed(entry()), donor="gone.dp0-tp0")
    first, second = pairs_of([borrowed(entry()), lent(entry()), other])
    assert (first.donor, first.borrower) == (DONOR, BORROWER)
    assert first.lent is not None
    assert first.borrowed is not None
    assert second.donor == "gone.dp0-tp0"
    assert second.lent is None
    assert differences(second) == []  # one side has said nothing: that is no contradiction


def test_sides_that_agree_do_not_differ() -> None:
    (pair,) = pairs_of([lent(entry(1), entry(2, "recalled")), borrowed(entry(1, "active"), entry(2, "closing"))])
    assert differences(pair) == []
    assert [lease.number for lease in leases_of(pair)] == [1, 2]


@pytest.mark.parametrize(
    ("at_donor", "at_borrower", "said"),
    [
        ((entry(),), (), "the borrower does not know it"),
        ((), (entry(state="active"),), "ended at the donor, active"),
        ((entry(),), (entry(state="recalled"),), "lent, but recalled at the borrower"),
        ((entry(),), (entry(state="active", bytes=8192),), "not of the same size"),
        ((entry(),), (entry(state="active", seconds_left=4.0),), "for longer"),
    ],
)
def test_what_cannot_be_is_told(
    at_donor: tuple[LeaseEntry, ...], at_borrower: tuple[LeaseEntry, ...], said: str
) -> None:
    (pair,) = pairs_of([lent(*at_donor), borrowed(*at_borrower)])
    (lease,) = leases_of(pair)
    assert said in difference(lease)
    assert any(said in one for one in differences(pair))


def test_lists_that_are_cut_are_not_compared_lease_by_lease() -> None:
    (pair,) = pairs_of([lent(entry(1), leases=200), borrowed(entry(2, "active"), leases=200)])
    assert differences(pair) == []
    (pair,) = pairs_of([lent(entry(1), leases=200), borrowed(entry(2, "active"), leases=199)])
    assert differences(pair) == ["200 leases, 199 at the borrower"]


def test_every_state_of_the_protocol_is_judged() -> None:
    assert set(FITTING) == {RunState.LENT.value, RunState.RECALLED.value}
    states = {state.value for state in LeaseState}
    assert set(itertools.chain(*FITTING.values())) <= states


@pytest.mark.parametrize(("donor", "borrower", "said"), [(7, 7, []), (None, 7, []), (7, None, [])])
def test_epochs_that_agree_or_are_not_known_are_no_difference(donor, borrower, said) -> None:
    sides = [(lent(entry()), donor), (borrowed(entry(state="active")), borrower)]
    (pair,) = pairs_of([msgspec.structs.replace(view, epoch=epoch) for view, epoch in sides])
    assert differences(pair) == said


def test_a_borrower_that_believes_in_a_former_life_of_the_donor() -> None:
    sides = [(lent(entry()), 0x3F09A1C25D11), (borrowed(entry(state="active")), 0xAB)]
    (pair,) = pairs_of([msgspec.structs.replace(view, epoch=epoch) for view, epoch in sides])
    assert differences(pair) == ["epoch 3f09a1c2, ab at the borrower"]
