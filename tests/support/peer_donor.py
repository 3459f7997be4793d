"""A real donor in the test's own process: it lends pages of a shared arena, and answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

from swift_tiers.radix_tiering.lending.donation.arena import SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.device_arena import DeviceArena
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.lending.leases import Donor, Extent, LeaseService, RunState, Timing, ipc_address
from swift_tiers.radix_tiering.lending.leases.effects import Reclaimed

from .redis import wait_for

PAGE = 4096
#: What the donor's own bytes are, in memory that is not lent.
OWN = 0xDD


class LocalDonor:
    """`pages` pages of `page_bytes`, lent as runs of `run_pages`, each cut into as many extents as there are `planes`.

    They lie in memory of the host, or of a fake `device`. Where no `timing` is given no lease ends by itself.
    What comes back is kept in `reclaimed`, and lent again only by `restock`; `on_reclaimed` may be set to hear of it,
    and is called under the lease service's lock.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "d",
        *,
        pages: int = 32,
        page_bytes: int = PAGE,
        run_pages: int = 8,
        planes: int = 1,
        bandwidth: float | None = None,
        interference: float | None = None,
        timing: Timing | None = None,
        server: type[ArenaServer] = ArenaServer,
        device: DeviceMemory | None = None,
    ) -> None:
        assert pages % run_pages == 0
        assert page_bytes % planes == 0
        self.name = name
        self.address = ipc_address(directory, name)
        self.reclaimed: list[Reclaimed] = []
        self.on_reclaimed: Callable[[Reclaimed], None] = lambda reclaimed: None
        self._run_pages, self._planes = run_pages, planes
        self._plane_bytes = page_bytes // planes
        self._runs: dict[int, int] = {}  # number -> first page
        self._last_run = 0
        size = pages * page_bytes
        self.arena = SharedArena(size) if device is None else DeviceArena(device, size)
        #: The donor's own view of its memory.
        self.memory = self.arena.array if isinstance(self.arena, SharedArena) else self.arena.memory.numpy()
        self.memory[:] = OWN
        donor = Donor(name, page_bytes, SystemRandom(), timing=timing or Timing(term=60.0))
        self.party = donor.party
        self.service = LeaseService(donor=donor, listen=self.address, on_donor=self._on_effect)
        self.server = server(
            self.address,
            donor.party,
            self.arena,
            self.service.lent_to,
            bandwidth=bandwidth,
            interference=interference,
        )
        for first in range(0, pages, run_pages):
            self._stock(first)

    def recall(self, nbytes: int) -> None:
        """Want so much back. It comes into `reclaimed`."""
        self.service.withdraw(nbytes)

    def restock(self) -> None:
        """Take what came back, overwrite it, and lend it again."""
        while self.reclaimed:
            first = self._runs.pop(self.reclaimed.pop(0).run)
            wait_for(lambda: not self.server.copying())
            for extent in self.extents(first):
                self.bytes_of(extent)[:] = OWN
            self._stock(first)

    def extents(self, first_page: int) -> list[Extent]:
        """Where the run that begins with this page lies."""
        length, plane = self._run_pages * self._plane_bytes, self.arena.size // self._planes
        return [Extent(0, i * plane + first_page * self._plane_bytes, length) for i in range(self._planes)]

    def extents_of(self, run: int) -> list[Extent]:
        """Where a run that has been stocked lies."""
        return self.extents(self._runs[run])

    def bytes_of(self, extent: Extent) -> Any:
        """The donor's own view of an extent."""
        return self.memory[extent.offset : extent.offset + extent.length]

    @property
    def lent_bytes(self) -> int:
        return self.service.bytes_in(RunState.LENT, RunState.RECALLED)

    def close(self) -> None:
        self.service.close()
        self.server.close()
        self.arena.close()

    def _stock(self, first_page: int) -> None:
        self._last_run += 1
        self._runs[self._last_run] = first_page
        self.service.stock(self._last_run, self.extents(first_page))
        self.service.fenced(self._last_run)

    def _on_effect(self, effect: Any) -> None:
        if isinstance(effect, Reclaimed):
            self.reclaimed.append(effect)
            self.on_reclaimed(effect)


@contextmanager
def local_donor(directory: Path, name: str = "d", **options: Any) -> Iterator[LocalDonor]:
    """See `LocalDonor`. `directory` must be of this user alone and its name short: a socket's path is 107 bytes."""
    donor = LocalDonor(directory, name, **options)
    try:
        yield donor
    finally:
        donor.close()
