"""The tiers' series for Prometheus, against the snapshots that they are made of."""

from __future__ import annotations

import math
import re
import threading
import time
from functools import partial

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from swift_tiers.radix_tiering.bus.contract.schema import LINKS
from swift_tiers.radix_tiering.figures.counters import LATENCY_BOUNDS, LatencyHistogram
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, GpuSample
from swift_tiers.radix_tiering.way.observing import take_snapshot
from swift_tiers.sglang_ext.tell.metrics import MetricsUpdater, TierMetrics

from support.engine import chain, end_all, make_stack, memory_ssd, put, settle
from support.telemetry import gpu, leases
from support.telemetry import stack as telemetry_stack

LABELS = {"model_name": "tiny", "tp_rank": 1}


def series(registry: CollectorRegistry) -> dict[tuple[str, frozenset], float]:
    """Every sample as Prometheus would read it, by name and labels, less those that are on all."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert sample.labels["model_name"] == "tiny"
            assert sample.labels["tp_rank"] == "1"
            labels = frozenset((name, value) for name, value in sample.labels.items() if name not in LABELS)
            found[sample.name, labels] = sample.value
    return found


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return TierMetrics(LABELS, registry)


@pytest.fixture
def stack():
    """A stack that has moved pages every way: down to ssd, up again, and to the device."""
    stack = make_stack(host_pages=4, ssd=memory_ssd())
    for name in "abc":
        put(stack, chain(name, 1, 2))
        assert stack.wait_written(60)
    restore = settle(stack, stack.restore(chain("a", 1, 2)))
    stack.restorer.count_load(restore, 0, restore.pages, 0.003, failed=False)
    stack.links["host-device"].count(3, 3 * 4096, 0.003)
    stack.restorer.release(restore)
    stack.restore(chain("not there"))
    stack.restorer.wait_idle()
    yield stack
    end_all()


def expected(snapshot) -> dict[tuple[str, frozenset], float]:
    """What the series must say, from the fields of the snapshot."""
    found = {}

    def say(name, value, **labels):
        found[f"swift_tiers_{name}", frozenset(labels.items())] = float(value)

    def histogram(name, latency, **labels):
        total = 0
        for bound, count in zip((*LATENCY_BOUNDS, math.inf), latency.counts, strict=True):
            total += count
            say(f"{name}_bucket", total, le="+Inf" if bound == math.inf else str(bound), **labels)
        say(f"{name}_count", total, **labels)
        say(f"{name}_sum", latency.sum_seconds, **labels)

    for tier, counts in snapshot.tiers.items():
        for name in ("hits", "misses", "evictions", "checksum_failures"):
            say(f"{name}_total", getattr(counts, name), tier=tier)
        say("read_bytes_total", counts.bytes_read, tier=tier)
        say("written_bytes_total", counts.bytes_written, tier=tier)
        for name in (
            "capacity_bytes",
            "limit_bytes",
            "used_bytes",
            "pages",
            "only_pages",
            "pinned_pages",
            "unread_pages",
        ):
            say(name, getattr(counts, name), tier=tier)
        for reason, pages in counts.refusals.items():
            say("refusals_total", pages, tier=tier, reason=reason)
        histogram("restore_seconds", counts.read_latency, tier=tier)
    for number, device in enumerate(snapshot.devices):
        labels = {"device": str(number), "path": device.path}
        for name in ("reads", "writes", "read_errors", "write_errors", "corrupt_units"):
            say(f"device_{name}_total", getattr(device, name), **labels)
        say("device_read_bytes_total", device.bytes_read, **labels)
        say("device_written_bytes_total", device.bytes_written, **labels)
        for name in ("in_service", "takes_pages", "capacity_bytes", "used_bytes", "in_flight"):
            say(f"device_{name}", getattr(device, name), **labels)
        histogram("device_request_seconds", device.latency, **labels)
    for link, counts in snapshot.links.items():
        for name in ("transfers", "pages", "bytes", "seconds"):
            say(f"link_{name}_total", getattr(counts, name), link=link)
        histogram("link_copy_seconds", counts.latency, link=link)
    for outcome, count in snapshot.stripe.reads.items():
        say("stripe_reads_total", count, outcome=outcome)
    say("stripe_missing_devices", snapshot.stripe.missing)
    say("stripe_coded_pages_total", snapshot.stripe.coded)
    say("stripe_saved_bytes", snapshot.stripe.saved_bytes)
    restores = snapshot.restores
    for outcome in ("completed", "split", "cut_short", "expired", "cancelled"):
        say("restores_total", getattr(restores, f"restores_{outcome}"), outcome=outcome.replace("_", " "))
    say("restores_started_total", restores.restores_started)
    say("restores_late_total", restores.restores_late)
    say("restores_copied_first_total", restores.restores_copied_first)
    say("restore_lost_pages_total", restores.lost_pages)
    say("failed_loads_total", restores.failed_loads)
    say("events_total", snapshot.events_emitted)
    say("write_queue_pages", snapshot.write_queue_pages)
    say("landing_pages", snapshot.landing_pages)
    say("landing_used_pages", snapshot.landing_used_pages)
    say("outgoing_pages", snapshot.outgoing_pages)
    say("outgoing_used_pages", snapshot.outgoing_used_pages)
    say("hung_threads", snapshot.hung_threads)
    if snapshot.remote_engine_asked is not None:
        say("remote_engine_asked", snapshot.remote_engine_asked)
    for name in ("questions", "late", "errors", "lost", "bad"):
        say(f"remote_{name}_total", getattr(snapshot, f"remote_{name}"))
    return found


def expected_of_leases(snapshot) -> dict[tuple[str, frozenset], float]:
    """What the series must say of a rank that lends or borrows, beside the rest."""
    return {
        ("swift_tiers_lent_bytes", frozenset()): sum(view.bytes for view in snapshot.lent),
        ("swift_tiers_lendable_bytes", frozenset()): snapshot.lendable_bytes,
        ("swift_tiers_borrowed_bytes", frozenset()): sum(view.bytes for view in snapshot.borrowed),
        ("swift_tiers_leases", frozenset({("side", "lent")})): len(snapshot.lent),
        ("swift_tiers_leases", frozenset({("side", "borrowed")})): len(snapshot.borrowed),
        ("swift_tiers_lend_ignored_total", frozenset()): snapshot.lend_ignored,
        ("swift_tiers_lend_other_releases_total", frozenset()): snapshot.lend_other_releases,
        ("swift_tiers_lend_faults_total", frozenset()): snapshot.lend_faults,
    }


def without_time_of_making(found):
    return {key: value for key, value in found.items() if not key[0].endswith("_created")}


def test_series_say_what_the_snapshot_says(stack, metrics, registry):
    before = take_snapshot(stack)
    assert before.tiers["ssd"].bytes_read > 0
    assert before.tiers["host"].hits + before.tiers["ssd"].hits == 3
    metrics.update(before)
    assert without_time_of_making(series(registry)) == expected(before), "and nothing of leases"
    # Once more without a change, then with one: nothing is counted twice.
    metrics.update(before)
    restore = settle(stack, stack.restore(chain("b", 1, 2)))
    stack.restorer.count_load(restore, 0, restore.pages, 20.0, failed=False)
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    after = take_snapshot(stack)
    assert after.tiers["host"].read_latency.counts[-1] == 1, "above all bounds"
    metrics.update(after)
    assert without_time_of_making(series(registry)) == pytest.approx(expected(after))


def test_the_table_in_the_documentation_has_every_series_and_its_labels(stack, metrics, registry, pytestconfig):
    text = (pytestconfig.rootpath / "docs/operations.md").read_text()
    rows = text[text.index("| series `swift_tiers_") :].split("\n\n")[0].splitlines()[2:]
    cells = [row.split("|")[1:3] for row in rows]
    documented = {name: labels for names, labels in cells for name in re.findall("`([a-z_]+)`", names)}
    ending = {"counter": "_total"}
    declared = {family.name + ending.get(family.type, "") for family in registry.collect()}
    assert {f"swift_tiers_{name}" for name in documented} == declared
    metrics.update(take_snapshot(stack), leases())
    for name, labels in without_time_of_making(series(registry)):
        of = documented[re.sub("_(bucket|count|sum)$", "", name.removeprefix("swift_tiers_"))]
        assert all(f"`{label}`" in of for label, _ in labels if label != "le"), name


def test_donors_that_come_and_go_leave_no_series(stack, metrics, registry):
    snapshot = take_snapshot(stack)
    metrics.update(snapshot)
    before, copies = set(series(registry)), snapshot.links["host-device"]
    for life in range(3):
        donor = f"beta-{life}.dp0-tp0"
        own = {f"{donor}-host": copies, f"host-{donor}": copies, f"{donor}-device": copies, f"device-{donor}": copies}
        metrics.update(msgspec.structs.replace(snapshot, links=snapshot.links | own))
    assert set(series(registry)) == before
    assert ("swift_tiers_link_bytes_total", frozenset({("link", "host-device")})) in before


def test_whether_the_remote_engine_is_asked_is_a_series_where_there_is_one(stack, metrics, registry):
    """A rule that it is not must not hold of a server without one."""
    metrics.update(take_snapshot(stack))
    name = ("swift_tiers_remote_engine_asked", frozenset())
    assert name not in series(registry)
    for asked in (1, 0):
        metrics.update(msgspec.structs.replace(telemetry_stack(), remote_engine_asked=asked))
        assert series(registry)[name] == asked


def test_links_between_any_two_tiers_are_told(metrics, registry):
    snapshot = telemetry_stack()
    metrics.update(snapshot)
    links = {dict(labels)["link"] for name, labels in series(registry) if name == "swift_tiers_link_bytes_total"}
    assert links == set(LINKS)


def test_series_of_leases_say_what_their_snapshot_says(stack, metrics, registry):
    snapshot, lending = take_snapshot(stack), leases()
    metrics.update(snapshot, lending)
    assert without_time_of_making(series(registry)) == expected(snapshot) | expected_of_leases(lending)
    lending = leases(lent=(), borrowed=(), lendable_bytes=0)
    metrics.update(snapshot, lending)
    gauges = {value for (name, _), value in expected_of_leases(lending).items() if not name.endswith("_total")}
    assert gauges == {0}
    assert without_time_of_making(series(registry)) == expected(snapshot) | expected_of_leases(lending)


def of_gpu(registry) -> dict[str, float]:
    """By the name that is behind `swift_tiers_gpu_`, with the direction where there is one."""
    found = {}
    for (name, labels), value in without_time_of_making(series(registry)).items():
        if name.startswith("swift_tiers_gpu_"):
            found[" ".join([name.removeprefix("swift_tiers_gpu_"), *dict(labels).values()])] = value
    return found


def test_series_of_the_gpu_say_what_its_sample_says(stack, metrics, registry):
    snapshot = take_snapshot(stack)
    metrics.update(snapshot)
    assert of_gpu(registry) == {}
    metrics.update(snapshot, None, gpu())
    metrics.update(snapshot, None, gpu(nvlink_sent_bytes=10**9 + 5))
    expected = {
        "answers": 1, "memory_used_bytes": 120 * 2**30, "nvlinks": 4, "nvlink_bytes_total sent": 10**9 + 5,
        "nvlink_bytes_total received": 2 * 10**9,
    }  # fmt: skip
    assert of_gpu(registry) == expected


def test_what_nvml_does_not_say_is_no_number(stack, metrics, registry):
    snapshot = take_snapshot(stack)
    metrics.update(snapshot, None, gpu())
    metrics.update(snapshot, None, GpuSample(time=1.0, gpu=Gpu(index=0, uuid="GPU-0", trouble="GPU is lost")))
    found = of_gpu(registry)
    assert found.pop("answers") == 0
    assert (found.pop("nvlink_bytes_total sent"), found.pop("nvlink_bytes_total received")) == (10**9, 2 * 10**9)
    assert set(found) == {"memory_used_bytes", "nvlinks"}
    assert all(math.isnan(value) for value in found.values())


def test_a_driver_that_hangs_does_not_answer(stack, metrics, registry):
    """It answers no more, so that the last sample stays the newest one."""
    sample = gpu()
    updater = MetricsUpdater(metrics, partial(take_snapshot, stack), None, lambda: sample)
    updater.start()
    updater.close()
    found = of_gpu(registry)
    assert found.pop("answers") == 0
    assert all(math.isnan(value) for name, value in found.items() if "bytes_total" not in name)
    assert sample.as_of(sample.time + 10) is sample


def test_no_field_of_a_tier_or_device_is_left_out(stack):
    """What is counted is on /metrics, or is here with a reason."""
    names = {name for name, _ in expected(take_snapshot(stack))}
    snapshot = take_snapshot(stack)
    elsewhere = {"bytes_read", "bytes_written", "refusals", "read_latency", "latency"}  # under the names of units
    words = {"path", "reason", "service"}  # not numbers
    for one, prefix in ((snapshot.tiers["ssd"], ""), (snapshot.devices[0], "device_")):
        for field in set(one.__struct_fields__) - elsewhere - words:
            assert {f"swift_tiers_{prefix}{field}", f"swift_tiers_{prefix}{field}_total"} & names, field


def test_names_are_as_prometheus_wants_them(stack, metrics, registry):
    metrics.update(take_snapshot(stack))
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        name = family.name
        assert name.startswith("swift_tiers_")
        assert family.documentation
        if name.endswith("_created"):
            continue
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
        assert not {"milliseconds", "kilobytes", "ms"} & set(name.split("_"))
        if family.type == "histogram":
            assert name.endswith("_seconds")


def test_a_device_that_counts_anew_loses_nothing(stack, metrics, registry):
    snapshot = take_snapshot(stack)
    metrics.update(snapshot)
    fresh = LatencyHistogram()
    fresh.observe(0.5)
    again = msgspec.structs.replace(snapshot.devices[0], reads=1, latency=fresh.snapshot())
    metrics.update(msgspec.structs.replace(snapshot, devices=(again, *snapshot.devices[1:])))
    labels = frozenset({"device": "0", "path": again.path}.items())
    found = series(registry)
    assert found["swift_tiers_device_reads_total", labels] == snapshot.devices[0].reads + 1
    assert found["swift_tiers_device_request_seconds_count", labels] == sum(snapshot.devices[0].latency.counts) + 1


def test_the_updater_goes_on_after_an_error_and_says_the_last(stack, metrics, registry, monkeypatch, caplog):
    import swift_tiers.sglang_ext.tell.metrics as module

    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.01)
    failures, recovered = iter([OSError("injected"), OSError("injected")]), threading.Event()

    def snapshot():
        for error in failures:
            raise error
        recovered.set()
        return take_snapshot(stack)

    updater = MetricsUpdater(metrics, snapshot, leases, lambda: gpu(time=time.time()))
    updater.start()
    assert recovered.wait(60)
    assert len([record for record in caplog.records if "/metrics" in record.message]) == 1
    stack.events.emit("the last")
    updater.close()
    assert series(registry)["swift_tiers_events_total", frozenset()] == stack.events.emitted
    assert series(registry)["swift_tiers_leases", frozenset({("side", "lent")})] == 3
    assert series(registry)["swift_tiers_gpu_nvlinks", frozenset()] == 4
