"""A server that lends: the real lender, donor and arena over a pool whose pages know who has them."""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.virtual import VirtualProcess
from swift_tiers.radix_tiering.lending.donation.arena import SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.device_arena import DeviceArena
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout, Span
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases import Donor, LeaseService, RunState, Timing, ipc_address
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect
from swift_tiers.radix_tiering.tiers.testing.network import Network

from .device import Fabric, ModelDevice
from .pool import LENT, ModelPool

#: What is in memory that is not lent.
OWN = 0xDD
#: Between two rounds of a scheduler, seconds.
ROUND_SECONDS = 0.01
#: Tokens of a page.
PAGE_TOKENS = 4
TIMING = Timing()
#: What a round of lending takes at most, seconds, whatever copies take: other threads have their turns between.
ROUND_BOUND = 0.25


class WrittenByStrangersError(AssertionError):
    """Bytes of a donor's own were changed."""


class MemoryPool(ModelPool):
    """A pool in a donor's memory: whatever is not lent keeps its bytes."""

    def __init__(self, pages: int, memory: np.ndarray, layout: PoolLayout) -> None:
        """`memory`: uint8, all of the donor's."""
        super().__init__(pages)
        self._memory, self._layout = memory, layout

    def take(self, spans: int) -> list[Span]:
        taken = super().take(spans)
        self.look([page for span in taken for page in range(span.first, span.first + span.pages)])
        return taken

    def put_back(self, spans: Collection[Span]) -> None:
        super().put_back(spans)
        for extent in self._layout.extents(spans):
            self._memory[extent.offset : extent.offset + extent.length] = OWN

    def look(self, pages: Collection[int]) -> None:
        """Raises WrittenByStrangersError unless these pages have their own bytes."""
        for extent in self._layout.extents([Span(page, 1) for page in pages]):
            if (self._memory[extent.offset : extent.offset + extent.length] != OWN).any():
                raise WrittenByStrangersError(f"bytes {extent.offset} and on, which are not lent, were changed")


class HangingServer(ArenaServer):
    """Its device may hang: a copy does not go on before that is over."""

    hangs_until = 0.0

    def _copy(self, *arguments: Any) -> None:
        while self._runner.monotonic() < self.hangs_until:
            self._runner.sleep(ROUND_SECONDS)
        super()._copy(*arguments)


class LendingProcess:
    """One process of a server that lends: its memory, and what gives leases on it."""

    def __init__(
        self,
        name: str,
        address: str,
        network: Network,
        draw: random.Random,
        pages: int,
        planes: int,
        page_bytes: int,
        fabric: Fabric | None = None,
    ) -> None:
        """`pages` of so many bytes, in so many `planes`; on a device where there is a `fabric` between devices."""
        runner = network.runner
        plane_bytes = page_bytes // planes
        self.name = name
        self.layout = PoolLayout(tuple(n * (pages + 1) * plane_bytes for n in range(planes)), plane_bytes)
        size = (pages + 1) * page_bytes
        self.arena: SharedArena | DeviceArena
        if fabric is None:
            self.arena = SharedArena(size, available=lambda: None)
            memory = self.arena.array
        else:
            self.arena = DeviceArena(ModelDevice(name, fabric), size)
            memory = self.arena.memory.numpy()
        memory[:] = OWN
        self.pool = MemoryPool(pages, memory, self.layout)
        self.process = VirtualProcess(
            runner, begin=draw.random() * 1e5, rate=1 + (2 * draw.random() - 1) * TIMING.drift
        )
        self.effects: deque[DonorEffect] = deque()
        donor = Donor(name, page_bytes, runner.random, timing=TIMING)
        self.service = LeaseService(
            donor=donor,
            listen=address,
            on_donor=self.effects.append,
            runner=self.process,
            wire=network.wire(name),
        )
        self.server = HangingServer(
            address,
            donor.party,
            self.arena,
            self.service.lent_to,
            bandwidth=draw.choice((None, None, 1e7)),
            interference=draw.choice((None, 0.5)),
            runner=self.process,
        )

    def hang(self, seconds: float) -> None:
        """No copy into its memory ends for so long."""
        self.server.hangs_until = self.process.monotonic() + seconds

    def kill(self) -> None:
        """It ends at once. Its memory stays where it is mapped."""
        self.process.kill()
        if isinstance(self.arena, DeviceArena):
            os.close(self.arena.fd)
        else:
            self.arena.close()

    def close(self) -> None:
        """Lend no more; what was lent comes back."""
        assert self.service.close(), f"{self.name}: what was lent does not come back"
        self.server.close()

    def check(self, lent_pages: int) -> None:
        """All is the pool's again. `lent_pages`: as the lender knows."""
        assert self.server.counters["faults"] == self.service.counters.get("faults", 0) == 0, "a round failed"
        assert lent_pages == 0, f"{self.name}: {lent_pages} pages are lent for ever"
        self.pool.check()
        self.pool.look([page for page, owner in self.pool.owner.items() if owner != LENT])
        assert not self.pool.count(LENT), "pages are lent, and nobody knows"
        self.arena.close()


