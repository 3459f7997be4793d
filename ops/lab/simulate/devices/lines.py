"""What bytes come through: a line with a latency and a bandwidth, and SSDs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swift_tiers.radix_tiering.tiers.ssd.layout import Placement, unit_count, unit_length
from swift_tiers.radix_tiering.tiers.ssd.slots import SlotAllocator, SlotMap

from ....base.devices.hardware import Ssd
from .clock import Clock

Done = Callable[[], None]


class Line:
    """Carries one thing after the other: a network, a PCIe link, NVLink, one SSD.

    What is asked for at `t` begins to flow at `t + latency`, or when all that was asked for before has passed.
    """

    def __init__(
        self, clock: Clock, bytes_per_second: float, *, latency_seconds: float = 0.0, request_seconds: float = 0.0
    ) -> None:
        """`request_seconds`: the least that one request takes of the line, however small (1 / IOPS of an SSD)."""
        self._clock = clock
        self.bytes_per_second = bytes_per_second
        self.latency_seconds = latency_seconds
        self._request_seconds = request_seconds
        self._free = 0.0
        self.busy_seconds = 0.0
        self.carried_bytes = 0.0

    @property
    def free_at(self) -> float:
        """When what has been asked for so far will have passed."""
        return max(self._free, self._clock.now)

    def send(self, nbytes: float, done: Done) -> None:
        took = max(nbytes / self.bytes_per_second, self._request_seconds)
        self._free = max(self._clock.now + self.latency_seconds, self._free) + took
        self.busy_seconds += took
        self.carried_bytes += nbytes
        self._clock.at(self._free, done)


def ssd_lines(clock: Clock, ssd: Ssd, count: int) -> list[Line]:
    """So many devices of a kind."""
    latency, request = ssd.latency_seconds, 1 / ssd.requests_per_second
    return [Line(clock, ssd.bytes_per_second, latency_seconds=latency, request_seconds=request) for _ in range(count)]


class Stripes:
    """SSDs side by side. A page lies where the product's allocator puts its units, and is there with the last."""

    def __init__(self, devices: Sequence[Line], unit_bytes: int) -> None:
        self.devices = list(devices)
        self.unit_bytes = unit_bytes
        # More slots than any page has units: what is asked here is only where units go.
        self._allocator = SlotAllocator([SlotMap(1 << 16) for _ in devices])

    @property
    def bytes_per_second(self) -> float:
        return sum(device.bytes_per_second for device in self.devices)

    def send(self, nbytes: float, done: Done) -> None:
        """A page of this length, which lies as the next one written would."""
        self.transfer(self.units(int(nbytes)), done)

    def units(self, length: int) -> list[tuple[int, int]]:
        """Device and bytes of each unit of such a page."""
        placement = self._allocator.take(unit_count(length, self.unit_bytes))
        assert placement is not None, "no page has so many units"
        self._allocator.give_back(placement)
        return self.lengths(placement, length)

    def lengths(self, placement: Placement, length: int) -> list[tuple[int, int]]:
        """Device and bytes of each unit of a page that lies there."""
        return [(device, unit_length(length, self.unit_bytes, at)) for at, (device, _) in enumerate(placement)]

    def transfer(self, units: Sequence[tuple[int, int]], done: Done) -> None:
        """Read or write them; `done` when the last one is through."""
        left = len(units)

        def came() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for device, length in units:
            self.devices[device].send(length, came)
