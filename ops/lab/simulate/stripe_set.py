"""The ssd tier in virtual time: the product's allocator over modelled devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from swift_tiers.radix_tiering.tiers.ssd import Placement
from swift_tiers.radix_tiering.tiers.ssd.layout import unit_count
from swift_tiers.radix_tiering.tiers.ssd.slots import SlotAllocator, SlotMap
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Tier, Write, Written, as_many_as_free

from .devices.lines import Stripes


class StripeSetModel(Tier):
    """Room for `slots` units on each device. Writes take a device as long as reads of that size."""

    name = "ssd"
    durable = True

    def __init__(self, stripes: Stripes, slots: int) -> None:
        self._stripes = stripes
        self._allocator = SlotAllocator([SlotMap(slots) for _ in stripes.devices])

    @property
    def capacity_bytes(self) -> int:
        return self._allocator.capacity_units * self._stripes.unit_bytes

    def takes(self, length: int) -> bool:
        return unit_count(length, self._stripes.unit_bytes) <= self._allocator.capacity_units

    def reserve(self, lengths: Sequence[int]) -> list[Placement]:
        unit_bytes = self._stripes.unit_bytes
        return as_many_as_free(lambda length: self._allocator.take(unit_count(length, unit_bytes)), lengths)

    def release(self, places: Sequence[Placement]) -> None:
        for place in places:
            self._allocator.give_back(place)

    def write(self, writes: Sequence[Write]) -> None:
        """The bytes are not looked at."""
        for one in writes:
            lengths = self._stripes.lengths(one.place, one.record.length)
            self._stripes.transfer(lengths, partial(self._answer, partial(one.done, Written(one.place, b""), "")))

    def read(self, reads: Sequence[Read]) -> None:
        """The bytes stay as they are."""
        for one in reads:
            lengths = self._stripes.lengths(one.copy.place, one.into.nbytes)
            self._stripes.transfer(lengths, partial(self._answer, partial(one.done, ReadOutcome.OK)))

    def _answer(self, done: Callable[[], None]) -> None:
        with self.answers:
            done()
