"""Donors of several ranks in virtual time: their pools are as full as each other at every step, and nothing of ours
that fails on one rank keeps the others waiting."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.lab.torture.neighbours import RankedDonor
from swift_tiers.ops.lab.torture.neighbours.pool import ModelPool
from swift_tiers.ops.lab.torture.neighbours.rival import Rival
from swift_tiers.ops.lab.torture.outcome import live
from swift_tiers.ops.lab.torture.plan import make_plan
from swift_tiers.radix_tiering.base.virtual import TaskDied, VirtualRunner
from swift_tiers.radix_tiering.lending.donation import gathering, rank_lender
from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.tiers.testing.network import Network

from support.defects import Defect
from support.finding import first_failure, put_in
from support.rank_lending_defects import IN_RANK_LENDING, NOT_FOUND_IN_RANK_LENDING

#: Worlds of the default run, and of `--all`.
QUICK, ALL = 12, 200
#: Worlds within which each defect is found; of these the default run looks for some that the first ones find.
MOST = 100
AT_ONCE = {"what is back on one rank is the pool's again", "who has nothing back does not ask"}
#: What a few worlds reach already.
OFTEN = ("donor: a request of its own", "pages lent", "neighbour: stop", "neighbour: kill", "neighbour: stumble")
#: Calls that fail on one rank, each time: by where they are found from it.
CALLS = (
    "lender._demand", "lender._kept", "lender._forget", "lender._runs.hear", "lender._runs.unit",
    "lender._runs._returning.take_over", "lender._runs.withdraw", "one.service.stock", "one.service.fenced",
    "one.service.withdraw_runs",
    "one.service.to_withdraw", "one.service.unused", "one.service.wanted_bytes", "one.service.bytes_in",
)  # fmt: skip
CALLS_ON_POOLS = ("one.pool.take", "one.pool.put_back", "lender._runs.end")


def worlds(first: int, last: int) -> Counter[str]:
    """What happened in worlds of these seeds."""
    happened: Counter[str] = Counter()
    for seed in range(first, last):
        outcome = live(make_plan("ranked", seed))
        assert outcome.error is None, f"{outcome.replay}\n{outcome.complaint}"
        happened += outcome.happened
    return happened


def test_pools_of_ranks_are_equal_at_every_step_whatever_goes_wrong() -> None:
    happened = worlds(0, QUICK)
    assert all(happened[name] for name in OFTEN), "worlds test less than they seem to"


def test_they_are_where_an_attempt_to_lend_evicts_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[bool] = []
    look, finish = gathering.Gathering.look, ModelPool.finish

    def looks(self: gathering.Gathering, *what: int) -> list[Span]:
        found = look(self, *what)
        over.append(self.is_over)
        return found

    def leaves_small_prefixes(self: ModelPool, pages: list[int], *, keep: bool) -> None:
        for page in pages:
            finish(self, [page], keep=keep)

    monkeypatch.setattr(gathering.Gathering, "look", looks)
    monkeypatch.setattr(ModelPool, "finish", leaves_small_prefixes)
    monkeypatch.setattr(gathering, "MOST_EVICTED", 1)
    worlds(0, QUICK)
    assert over.count(False) > 20, "worlds evict too little: this tests nothing"


@pytest.mark.exhaustive
def test_in_more_worlds_too() -> None:
    """In the default run: the first of them."""
    worlds(QUICK, ALL)


def test_a_seed_is_one_history() -> None:
    first, second = live(make_plan("ranked", 3)), live(make_plan("ranked", 3))
    assert first == second
    assert first.history


@pytest.mark.parametrize(
    "defect",
    [one if one.name in AT_ONCE else pytest.param(one, marks=pytest.mark.exhaustive) for one in IN_RANK_LENDING],
    ids=lambda defect: defect.name,
)
def test_defects_of_lending_together_are_found(defect: Defect) -> None:
    """Two of them in the default run, too."""
    assert first_failure(defect, ("ranked",), MOST) is not None


@pytest.mark.parametrize("defect", [*IN_RANK_LENDING, *NOT_FOUND_IN_RANK_LENDING], ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect: Defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass


@pytest.mark.parametrize("most_runs", [rank_lender.MOST_RUNS, 1])
def test_what_is_recalled_on_one_rank_comes_back_on_all(most_runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few runs are asked for at one time."""
    monkeypatch.setattr(rank_lender, "MOST_RUNS", most_runs)
    runner, draw = VirtualRunner(1, most_seconds=120.0), random.Random(2)

    def main() -> None:
        donor = RankedDonor("donor", Path(directory), Network(runner, draw, Counter()), draw, Counter(), 3)
        rival = Rival("rival", donor.network, draw, donor.addresses)
        runner.sleep(1.0)
        lent = [rank.lender.lent_pages for rank in donor.ranks]
        assert min(lent) == max(lent) > 0, "nothing is lent: this tests nothing"
        # As an operator's hand does.
        donor.ranks[1].lender.rest()
        donor.ranks[1].one.service.recall([view.lease for view in donor.ranks[1].one.service.leases()])
        limit = runner.now + 1.0
        while any(rank.lender.lent_pages for rank in donor.ranks):
            assert runner.now < limit, "others keep what one rank has back"
            runner.sleep(0.002)
        rival.close()
        donor.close()

    with tempfile.TemporaryDirectory() as directory:
        runner.run(main)


