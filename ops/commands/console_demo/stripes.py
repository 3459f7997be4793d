"""A stripe set in virtual time with devices that can be pulled, slowed and added, and that count what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.slot_map import MapPiece, SlotState, TierMap
from swift_tiers.radix_tiering.figures.counters import LatencyHistogram
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.ssd import Placement, StoredPage
from swift_tiers.radix_tiering.tiers.ssd.layout import unit_count, unit_length
from swift_tiers.radix_tiering.tiers.ssd.slots import FREE, RESERVED, SlotAllocator, SlotMap
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Tier, Write, Written, as_many_as_free

from ...base.devices.clock import Clock
from ...base.devices.lines import Line

IN_SERVICE, DRAINING, OUT = "in service", "draining", "out"


class Device:
    """One device: a line, its slots, and what it has done."""

    def __init__(self, clock: Clock, number: int, path: str, slots: int, bytes_per_second: float) -> None:
        self.number = number
        self.path = path
        self.slots = SlotMap(slots)
        self.line = Line(clock, bytes_per_second, latency_seconds=100e-6)
        self.usual = bytes_per_second
        self.service, self.reason = IN_SERVICE, ""
        self.reads = self.writes = self.bytes_read = self.bytes_written = 0
        self.write_errors = self.in_flight = 0
        self.latency = LatencyHistogram()
        self._clock = clock

    def transfer(self, length: int, writes: bool, done: Callable[[], None]) -> None:
        began = self._clock.now
        self.in_flight += 1

        def came() -> None:
            self.in_flight -= 1
            self.latency.observe(self._clock.now - began)
            if writes:
                self.writes += 1
                self.bytes_written += length
            else:
                self.reads += 1
                self.bytes_read += length
            done()

        self.line.send(length, came)


class DemoStripes(Tier):
    """The ssd tier in virtual time, and what a simulated server loads from."""

    name = "ssd"
    durable = True
    tries_again = True
    refusal = SsdTier.refusal

    def __init__(
        self, clock: Clock, name: str, devices: int, slots: int, unit_bytes: int, bytes_per_second: float
    ) -> None:
        """`slots` and `bytes_per_second` of each device."""
        self._clock = clock
        self._slots = slots
        self._speed = bytes_per_second
        self._name = name
        self.unit_bytes = unit_bytes
        self.devices = [self._device(number) for number in range(devices)]
        self._allocator = SlotAllocator([device.slots for device in self.devices])
        self._generations = count(1)
        self.queued = 0
        self.answered = 0

    def _device(self, number: int) -> Device:
        path = f"/ssd{number}/swift-tiers-{self._name}.stripe"
        return Device(self._clock, number, path, self._slots, self._speed)

    # ---- what writes and loads ----

    @property
    def capacity_units(self) -> int:
        return self._allocator.capacity_units

    @property
    def free_units(self) -> int:
        return self._allocator.free_units

    @property
    def bytes_per_second(self) -> float:
        return sum(device.line.bytes_per_second for device in self.devices if device.service != OUT)

    def units(self, length: int) -> int:
        return unit_count(length, self.unit_bytes)

    @property
    def capacity_bytes(self) -> int:
        return sum(device.slots.count for device in self.devices if device.service != OUT) * self.unit_bytes

    def size_of(self, length: int) -> int:
        return self.units(length) * self.unit_bytes

    def takes(self, length: int) -> bool:
        return self.units(length) <= self.capacity_units

    def reserve(self, lengths: Sequence[int]) -> list[Placement]:
        return as_many_as_free(lambda length: self._allocator.take(self.units(length)), lengths)

    def release(self, places: Sequence[StoredPage | Placement]) -> None:
        for place in places:
            self._allocator.give_back_taken(place.placement if isinstance(place, StoredPage) else place)

    def uses(self, place: StoredPage, part: Any) -> bool:
        return place.uses(part)

    def write(self, writes: Sequence[Write]) -> None:
        """The bytes are not looked at."""
        for one in writes:
            self._transfer(self._lengths(one.place, one.record.length), True, partial(self._written, one))

    def _written(self, write: Write) -> None:
        placement: Placement = write.place
        if any(self.devices[device].service == OUT for device, _ in placement):
            self.release([placement])
            with self.answers:
                write.done(None, "its device is out of service")
            return
        self._allocator.fill(placement)
        digest = write.record.key[-16:]
        stored = StoredPage(write.record, next(self._generations), digest, placement)
        with self.answers:
            write.done(Written(stored, digest), "")

    def read(self, reads: Sequence[Read]) -> None:
        """The bytes stay as they are."""
        for one in reads:
            self.send(one.into.nbytes, partial(self._came, one))

    def _came(self, read: Read) -> None:
        with self.answers:
            read.done(ReadOutcome.OK)

    def facts(self, copy: Copy) -> dict[str, Any]:
        return {"ssd_placement": copy.place.placement, "generation": copy.place.generation}

    def place_facts(self, copy: Copy) -> dict[str, Any]:
        return {"ssd_placement": copy.place.placement}

    def slot_map(self, held: Callable[[], Sequence[Any]], *, time: float) -> TierMap:
        """The devices' own slots say what is held."""
        parts = [_states(device) for device in self.devices]
        pieces = tuple(MapPiece(str(number), len(part)) for number, part in enumerate(parts))
        return TierMap(time=time, slot_bytes=self.unit_bytes, states=np.concatenate(parts), pieces=pieces)

    def send(self, nbytes: float, done: Callable[[], None]) -> None:
        """Load a page of this length. Where its units lie is left to the allocator, which spreads all alike."""
        placement = self._allocator.take(self.units(int(nbytes)))
        if placement is None:  # full: they lie somewhere, one on each device
            used = [device.number for device in self.devices if device.service != OUT]
            lengths = [(device, self.unit_bytes) for device in used]
        else:
            self._allocator.give_back(placement)
            lengths = self._lengths(placement, int(nbytes))
        self.answered += 1
        self._transfer(lengths, False, done)

    def _lengths(self, placement: Placement, length: int) -> list[tuple[int, int]]:
        return [(device, unit_length(length, self.unit_bytes, at)) for at, (device, _) in enumerate(placement)]

    def _transfer(self, lengths: Iterable[tuple[int, int]], writes: bool, done: Callable[[], None]) -> None:
        parts = list(lengths)
        left = len(parts)
        self.queued += 1

        def came() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.queued -= 1
                done()

        for device, length in parts:
            self.devices[device].transfer(length, writes, came)

    # ---- what happens to devices ----

    def pull(self, number: int, reason: str) -> None:
        """It is out of service from now on."""
        device = self.devices[number]
        device.service, device.reason = OUT, reason
        device.write_errors += 4
        self._allocator.shut(number)

    def drain(self, number: int) -> None:
        self.devices[number].service = DRAINING
        self._allocator.shut(number)

    def add(self) -> Device:
        """One more device."""
        device = self._device(len(self.devices))
        self.devices.append(device)
        self._allocator.add(device.slots)
        return device

    def slow(self, number: int, factor: float) -> None:
        """It is so many times slower than usual; 1: as usual."""
        device = self.devices[number]
        device.line.bytes_per_second = device.usual / factor


def _states(device: Device) -> np.ndarray:
    raw = np.frombuffer(device.slots.states(), dtype=np.uint8)
    if device.service == OUT:
        return np.full(len(raw), SlotState.OUT, np.uint8)
    states = np.full(len(raw), SlotState.CACHED, np.uint8)
    states[raw == FREE] = SlotState.FREE
    states[raw == RESERVED] = SlotState.LOADING
    return states
