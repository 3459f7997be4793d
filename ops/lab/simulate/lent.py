"""A server that borrows memory, and those that lend it: the product's leases and lenders, between models of servers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.base.config import DeviceConfig, RestoreConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import CapTier
from swift_tiers.radix_tiering.bus.speak import carry_out
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.restore.cost import SourceCost
from swift_tiers.radix_tiering.tiers.host.landing import landing_slots
from swift_tiers.radix_tiering.tiers.testing.network import Network

from ...base.devices.models import Model
from ...base.simulated.device import SimulatedPool
from ...base.simulated.lending import BorrowedMemory, DonorSide, LandingModel
from .machine import SMALLER, Machine, ModelServer, Trace, small_pages
from .workloads import Lengths

#: `device.landing` of a server that is not told otherwise.
DEFAULT_LANDING = float(int(DeviceConfig().landing))
#: Between two rounds of a donor's scheduler, and two looks at what is lent, seconds.
ROUND_SECONDS, LOOK_SECONDS = 0.02, 0.25
MASTER = "master"


class Guests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that a donor serves itself: each holds its tokens for a while, then forgets them."""

    per_second: float
    lengths: Lengths
    hold_seconds: float


class DonorModel:
    """One server that lends what its own requests do not need. To be made by a task of the runner."""

    def __init__(
        self,
        name: str,
        network: Network,
        runner: VirtualRunner,
        model: Model,
        pool_bytes: float,
        page_tokens: int,
        guests: Guests | None,
        seed: int,
    ) -> None:
        """`guests`: None: nobody asks it for anything."""
        self.page_bytes = model.token_bytes * page_tokens  # as it would be
        self._runner = runner
        self._random = random.Random(seed)
        self._guests = guests
        self._needed = 0
        bounds = donation_bounds(True)
        assert bounds is not None
        pool = SimulatedPool(small_pages(model, page_tokens), int(pool_bytes // self.page_bytes))
        sizer = ElasticSizer(
            pool.pages, page_tokens, least_lent=int(bounds.least * pool.pages), most_lent=int(bounds.most * pool.pages)
        )
        events = EventLog(runner.time, runner=runner)
        self.side = DonorSide(name, network, runner, pool, sizer, events, lambda: self._needed)
        runner.thread(self._serve, name).start()

    def _serve(self) -> None:
        """What its scheduler does, as far as lending goes."""
        guests, leave = self._guests, list[tuple[float, int]]()
        comes = self._runner.monotonic() + self._pause()
        while True:
            now = self._runner.monotonic()
            while leave and leave[0][0] <= now:
                self._needed -= leave.pop(0)[1]
            while guests is not None and comes <= now:
                tokens = guests.lengths.draw(self._random)
                self._needed += tokens
                leave.append((now + guests.hold_seconds, tokens))
                comes += self._pause()
                self.side.lender.arrived()
            self.side.lender.tick(now)
            self._runner.sleep(ROUND_SECONDS)

    def _pause(self) -> float:
        return float("inf") if self._guests is None else self._random.expovariate(self._guests.per_second)


class Unwatched:
    """Gives every lease back when it is asked to: nothing is kept there."""

    def __init__(self, memory: BorrowedMemory) -> None:
        self._memory = memory

    def room(self) -> None:
        """There is nothing to put there."""

    def full(self, part: Any, reason: str) -> None:
        """A lease never is."""

    def leaving(self, part: Any, until: float) -> Iterator[None]:
        self._memory.give_up(part)
        return iter(())

    def gone(self, part: Any, reason: str) -> None:
        """Nothing was there."""

    def back(self, part: Any) -> None:
        """A lease that has ended does not come back."""


class Borrowing:
    """A server that borrows, in one virtual time with its donors. To be made by a task of the runner."""

    def __init__(
        self,
        runner: VirtualRunner,
        machine: Machine,
        work: Trace,
        restore: RestoreConfig,
        donors: Mapping[str, DonorModel],
        network: Network,
        *,
        landing_bytes: float | None,
        to_device: float,
        to_host: float,
    ) -> None:
        """`landing_bytes`: of landing memory; None: as in the paper, where lent memory takes the place of host memory.
        `to_device`, `to_host`: bytes per second from donors."""
        self._runner = runner
        self.donors = donors
        slots = 0 if landing_bytes is None else max(0, landing_slots(machine.page_bytes, landing_bytes))
        landing = LandingModel(slots) if slots else None
        self.memory = BorrowedMemory(
            MASTER, network, runner, machine.geometry, to_host / SMALLER, landing=landing,
            landing_bytes_per_second=to_device / SMALLER,
        )  # fmt: skip
        self.memory.neighbours({name: donor.side.address for name, donor in donors.items()})
        if landing_bytes is None:
            self.memory.watch(Unwatched(self.memory))
            self.server = ModelServer(runner, machine, work, restore)
            runner.thread(self._follow, "cap").start()
        else:
            # With landing memory of any size they come that way: it is drained as they land.
            speed = to_device if slots else to_host
            cost = SourceCost(latency_seconds=0.0, bytes_per_second=speed / SMALLER)
            self.server = ModelServer(runner, machine, work, restore, lent=self.memory, landing=landing, lent_cost=cost)
        self._looks: list[float] = []  # at how much is lent, bytes
        runner.thread(self._look, "look").start()

    @property
    def lent_bytes(self) -> float:
        """As it would be."""
        return self.memory.capacity_bytes * SMALLER

    def measure(self) -> None:
        """From now on `mean_lent` counts."""
        self._looks.clear()

    @property
    def mean_lent(self) -> float:
        return sum(self._looks) / max(1, len(self._looks))

    @property
    def recalls(self) -> int:
        return sum(donor.side.recalls for donor in self.donors.values())

    def _look(self) -> None:
        while True:
            self._looks.append(self.lent_bytes)
            self._runner.sleep(LOOK_SECONDS)

    def _follow(self) -> None:
        """Host memory, which stands for what is lent, holds as much as that."""
        stack, before = self.server.stack, -1
        while True:
            self.memory.want(stack.host.capacity_bytes)
            if (lent := self.memory.capacity_bytes) != before:
                before = lent
                carry_out(stack, CapTier(tier="host", limit=lent), lambda outcome: None)
            self._runner.sleep(ROUND_SECONDS)


def network(runner: VirtualRunner) -> Network:
    """One in which every letter comes, once and in time."""
    return Network(runner, random.Random(0), Counter())