class DonorServer:
    """One after the other its lives, each a process of its own, at one address."""

    def __init__(
        self,
        name: str,
        directory: Path,
        network: Network,
        draw: random.Random,
        happened: Counter[str],
        fabric: Fabric | None = None,
    ) -> None:
        """`fabric`: between devices, on one of which its memory lies; None: it lies in the host's."""
        self.name = name
        self._fabric = fabric
        self.address = ipc_address(directory, name)
        self._network = network
        self._draw = draw
        self._happened = happened
        self._pages = draw.choice((12, 40, 120))
        self._planes = draw.choice((1, 1, 2))
        self._page_bytes = draw.choice((2048, 4096, 4096, 6144))
        #: Seconds after which what requests missed had come back from borrowers.
        self.waited: list[float] = []
        self.alive = False
        self.begin()

    @property
    def addresses(self) -> dict[str, str]:
        """Lease name -> lease address."""
        return {self.name: self.address}

    def begin(self) -> None:
        """A life begins."""
        self._one = one = LendingProcess(
            self.name,
            self.address,
            self._network,
            self._draw,
            self._pages,
            self._planes,
            self._page_bytes,
            self._fabric,
        )
        self.pool, self.process, self.service = one.pool, one.process, one.service
        self.lender = Lender(
            one.pool,
            ElasticSizer(self._pages, PAGE_TOKENS, window_seconds=self._draw.choice((0.2, 2.0))),
            one.layout,
            one.service,
            one.effects,
            demand=self._demand,
            fence=self._fence,
            copying=one.server.copying,
            taken_back=lambda pages, seconds: self.waited.append(seconds),
        )
        self._requests: list[_Request] = []
        self.alive, self._ending = True, False
        self._stopped_until = 0.0
        self._scheduler = self.process.thread(self._schedule, f"scheduler-{self.name}")
        self._scheduler.start()

    def stop(self, seconds: float) -> None:
        """The process does nothing for so long."""
        self._stopped_until = self.process.monotonic() + seconds
        self.process.stop(seconds)

    def hang(self, seconds: float) -> None:
        """No copy into its memory ends for so long."""
        self._one.hang(seconds)

    def unhang(self) -> None:
        """Copies go on."""
        self._one.hang(0.0)

    def kill(self) -> None:
        """The process ends at once. What it lent stays mapped where it is, as memory does."""
        self.alive = False
        self._one.kill()
        self._network.ended(self.name)

    def ask(self, pages: int, seconds: float) -> None:
        """A request of its own needs so many pages for so long."""
        self._requests.append(_Request(min(pages, self._pages), seconds))
        self.lender.arrived()

    def close(self) -> None:
        """End in order: everything that was lent comes back."""
        self._ending = True
        self._scheduler.join()
        self.lender.close()
        self._one.close()
        self.lender.tick(self.process.monotonic())
        self._one.check(self.lender.lent_pages)
        self.alive = False

    @property
    def lent_bytes(self) -> int:
        return self.service.bytes_in(RunState.LENT, RunState.RECALLED)

    # ---- its scheduler ----

    def _schedule(self) -> None:
        while not self._ending:
            now = self.process.monotonic()
            self._one.server.computing(bool(self._requests))
            self.lender.tick(now)
            took = self.process.monotonic() - max(now, self._stopped_until)
            assert took < ROUND_BOUND or self._happened["starve"], f"{self.name}: a round of lending took {took:.3f} s"
            for request in list(self._requests):
                self._go_on(request, now)
            self.process.sleep(ROUND_SECONDS)
        for request in self._requests:
            if request.pages is not None:
                self.pool.finish(request.pages, keep=False)

    def _go_on(self, request: _Request, now: float) -> None:
        if request.pages is None:
            request.pages = self.pool.alloc(request.count)
            if request.pages is None:
                self.lender.refused()
                return
            self._happened["donor: a request of its own"] += 1
            self.pool.look(request.pages)
            request.until = now + request.seconds
        elif now >= request.until:
            self.pool.look(request.pages)
            self.pool.finish(request.pages, keep=self._draw.random() < 0.5)
            self._requests.remove(request)

    def _demand(self) -> int:
        return sum(request.count for request in self._requests) * PAGE_TOKENS

    def _fence(self) -> Callable[[], bool]:
        """What was under way when pages left the pool is over a little later."""
        over = self.process.monotonic() + self._draw.random() * 2 * ROUND_SECONDS
        return lambda: self.process.monotonic() >= over


class _Request:
    """One of the donor's own."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self.pages: list[int] | None = None  # until there is room
        self.until = 0.0
