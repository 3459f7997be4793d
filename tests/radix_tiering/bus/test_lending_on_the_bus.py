"""A real donor and a real peer tier that know of each other by nothing but the bus."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.config import Duration, PeerConfig
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.bus.contract.views import LeasesView
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher
from swift_tiers.radix_tiering.lending.leases import Timing
from swift_tiers.radix_tiering.lending.leases.hand import LeaseHand
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.lease_hand import OperatorsAlone
from support.peer_donor import PAGE, LocalDonor, local_donor
from support.peer_tier import Answer, read_page, write_page
from support.publishing import bus_config, wait_published
from support.redis import RealRedis, wait_for
from support.telemetry import MadeUp

Publish = Callable[..., BusPublisher]
#: Leases are renewed while a test looks on.
TIMING = Timing(term=5.0)
ALPHA, BETA = "alpha.dp0-tp0", "beta.dp0-tp0"


class Machine:
    """`alpha` lends, `beta` borrows; neither is on the bus yet."""

    def __init__(self, redis: RealRedis, publish: Publish, donor: LocalDonor, tier: PeerTier) -> None:
        self.redis = redis
        self.tier = tier
        self.lending = LeaseHand(
            ALPHA, service=donor.service, address=donor.address, lender=lambda: OperatorsAlone(donor.service)
        )
        self.borrowing = LeaseHand(BETA, borrower=tier.service)
        self._publish = publish

    def start(self, name: str) -> None:
        hand = self.lending if name == "alpha" else self.borrowing
        told = MadeUp()
        told.leases = hand.snapshot  # type: ignore[method-assign]
        look = {"on_neighbours": self.tier.neighbours} if name == "beta" else {}
        self._publish(bus_config(self.redis.url), told, server=name, lends=True, **look)

    def said(self) -> dict[tuple[str, str], LeasesView]:
        """What is on the bus, by who says it."""
        with BusReader(self.redis.client()) as reader:
            return {(view.server, view.borrower): view for view in reader.leases()}

    def agreed(self) -> bool:
        """Whether both sides say the same of the same leases."""
        said = self.said()
        lent, borrowed = said.get(("alpha", BETA)), said.get(("beta", BETA))
        if lent is None or borrowed is None:
            return False
        return {(one.lease, one.bytes) for one in lent.table} == {(one.lease, one.bytes) for one in borrowed.table}


@pytest.fixture
def machine(own_redis: RealRedis, publish: Publish) -> Iterator[Machine]:
    directory = tempfile.TemporaryDirectory(prefix="swift-lease-")
    with directory as name, local_donor(Path(name), ALPHA, timing=TIMING) as donor:
        # It waits long for its first grant: what a slow machine lets come late is not lent again here.
        tier = PeerTier(BETA, PAGE, PeerConfig(borrow=True, term=Duration(20.0)))
        try:
            tier.want(16 * PAGE)
            yield Machine(own_redis, publish, donor, tier)
        finally:
            tier.close()


@pytest.mark.parametrize("order", [("alpha", "beta"), ("beta", "alpha")])
def test_whoever_comes_first_they_agree_on_leases_and_both_say_so(machine: Machine, order: tuple[str, str]) -> None:
    for name in order:
        machine.start(name)
        wait_published(machine.redis, f"swift:{name}:dp0-tp0:rank")
    wait_for(machine.agreed, "the leases")
    wait_for(lambda: machine.tier.capacity_bytes == 16 * PAGE, "the tier to have taken them in")
    lent = machine.said()["alpha", BETA]
    assert (lent.donor, lent.bytes, lent.recalled_bytes) == (ALPHA, 16 * PAGE, 0)
    assert lent.shortest_seconds is not None
    assert lent.shortest_seconds > 0


def test_leases_outlive_the_redis_by_which_they_were_found(machine: Machine) -> None:
    for name in ("alpha", "beta"):
        machine.start(name)
    wait_for(machine.agreed, "the leases")
    before = {view.lease for view in machine.lending.leases()}
    machine.redis.restart()
    wait_for(machine.agreed, "the return")
    assert {view.lease for view in machine.lending.leases()} == before


@pytest.mark.parametrize("how", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.exhaustive)])
def test_pages_are_read_under_renewed_leases_while_redis_is_stopped_or_gone(
    machine: Machine, how: signal.Signals
) -> None:
    for name in ("alpha", "beta"):
        machine.start(name)
    wait_for(machine.agreed, "the leases")
    before = {view.lease for view in machine.lending.leases()}
    data = np.arange(PAGE, dtype=np.uint64).astype(np.uint8)
    (place,) = wait_for(lambda: machine.tier.reserve([PAGE]), "a place")
    stored = Answer()
    write_page(machine.tier, place, data, stored, page_digest(data))
    assert stored.wait() == (True, "")
    process = machine.redis.pid
    os.kill(process, how)
    try:
        until = time.monotonic() + 1.4 * TIMING.term
        while time.monotonic() < until:
            answer, into = Answer(), np.zeros_like(data)
            read_page(machine.tier, place, into, page_digest(data), answer)
            assert answer.wait() is ReadOutcome.OK
    finally:
        if how == signal.SIGSTOP:
            os.kill(process, signal.SIGCONT)
        else:
            machine.redis.restart()
    wait_for(machine.agreed, "the return")
    assert {view.lease for view in machine.lending.leases()} == before


def test_what_an_operator_recalls_and_caps_shows(machine: Machine) -> None:
    for name in ("alpha", "beta"):
        machine.start(name)
    wait_for(machine.agreed, "the leases")
    leases = sorted(view.lease for view in machine.lending.leases())
    assert machine.lending.pin(leases[0], True)
    machine.lending.cap(8 * PAGE)
    wait_for(lambda: machine.tier.capacity_bytes == 8 * PAGE, "the return of half of it")
    wait_for(lambda: machine.agreed() and machine.said()["alpha", BETA].leases == 1, "the word for it")
    (left,) = machine.said()["alpha", BETA].table
    assert (left.lease, left.pinned) == (leases[0], True)
    with BusReader(machine.redis.client()) as reader:
        (rank,) = reader.ranks("alpha")
    assert (rank.lend_limit_bytes, rank.lent_bytes) == (8 * PAGE, 8 * PAGE)
