"""The stripe set and its devices as everybody else sees them: typed, in bytes and text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.slot_map import MapPiece, SlotState, TierMap
from ...figures.counters import DeviceSnapshot, StripeSnapshot
from .device_state import DeviceStatus, Service
from .slots import FREE, LEAVING, RESERVED, TAKEN
from .stripe_set import DeviceSlots, StripeSetStatus

_WORDS = np.zeros(4, np.uint8)
_WORDS[[FREE, TAKEN, LEAVING, RESERVED]] = [
    SlotState.FREE, SlotState.CACHED, SlotState.PRIVATE, SlotState.LOADING,
]  # fmt: skip


def stripe_snapshot(status: StripeSetStatus, saved_bytes: int) -> StripeSnapshot:
    return StripeSnapshot(
        set_id=status.set_id.hex(),
        unit_bytes=status.unit_bytes,
        devices=len(status.devices),
        missing=status.missing,
        capacity_units=status.capacity_units,
        free_units=status.free_units,
        queued=status.queued,
        coded=status.coded_pages,
        saved_bytes=saved_bytes,
        reads={str(outcome): count for outcome, count in status.outcomes.items()},
    )


def device_snapshots(status: StripeSetStatus) -> tuple[DeviceSnapshot, ...]:
    """By number of the device in the stripe set."""
    named = zip(status.names, status.devices, strict=True)
    return tuple(_device_snapshot(name, device, status.unit_bytes) for name, device in named)


def slot_map(devices: Sequence[DeviceSlots], unit_bytes: int, *, time: float) -> TierMap:
    """Every slot of the stripe set, device after device."""
    states = [_slot_states(device) for device in devices]
    return TierMap(
        time=time,
        slot_bytes=unit_bytes,
        states=np.concatenate([*states, np.zeros(0, np.uint8)]),
        pieces=tuple(MapPiece(str(number), len(slots)) for number, slots in enumerate(states)),
    )


def _slot_states(device: DeviceSlots) -> np.ndarray:
    if device.service is Service.OUT:
        return np.full(len(device.states), SlotState.OUT, np.uint8)
    words = _WORDS.copy()
    if device.service is Service.DRAINING:
        words[FREE] = SlotState.OUT  # nothing new comes there
    return words[np.frombuffer(device.states, np.uint8)]


def _device_snapshot(name: str, device: DeviceStatus, unit_bytes: int) -> DeviceSnapshot:
    return device.counted.snapshot(
        path=name,
        service=device.service.value,
        in_service=device.service is not Service.OUT,
        takes_pages=device.service is Service.IN,
        reason=device.reason,
        capacity_bytes=device.capacity_units * unit_bytes,
        used_bytes=device.used_units * unit_bytes,
        in_flight=device.in_flight,
    )
