"""The SSD tier: a stripe set and its devices, opened as one, as the tier stack uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...base.errors import ConfigError, FormatError
from ...base.page import page_digest
from ...base.runner import THREADS, Runner
from ...base.slot_map import TierMap
from ...figures.counters import DeviceSnapshot, StripeSnapshot
from . import DeviceArray, StoredPage, StripeSet
from .arrays.throttled import ThrottledArray
from .blockio import STALL_SECONDS, close_array
from .device_files import MadeDevice
from .layout import combined_digest
from .snapshots import device_snapshots, slot_map, stripe_snapshot


class SsdTier:
    """Owns a device array and the stripe set on it; blank devices become a new set, or join the one that is there."""

    name = "ssd"

    def __init__(
        self,
        array: DeviceArray,
        paths: Sequence[str],
        unit_bytes: int,
        *,
        max_writes: int = 8,
        verifiers: int = 1,
        stall_seconds: float = STALL_SECONDS,
        runner: Runner = THREADS,
        progress: Callable[[int, int, int], None] | None = None,
        make_device: Callable[[str, Sequence[str]], MadeDevice] | None = None,
    ) -> None:
        """`paths` name the devices to people. A set that exists keeps its own stripe unit.

        `verifiers`: threads that check what was read, beside the one that reads. `stall_seconds`: a device that leaves
        a request unanswered so long goes out of service, or is left out on opening if others can serve. `make_device`:
        see `DeviceFiles.make`; None for a tier that no device can be added to.

        Raises FormatError or ConfigError, with the array closed, where the devices cannot be one stripe set.
        """
        self._array = array
        self._runner = runner
        self._make_device = make_device
        try:
            self.stripes = StripeSet.open(
                array,
                create=unit_bytes,
                max_writes=max_writes,
                verifiers=verifiers,
                stall_seconds=stall_seconds,
                runner=runner,
                names=paths,
                progress=progress,
            )
        except BaseException:
            close_array(array, runner)
            raise

    def throttle(self, bytes_per_second: float) -> bool:
        """Slow each device down to this rate from now on; False where the tier was not opened to be throttled."""
        if not isinstance(self._array, ThrottledArray):
            return False
        self._array.slow_to(bytes_per_second)
        return True

    @property
    def paths(self) -> Sequence[str]:
        """What people call the devices, by number."""
        return self.stripes.names

    @property
    def description(self) -> str:
        """How the devices are read and written: "io_uring, O_DIRECT", ..."""
        return self.stripes.description

    def size_of(self, length: int) -> int:
        """Bytes that a page of `length` bytes takes: whole stripe units."""
        return self.stripes.units(length) * self.stripes.unit_bytes

    def fingerprint(self, page: np.ndarray) -> bytes:
        """The checksum of a page as the stripe set makes it: over the checksums of its units."""
        unit, length = self.stripes.unit_bytes, page.nbytes
        return combined_digest([page_digest(page[start : start + unit]) for start in range(0, length, unit)])

    def watch(self, on_device_out: Callable[[int, str, Iterator[StoredPage]], None]) -> None:
        """Hear of devices that leave service: (device, reason, pages that had a part on it). Called on "ssd-io"."""
        self.stripes.on_device_out = on_device_out

    def add_device(self, directory: str) -> tuple[int, str]:
        """One more device: a file in `directory`, made if need be, that joins the open set; its number and path.

        Waits for the devices. Raises ConfigError, StripeSetBusyError or FormatError; a file made in vain is removed.
        """
        if self._make_device is None:
            raise ConfigError("this ssd tier is of devices that it has no name for another of; restart it with more")
        made = self._make_device(directory, self.paths)
        try:
            return self.stripes.add(made.device, made.path), made.path
        except FormatError:
            made.discard(False)  # the array closes it
            raise
        except BaseException:
            made.discard(True)
            raise

    def snapshot(self) -> tuple[StripeSnapshot, tuple[DeviceSnapshot, ...]]:
        """The stripe set and its devices, at one moment."""
        status = self.stripes.status()
        return stripe_snapshot(status), device_snapshots(status)

    def slot_map(self, *, time: float) -> TierMap:
        """What is in each slot of each device; `time`: now, seconds since the epoch."""
        return slot_map(self.stripes.slot_states(), self.stripes.unit_bytes, time=time)

    def close(self, stored: Sequence[StoredPage], timeout: float | None = None) -> None:
        """Write the index of `stored` pages, mark the devices clean, release them.

        After `timeout` seconds devices that do not answer are given up; a later start then scans them.
        """
        self.stripes.close(stored, timeout)
        close_array(self._array, self._runner)
