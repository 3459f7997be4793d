"""A network of servers in one virtual time: letters are lost, come twice, late and in any order; ends are noticed."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Collection
from typing import NamedTuple

from ...base.virtual import VirtualRunner
from ...base.virtual.schedule import Task
from ...lending.leases.effects import Send
from ...lending.leases.messages import Letter, Party, decode, encode
from ...lending.leases.wire import (
    BorrowerGone,
    DonorGone,
    Event,
    FromBorrower,
    FromDonor,
    Wire,
)

#: How long a letter takes where nothing is wrong, at most, seconds; and one that is late.
LETTER_SECONDS, LATE_SECONDS = 0.001, 3.0
#: What networks do to letters, as it is counted.
NETWORKS_FAIL = ("a letter is cut off", "a letter is lost", "a letter comes twice", "a letter comes late")


class Network:
    """Whatever happens to a letter is drawn from `draw`."""

    def __init__(self, runner: VirtualRunner, draw: random.Random, happened: Counter[str]) -> None:
        self.runner = runner
        #: How often, 0 to 1, a letter is lost, comes twice, or comes late.
        self.lossy = self.twice = self.late = 0.0
        self._draw = draw
        self._happened = happened
        self._cut: dict[str, float] = {}  # server: until when nothing comes or goes
        self._listening: dict[str, NetworkWire] = {}  # by address
        self._wires: list[NetworkWire] = []

    def wire(self, server: str) -> NetworkWire:
        """The ways of one life of a server."""
        wire = NetworkWire(self, server)
        self._wires.append(wire)
        return wire

    def cut(self, server: str, seconds: float) -> None:
        """Nothing comes to this server, or from it, for so long."""
        self._cut[server] = self.runner.now + seconds

    def heal(self) -> None:
        """From now on every letter comes, once and in time."""
        self.lossy = self.twice = self.late = 0.0
        self._cut.clear()

    def ended(self, server: str) -> None:
        """The process of a server has ended, without a word: whoever has dealt with it is told, as by the kernel."""
        for wire in [wire for wire in self._wires if wire.server == server]:
            self.leave(wire)
            for other in self._wires:
                for end in other.ends_of(wire):
                    other.put(end, self.runner.now + self._draw.random() ** 3 * 0.05)

    def leave(self, wire: NetworkWire) -> None:
        """Nothing comes to this one any more."""
        if wire in self._wires:
            self._wires.remove(wire)
        self._listening = {address: one for address, one in self._listening.items() if one is not wire}

    def listen(self, address: str, wire: NetworkWire) -> None:
        assert address not in self._listening, f"two listen at {address}"
        self._listening[address] = wire

    def listener(self, address: str) -> NetworkWire | None:
        return self._listening.get(address)

    def post(self, sender: NetworkWire, receiver: NetworkWire, letter: Letter) -> None:
        """A letter is under way, or lost."""
        now, draw = self.runner.now, self._draw
        if max(self._cut.get(sender.server, 0.0), self._cut.get(receiver.server, 0.0)) > now:
            self._happened["network: a letter is cut off"] += 1
            return
        if draw.random() < self.lossy:
            self._happened["network: a letter is lost"] += 1
            return
        copies = 1
        if draw.random() < self.twice:
            self._happened["network: a letter comes twice"] += 1
            copies = 2
        for _ in range(copies):
            seconds = draw.random() * LETTER_SECONDS
            if draw.random() < self.late:
                self._happened["network: a letter comes late"] += 1
                seconds += draw.random() ** 2 * LATE_SECONDS
            receiver.put(_Sent(sender, decode(encode(letter))), now + seconds)


class _Sent(NamedTuple):
    sender: NetworkWire
    letter: Letter


_Coming = BorrowerGone | DonorGone | _Sent


class NetworkWire(Wire["Way"]):
    """The ways of one life of one server, as `ZmqWire` has them."""

    def __init__(self, network: Network, server: str) -> None:
        super().__init__()
        self.server = server
        self._network = network
        self._waiters: deque[Task] = deque()
        self._inbox: list[tuple[float, int, _Coming]] = []  # by when it comes
        self._put = 0
        self._woken = False
        self._party: Party | None = None
        self._routes: dict[Party, NetworkWire] = {}
        self._ways: dict[str, Way] = {}

    def listen(self, address: str, party: Party) -> None:
        self._party = party
        self._network.listen(address, self)

    def dial(self, address: str) -> Way:
        return Way(address)

    def add(self, donor: str, way: Way) -> None:
        self._ways[donor] = way

    def keep(self, donors: Collection[str]) -> None:
        self._ways = {donor: way for donor, way in self._ways.items() if donor in donors}

    def send(self, send: Send) -> None:
        if isinstance(send.to, str):
            way = self._ways.get(send.to)
            receiver = None if way is None else self._network.listener(way.address)
        else:
            receiver = self._routes.get(send.to)
        self.counters["sent" if receiver is not None else "dropped"] += 1
        if receiver is not None:
            self._network.post(self, receiver, send.letter)

    def forget(self, borrower: Party) -> None:
        self._routes.pop(borrower, None)

    def wake(self) -> None:
        self._woken = True
        self._network.runner.wake_some(self._waiters)

    def wait(self, seconds: float) -> list[Event]:
        runner = self._network.runner
        runner.step()
        until = runner.now + seconds
        while not self._woken and self._next > runner.now and until > runner.now:
            runner.block(self._waiters, "letters", min(until, self._next) - runner.now)
        self._woken = False
        found = []
        while self._next <= runner.now:
            found.append(heapq.heappop(self._inbox)[2])
        return [event for one in found if (event := self._understood(one)) is not None]

    def close(self) -> None:
        self._network.leave(self)

    # ---- for the network ----

    def put(self, what: _Coming, due: float) -> None:
        """Something is to come. No lock, which a process that is killed would keep; nor a step."""
        self._put += 1
        heapq.heappush(self._inbox, (due, self._put, what))
        self._network.runner.wake_some(self._waiters)

    def ends_of(self, other: NetworkWire) -> list[BorrowerGone | DonorGone]:
        """What is to be said here when the other one's process has ended."""
        ends: list[BorrowerGone | DonorGone] = [
            BorrowerGone(party) for party, wire in self._routes.items() if wire is other
        ]
        ends += [DonorGone(way.party) for way in self._ways.values() if way.party and way.party == other._party]
        return ends

    @property
    def _next(self) -> float:
        """When something comes."""
        return self._inbox[0][0] if self._inbox else math.inf

    def _understood(self, what: _Coming) -> Event | None:
        if isinstance(what, BorrowerGone | DonorGone):
            if isinstance(what, BorrowerGone):
                self._routes.pop(what.borrower, None)
            return what
        sender, letter = what
        self.counters["received"] += 1
        if sender._party == letter.sender:
            way = self._ways.get(letter.sender.name)
            if way is None:
                return None
            way.party = letter.sender
            return FromDonor(letter)
        self._routes[letter.sender] = sender
        return FromBorrower(letter)


class Way:
    """To one donor."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.party: Party | None = None  # who answered last

    def close(self) -> None:
        """Nothing is open yet."""
