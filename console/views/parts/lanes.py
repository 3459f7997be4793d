"""Devices of stripe sets as lanes: what one did just now, and how even the lanes of one set are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.views import DeviceView, RankState, StripeSetView
from swift_tiers.radix_tiering.bus.hear.trouble import Mark
from swift_tiers.radix_tiering.bus.hear.troubles import device_troubles, slowness

from ...model.history import History
from ...model.moment import Moment
from ...model.place import Place, PlaceStep
from .measures import NOW_SECONDS, imbalance, sum_of

#: Over which reads of devices are compared, seconds: shorter, and chance decides.
EVEN_SECONDS = 20.0


class Lane(NamedTuple):
    """One device. Rates are per second; None: not known."""

    device: DeviceView
    mark: Mark
    slow: bool  # against the others of its set
    read: float | None  # bytes
    written: float | None
    reads: float | None  # requests
    writes: float | None

    @property
    def requests(self) -> float | None:
        return sum_of((self.reads, self.writes))

    @property
    def fill(self) -> float | None:
        """0..1"""
        device = self.device
        return (
            device.used_bytes / device.capacity_bytes
            if device.used_bytes is not None and device.capacity_bytes
            else None
        )

    @property
    def errors(self) -> int | None:
        """Requests that failed."""
        return None if self.device.read_errors is None else self.device.read_errors + (self.device.write_errors or 0)

    @property
    def key(self) -> str:
        return f"{self.device.server} {self.device.rank} {self.device.number}"

    @property
    def place(self) -> Place:
        return device_place(self.device.server, self.device.rank, self.device.number)


class Lanes(NamedTuple):
    """A stripe set of one rank."""

    server: str
    rank: str
    stripe_set: StripeSetView | None
    lanes: tuple[Lane, ...]

    @property
    def uneven_reads(self) -> float | None:
        """The busiest device's reads by their mean, of those in service; 1 is even, None: nothing was read."""
        return imbalance(lane.read for lane in self.lanes if serves(lane.device))

    @property
    def uneven_fill(self) -> float | None:
        """Likewise, of how full they are."""
        return imbalance(lane.fill for lane in self.lanes if serves(lane.device))


def serves(device: DeviceView) -> bool:
    """Whether pages are read from it and written to it."""
    return device.service in ("in service", "")


def device_place(server: str, rank: str, number: int) -> Place:
    return Place("stripes", (PlaceStep("server", server), PlaceStep("device", f"{rank}:{number}")))


def lane_of(device: DeviceView, peers: Sequence[DeviceView], history: History, seconds: float = NOW_SECONDS) -> Lane:
    """`peers`: all devices of its set."""

    def rate(counter: str) -> float | None:
        return history.rate(device, counter, seconds=seconds)

    mark = max((trouble.mark for trouble in device_troubles(device, peers)), default=Mark.OK)
    return Lane(
        device,
        mark,
        slowness(device, peers) is not None,
        rate("bytes_read"),
        rate("bytes_written"),
        rate("reads"),
        rate("writes"),
    )


def sets_of(moment: Moment, server: str | None, seconds: float = NOW_SECONDS) -> list[Lanes]:
    """Of all ranks that have one, in the order of their servers."""
    return [
        Lanes(state.server.server, rank.name, rank.stripe_set, _lanes(rank, moment.history, seconds))
        for state in moment.servers
        if server in (None, state.server.server)
        for rank in state.ranks
        if rank.stripe_set is not None or rank.devices
    ]


def _lanes(rank: RankState, history: History, seconds: float) -> tuple[Lane, ...]:
    return tuple(lane_of(device, rank.devices, history, seconds) for device in rank.devices)


def find_device(moment: Moment, server: str | None, name: str) -> tuple[DeviceView | None, RankState | None]:
    """By the name of a place's step: `RANK:NUMBER`."""
    rank_name, _, number = name.rpartition(":")
    rank = moment.rank(server, rank_name)
    devices: Iterable[DeviceView] = rank.devices if rank is not None else ()
    return next((one for one in devices if str(one.number) == number), None), rank
