"""A donor's or a borrower's process for tests: `lease_child.py donor|borrower JSON`, then a command on each line.

It says what happens as JSON lines. Lent memory is a file that all map; the donor fills what it gets back with `D`, the
borrower what it is lent with `B`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Any

from swift_tiers.radix_tiering.lending.leases import (
    Borrower,
    Donor,
    Extent,
    LeaseKey,
    LeaseService,
    RunState,
    Timing,
    Use,
)
from swift_tiers.radix_tiering.lending.leases.effects import LeaseBegan, LeaseEnded, Reclaimed

PAGE = 4096
_saying = threading.Lock()


def say(what: str, **fields: Any) -> None:
    with _saying:
        print(json.dumps({"what": what, **fields}), flush=True)


def tell(effect: Any) -> None:
    """An effect as a line: `LeaseBegan` with its fields."""
    say(type(effect).__name__, **{name: _plain(value) for name, value in effect._asdict().items()})


def _plain(value: Any) -> Any:
    if isinstance(value, LeaseKey):
        return value.lease
    return value if isinstance(value, int | float | str) else getattr(value, "value", str(value))


class Memory:
    """The shared file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def fill(self, extent: Extent, letter: bytes) -> None:
        self.map[extent.offset : extent.offset + extent.length] = letter * extent.length


class DonorChild:
    def __init__(self, options: dict[str, Any]) -> None:
        self.memory = Memory(options["memory"])
        donor = Donor(options["name"], PAGE, SystemRandom(), timing=Timing(**options["timing"]))
        self.service = LeaseService(donor=donor, listen=options["address"], on_donor=self.on_effect)
        self.machine = donor
        self.extents: dict[int, Extent] = {}
        self.own = [Extent(0, run * PAGE, PAGE) for run in range(options["runs"])]  # neither lent nor to be lent
        self.restock()

    def on_effect(self, effect: Any) -> None:
        if isinstance(effect, Reclaimed):
            self.memory.fill(self.extents[effect.run], b"D")
            self.own.append(self.extents[effect.run])
        tell(effect)

    def restock(self, fenced: str = "fenced") -> None:
        """Put at borrowers' disposal what has come back; a forward may go on that uses it, unless it is `fenced`."""
        while self.own:
            extent = self.own.pop(0)
            run = max(self.extents, default=0) + 1
            self.extents[run] = extent
            self.memory.fill(extent, b"D")
            self.service.stock(run, [extent])
            if fenced == "fenced":
                self.service.fenced(run)

    def withdraw(self, amount: str) -> None:
        self.service.withdraw(int(amount))

    def lent(self) -> None:
        say("lent", bytes=self.service.bytes_in(RunState.LENT, RunState.RECALLED))


class BorrowerChild:
    def __init__(self, options: dict[str, Any]) -> None:
        self.memory = Memory(options["memory"])
        self.lent: dict[LeaseKey, Extent] = {}
        # It waits long for its first grant: what a slow machine lets come late would be returned, and not lent again.
        timing = Timing(term=20.0)
        self.machine = borrower = Borrower(options["name"], PAGE, SystemRandom(), timing=timing)
        self.service = LeaseService(borrower=borrower, on_borrower=self.on_effect)
        self.donors = options["donors"]
        self.finished = threading.Event()
        self.connect()

    def on_effect(self, effect: Any) -> None:
        if isinstance(effect, LeaseBegan):
            self.lent[effect.key] = effect.extents[0]
        elif isinstance(effect, LeaseEnded):
            self.lent.pop(effect.key, None)
        tell(effect)

    def connect(self) -> None:
        """To every donor that it is not connected to."""
        for donor in set(self.donors) - set(self.machine.donors):
            self.service.connect(donor, self.donors[donor])

    def disconnect(self) -> None:
        for donor in self.donors:
            self.service.disconnect(donor)

    def links(self) -> None:
        say("links", **{donor: state.value for donor, state in self.machine.donors.items()})

    def want(self, amount: str) -> None:
        self.service.want(int(amount))

    def release(self) -> None:
        """Return everything."""
        for key in list(self.lent):
            self.service.release(key)

    def use(self, use: str) -> None:
        """Use every lease until `finish`, beside everything else."""
        tickets = [self.service.check_before(key, Use[use]) for key in list(self.lent)]
        finished = self.finished

        def end() -> None:
            finished.wait()
            for ticket in tickets:
                if ticket is not None:
                    self.service.check_after(ticket)

        threading.Thread(target=end, daemon=True).start()
        say("use", uses=sum(ticket is not None for ticket in tickets))

    def finish(self) -> None:
        """End the uses under way."""
        self.finished.set()
        self.finished = threading.Event()

    def store(self) -> None:
        """Fill everything that is lent."""
        stored = 0
        for key, extent in list(self.lent.items()):
            ticket = self.service.check_before(key, Use.STORE)
            if ticket is not None:
                self.memory.fill(extent, b"B")
                stored += self.service.check_after(ticket)
        say("stored", leases=stored)

    def read(self, seconds: str) -> None:
        """Read one lease, slowly; say what was found and whether it may be believed."""
        self._use(lambda: time.sleep(float(seconds)))

    def hog(self, seconds: str) -> None:
        """The same, with nobody else in this process allowed to do anything meanwhile: a busy interpreter."""
        self._use(lambda: ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6)))

    def _use(self, wait: Callable[[], object]) -> None:
        key, extent = next(iter(self.lent.items()))
        ticket = self.service.check_before(key)
        if ticket is None:
            say("read", valid=False, found="")
            return
        say("reading", lease=key.lease)
        wait()
        found = self.memory.map[extent.offset : extent.offset + 1]
        say("read", valid=self.service.check_after(ticket), found=found.decode())


def deafen(machine: Any, kinds: tuple[str, ...]) -> None:
    """Lose messages of these kinds from now on, instead of those named before."""
    receive = type(machine).receive
    machine.receive = lambda letter, now: [] if type(letter.body).__name__ in kinds else receive(machine, letter, now)


def main() -> None:
    options = json.loads(sys.argv[2])
    child: Any = {"donor": DonorChild, "borrower": BorrowerChild}[sys.argv[1]](options)
    say("ready", pid=os.getpid())
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "counters":
            say("counters", **{name.replace(" ", "_"): count for name, count in child.service.counters.items()})
        elif command == "deaf":
            deafen(child.machine, tuple(arguments))
            say("deaf")
        elif command == "leases":
            say("leases", leases=[[view.lease, view.bytes, view.state] for view in child.service.leases()])
        elif command == "close":
            say("closed", clean=child.service.close())
        else:
            getattr(child, command)(*arguments)


if __name__ == "__main__":
    # Beside this file are modules that must not be taken for others.
    sys.path.remove(str(Path(__file__).parent))
    main()
