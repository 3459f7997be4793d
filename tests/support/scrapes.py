"""What a Prometheus scrape of a server says of its tiers, held against what the server itself says."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swift_tiers.ops.commands.demo.servers import Server

from support.prompts import prompt
from support.servers import call, fill_device, generate, snapshot, wait_written

#: SGLang's series of which `swift-tiers monitoring dashboard` shows something, and the labels by which it does.
ON_THE_DASHBOARD: dict[str, set[str]] = {
    "sglang:cached_tokens_total": {"cache_source"},
    "sglang:num_queue_reqs": set(),
    "sglang:num_running_reqs": set(),
    "sglang:prompt_tokens_total": set(),
    "sglang:time_to_first_token_seconds_bucket": {"le"},
}


def assert_a_scrape_says_what_the_server_says(server: Server) -> None:
    """On every rank, after prompts that came from all tiers."""
    for seed in range(4):
        generate(server, prompt(seed))
        wait_written(server)
    fill_device(server, 1)
    for seed in range(4):
        generate(server, prompt(seed))
    wait_written(server)
    limit = time.monotonic() + 60
    # Each rank brings its series up to date every second, in its own time.
    while wrong := differences(found := scrape(server), snapshot(server)) + differing_ranks(found):
        assert time.monotonic() < limit, wrong
        time.sleep(0.2)
    assert sum(value(found, "hits_total", tier=tier, tp_rank="0") for tier in ("host", "ssd")) > 0
    families = text_string_to_metric_families(call(server, "/metrics"))
    of_sglang = {sample.name: sample for family in families for sample in family.samples}
    # As Prometheus 2 asks for them; SGLang's have no colons in their names then.
    as_asked = call(server, "/metrics", accept="application/openmetrics-text;version=1.0.0")
    for name, labels in ON_THE_DASHBOARD.items():
        assert labels <= of_sglang[name].labels.keys(), name
        assert re.search(f"^{name.replace(':', '[:_]')}{{", as_asked, re.MULTILINE), name
    assert found.keys() <= set(re.findall(r"^\w+", as_asked, re.MULTILINE))
    # The labels of SGLang's own series, so that they can be joined.
    own = of_sglang["sglang:num_running_reqs"]
    ours = found["swift_tiers_write_queue_pages"][0]
    assert set(ours.labels) == set(own.labels)
    assert ours.labels["model_name"] == own.labels["model_name"]


def scrape(server: Server) -> dict[str, list[Any]]:
    """Samples of our series by name."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(call(server, "/metrics")):
        for sample in family.samples:
            if sample.name.startswith("swift_tiers_"):
                found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list[Any]], name: str, **labels: str) -> float:
    (sample,) = [sample for sample in found[f"swift_tiers_{name}"] if labels.items() <= sample.labels.items()]
    return sample.value


def differing_ranks(found: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Where rank 1, which moves the same pages with heads of its own, says otherwise than rank 0; and where a rank has
    begun restores of which it does not say how they ended.

    From which tier a page came is each rank's own: what one has still in memory may have left the other's by a moment.
    So is whether there is anything to wait for, when the first page of a prompt is still on its way down.
    """
    wrong: list[tuple[Any, ...]] = []
    of_ranks = [total(found, "hits_total", rank) for rank in ("0", "1")]
    if of_ranks[0] != of_ranks[1]:
        wrong.append(("hits_total", *of_ranks))
    for rank in ("0", "1"):
        begun, ended = (total(found, name, rank) for name in ("restores_started_total", "restores_total"))
        if begun != ended or not ended:
            wrong.append(("restores_total", rank, begun, ended))
    return wrong


def total(found: dict[str, list[Any]], name: str, rank: str) -> float:
    """Over all labels but the rank."""
    return sum(sample.value for sample in found[f"swift_tiers_{name}"] if sample.labels["tp_rank"] == rank)


def differences(found: dict[str, list[Any]], state: Any) -> list[tuple[Any, ...]]:
    """Where the series of rank 0 are not what `/server_info` says."""
    pairs = []
    for tier, counts in state["tiers"].items():
        for field, name in (
            ("hits", "hits_total"), ("misses", "misses_total"), ("bytes_read", "read_bytes_total"),
            ("bytes_written", "written_bytes_total"), ("evictions", "evictions_total"),
            ("checksum_failures", "checksum_failures_total"), ("capacity_bytes", "capacity_bytes"),
            ("used_bytes", "used_bytes"), ("pages", "pages"), ("only_pages", "only_pages"),
            ("pinned_pages", "pinned_pages"), ("unread_pages", "unread_pages"),
        ):  # fmt: skip
            pairs.append((name, {"tier": tier}, counts[field]))
        latency = counts["read_latency"]
        pairs.append(("restore_seconds_count", {"tier": tier}, sum(latency["counts"])))
        pairs.append(("restore_seconds_sum", {"tier": tier}, pytest.approx(latency["sum_seconds"])))
        for reason, pages in counts["refusals"].items():
            pairs.append(("refusals_total", {"tier": tier, "reason": reason}, pages))
    for device in state["devices"]:
        for field, name in (("reads", "device_reads_total"), ("in_service", "device_in_service")):
            pairs.append((name, {"path": device["path"]}, device[field]))
    for link, counts in state["links"].items():
        pairs.append(("link_bytes_total", {"link": link}, counts["bytes"]))
    for outcome in ("completed", "expired", "cancelled"):
        pairs.append(("restores_total", {"outcome": outcome}, state["restores"][f"restores_{outcome}"]))
    pairs.append(("write_queue_pages", {}, state["write_queue_pages"]))
    said = [(name, labels, value(found, name, tp_rank="0", **labels), wanted) for name, labels, wanted in pairs]
    return [one for one in said if one[2] != one[3]]
