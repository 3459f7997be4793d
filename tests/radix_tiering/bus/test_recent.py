"""What was measured lately: a fault of today is told today, however long the server has been well before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.bus.contract.faults import Faults
from swift_tiers.radix_tiering.bus.contract.recent import WINDOW, RecentLatencies, quantiles
from swift_tiers.radix_tiering.bus.contract.records import PublisherNumbers, Record
from swift_tiers.radix_tiering.bus.contract.schema import Keys
from swift_tiers.radix_tiering.bus.contract.view_reading import read_view
from swift_tiers.radix_tiering.bus.contract.views import DeviceView, LinkView, TierView
from swift_tiers.radix_tiering.bus.hear.troubles import device_troubles
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.state import RankSpeaker
from swift_tiers.radix_tiering.figures.counters import LATENCY_BOUNDS, NO_LATENCY, LatencyHistogram, LinkSnapshot

from support import telemetry
from support.publishing import bus_config
from support.telemetry import INFO, MadeUp

DEVICES = 3


class Server(MadeUp):
    """Publishes twice a second what three devices do, each of which answers 50 requests a second."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.histograms = [LatencyHistogram() for _ in range(DEVICES)]
        self.takes = [0.0002] * DEVICES
        self.written: dict[str, Record] = {}
        events = EventLog(lambda: self.now)
        self.state = RankSpeaker(
            bus_config(None),
            Keys("swift"),
            "alpha",
            "dp0-tp0",
            "7-1.500000-0000abcd",
            INFO,
            self,
            Faults(events),
            leases=None,
            gpu=None,
            scope=lambda address: "",
            leader=True,
            runner=ThreadRunner(lambda: self.now, lambda: self.now),
        )
        self.state.mirror.write = lambda batch, key, record: self.written.update({key: record})  # type: ignore[method-assign]

    def stack(self) -> Any:
        latencies = [histogram.snapshot() for histogram in self.histograms]
        devices = tuple(telemetry.device(number, latency=one) for number, one in enumerate(latencies))
        copies = LinkSnapshot(transfers=1, pages=1, bytes=1, seconds=1.0, latency=latencies[1])
        tiers = {"ssd": telemetry.tier(read_latency=latencies[1])}
        return msgspec.structs.replace(super().stack(), devices=devices, tiers=tiers, links={"ssd-host": copies})

    def go_on(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for histogram, took in zip(self.histograms, self.takes, strict=True):
                for _ in range(25):
                    histogram.observe(took)
            self.state.publish(RedisBatch(), PublisherNumbers(), self.now)

    def devices(self) -> list[DeviceView]:
        keys = [f"swift:alpha:dp0-tp0:ssd:{number}" for number in range(DEVICES)]
        return [
            read_view(DeviceView, self.written[key], server="alpha", rank="dp0-tp0", number=number)
            for number, key in enumerate(keys)
        ]

    def slow(self) -> list[int]:
        devices = self.devices()
        return [
            one.number for one in devices if any("is slow" in found.what for found in device_troubles(one, devices))
        ]


def test_a_disk_that_gets_sick_after_a_week_is_seen_within_a_minute_and_forgiven_within_a_minute() -> None:
    server = Server()
    for histogram in server.histograms:
        histogram.counts[4] += 30_000_000  # the week
    server.go_on(5.0)
    assert server.slow() == []
    server.takes[1] = 0.5
    server.go_on(WINDOW)
    assert server.slow() == [1]
    device = server.devices()[1]
    assert device.recent_p99_seconds == pytest.approx(0.5, rel=1.0)
    ssd = read_view(
        TierView, server.written["swift:alpha:dp0-tp0:tier:ssd"], server="alpha", rank="dp0-tp0", tier="ssd"
    )
    link = read_view(
        LinkView, server.written["swift:alpha:dp0-tp0:link:ssd-host"], server="alpha", rank="dp0-tp0", link="ssd-host"
    )
    assert ssd.recent_p50_seconds == link.recent_p50_seconds == device.recent_p50_seconds
    assert ssd.recent_restores == link.recent_transfers == device.recent_requests
    server.go_on(3600.0)
    server.takes[1] = 0.0002
    server.go_on(WINDOW + 2.0)
    assert server.slow() == [], "a bad hour is over when it is over"


def test_one_request_that_took_long_makes_no_device_slow() -> None:
    server = Server()
    server.takes = [0.0002] * DEVICES
    server.go_on(1.0)
    server.histograms[2].observe(4.0)
    server.go_on(1.0)
    assert 8 <= (server.devices()[2].recent_requests or 0) <= 101
    assert server.slow() == []


def test_a_device_that_does_nothing_is_not_judged() -> None:
    server = Server()
    server.takes[1] = 0.5
    server.go_on(10.0)
    assert server.slow() == [1]
    for _ in range(70):
        server.now += 1.0
        server.state.publish(RedisBatch(), PublisherNumbers(), server.now)
    assert [one.recent_p99_seconds for one in server.devices()] == [None] * DEVICES
    assert server.slow() == []


# ---- the window ----


def test_only_the_last_minute_is_told() -> None:
    now = 0.0
    recent, histogram = RecentLatencies(lambda: now), LatencyHistogram()
    seen = []
    for _ in range(1000):
        now += 0.5
        histogram.observe(0.001)
        seen.append(recent.of("a", histogram.snapshot()).count)
    assert seen[:10] == list(range(1, 11)), "from the start, as long as that is recent"
    assert set(seen[200:]) <= set(range(116, 121))


def test_what_is_met_late_begins_then_and_what_begins_anew_is_new() -> None:
    now = 0.0
    recent, histogram = RecentLatencies(lambda: now), LatencyHistogram()
    histogram.counts[3] = 1000
    now = 100.0
    assert recent.of("donor", histogram.snapshot()).count == 0, "who knows when that was"
    histogram.counts[3] += 5
    now = 101.0
    assert recent.of("donor", histogram.snapshot()).count == 5
    again = LatencyHistogram()
    again.observe(0.1)
    assert recent.of("donor", again.snapshot()).count == 1
    recent.only(["other"])
    now = 102.0
    assert recent.of("donor", again.snapshot()).count == 0


def test_looks_that_are_far_apart_tell_what_came_between_them() -> None:
    now = 0.0
    recent, histogram = RecentLatencies(lambda: now), LatencyHistogram()
    for look in range(4):
        now = 300.0 * look
        histogram.observe(0.1)
        assert recent.of("a", histogram.snapshot()).count == 1


def test_nothing_has_no_percentiles() -> None:
    assert quantiles(NO_LATENCY) == {"recent_p50_seconds": None, "recent_p99_seconds": None}
    last = LatencyHistogram()
    last.observe(LATENCY_BOUNDS[-1] * 100)
    assert quantiles(last.snapshot())["recent_p99_seconds"] == LATENCY_BOUNDS[-1]
