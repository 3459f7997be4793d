"""Letters that no machine of ours would send, well formed though they are: nothing breaks, and nobody gets more."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Extent, Letter, Party, RunState, Use
from swift_tiers.radix_tiering.lending.leases.effects import Fence, LeaseBegan, LeaseEnded, Reclaimed
from swift_tiers.radix_tiering.lending.leases.messages import (
    Expire,
    Grant,
    GrantedLease,
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
    Welcome,
)

SMALL = st.integers(1, 6)
LEASES = st.lists(SMALL, max_size=4).map(tuple)
SECONDS = st.floats(0.001, 5)
EXTENTS = st.lists(st.builds(Extent, st.just(0), SMALL, st.sampled_from([128, 256])), min_size=1, max_size=2).map(tuple)
GRANTED = st.lists(st.builds(GrantedLease, SMALL, EXTENTS), min_size=1, max_size=3).map(tuple)
FROM_BORROWERS = st.one_of(
    st.builds(Hello, SMALL, st.sampled_from([1, 256, 768, 2**40 + 1])),
    st.builds(Heartbeat, st.sampled_from([0, 512, 2**62])),
    st.builds(Request, SMALL, st.sampled_from([1, 512, 2**62])),
    st.builds(Renew, SMALL, LEASES),
    st.builds(Return, LEASES),
)
FROM_DONORS = st.one_of(
    st.builds(Welcome, SMALL, st.just(256)),
    st.builds(Offer, st.sampled_from([0, 512, 2**62])),
    st.builds(Grant, SMALL, SECONDS, GRANTED),
    st.builds(Renewed, SMALL, SECONDS, LEASES),
    st.builds(Recall, LEASES, SECONDS),
    st.builds(Expire, LEASES),
    st.builds(Refuse, SMALL, st.sampled_from(Reason)),
)
STEPS = st.lists(
    st.tuples(
        st.one_of(FROM_BORROWERS, FROM_DONORS), st.sampled_from([1, 2]), st.booleans(), st.floats(0, 1.5), st.booleans()
    ),
    max_size=40,
)


@given(STEPS)
def test_a_donor_never_gives_what_it_has_not(steps: list[tuple[Any, int, bool, float, bool]]) -> None:
    donor, now = Donor("d", 256, Random(1), limit_bytes=2048), 0.0
    for run in range(1, 5):
        donor.stock(run, [Extent(0, run, 768)])
        donor.fenced(run)
    inside = 4 * 768
    for body, epoch, addressed, seconds, tick in steps:
        now += seconds
        letter = Letter(Party("b", epoch), donor.party.epoch if addressed else 1, body)
        outputs = donor.receive(letter, now) + (donor.tick(now) if tick else [])
        inside -= 768 * sum(isinstance(output, Reclaimed) for output in outputs)
        tables = [donor.table(party) for party in donor.borrowers]
        lent = sum(extent.length for table in tables for extents in table.values() for extent in extents)
        assert lent == donor.bytes_in(RunState.LENT, RunState.RECALLED) <= 2048
        assert donor.bytes_in(*RunState) == inside
        leases = [lease for table in tables for lease in table]
        assert len(leases) == len(set(leases))
        assert not [output for output in outputs if isinstance(output, Fence)]


@given(STEPS)
def test_a_borrower_begins_and_ends_each_lease_once(steps: list[tuple[Any, int, bool, float, bool]]) -> None:
    borrower, now = Borrower("b", 256, Random(1)), 0.0
    borrower.connect("d", now)
    borrower.want(10_000, now)
    began: list[Any] = []
    ended: list[Any] = []
    tickets = []
    for body, epoch, addressed, seconds, tick in steps:
        now += seconds
        letter = Letter(Party("d", epoch), borrower.party.epoch if addressed else 1, body)
        outputs = borrower.receive(letter, now) + (borrower.tick(now) if tick else [])
        began += [output.key for output in outputs if isinstance(output, LeaseBegan)]
        ended += [output.key for output in outputs if isinstance(output, LeaseEnded)]
        for key in borrower.keys():  # noqa: SIM118 - a method, not a dictionary's
            use = Use.STORE if tick else Use.READ
            tickets += [ticket for ticket in [borrower.check_before(key, now, use)] if ticket]
        if addressed and tickets:
            ticket = tickets.pop(0)
            assert not borrower.check_after(ticket, now) or ticket.lease.key not in ended
        usable = {key for key in began if borrower.usable(key, now)}
        assert usable <= set(began) - set(ended)
    assert len(began) == len(set(began))
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(began)
