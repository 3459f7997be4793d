"""What one rank lends to and borrows from other servers of its machine: made before its tier stack, closed after it."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout
from swift_tiers.radix_tiering.lending.leases.addresses import ipc_address
from swift_tiers.radix_tiering.lending.leases.donor import Donor
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect
from swift_tiers.radix_tiering.lending.leases.hand import LeaseHand
from swift_tiers.radix_tiering.lending.leases.service import LeaseService
from swift_tiers.radix_tiering.lending.leases.timing import lease_timing
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory

from ..pools.device_pool import DevicePool
from ..pools.gpu_memory import gpu_memory
from ..pools.shared_pool import LentKVPool
from .donation import Donation
from .lease_directory import lease_directory

logger = logging.getLogger(__name__)


class PeerSide:
    """Lends once the scheduler is complete (`donation`), borrows as soon as there is a stack (`borrow`)."""

    def __init__(
        self,
        config: TiersConfig,
        rank: str,
        pool: DevicePool,
        kvcache: Any,
        landing: Landing | None = None,
        *,
        number: int = 0,
        ranks: int = 1,
    ) -> None:
        """`kvcache`: SGLang's pool, which `pool` serves; shared if this rank lends. `landing`: where pages come to from
        donors' GPUs; None: they all come through host memory. `rank`: what this one is called, `number` which it is of
        so many `ranks` that run the same requests. Raises ConfigError."""
        peer, server = config.peer, config.bus.server
        assert server is not None, "named when the arguments were resolved"
        self.name = lease_name(server, rank)
        #: Where borrowers find this rank; empty if it lends nothing.
        self.address = ""
        self.tier: PeerTier | None = None
        self.service: LeaseService | None = None
        self.donation: Donation | None = None
        self._peer = peer
        self._timing = lease_timing(peer.term, peer.recall_bound)
        self._number, self._ranks = number, ranks
        self._pool = pool
        self._page_bytes = pool.geometry.page_bytes
        self._outgoing_bytes = int(config.device.outgoing)
        self._accelerator = pool.accelerator
        self._landing = landing
        self._effects: deque[DonorEffect] = deque()
        self._server: ArenaServer | None = None
        self._layout: PoolLayout | None = None
        if donation_bounds(peer.donate) is not None:
            if not isinstance(kvcache, LentKVPool):
                raise ConfigError(f"peer.donate: a {type(kvcache).__name__} cannot be lent so far; remove peer.donate")
            self._layout = kvcache.layout
            try:
                self._listen(lease_directory(config), kvcache)
            except BaseException:
                self.close()
                raise

    def _listen(self, directory: Path, kvcache: LentKVPool) -> None:
        address = ipc_address(directory, self.name)
        donor = Donor(self.name, kvcache.layout.page_bytes, random.SystemRandom(), timing=self._timing)
        self.service = LeaseService(donor=donor, listen=address, on_donor=self._effects.append)
        bandwidth = self._peer.bandwidth
        self._server = ArenaServer(
            address,
            donor.party,
            kvcache.arena,
            self.service.lent_to,
            bandwidth=None if bandwidth is None else float(bandwidth),
            # What GPUs copy takes no processor's time, and of the donor's GPU next to nothing.
            interference=self._peer.interference
            if kvcache.arena.kind == "host" and self._peer.interference < 1
            else None,
        )
        self.address = address

    def borrow(self, fingerprint: Callable[[np.ndarray], bytes], events: EventLog) -> PeerTier | None:
        """The peer tier of a rank that borrows; `fingerprint` is the checksum of a page. Raises ArenaError."""
        if self._peer.borrow:
            device = self._device()
            if device is not None:
                self._pool.outgoing = self._open_outgoing(device)
            self.tier = PeerTier(
                self.name,
                self._page_bytes,
                self._peer,
                fingerprint=fingerprint,
                landing=self._landing if device is not None else None,
                device=device,
                outgoing=self._pool.outgoing,
                events=events,
            )
        return self.tier

    def _open_outgoing(self, device: DeviceMemory) -> OutgoingMemory | None:
        """From where donors' devices store pages; None where there is none, or no room: then all of them go through
        host memory, and the log says why."""
        if not self._outgoing_bytes:
            return None
        try:
            found = OutgoingMemory(device, self._page_bytes, self._outgoing_bytes)
        except (ValueError, ArenaError) as error:
            logger.warning("swift-tiers: device.outgoing: %s: pages go to other GPUs through host memory", error)
            return None
        logger.info("swift-tiers: %d pages of outgoing memory on the device", found.rows)
        return found

    def _device(self) -> DeviceMemory | None:
        """For which memory of donors' GPUs is mapped; None: for none."""
        if self._accelerator is None:
            return None
        try:
            return gpu_memory(self._accelerator.device)
        except ArenaError as error:
            logger.warning("swift-tiers: peer.borrow: from servers that lend memory of GPUs nothing comes: %s", error)
            return None

    def donation_of(self, scheduler: Any, stack: Any) -> Donation | None:
        """What lends of this scheduler's memory what it does not need, once it is this side's `donation`; None where
        this rank does not donate."""
        bounds = donation_bounds(self._peer.donate)
        if bounds is None or self.service is None or self._server is None or self._layout is None:
            return None
        return Donation(
            scheduler,
            stack,
            self._layout,
            bounds,
            float(self._peer.window),
            float(self._peer.window if self._peer.keep is None else self._peer.keep),
            self._timing.donor_deadline(0.0, self._timing.term),
            self.service,
            self._effects,
            self._server,
            rank=self._number,
            ranks=self._ranks,
        )

    def tick(self) -> None:
        """To be called by the scheduler at the beginning of each round."""
        if self.donation is not None:
            self.donation.tick()

    def still(self) -> AbstractContextManager[object]:
        """Within this no thread of what is lent uses the device, whatever neighbours ask for."""
        return nullcontext() if self._server is None else self._server.still()

    def request_arrived(self) -> None:
        """A request waits: the next round looks at what is needed."""
        if self.donation is not None:
            self.donation.lender.arrived()

    def hand(self) -> LeaseHand:
        """An operator's hand on this rank's leases."""
        return LeaseHand(
            self.name,
            service=self.service,
            address=self.address,
            borrower=self.tier.service if self.tier is not None else None,
            lender=lambda: self.donation.lender if self.donation is not None else None,
            counters=self._counters,
        )

    def _counters(self) -> Iterator[Mapping[str, int]]:
        if self._server is not None:
            yield dict(self._server.counters)
        if self.tier is not None:
            yield {"faults": self.tier.faults}

    def close(self) -> None:
        """Return what is borrowed, take back what is lent. Waits a few recall bounds at most. Idempotent."""
        self.donation = None
        if self.tier is not None:
            self.tier.close()
        if self.service is not None:
            if not self.service.close():
                logger.warning("swift-tiers: a borrower has not returned its leases; they end with this process")
            self.service = None
        if self._server is not None:
            self._server.close()
            self._server = None
