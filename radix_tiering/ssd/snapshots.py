"""The stripe set and its devices as everybody else sees them: typed, in bytes and text."""

from __future__ import annotations

from swift_tiers.radix_tiering.counters import DeviceSnapshot, StripeSnapshot
from swift_tiers.radix_tiering.ssd.device_state import DeviceStatus, Service
from swift_tiers.radix_tiering.ssd.stripe_set import StripeSetStatus


def stripe_snapshot(status: StripeSetStatus) -> StripeSnapshot:
    return StripeSnapshot(
        set_id=status.set_id.hex(),
        unit_bytes=status.unit_bytes,
        devices=len(status.devices),
        missing=status.missing,
        capacity_units=status.capacity_units,
        free_units=status.free_units,
        queued=status.queued,
        reads={str(outcome): count for outcome, count in status.outcomes.items()},
    )


def device_snapshots(status: StripeSetStatus) -> tuple[DeviceSnapshot, ...]:
    """By number of the device in the stripe set."""
    named = zip(status.names, status.devices, strict=True)
    return tuple(_device_snapshot(name, device, status.unit_bytes) for name, device in named)


def _device_snapshot(name: str, device: DeviceStatus, unit_bytes: int) -> DeviceSnapshot:
    return DeviceSnapshot(
        path=name,
        service=device.service.value,
        in_service=device.service is not Service.OUT,
        reason=device.reason,
        capacity_bytes=device.capacity_units * unit_bytes,
        used_bytes=device.used_units * unit_bytes,
        bytes_read=device.bytes_read,
        bytes_written=device.bytes_written,
        reads=device.reads,
        writes=device.writes,
        read_errors=device.read_errors,
        write_errors=device.write_errors,
        corrupt_units=device.corrupt_units,
        in_flight=device.in_flight,
        latency=device.latency,
    )
