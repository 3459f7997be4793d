"""Donors and borrowers side by side: one clock, moved by hand, and a network that a test may look into."""

from __future__ import annotations

from random import Random
from typing import Any

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Extent, LeaseKey, Letter, Party
from swift_tiers.radix_tiering.lending.leases.effects import LeaseBegan, Send

PAGE = 256
RUN = 1024


class Pair:
    """One donor `d` and any number of borrowers, or several donors: machines by name, letters delivered at once.

    `effects` has what the machines told, by machine. `hold` names kinds of messages that are kept in `held` instead of
    being delivered.
    """

    def __init__(self, *borrowers: str, donors: tuple[str, ...] = ("d",), **donor_options: Any) -> None:
        self.now = 100.0
        self.random = Random(1)
        self.hold: set[type] = set()
        self.held: list[Send] = []
        self.letters: list[Letter] = []
        self.effects: dict[str, list[Any]] = {}
        self.machines: dict[str, Any] = {}
        self._last_run = 0
        for name in donors:
            self.machines[name] = Donor(name, PAGE, self.random, **donor_options)
        for name in borrowers or ("b",):
            self.add(name)

    def add(self, name: str, page_bytes: int = PAGE) -> Borrower:
        """One more borrower, which knows all donors."""
        machine = self.machines[name] = Borrower(name, page_bytes, self.random)
        for donor in [name for name, other in self.machines.items() if isinstance(other, Donor)]:
            self.do(name, machine.connect(donor, self.now))
        self.settle()
        return machine

    @property
    def donor(self) -> Donor:
        machine: Donor = self.machines["d"]
        return machine

    @property
    def borrower(self) -> Borrower:
        machine: Borrower = self.machines["b"]
        return machine

    def do(self, name: str, outputs: list[Any]) -> None:
        """Carry out what the machine of this name has said."""
        for output in outputs:
            if not isinstance(output, Send):
                self.effects.setdefault(name, []).append(output)
            elif type(output.letter.body) in self.hold:
                self.held.append(output)
            else:
                self.deliver(output)

    def deliver(self, send: Send) -> None:
        self.letters.append(send.letter)
        to = send.to.name if isinstance(send.to, Party) else send.to
        self.do(to, self.machines[to].receive(send.letter, self.now))

    def stock(self, runs: int = 1, *, size: int = RUN, donor: str = "d", fenced: bool = True) -> list[int]:
        """Give the donor runs to lend; their numbers."""
        numbers = []
        for _ in range(runs):
            self._last_run += 1
            run = self._last_run
            numbers.append(run)
            self.do(donor, self.machines[donor].stock(run, [Extent(0, run * size, size)]))
            if fenced:
                self.do(donor, self.machines[donor].fenced(run))
        self.settle()
        return numbers

    def want(self, size: int, borrower: str = "b") -> None:
        self.do(borrower, self.machines[borrower].want(size, self.now))
        self.settle()

    def settle(self) -> None:
        """Let every machine do what is due now."""
        for _ in range(100):
            due = [name for name, machine in self.machines.items() if machine.wake <= self.now]
            if not due:
                return
            for name in due:
                self.do(name, self.machines[name].tick(self.now))
        raise AssertionError(f"{due} never come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, with every machine woken when it wants to be."""
        end = self.now + seconds
        while (due := min(machine.wake for machine in self.machines.values())) <= end:
            self.now = max(self.now, due)
            self.settle()
        self.now = end

    def key(self, borrower: str = "b") -> LeaseKey:
        """The lease that began last."""
        began = [effect for effect in self.effects.get(borrower, []) if isinstance(effect, LeaseBegan)]
        key: LeaseKey = began[-1].key
        return key

    def told(self, name: str, kind: type) -> list[Any]:
        """What the machine has told of this kind, and tells no more when asked again."""
        effects = self.effects.get(name, [])
        found = [effect for effect in effects if isinstance(effect, kind)]
        self.effects[name] = [effect for effect in effects if not isinstance(effect, kind)]
        return found

    def said(self, kind: type) -> list[Any]:
        """Messages of this kind that were delivered so far."""
        return [letter.body for letter in self.letters if isinstance(letter.body, kind)]
