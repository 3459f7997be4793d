"""The tiers' counters on SGLang's `/metrics`, under `swift_tiers_*`, with the labels of SGLang's own series.

Import this only where SGLang's metrics are on: `prometheus_client` decides on its first import where it keeps values,
by a variable that SGLang sets for all of its processes when they are.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from swift_tiers.radix_tiering.bus.contract.views import LendingFigures
from swift_tiers.radix_tiering.figures.counters import (
    LATENCY_BOUNDS,
    DeviceSnapshot,
    LatencySnapshot,
    LinkSnapshot,
    RestoreSnapshot,
    StackSnapshot,
    StripeSnapshot,
    TierSnapshot,
)
from swift_tiers.radix_tiering.figures.declare import Figures, Kind, Series, figures_of
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, GpuSample
from swift_tiers.radix_tiering.lending.leases.hand import LeaseSnapshot

logger = logging.getLogger(__name__)

#: How often the series are brought up to date, seconds.
UPDATE_SECONDS = 1.0


class _Group(NamedTuple):
    """The series of one class of figures: of each number that it declares, unless that says otherwise."""

    prefix: str  # of their names
    labels: tuple[str, ...]
    help: str  # what their help begins with
    chosen: bool = False  # only of those figures that name a series
    sparse: bool = False  # what is not known has no series, where others have one that says NaN


_GROUPS: dict[type[Figures], _Group] = {
    TierSnapshot: _Group("", ("tier",), "Of a tier"),
    DeviceSnapshot: _Group("device_", ("device", "path"), "Of a device"),
    LinkSnapshot: _Group("link_", ("link",), "Of copies between two tiers"),
    StripeSnapshot: _Group("", (), "Of the ssd tier"),
    RestoreSnapshot: _Group("", (), "Of restores"),
    StackSnapshot: _Group("", (), "Of this rank", sparse=True),
    LendingFigures: _Group("", (), "Of leases", chosen=True),
    Gpu: _Group("gpu_", (), "Of the GPU, by NVML", chosen=True),
    GpuSample: _Group("gpu_", (), "Of the GPU, by NVML", chosen=True),
}


class _Latencies(Histogram):
    """A histogram that takes what was counted elsewhere, in buckets of the same bounds."""

    def add(self, counts: Sequence[int], seconds: float) -> None:
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(seconds)


class _Taken(NamedTuple):
    """Where the figure of this name goes."""

    name: str
    metric: Any  # a Counter, a Gauge or `_Latencies`
    label: tuple[str, ...]  # value of the label that parts figures of one series


class TierMetrics:
    """The series of one rank. For one thread."""

    def __init__(self, labels: dict[str, Any], registry: CollectorRegistry = REGISTRY) -> None:
        """`labels` are put on every series."""
        self._labels = {name: str(value) for name, value in labels.items()}
        self._registry = registry
        # What was taken over so far, by series.
        self._last: dict[tuple[object, ...], float] = {}
        self._last_latencies: dict[tuple[object, ...], LatencySnapshot] = {}
        self._taken = {kind: tuple(self._series_of(kind, group)) for kind, group in _GROUPS.items()}
        self._leases = self._gauge("leases", "Leases that this rank gave or has.", ("side",))
        self._gpu_answers = self._gauge("gpu_answers", "1 while the driver answers for the GPU, 0 if not.")

    def _series_of(self, kind: type[Figures], group: _Group) -> Iterator[_Taken]:
        """The series of the figures that a class declares; some share one."""
        make = {Kind.COUNTER: self._counter, Kind.GAUGE: self._gauge, Kind.HISTOGRAM: self._histogram}
        shared: dict[str, Any] = {}
        for name, figure, _ in figures_of(kind):
            series = figure.series or Series("" if group.chosen else group.prefix + _unit_last(name))
            if figure.kind is Kind.FACT or not series.name:
                continue
            if series.name not in shared:
                help = f"{group.help}: {series.help or figure.help or name.replace('_', ' ')}."
                labels = (*group.labels, series.label) if series.label else group.labels
                shared[series.name] = make[figure.kind](series.name, help, labels)
            parted = series.label and figure.family is None
            value = (series.value or name.replace("_", " "),) if parted else ()
            yield _Taken(name, shared[series.name], value)

    def update(
        self, snapshot: StackSnapshot, leases: LeaseSnapshot | None = None, gpu: GpuSample | None = None
    ) -> None:
        """Take over what has changed. `leases`: of a rank that lends or borrows; `gpu`: of one on a GPU."""
        for tier, counts in snapshot.tiers.items():
            self._take(TierSnapshot, counts, tier)
        for number, device in enumerate(snapshot.devices):
            self._take(DeviceSnapshot, device, str(number), device.path)
        for link in _links_of_tiers(snapshot):
            self._take(LinkSnapshot, snapshot.links[link], link)
        if snapshot.stripe is not None:
            self._take(StripeSnapshot, snapshot.stripe)
        self._take(RestoreSnapshot, snapshot.restores)
        self._take(StackSnapshot, snapshot)
        if leases is not None:
            self._take(LendingFigures, leases)
            self._set(self._leases, len(leases.lent), "lent")
            self._set(self._leases, len(leases.borrowed), "borrowed")
        if gpu is not None:
            self._take(GpuSample, gpu)
            self._take(Gpu, gpu.gpu)
            self._set(self._gpu_answers, not gpu.gpu.trouble)

    def _take(self, kind: type[Figures], source: object, *labels: str) -> None:
        """What is not known is no number, or counts no further."""
        for name, metric, label in self._taken[kind]:
            value = getattr(source, name)
            if isinstance(value, LatencySnapshot):
                self._add(metric, value, *labels)
            elif isinstance(value, dict):
                for entry, count in value.items():
                    self._advance(metric, count, *labels, entry)
            elif value is None and _GROUPS[kind].sparse:
                continue
            elif isinstance(metric, Gauge):
                self._set(metric, math.nan if value is None else value, *labels, *label)
            elif value is not None:
                self._advance(metric, value, *labels, *label)

    # ---- one series ----

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"swift_tiers_{name}", text, (*self._labels, *labels), registry=self._registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        # Ranks differ in their labels; of a rank's processes, the one that wrote last is the one that lives.
        names = (*self._labels, *labels)
        return Gauge(f"swift_tiers_{name}", text, names, registry=self._registry, multiprocess_mode="mostrecent")

    def _histogram(self, name: str, text: str, labels: Iterable[str] = ()) -> _Latencies:
        names = (*self._labels, *labels)
        return _Latencies(f"swift_tiers_{name}", text, names, registry=self._registry, buckets=LATENCY_BOUNDS)

    def _advance(self, counter: Counter, value: float, *labels: str) -> None:
        key = (counter, *labels)
        before = self._last.get(key, 0)
        self._last[key] = value
        # What is counted for a device begins anew when it is opened again.
        counter.labels(*self._labels.values(), *labels).inc(value - before if value >= before else value)

    def _set(self, gauge: Gauge, value: float, *labels: str) -> None:
        gauge.labels(*self._labels.values(), *labels).set(value)

    def _add(self, histogram: _Latencies, latencies: LatencySnapshot, *labels: str) -> None:
        key = (histogram, *labels)
        before = self._last_latencies.get(key)
        self._last_latencies[key] = latencies
        counts, seconds = latencies.counts, latencies.sum_seconds
        if before is not None and latencies.count >= before.count:
            counts = tuple(now - then for now, then in zip(counts, before.counts, strict=True))
            seconds -= before.sum_seconds
        histogram.labels(*self._labels.values(), *labels).add(counts, seconds)


def _links_of_tiers(snapshot: StackSnapshot) -> Iterator[str]:
    """The links between two tiers.

    Those of single donors are on the bus alone: each life of a donor has a name of its own, and a series that has been
    written once stays for as long as the server lives.
    """
    ends = ("device", *snapshot.tiers)
    between = {f"{one}-{other}" for one in ends for other in ends}
    return (link for link in snapshot.links if link in between)


def _unit_last(name: str) -> str:
    """As Prometheus wants it: `bytes_read` as `read_bytes`."""
    unit, _, rest = name.partition("_")
    return f"{rest}_{unit}" if unit == "bytes" and rest else name


class MetricsUpdater:
    """Keeps the series up to date, on the thread "swift-metrics"."""

    def __init__(
        self,
        metrics: TierMetrics,
        snapshot: Callable[[], StackSnapshot],
        leases: Callable[[], LeaseSnapshot] | None = None,
        gpu: Callable[[], GpuSample | None] | None = None,
    ) -> None:
        """`leases` of a rank that lends or borrows; `gpu` of one on a GPU."""
        self._metrics = metrics
        self._snapshot = snapshot
        self._leases = leases
        self._gpu = gpu
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swift-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The series are up to date now, and stay as they are."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        stopped = failing = False
        while not stopped:
            stopped = self._stop.wait(UPDATE_SECONDS)
            try:
                leases = self._leases() if self._leases is not None else None
                gpu = self._gpu() if self._gpu is not None else None
                self._metrics.update(self._snapshot(), leases, gpu.as_of(time.time()) if gpu is not None else None)
                failing = False
            except Exception:
                if not failing:
                    logger.exception("swift-tiers: /metrics cannot be brought up to date; trying again")
                failing = True
