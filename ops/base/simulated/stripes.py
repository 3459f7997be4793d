"""Host memory and SSDs of a simulated server: the product's tiers, over memory and devices that keep no page's bytes.

Devices take their time. Every page is blank. So a device keeps what lies before its slots, and of each slot the
header; whoever reads a page finds the zeros that were there. Headers and checksums are written, read and verified as
ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, NewDevice, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.blockio import aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.device_files import MadeDevice
from swift_tiers.radix_tiering.tiers.ssd.layout import (
    BLOCK_BYTES,
    CHECKSUM_OFFSET,
    DIGEST_BYTES,
    RECORD_BYTES,
    Geometry,
    first_slot_offset,
)
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.model_array import ModelArray

#: How long a device takes at least, seconds.
LATENCY_SECONDS = 100e-6
#: The speed of devices that are being filled, before anybody looks.
AT_ONCE = 1e15
#: Bytes whose checksum a thread computes in a second.
CHECKED_PER_SECOND = 8e9


class BlankArray(ModelArray):
    """Each device serves one request after the other, at its speed."""

    description = "simulated"

    def __init__(self, runner: Runner, unit_bytes: int) -> None:
        super().__init__(runner, [])
        self._unit_bytes = unit_bytes
        self._sizes: list[int] = []
        self._headers: list[dict[int, bytes]] = []  # of slots, by offset
        self._free: list[float] = []  # when a device has served what it was given
        self._slower: dict[int, float] = {}
        self.bytes_per_second = AT_ONCE

    @property
    def sizes(self) -> Sequence[int]:
        return self._sizes

    def append(self, device: NewDevice) -> None:
        """`device`: of its bytes only the number counts."""
        assert isinstance(device, np.ndarray)
        self._sizes.append(device.size)
        self.images.append(np.zeros(Geometry.of(device.size, self._unit_bytes).first_slot, np.uint8))
        self._headers.append({})
        self._free.append(0.0)

    def slow(self, device: int, factor: float) -> None:
        """It is so many times slower than usual; 1: as usual."""
        self._slower[device] = factor

    def _due_at(self, request: Request, now: float) -> float:
        took = request.length * self._slower.get(request.device, 1.0) / self.bytes_per_second
        self._free[request.device] = max(self._free[request.device], now + LATENCY_SECONDS) + took
        return self._free[request.device]

    def _carry_out(self, request: Request) -> Completion:
        if request.offset < self.images[request.device].nbytes:
            return super()._carry_out(request)
        headers, header = self._headers[request.device], request.buffers[0]
        if request.operation == Operation.WRITE:
            # Between what a header says and its checksum are zeros.
            headers[request.offset] = (
                header[:CHECKSUM_OFFSET].tobytes().rstrip(b"\0") + header[CHECKSUM_OFFSET:].tobytes()
            )
        else:
            said = headers.get(request.offset, bytes(DIGEST_BYTES))
            block = said[:-DIGEST_BYTES].ljust(CHECKSUM_OFFSET, b"\0") + said[-DIGEST_BYTES:]
            header[:] = np.frombuffer(block, np.uint8)
        return Completion(request.tag, request.device, 0)


class BlankSsd(SsdTier):
    """Whose pages are all alike, so that the checksum of one is that of each."""

    _checksum = b""

    def fingerprint(self, page: np.ndarray) -> bytes:
        self._runner.sleep(page.nbytes / CHECKED_PER_SECOND)
        self._checksum = self._checksum or super().fingerprint(page)
        return self._checksum


class BlankMemory(HostTier):
    """Host memory whose pages are all the same one, which nobody writes."""

    def __init__(self, geometry: PageGeometry, size_bytes: int) -> None:
        super().__init__(
            geometry, size_bytes, allocate=lambda nbytes: np.broadcast_to(np.zeros(1, np.uint8), (nbytes,))
        )
        page = aligned_buffer(geometry.stride_bytes)
        self.slab = np.lib.stride_tricks.as_strided(page, (self.slots, geometry.stride_bytes), (0, 1))


def blank_device(slots: int, unit_bytes: int) -> np.ndarray:
    """Bytes of a device with so many slots, which take no memory."""
    size = first_slot_offset(slots) + slots * (BLOCK_BYTES + unit_bytes + RECORD_BYTES)
    return np.broadcast_to(np.zeros(1, np.uint8), (size,))


def open_ssd(runner: Runner, rank: str, devices: int, slots: int, unit_bytes: int) -> tuple[BlankArray, BlankSsd]:
    """`slots` of each device. They take no time until they are given a speed."""
    array = BlankArray(runner, unit_bytes)
    for _ in range(devices):
        array.append(blank_device(slots, unit_bytes))

    def make(directory: str, known: Sequence[str]) -> MadeDevice:
        return MadeDevice(_path(directory, rank), blank_device(slots, unit_bytes), lambda remove: None)

    paths = [_path(f"/ssd{number}", rank) for number in range(devices)]
    return array, BlankSsd(array, paths, unit_bytes, verifiers=0, runner=runner, make_device=make)


def _path(directory: str, rank: str) -> str:
    return f"{directory}/swift-tiers-{rank}.stripe"
