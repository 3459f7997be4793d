"""What bytes come through: a line with a latency and a bandwidth, and lines one behind or beside the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swift_tiers.ops.simulate.clock import Clock
from swift_tiers.radix_tiering.ssd.slots import SlotAllocator, SlotMap

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

    @property
    def ready_at(self) -> float:
        """When to ask for more, so that the line never rests and nothing is asked for sooner than needed."""
        return max(self._clock.now, self._free - self.latency_seconds)

    def send(self, nbytes: float, done: Done) -> None:
        took = max(nbytes / self.bytes_per_second, self._request_seconds)
        self._free = max(self._clock.now + self.latency_seconds, self._free) + took
        self.busy_seconds += took
        self.carried_bytes += nbytes
        self._clock.at(self._free, done)


class Chain:
    """Lines one behind the other, as from a network over PCIe: each thing passes them in turn."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = list(lines)

    @property
    def ready_at(self) -> float:
        """As of its slowest line: the others keep up with it."""
        return max(line.ready_at for line in self._lines)

    @property
    def busy_seconds(self) -> float:
        return max(line.busy_seconds for line in self._lines)

    def send(self, nbytes: float, done: Done) -> None:
        for line in reversed(self._lines):
            done = _send(line, nbytes, done)
        done()


def _send(line: Line, nbytes: float, done: Done) -> Done:
    return lambda: line.send(nbytes, done)


class Stripes:
    """SSDs side by side. A page lies where the product's allocator puts its stripe units, and is there with the last.

    So many requests are kept in flight per device as the stripe set keeps.
    """

    def __init__(self, clock: Clock, devices: Sequence[Line], unit_bytes: int, *, depth: int = 32) -> None:
        self._clock = clock
        self.devices = list(devices)
        self.unit_bytes = unit_bytes
        self._window = depth * unit_bytes
        # More slots than any simulation fills: what is asked here is only where units go.
        self._allocator = SlotAllocator([SlotMap(1 << 20) for _ in devices])

    @property
    def bytes_per_second(self) -> float:
        return sum(device.bytes_per_second for device in self.devices)

    @property
    def busy_seconds(self) -> float:
        return max(device.busy_seconds for device in self.devices)

    @property
    def ready_at(self) -> float:
        """When the most loaded device has less than its queue's depth before it."""
        return max(
            self._clock.now,
            max(device.free_at - self._window / device.bytes_per_second for device in self.devices),
        )

    def send(self, nbytes: float, done: Done) -> None:
        self.read(self.units(nbytes), done)

    def units(self, nbytes: float) -> list[tuple[int, float]]:
        """Device and bytes of each unit of a page of this length, placed as the next page written would be."""
        count = max(1, -(-int(nbytes) // self.unit_bytes))
        placement = self._allocator.take(count)
        assert placement is not None, "a simulation has room for what it reads"
        self._allocator.give_back(placement)
        lengths = [self.unit_bytes] * (count - 1) + [nbytes - (count - 1) * self.unit_bytes]
        return [(device, length) for (device, _), length in zip(placement, lengths, strict=True)]

    def read(self, units: Sequence[tuple[int, float]], done: Done) -> None:
        left = len(units)

        def came() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for device, length in units:
            self.devices[device].send(length, came)
