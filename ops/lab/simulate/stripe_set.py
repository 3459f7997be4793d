"""A stripe set in virtual time: the product's allocator over modelled devices, as `WriteBehind` uses the real one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np

from swift_tiers.radix_tiering.base.page import PageRecord
from swift_tiers.radix_tiering.tiers.ssd import Placement, StoredPage
from swift_tiers.radix_tiering.tiers.ssd.layout import unit_count
from swift_tiers.radix_tiering.tiers.ssd.slots import SlotAllocator, SlotMap

from ...base.devices.lines import Stripes


class StripeSetModel:
    """Room for `slots` units on each device. Writes take a device as long as reads of that size."""

    def __init__(self, stripes: Stripes, slots: int) -> None:
        self._stripes = stripes
        self._allocator = SlotAllocator([SlotMap(slots) for _ in stripes.devices])
        self._generations = count(1)

    @property
    def capacity_units(self) -> int:
        return self._allocator.capacity_units

    def units(self, length: int) -> int:
        return unit_count(length, self._stripes.unit_bytes)

    def reserve(self, length: int) -> Placement | None:
        return self._allocator.take(self.units(length))

    def release(self, placement: Placement) -> None:
        self._allocator.give_back(placement)

    def write(
        self, record: PageRecord, placement: Placement, data: np.ndarray, done: Callable[[StoredPage | None, str], None]
    ) -> None:
        """`data` is not looked at."""
        stored = StoredPage(record, next(self._generations), b"", placement)
        self._stripes.transfer(self._stripes.lengths(placement, record.length), lambda: done(stored, ""))
