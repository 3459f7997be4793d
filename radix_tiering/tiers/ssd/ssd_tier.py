"""The SSD tier: a stripe set and its devices, opened as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...base.config import TiersConfig
from ...base.errors import CommandRefusedError, ConfigError, FormatError
from ...base.page import KEY_BYTES, HeldPages, PageRecord
from ...base.runner import THREADS, Runner
from ...base.slot_map import TierMap
from ...figures.counters import DeviceSnapshot, LinkCounters, StripeSnapshot
from ...table.tier_copies import Copy
from ..tier import LandDone, Obeyed, Read, ReadOutcome, Tier, TierListener, TierOrder, Write, Written, as_many_as_free
from . import DeviceArray, ReadRequest, StoredPage, StripeSet, WriteRequest
from .arrays.throttled import ThrottledArray
from .blockio import STALL_SECONDS, close_array
from .device_files import MadeDevice
from .device_state import DRAINED
from .direct_reads import DirectReads
from .layout import RECORD_DTYPE
from .places import MOST_DEVICES, MOST_UNITS, StripePlaces
from .snapshots import device_snapshots, slot_map, stripe_snapshot
from .stored_pages import StoredPages

logger = logging.getLogger(__name__)

#: Stripe units that may be written at a time, of pages that have few: one at a time would take a round each.
WRITTEN_UNITS = 32


class SsdTier(Tier):
    """Owns a device array and the stripe set on it; blank devices become a new set, or join the one that is there.

    A place is a number of `StripePlaces`; a part is a device, by its number.
    """

    name = "ssd"
    durable = True
    numbered = True
    tries_again = True
    may_hang = True
    writes_in_flight = 64
    refusal = "no device takes pages"
    part_full, part_gone, part_lost, part_back = (
        "device.takes_nothing",
        "device.out",
        "device.pages_lost",
        "device.back",
    )

    def __init__(
        self,
        array: DeviceArray,
        paths: Sequence[str],
        unit_bytes: int,
        *,
        max_writes: int = 8,
        verifiers: int = 1,
        codes: bool = False,
        coders: int = 1,
        stall_seconds: float = STALL_SECONDS,
        runner: Runner = THREADS,
        progress: Callable[[int, int, int], None] | None = None,
        behind: bool = False,
        make_device: Callable[[str, Sequence[str]], MadeDevice] | None = None,
    ) -> None:
        """`paths` name the devices to people. A set that exists keeps its own stripe unit.

        `verifiers`: threads that check what was read, beside the one that reads. `codes`, `coders`: see
        `StripeSet.open`. `stall_seconds`: a device that leaves a request unanswered so long goes out of service, or is
        left out on opening if others can serve. `behind`: what the devices have is read by `open`; before, this tier
        has nothing and takes nothing. `make_device`: see `DeviceFiles.make`; None for a tier that no device can be
        added to.

        Raises FormatError or ConfigError, with the array closed, where the devices cannot be one stripe set.
        """
        self._array = array
        self._runner = runner
        self._make_device = make_device
        self.places = StripePlaces(runner)
        self._links = {"host-ssd": LinkCounters(), "ssd-host": LinkCounters()}
        #: Reads from the devices to landing memory, where that is possible.
        self.direct: DirectReads | None = None
        try:
            _check_count(len(array.sizes))
            _check_units(array.sizes, unit_bytes)
            self.stripes = StripeSet.open(
                array,
                create=unit_bytes,
                max_writes=max_writes,
                max_units=WRITTEN_UNITS,
                verifiers=verifiers,
                codes=codes,
                coders=coders,
                stall_seconds=stall_seconds,
                runner=runner,
                names=paths,
                progress=progress,
                behind=behind,
            )
            try:
                _check_units(array.sizes, self.stripes.unit_bytes)  # of a set that was there, which has its own
            except ConfigError:
                self.stripes.close(None)
                raise
        except BaseException:
            close_array(array, runner)
            raise

    def still(self) -> AbstractContextManager[object]:
        return nullcontext() if self.direct is None else self.direct.still()

    def land_by(self, direct: DirectReads) -> None:
        """Let pages be read straight to landing memory. Closed with this."""
        self.direct = direct
        self.lands_by_digest = True
        self.places.keep_landing_digests()

    def answer_within(self, answers: AbstractContextManager[object]) -> None:
        super().answer_within(answers)
        self.stripes.answer_within(answers)
        if self.direct is not None:
            self.direct.answers = answers

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

    @property
    def saved_bytes(self) -> int:
        """That its pages, coded, do not take of `size_of`."""
        return self.places.spared * self.stripes.unit_bytes

    @property
    def checksum_unit(self) -> int | None:
        return self.stripes.unit_bytes

    def opened(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """Devices that were left out."""
        return [
            ("device.left_out", {"device": device.path, "reason": device.reason})
            for device in self.snapshot()[1]
            if not device.in_service
        ]

    # ---- room ----

    @property
    def capacity_bytes(self) -> int:
        """Of the devices that serve what they have."""
        return self.stripes.served_units * self.stripes.unit_bytes

    def takes(self, length: int) -> bool:
        """Whether the devices that take new pages could hold one of so many bytes."""
        return self.stripes.units(length) <= self.stripes.capacity_units

    def reserve(self, lengths: Sequence[int]) -> list[int]:
        return [self.places.reserve(placement) for placement in as_many_as_free(self.stripes.reserve, lengths)]

    def release(self, places: Sequence[int]) -> None:
        for place in places:
            self.stripes.release(self.places.free(place))

    # ---- bytes ----

    def write(self, writes: Sequence[Write]) -> None:
        now, slots = self._runner.monotonic(), self.places.placement
        self.stripes.write_many(
            [
                WriteRequest(one.record, slots(one.place), one.data, partial(self._written, one, now), one.digest)
                for one in writes
            ]
        )

    def _written(self, write: Write, started: float, stored: StoredPage | None, reason: str) -> None:
        """On "ssd-io"."""
        if stored is None:
            self.places.free(write.place)  # the stripe set has its slots back
            write.done(None, reason)
        else:
            self.places.hold(write.place, stored.generation, stored.digest, len(stored.placement))
            self._links["host-ssd"].count(1, write.record.length, self._runner.monotonic() - started)
            write.done(Written(write.place, stored.digest), "")

    def read(self, reads: Sequence[Read]) -> None:
        now = self._runner.monotonic()
        self.stripes.read_many(
            [
                ReadRequest(self.places.stored(one.copy.place, one.record), one.into, partial(self._came, one, now))
                for one in reads
            ]
        )

    def _came(self, read: Read, started: float, outcome: ReadOutcome) -> None:
        """On "ssd-io"."""
        if outcome is ReadOutcome.OK:
            self._links["ssd-host"].count(1, read.record.length, self._runner.monotonic() - started)
        read.done(outcome)

    def land(self, record: PageRecord, copy: Copy, done: LandDone) -> bool:
        digest = self.places.landing_digest(copy.place) if self.direct is not None else None
        if self.direct is None or digest is None:
            return False
        return self.direct.read(self.places.stored(copy.place, record), digest, done)

    def learn(self, copy: Copy, page: np.ndarray, done: Callable[[], None]) -> bool:
        if self.direct is None or copy.digest is None or self.places.is_coded(copy.place):
            return False  # what is coded does not land
        return self.direct.learn(page, copy.digest, partial(self._learnt, copy, done))

    def _learnt(self, copy: Copy, done: Callable[[], None], digest: bytes | None) -> None:
        """On "swift-direct"."""
        if self.digest_at(copy.place) == copy.digest:  # else another page lies there now
            self.places.learn(copy.place, digest)
        done()

    def learnt(self, copy: Copy) -> bool:
        return self.places.landing_digest(copy.place) is not None

    def unlearn(self, copy: Copy) -> None:
        self.places.learn(copy.place, None)

    def digest_at(self, place: int) -> bytes | None:
        return self.places.digest(place)

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._links if self.direct is None else {**self._links, "ssd-device": self.direct.link}

    # ---- devices ----

    def uses(self, place: int, part: Any) -> bool:
        """Whether a unit of the page lies on the device of this number."""
        return self.places.uses(place, part)

    @property
    def partly_shut(self) -> bool:
        return self.stripes.partly_shut

    def makes_room(self, place: int) -> bool:
        return self.stripes.makes_room(self.places.placement(place))

    def part_facts(self, part: Any) -> dict[str, Any]:
        return {"device": self.paths[part]}

    def watch(self, listener: TierListener) -> None:
        """Tell `listener`, on "ssd-io", of devices that leave service, and of those that take nothing any more, and of
        such as may have room again, or are back."""
        self.stripes.on_device_out, self.stripes.on_device_full = listener.gone, listener.full
        self.stripes.on_room, self.stripes.on_device_back = listener.room, listener.back

    def let_go(self, part: Any) -> None:
        self.stripes.let_go(part)

    # ---- namespaces and restarts ----

    def open(self) -> None:
        self.stripes.finish()

    def recover(self) -> Sequence[HeldPages]:
        pages = self.stripes.forget_recovered()
        return pages.held(self.places.found(pages, self.stripes.unit_bytes))

    def register(self, namespace: bytes, text: str, done: Callable[[bool], None] | None = None) -> None:
        self.stripes.register_namespace(namespace, text, done)

    def retire(self, namespace: bytes, *, comes_back: bool) -> None:
        self.stripes.retire_namespace(namespace, comes_back=comes_back)

    def flush(self, namespace: bytes) -> bool:
        return self.stripes.flush_namespace(namespace)

    def add_device(self, directory: str) -> tuple[int, str]:
        """One more device: a file in `directory`, made if need be, that joins the open set; its number and path.

        Waits for the devices. Raises ConfigError, StripeSetBusyError or FormatError; a file made in vain is removed.
        """
        if self._make_device is None:
            raise ConfigError("this ssd tier is of devices that it has no name for another of; restart it with more")
        made = self._make_device(directory, self.paths)
        try:
            _check_count(len(self.paths) + 1)
            _check_units([*self._array.sizes, made.device.size], self.stripes.unit_bytes)
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
        return stripe_snapshot(status, self.saved_bytes), device_snapshots(status)

    # ---- operators ----

    def commands(self, config: TiersConfig) -> Mapping[str, TierOrder]:
        """`drain NUMBER`: a device gets no new pages. `readmit NUMBER`: it gets some again, or is in service again.
        `add DIRECTORY`: one more device joins the set."""
        return {"drain": self._drain, "readmit": self._readmit, "add": partial(self._add, config)}

    def _find(self, argument: str) -> tuple[DeviceSnapshot, tuple[DeviceSnapshot, ...]]:
        """A device by its number, and all of them."""
        self._check_opened()
        devices = self.snapshot()[1]
        if not argument.isdecimal() or int(argument) >= len(devices):
            raise CommandRefusedError(f"device: there is no device {argument} here, only 0 to {len(devices) - 1}")
        return devices[int(argument)], devices

    def _readmit(self, argument: str) -> Obeyed:
        device, _ = self._find(argument)
        if device.service == "in service":
            return Obeyed(f"{device.path} was in service already")
        if reason := self.stripes.readmit(int(argument)):
            raise CommandRefusedError(f"device: {device.path} is out of service and stays so: {reason}")
        # Of one that was out its tier tells.
        told = [("device.readmitted", {"device": device.path})] if device.in_service else []
        return Obeyed(f"{device.path} gets new pages again", told)

    def _drain(self, argument: str) -> Obeyed:
        device, devices = self._find(argument)
        if device.service == "draining" and device.reason == DRAINED:
            return Obeyed(f"{device.path} was draining already")
        self.stripes.drain(int(argument))
        if not device.in_service:
            text = f"{device.path} is out of service ({device.reason}), and stays so until it is readmitted"
            return Obeyed(text, [("device.draining", {"device": device.path})])
        others = any(other.service == "in service" for other in devices if other is not device)
        text = f"{device.path} gets no new pages" + ("" if others else "; no device is left that does")
        return Obeyed(text, [("device.draining", {"device": device.path})])

    def _add(self, config: TiersConfig, directory: str) -> Obeyed:
        _check_place(config, directory)
        self._check_opened()
        number, path = self.add_device(directory)
        self.stripes.on_room()
        text = f"device {number}: {path}; name {directory} under ssd.directories when the server is started again"
        return Obeyed(text, [("device.added", {"device": path, "number": number})])

    def _check_opened(self) -> None:
        """Raise CommandRefusedError where it is not known yet what the devices have."""
        if not self.stripes.opened:
            raise CommandRefusedError("the index of the devices is being read: try again when ssd.recovered is told")

    # ---- telling ----

    def details(self) -> dict[str, Any]:
        stripe, devices = self.snapshot()
        return {"stripe": stripe, "devices": devices, "io_engine": self.description}

    def facts(self, copy: Copy) -> dict[str, Any]:
        return {"ssd_placement": self.places.placement(copy.place), "generation": self.places.generation(copy.place)}

    def place_facts(self, copy: Copy) -> dict[str, Any]:
        return {"ssd_placement": self.places.placement(copy.place)}

    def slot_map(self, held: Callable[[], Sequence[int]], *, time: float) -> TierMap:
        """What is in each slot of each device; it knows by itself which are held."""
        return slot_map(self.stripes.slot_states(), self.stripes.unit_bytes, time=time)

    def close(self, held: Iterable[HeldPages] | None, timeout: float | None = None) -> None:
        """Write the index of what is held, mark the devices clean, release them.

        After `timeout` seconds devices that do not answer are given up; a later start then scans them.
        """
        if self.direct is not None:
            self.direct.close()
        try:
            self.stripes.close(None if held is None else self._index(held), timeout)
            if not_indexed := self.stripes.not_indexed:
                logger.warning(
                    "swift-tiers: the index of %s was not written before the end: the next start finds what is there "
                    "by the header of each slot, which takes longer",
                    ", ".join(self.stripes.names[device] for device in sorted(not_indexed)),
                )
        finally:
            close_array(self._array, self._runner)

    def _index(self, held: Iterable[HeldPages]) -> Iterator[StoredPages]:
        """On "ssd-io"."""
        yield self.stripes.forget_recovered()  # which nobody has asked for
        yield from map(self._stored, held)

    def _stored(self, held: HeldPages) -> StoredPages:
        """A page that was lost meanwhile, with its device, has no place any more."""
        records = np.zeros(len(held.places), RECORD_DTYPE)
        both = np.ascontiguousarray(held.keys).view(f"V{KEY_BYTES}").reshape(-1, 2)
        records["key"], records["parent"] = both[:, 0], both[:, 1]
        records["depth"], records["length"] = held.depths, held.length
        return self.places.stored_many(records, held.places, held.namespace)


def _check_count(devices: int) -> None:
    """Raise ConfigError for more devices than a place can tell apart."""
    if devices > MOST_DEVICES:
        raise ConfigError(f"ssd: {devices} devices are more than one stripe set can have; name at most {MOST_DEVICES}")


def _check_units(sizes: Sequence[int], unit_bytes: int) -> None:
    """Raise ConfigError for devices of more units than places can be numbered for."""
    units = sum(size // unit_bytes for size in sizes)
    if units > MOST_UNITS:
        raise ConfigError(
            f"ssd: {units} stripe units of {unit_bytes} bytes are more than a rank can number ({MOST_UNITS}): name "
            "fewer or smaller devices, or make the set anew with a larger ssd.stripe_unit"
        )


def _check_place(config: TiersConfig, directory: str) -> None:
    """Raise CommandRefusedError for a directory that whoever may write to this bus must not fill.

    The embedded Redis takes commands of this server's user alone, who may write there anyway.
    """
    allowed = config.ssd.add_beneath
    if not allowed and config.bus.url is None:
        return
    real = os.path.realpath(directory)
    if not any(Path(real).is_relative_to(os.path.realpath(place)) for place in allowed):
        places = ", ".join(allowed) or "nothing"
        raise CommandRefusedError(
            f"directory: {directory!r} is not beneath ssd.add_beneath of this server ({places}); name one that is, or "
            "add it there and start the server again"
        )