@pytest.mark.parametrize("number", [0, pytest.param(1, id="a rank that follows")])
@pytest.mark.parametrize("what", ["withdraw_runs", "to_withdraw", "demand"])
def test_an_error_delays_a_request_and_no_more(what: str, number: int) -> None:
    """Though borrowers would go on using what they have."""
    runner, draw = VirtualRunner(1, most_seconds=120.0), random.Random(2)

    def main() -> None:
        donor = RankedDonor("donor", Path(directory), Network(runner, draw, Counter()), draw, Counter(), 2)
        rival = Rival("rival", donor.network, draw, donor.addresses)
        runner.sleep(1.0)
        assert all(rank.lender.lent_pages for rank in donor.ranks), "nothing is lent: this tests nothing"
        donor.ranks[number].stumble(what)
        donor.ask(10_000, 0.1)
        runner.sleep(3.0)
        assert not any(rank.requests for rank in donor.ranks), "it waits for ever"
        rival.close()
        donor.close()

    with tempfile.TemporaryDirectory() as directory:
        runner.run(main)


# ---- errors of ours that go on ----


def meets_while_failing(call: str, number: int, *, lending: bool = True) -> None:
    """A call fails for a while on one rank of two of a donor that lends, and is asked for all it has: they go on
    meeting, and once nothing fails all is served and comes back. `lending`: something is lent before it fails."""
    runner, draw = VirtualRunner(1, most_seconds=120.0), random.Random(2)

    def raises(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{call} stumbles")

    def main() -> None:
        donor = RankedDonor("donor", Path(directory), Network(runner, draw, Counter()), draw, Counter(), 2)
        owner, _, name = call.rpartition(".")
        with pytest.MonkeyPatch.context() as patch:
            if lending:
                rival = Rival("rival", donor.network, draw, donor.addresses)
                runner.sleep(1.0)
                assert all(rank.lender.lent_pages for rank in donor.ranks), "nothing is lent: this tests nothing"
            patch.setattr(attrgetter(owner)(donor.ranks[number]), name, raises)
            if not lending:
                rival = Rival("rival", donor.network, draw, donor.addresses)
            donor.ask(10_000, 0.1)
            runner.sleep(3.0)
            rival.close()  # what it has comes back without having been asked for
            held = donor.meeting.held
            runner.sleep(1.0)
            assert donor.meeting.held > held + 50, "ranks wait for each other"
        rival.begin()
        runner.sleep(3.0)
        assert not any(rank.requests for rank in donor.ranks), "a request waits for ever"
        rival.close()
        donor.close()

    with tempfile.TemporaryDirectory() as directory:
        runner.run(main)


@pytest.mark.parametrize("number", [0, pytest.param(1, id="a rank that follows")])
@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_goes_on_on_one_rank_keeps_no_rank_waiting(call: str, number: int) -> None:
    meets_while_failing(call, number)


@pytest.mark.parametrize("call", CALLS_ON_POOLS)
def test_ranks_whose_pools_differ_end_before_they_compute(call: str) -> None:
    """What is broken here is a pool itself: nothing makes it as full as the others."""
    with pytest.raises(TaskDied, match=r"PoolsDifferError.*not as many as each other"):
        meets_while_failing(call, 1, lending=call != "one.pool.take")
