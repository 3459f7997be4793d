"""kill -9 and SIGSTOP of a donor's and of a borrower's process in every state of the protocol.

Whatever was struck when: no lease outlives it for longer than its term, a donor gets every run back, and the two, or
who has come in their place, lend and borrow again as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from swift_tiers.radix_tiering.lending.leases import LinkState, RunState
from swift_tiers.radix_tiering.lending.leases.lease import LeaseState

from support.lease_children import PAGE, Child, Children
from support.redis import wait_for

RUNS = 2
#: A test waits for the end of terms; and no lease may end because a machine does something else for a moment.
TIMING = {"term": 2.5, "recall_bound": 0.5, "silence": 2.0}


class Pair:
    """A donor and a borrower at rest: they know each other, and nothing can be lent."""

    def __init__(self, children: Children) -> None:
        self.children = children
        self.donor = children.donor(**TIMING)
        self.borrower = children.borrower()
        self.rest()

    def rest(self) -> None:
        self.borrower.tell("want", 0)
        self.borrower.tell("release")
        self.donor.tell("withdraw", RUNS * PAGE)
        wait_for(lambda: self.lent() == 0 and not self.states(), "everything to be returned")
        wait_for(lambda: self.links() == {"d": "joined"}, "a session")
        self.donor.heard.clear()
        self.borrower.heard.clear()

    def lent(self) -> int:
        lent: int = self.donor.ask("lent")["bytes"]
        return lent

    def states(self, who: str = "borrower") -> list[str]:
        """Of all leases, as this side sees them."""
        child: Child = getattr(self, who)
        return [state for _, _, state in child.ask("leases")["leases"]]

    def links(self) -> dict[str, str]:
        said = self.borrower.ask("links")
        del said["what"]
        return said

    def lend(self) -> None:
        """Everything, with the borrower's bytes in it."""
        self.donor.tell("restock")
        self.borrower.tell("want", RUNS * PAGE)
        wait_for(lambda: self.states() == ["active"] * RUNS, "the leases")
        assert self.borrower.ask("store", answer="stored")["leases"] == RUNS

    def lend_for(self, use: str) -> None:
        """Everything, in use. Where this machine did something else for a whole term before that, once more."""

        def used() -> bool:
            self.lend()
            if self.borrower.ask("use", use)["uses"] == RUNS:
                return True
            self.borrower.tell("finish")
            return False

        wait_for(used, "all leases to be used")

    # The states, as those of docs/leases.md are called

    def fencing(self) -> None:
        self.donor.tell("restock", "unfenced")
        self.borrower.tell("want", RUNS * PAGE)

    def free(self) -> None:
        self.donor.tell("restock")

    def seeking(self) -> None:
        self.donor.ask("deaf", "Hello")
        self.borrower.tell("disconnect")
        wait_for(lambda: self.links() == {}, "the end of the session")
        self.borrower.tell("connect")
        assert self.links() == {"d": "seeking"}

    def joined(self) -> None:
        assert self.links() == {"d": "joined"}

    def requested(self) -> None:
        """Lent, as the donor sees it; the borrower has yet to hear of it."""
        self.borrower.ask("deaf", "Grant")
        self.donor.tell("restock")
        self.borrower.tell("want", RUNS * PAGE)
        wait_for(lambda: self.lent() == RUNS * PAGE, "a request to be granted")
        assert self.states() == []

    def active(self) -> None:
        self.lend()

    def recalled(self) -> None:
        self.lend()
        self.donor.tell("withdraw", RUNS * PAGE)
        self.borrower.expect("LeaseRecalled")

    def closing(self) -> None:
        self.lend_for("READ")
        self.borrower.tell("want", 0)
        self.borrower.tell("release")
        assert self.states() == ["closing"] * RUNS

    def draining(self) -> None:
        def ended() -> bool:
            self.lend_for("STORE")
            self.borrower.tell("want", 0)
            self.borrower.tell("release")
            wait_for(lambda: not {"active", "closing"} & set(self.states()), "the ends of the leases")
            if self.states() == ["draining"] * RUNS:
                return True
            self.borrower.tell("finish")  # a whole term has passed in between
            return False

        wait_for(ended, "all leases to be drained")

    def returned(self) -> None:
        """The borrower has said so; the donor has not heard it."""
        self.donor.ask("deaf", "Return")
        self.lend()
        self.borrower.tell("want", 0)
        self.borrower.tell("release")
        assert self.states() == ["returned"] * RUNS
        assert self.states("donor") == ["lent"] * RUNS

    def leaving(self) -> None:
        self.donor.ask("deaf", "Return")
        self.lend()
        self.borrower.tell("disconnect")
        assert self.links() == {"d": "leaving"}

    # What befalls one of them

    def kill_donor(self) -> None:
        self.donor.kill()
        wait_for(lambda: set(self.states()) <= {"draining"}, "the leases to be lost")
        self.donor = self.children.donor(**TIMING)

    def kill_borrower(self) -> None:
        self.borrower.kill()
        wait_for(lambda: self.lent() == 0, "the leases to end")
        self.borrower = self.children.borrower()

    def stop_donor(self) -> None:
        self.donor.stop()
        wait_for(lambda: set(self.states()) <= {"draining", "returned"}, "the leases to end")
        self.donor.resume()

    def stop_borrower(self) -> None:
        self.borrower.stop()
        wait_for(lambda: self.lent() == 0, "the leases to end")
        self.borrower.resume()

    def recover(self) -> None:
        """Nothing is lost on the way any more, and both want to lend and to borrow."""
        self.donor.ask("deaf")
        self.borrower.ask("deaf")
        self.borrower.tell("finish")

        def back() -> bool:
            self.donor.tell("restock")
            self.borrower.tell("connect")
            self.borrower.tell("want", RUNS * PAGE)
            # Of those before, some may yet have to be forgotten.
            return self.states().count("active") == RUNS and self.states("donor") == ["lent"] * RUNS

        # Runs that were never fenced are not lent: they are withdrawn first.
        self.donor.tell("withdraw", RUNS * PAGE)
        wait_for(back, "everything to be lent again")
        assert self.borrower.ask("store", answer="stored")["leases"] == RUNS
        self.borrower.tell("read", 0)
        assert self.borrower.expect("read") == {"what": "read", "valid": True, "found": "B"}


STATES: list[Callable[[Pair], None]] = [
    Pair.fencing, Pair.free, Pair.seeking, Pair.joined, Pair.requested, Pair.active, Pair.recalled, Pair.closing,
    Pair.draining, Pair.returned, Pair.leaving,
]  # fmt: skip


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Children(RUNS) as children:
        yield Pair(children)


def test_these_are_all_states() -> None:
    all_states = {state.value for kind in (RunState, LinkState, LeaseState) for state in kind}
    # What is lent is what the borrower calls active; between the request and its grant is no state of a lease.
    assert {state.__name__ for state in STATES} == all_states - {"lent"} | {"requested"}


@pytest.mark.parametrize(
    "strike",
    [
        Pair.kill_donor,
        Pair.kill_borrower,
        Pair.stop_donor,
        pytest.param(Pair.stop_borrower, marks=pytest.mark.exhaustive),
    ],
)
def test_whoever_is_struck_in_whichever_state_they_lend_and_borrow_again(
    pair: Pair, strike: Callable[[Pair], None]
) -> None:
    for state in STATES:
        try:
            state(pair)
            strike(pair)
            pair.recover()
            pair.rest()
        except AssertionError as error:
            raise AssertionError(f"{strike.__name__} in state {state.__name__}: {error}") from error
