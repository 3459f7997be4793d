"""The tiers' counters on SGLang's `/metrics`, under `swift_tiers_*`, with the labels of SGLang's own series.

Import this only where SGLang's metrics are on: `prometheus_client` decides on its first import where it keeps values,
by a variable that SGLang sets for all of its processes when they are.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from swift_tiers.radix_tiering.figures.counters import (
    LATENCY_BOUNDS,
    DeviceSnapshot,
    LatencySnapshot,
    StackSnapshot,
    TierSnapshot,
)
from swift_tiers.radix_tiering.gpus.snapshots import GpuSample
from swift_tiers.radix_tiering.lending.leases.hand import LeaseSnapshot

logger = logging.getLogger(__name__)

#: How often the series are brought up to date, seconds.
UPDATE_SECONDS = 1.0

_TIER_COUNTERS = (
    ("hits", "swift_tiers_hits", "Pages that requests got from a tier."),
    ("misses", "swift_tiers_misses", "Pages that requests asked for and a tier did not have."),
    ("bytes_read", "swift_tiers_read_bytes", "Bytes that left a tier upwards."),
    ("bytes_written", "swift_tiers_written_bytes", "Bytes that entered a tier."),
    ("evictions", "swift_tiers_evictions", "Pages that a tier dropped or demoted to make room."),
    ("checksum_failures", "swift_tiers_checksum_failures", "Pages found damaged: dropped, never served."),
)
_TIER_GAUGES = (
    ("capacity_bytes", "swift_tiers_capacity_bytes", "What a tier can hold."),
    ("limit_bytes", "swift_tiers_limit_bytes", "What a tier may hold: a cap set by an operator, or its capacity."),
    ("used_bytes", "swift_tiers_used_bytes", "What a tier holds, padding included."),
    ("pages", "swift_tiers_pages", "Pages that a tier holds."),
    ("pinned_pages", "swift_tiers_pinned_pages", "Pages held for a request or by an operator: not evicted."),
)
_DEVICE_COUNTERS = (
    ("bytes_read", "swift_tiers_device_read_bytes", "Bytes read from a device."),
    ("bytes_written", "swift_tiers_device_written_bytes", "Bytes written to a device."),
    ("reads", "swift_tiers_device_reads", "Read requests to a device."),
    ("writes", "swift_tiers_device_writes", "Write requests to a device."),
    ("read_errors", "swift_tiers_device_read_errors", "Read requests that failed."),
    ("write_errors", "swift_tiers_device_write_errors", "Write requests that failed."),
    ("corrupt_units", "swift_tiers_device_corrupt_units", "Stripe units that were not what was written."),
)
_DEVICE_GAUGES = (
    ("in_service", "swift_tiers_device_in_service", "1 while a device serves the pages that it has, else 0."),
    ("capacity_bytes", "swift_tiers_device_capacity_bytes", "What a device can hold."),
    ("used_bytes", "swift_tiers_device_used_bytes", "What is reserved on a device or holds pages."),
    ("in_flight", "swift_tiers_device_in_flight", "Requests to a device that are under way."),
)
_LINK_COUNTERS = (
    ("transfers", "swift_tiers_link_transfers", "Copies between two tiers, each of one or more pages."),
    ("pages", "swift_tiers_link_pages", "Pages copied between two tiers."),
    ("bytes", "swift_tiers_link_bytes", "Bytes copied between two tiers."),
    ("seconds", "swift_tiers_link_seconds", "Seconds spent on copies between two tiers; side by side, each counts."),
)
_OUTCOMES = ("completed", "split", "cut_short", "expired", "cancelled")


class _Latencies(Histogram):
    """A histogram that takes what was counted elsewhere, in buckets of the same bounds."""

    def add(self, counts: Sequence[int], seconds: float) -> None:
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(seconds)


class TierMetrics:
    """The series of one rank. For one thread."""

    def __init__(self, labels: dict[str, Any], registry: CollectorRegistry = REGISTRY) -> None:
        """`labels` are put on every series."""
        self._labels = {name: str(value) for name, value in labels.items()}
        self._registry = registry
        # What was taken over so far, by series.
        self._last: dict[tuple[object, ...], float] = {}
        self._last_latencies: dict[tuple[object, ...], LatencySnapshot] = {}

        tier, device, link = ("tier",), ("device", "path"), ("link",)
        self._tier_counters = [(field, self._counter(name, text, tier)) for field, name, text in _TIER_COUNTERS]
        self._tier_gauges = [(field, self._gauge(name, text, tier)) for field, name, text in _TIER_GAUGES]
        self._device_counters = [(field, self._counter(name, text, device)) for field, name, text in _DEVICE_COUNTERS]
        self._device_gauges = [(field, self._gauge(name, text, device)) for field, name, text in _DEVICE_GAUGES]
        self._link_counters = [(field, self._counter(name, text, link)) for field, name, text in _LINK_COUNTERS]
        self._refusals = self._counter("swift_tiers_refusals", "Pages not taken in, by reason.", ("tier", "reason"))
        self._restore_seconds = self._histogram(
            "swift_tiers_restore_seconds",
            "From host memory: copies of a request's pages to the device; from ssd: reads of a page.",
            tier,
        )
        self._device_seconds = self._histogram(
            "swift_tiers_device_request_seconds", "Requests to a device, reads and writes together.", device
        )
        self._stripe_reads = self._counter("swift_tiers_stripe_reads", "Reads of pages from ssd.", ("outcome",))
        self._link_seconds = self._histogram("swift_tiers_link_copy_seconds", "Copies between two tiers.", link)
        self._lent = self._gauge("swift_tiers_lent_bytes", "What this rank lends to other servers.")
        self._lendable = self._gauge("swift_tiers_lendable_bytes", "What this rank would lend, and nobody has.")
        self._borrowed = self._gauge("swift_tiers_borrowed_bytes", "What this rank has from other servers.")
        self._leases = self._gauge("swift_tiers_leases", "Leases that this rank gave or has.", ("side",))
        self._gpu_answers = self._gauge("swift_tiers_gpu_answers", "1 while the driver answers for the GPU, 0 if not.")
        self._gpu_memory = self._gauge("swift_tiers_gpu_memory_used_bytes", "Of the GPU, by all processes; by NVML.")
        self._nvlinks = self._gauge("swift_tiers_gpu_nvlinks", "NVLinks of the GPU that are up, by NVML.")
        self._nvlink_bytes = self._counter(
            "swift_tiers_gpu_nvlink_bytes", "Over all NVLinks of the GPU, by everybody, by NVML.", ("direction",)
        )
        self._started = self._counter("swift_tiers_restores_started", "Requests that waited for pages from below.")
        self._restores = self._counter("swift_tiers_restores", "Restores that have ended, by outcome.", ("outcome",))
        self._late = self._counter(
            "swift_tiers_restores_late", "Restores that fell behind their estimates: what had not come was computed."
        )
        self._lost_pages = self._counter(
            "swift_tiers_restore_lost_pages", "Pages that were found below and did not come: they were computed."
        )
        self._failed_loads = self._counter("swift_tiers_failed_loads", "Copies to the device that failed: HTTP 503.")
        self._events = self._counter("swift_tiers_events", "Events of this rank.")
        self._write_queue = self._gauge("swift_tiers_write_queue_pages", "Pages admitted to ssd and not yet written.")
        self._landing = self._gauge("swift_tiers_landing_pages", "Pages that landing memory on the GPU holds at most.")
        self._landed = self._gauge("swift_tiers_landing_used_pages", "Of these, in use or reserved.")

    def update(
        self, snapshot: StackSnapshot, leases: LeaseSnapshot | None = None, gpu: GpuSample | None = None
    ) -> None:
        """Take over what has changed. `leases`: of a rank that lends or borrows; `gpu`: of one on a GPU."""
        for tier, counts in snapshot.tiers.items():
            self._update_tier(tier, counts)
        for number, device in enumerate(snapshot.devices):
            self._update_device((str(number), device.path), device)
        for link, link_counts in snapshot.links.items():
            for field, counter in self._link_counters:
                self._advance(counter, getattr(link_counts, field), link)
            self._add(self._link_seconds, link_counts.latency, link)
        if snapshot.stripe is not None:
            for outcome, count in snapshot.stripe.reads.items():
                self._advance(self._stripe_reads, count, outcome)
        for outcome in _OUTCOMES:
            self._advance(self._restores, getattr(snapshot.restores, outcome), outcome.replace("_", " "))
        self._advance(self._started, snapshot.restores.started)
        self._advance(self._late, snapshot.restores.late)
        self._advance(self._lost_pages, snapshot.restores.lost_pages)
        self._advance(self._failed_loads, snapshot.restores.failed_loads)
        self._advance(self._events, snapshot.events_emitted)
        self._set(self._write_queue, snapshot.write_queue_pages)
        self._set(self._landing, snapshot.landing_pages)
        self._set(self._landed, snapshot.landing_used_pages)
        if leases is not None:
            self._update_leases(leases)
        if gpu is not None:
            self._update_gpu(gpu)

    def _update_leases(self, leases: LeaseSnapshot) -> None:
        self._set(self._lent, sum(view.bytes for view in leases.lent))
        self._set(self._lendable, leases.lendable_bytes)
        self._set(self._borrowed, sum(view.bytes for view in leases.borrowed))
        self._set(self._leases, len(leases.lent), "lent")
        self._set(self._leases, len(leases.borrowed), "borrowed")

    def _update_gpu(self, sample: GpuSample) -> None:
        """What NVML does not say is no number."""
        self._set(self._gpu_answers, not sample.gpu.trouble)
        for gauge, value in ((self._gpu_memory, sample.gpu.memory_used_bytes), (self._nvlinks, sample.nvlinks)):
            self._set(gauge, math.nan if value is None else value)
        directions = {"sent": sample.nvlink_sent_bytes, "received": sample.nvlink_received_bytes}
        for direction, count in directions.items():
            if count is not None:
                self._advance(self._nvlink_bytes, count, direction)

    def _update_tier(self, tier: str, counts: TierSnapshot) -> None:
        for field, counter in self._tier_counters:
            self._advance(counter, getattr(counts, field), tier)
        for field, gauge in self._tier_gauges:
            self._set(gauge, getattr(counts, field), tier)
        for reason, pages in counts.refusals.items():
            self._advance(self._refusals, pages, tier, reason)
        self._add(self._restore_seconds, counts.read_latency, tier)

    def _update_device(self, labels: tuple[str, str], device: DeviceSnapshot) -> None:
        for field, counter in self._device_counters:
            self._advance(counter, getattr(device, field), *labels)
        for field, gauge in self._device_gauges:
            self._set(gauge, getattr(device, field), *labels)
        self._add(self._device_seconds, device.latency, *labels)

    # ---- one series ----

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, (*self._labels, *labels), registry=self._registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        # Ranks differ in their labels; of a rank's processes, the one that wrote last is the one that lives.
        names = (*self._labels, *labels)
        return Gauge(name, text, names, registry=self._registry, multiprocess_mode="mostrecent")

    def _histogram(self, name: str, text: str, labels: Iterable[str] = ()) -> _Latencies:
        return _Latencies(name, text, (*self._labels, *labels), registry=self._registry, buckets=LATENCY_BOUNDS)

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
                self._metrics.update(self._snapshot(), leases, self._gpu() if self._gpu is not None else None)
                failing = False
            except Exception:
                if not failing:
                    logger.exception("swift-tiers: /metrics cannot be brought up to date; trying again")
                failing = True
