"""The way of pages from memory that neighbours lend, as servers go it.

A page lands on the device if landing memory has room when it is asked for, and comes up to host memory if not; in
either case before its request is promised it (decisions 7 and 14). One thread does both, one page after the other.
What landed keeps its slot until its request has ended.
"""

from __future__ import annotations

from swift_tiers.radix_tiering.base.config import DeviceConfig
from swift_tiers.radix_tiering.restore.cost import SourceCost
from swift_tiers.radix_tiering.tiers.host.landing import landing_slots

from .devices.clock import Clock
from .devices.lines import Done, Line

PEER = "peer"
#: `device.landing` of a server that is not told otherwise.
DEFAULT_LANDING = float(int(DeviceConfig().landing))


class PeerRoute:
    """Lent memory as a source."""

    def __init__(self, clock: Clock, page_bytes: int, landing_bytes: float, to_device: float, to_host: float) -> None:
        """`to_device`, `to_host`: bytes per second from the donor to landing memory and to host memory."""
        self.slots = max(0, landing_slots(page_bytes, landing_bytes))
        self.used = 0
        self.landed = 0  # pages, of all time
        self.passed = 0  # pages through host memory
        self._to_device, self._to_host = to_device, to_host
        self._line = Line(clock, to_device)

    def send(self, nbytes: float, done: Done) -> bool:
        """Bring a page; True if it lands."""
        lands = self.used < self.slots
        self.used += lands
        self.landed += lands
        self.passed += not lands
        # The line carries what goes by the slower way as if it were so much more.
        self._line.send(nbytes if lands else nbytes * self._to_device / self._to_host, done)
        return lands

    def give_back(self, pages: int) -> None:
        """A request that had so many pages in landing memory has ended."""
        self.used -= pages
        assert self.used >= 0, "more slots were given back than taken"

    def cost(self, pages: int) -> SourceCost:
        """What a server has learnt of it from requests of so many pages each."""
        landed = min(self.slots, pages)
        each = (landed / self._to_device + (pages - landed) / self._to_host) / pages
        return SourceCost(latency_seconds=0.0, bytes_per_second=1 / each)
