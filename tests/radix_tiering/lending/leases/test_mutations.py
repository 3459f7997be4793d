"""Every rule that safety rests on is needed: with any one taken away, the simulated world goes wrong, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, LeaseState, Party, RunState, Ticket, Timing
from swift_tiers.radix_tiering.lending.leases.effects import Back
from swift_tiers.radix_tiering.lending.leases.lease import Lease
from swift_tiers.radix_tiering.lending.leases.link import Link, Outputs
from swift_tiers.radix_tiering.lending.leases.messages import Grant, Hello, Letter, Recall, Renewed
from swift_tiers.radix_tiering.lending.leases.timing import RECALL_PART

from support.lease_faults import Shape
from support.lease_world import Violation, World

#: Seeds in which a missing rule must show. Most show in a handful.
SEEDS = 400

TROUBLED = ("slow", "twice", "lossy", "recall")


def first_violation(seeds: int = SEEDS, **world: Any) -> Violation:
    for seed in range(seeds):
        try:
            World(seed, **world).run()
        except Violation as violation:
            return violation
    raise AssertionError(f"{seeds} seeds and nobody noticed")


class NoMargin(Donor):
    """Takes its clock for as fast as the borrower's."""

    def __init__(self, *arguments: Any, timing: Timing) -> None:
        super().__init__(*arguments, timing=Timing(drift=0, margin=0))


class TakesAtRecallBound(Donor):
    """Does not wait for the return of what it recalled."""

    def tick(self, now: float) -> list[Any]:
        rest = (1 - RECALL_PART) * self.timing.recall_bound
        late = [run for run in self._leases.values() if now > run.recall_until + rest]
        assert all(run.state is RunState.RECALLED for run in late)
        return self._end(late, Back.RETURNED) + super().tick(now)


class TrustsHello(Donor):
    """Takes a new life of a borrower for the end of every other one."""

    def _hello(self, sender: Party, hello: Hello, now: float) -> list[Any]:
        others = [party for party in self.borrowers if party.name == sender.name and party != sender]
        return [output for party in others for output in self.gone(party)] + super()._hello(sender, hello, now)


class LendsBeforeFence(Donor):
    def stock(self, run: int, extents: Any) -> list[Any]:
        outputs = super().stock(run, extents)
        self.fenced(run)
        return outputs


class NoCheckAfter(Borrower):
    def check_after(self, ticket: Ticket, now: float) -> bool:
        super().check_after(ticket, now)
        return True


@pytest.mark.parametrize(
    ("kept", "world"),
    [
        ("the donor counts longer, by both clocks' drift", {"donor_type": NoMargin}),
        ("a recalled lease is not taken before it is returned", {"donor_type": TakesAtRecallBound}),
        (
            "a hello does not end other lives' leases",
            {"donor_type": TrustsHello, "kinds": ("slow", "twice", "crash"), "shape": Shape(1, 1, 2, False)},
        ),
        ("nothing is lent before its fence", {"donor_type": LendsBeforeFence}),
        ("bytes are checked after they are read", {"borrower_type": NoCheckAfter}),
    ],
)
def test_rule_of_a_machine(kept: str, world: dict[str, Any]) -> None:
    assert first_violation(**world), kept


def counts_from_answer(original: Callable[..., Any]) -> Callable[..., Any]:
    def grant(self: Link, grant: Grant, now: float) -> Outputs:
        if self._request is not None and self._request.nonce == grant.nonce:
            self._request = self._request._replace(sent=now)
        result: Outputs = original(self, grant, now)
        return result

    return grant


def counts_renewals_from_answer(original: Callable[..., Any]) -> Callable[..., Any]:
    def receive(self: Link, letter: Letter, now: float) -> Outputs:
        if isinstance(letter.body, Renewed) and letter.body.nonce in self._renewals:
            self._renewals[letter.body.nonce] = now
        result: Outputs = original(self, letter, now)
        return result

    return receive


def keeps_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def recall(self: Link, recall: Recall, now: float) -> Outputs:
        request = self._request
        result: Outputs = original(self, recall, now)
        self._request = request
        return result

    return recall


def takes_any_grant(original: Callable[..., Any]) -> Callable[..., Any]:
    def grant(self: Link, grant: Grant, now: float) -> Outputs:
        request = self._request
        if request is None or request.nonce != grant.nonce:
            self.ask(1, now)
            assert self._request is not None
            self._request = self._request._replace(nonce=grant.nonce)
        result: Outputs = original(self, grant, now)
        return result

    return grant


def revives_returned(original: Callable[..., Any]) -> Callable[..., Any]:
    def renewed(self: Link, renewed: Renewed) -> None:
        for lease in renewed.leases:
            if lease in self.leases and self.leases[lease].state is LeaseState.RETURNED:
                self.leases[lease].state = LeaseState.ACTIVE
        original(self, renewed)

    return renewed


def ignores_stores(original: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: Link, leases: list[Lease], now: float) -> Outputs:
        stores = [lease.stores for lease in leases]
        for lease in leases:
            lease.stores = 0
        result: Outputs = original(self, leases, now)
        for lease, count in zip(leases, stores, strict=True):
            lease.stores = count
        return result

    return advance


@pytest.mark.parametrize(
    ("kept", "method", "without", "kinds"),
    [
        ("a term counts from the sending of the request", "_grant", counts_from_answer, ("slow", "cut")),
        ("a term counts from the sending of the renewal", "receive", counts_renewals_from_answer, ("slow", "cut")),
        (
            "who returns a lease it does not know gives up its request",
            "_recall",
            keeps_request,
            ("slow", "recall", "withdraw"),
        ),
        ("a grant for no request is returned", "_grant", takes_any_grant, TROUBLED),
        ("a returned lease is not renewed", "_renewed", revives_returned, TROUBLED),
        ("a return waits for stores under way", "_advance", ignores_stores, ("recall", "withdraw")),
    ],
)
def test_rule_of_a_link(
    kept: str, method: str, without: Callable[..., Any], kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, method, without(getattr(Link, method)))
    assert first_violation(kinds=kinds), kept
