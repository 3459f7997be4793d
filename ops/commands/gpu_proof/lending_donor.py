"""A process that lends memory of its device: the donor's real side of arenas and leases, with no server around it.

`donor_process` starts it with its options as JSON, and tells it what to do, one word a line on its standard input; the
end of the input ends it. It answers each in one line of JSON on its standard output:

    recall   take one run back, and overwrite it as soon as it is back
    restock  look at what was overwritten, and lend it anew
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

import torch

from swift_tiers.radix_tiering.base.errors import SwiftTiersError
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.device_arena import DeviceArena
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout, Span, run_shape
from swift_tiers.radix_tiering.lending.leases import Donor, Extent, LeaseService, ipc_address
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect, Reclaimed

#: What comes back is filled with this, as if its next owner had written there.
OVERWRITTEN = 0xA5
#: Seconds, a guard against hanging: a lease that nobody renews has ended long before.
PATIENCE = 20.0


class DonorOptions(NamedTuple):
    """A layer-major pool, all of which is lent."""

    directory: str  # of the sockets
    name: str  # in the lease protocol
    ordinal: int  # of the CUDA device
    planes: int
    plane_bytes: int  # of one page in one plane
    pages: int

    @property
    def layout(self) -> PoolLayout:
        starts = range(0, self.planes * self.pages * self.plane_bytes, self.pages * self.plane_bytes)
        return PoolLayout(tuple(starts), self.plane_bytes)

    @property
    def run_pages(self) -> int:
        """As a server would cut such a pool for one whose pages are as long as its own."""
        return run_shape(self.layout, 1, self.pages).pages

    @property
    def lent_pages(self) -> int:
        """In whole runs."""
        return self.pages // self.run_pages * self.run_pages

    def runs(self) -> Iterator[list[Extent]]:
        """The extents of each."""
        for first in range(0, self.lent_pages, self.run_pages):
            yield self.layout.extents([Span(first, self.run_pages)])


class LendingDonor:
    """Lends from the start. One thread."""

    def __init__(self, memory: DeviceMemory, options: DonorOptions) -> None:
        """Raises ArenaError and ConfigError."""
        self._arena = DeviceArena(memory, options.layout.page_bytes * options.pages)
        self._run_bytes = options.layout.page_bytes * options.run_pages
        self._back: queue.SimpleQueue[tuple[Reclaimed, float]] = queue.SimpleQueue()
        self._lent: dict[int, list[Extent]] = {}
        self._kept: list[list[Extent]] = []  # came back and was overwritten
        self._last = 0
        donor = Donor(options.name, options.layout.page_bytes, SystemRandom())
        address = ipc_address(Path(options.directory), options.name)
        self._service = LeaseService(donor=donor, listen=address, on_donor=self._told)
        self._server = ArenaServer(address, donor.party, self._arena, self._service.lent_to)
        for extents in options.runs():
            self._stock(extents)

    def recall(self) -> dict[str, Any]:
        """`seconds` from the recall until the run was back, and how it came `back`."""
        asked = THREADS.boot_time()
        self._service.withdraw(self._run_bytes)
        try:
            reclaimed, at = self._back.get(timeout=PATIENCE)
        except queue.Empty:
            return {"failure": f"nothing came back within {PATIENCE:g} s"}
        while reclaimed.run in self._server.copying():
            if THREADS.boot_time() > at + PATIENCE:
                return {"failure": f"a copy into memory that came back has not ended within {PATIENCE:g} s"}
            THREADS.sleep(0.0005)
        extents = self._lent.pop(reclaimed.run)
        for part in self._parts(extents):
            part.fill_(OVERWRITTEN)
        self._finish()
        self._kept.append(extents)
        return {"seconds": at - asked, "back": reclaimed.back.value}

    def restock(self) -> dict[str, Any]:
        """Of how many `runs` how many were `untouched` since they were overwritten."""
        runs = len(self._kept)
        untouched = sum(all(bool((part == OVERWRITTEN).all()) for part in self._parts(run)) for run in self._kept)
        while self._kept:
            self._stock(self._kept.pop())
        return {"runs": runs, "untouched": untouched}

    def close(self) -> None:
        self._service.close()
        self._server.close()
        self._arena.close()

    def _stock(self, extents: list[Extent]) -> None:
        self._last += 1
        self._lent[self._last] = extents
        self._service.stock(self._last, extents)
        self._service.fenced(self._last)  # what was done to it here has ended

    def _told(self, effect: DonorEffect) -> None:
        """Under the lease service's lock."""
        if isinstance(effect, Reclaimed):
            self._back.put((effect, THREADS.boot_time()))

    def _parts(self, extents: list[Extent]) -> Iterator[torch.Tensor]:
        for extent in extents:
            yield self._arena.memory[extent.offset : extent.offset + extent.length]

    def _finish(self) -> None:
        if self._arena.memory.is_cuda:
            torch.cuda.synchronize(self._arena.memory.device)


def lend(memory: DeviceMemory, options: DonorOptions) -> None:
    """Until the end of the standard input. Raises ArenaError and ConfigError."""
    donor = LendingDonor(memory, options)
    try:
        _say(ready=memory.name)
        for line in sys.stdin:
            _say(**{"recall": donor.recall, "restock": donor.restock}[line.strip()]())
    finally:
        donor.close()


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

    options = DonorOptions(**json.loads(sys.argv[1]))
    try:
        lend(CudaDeviceMemory(options.ordinal), options)
    except SwiftTiersError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
