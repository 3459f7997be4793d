"""A dashboard for Grafana: what users wait for, and what the tiers below the device do, by server.

Each query is of the servers that are chosen above the dashboard. What SGLang itself tells (`sglang:…`) is there where
it belongs to the question: time to first token, and where the tokens of prompts came from. Prometheus 2 has these as
`sglang_…`: to who asks in its way, what writes them for SGLang tells no colons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

#: In every selector: the servers that are chosen.
_CHOSEN = 'model_name=~"$model", instance=~"$instance"'
_SERIES = re.compile(r"\b(?:(swift_tiers_[a-z0-9_]+)|sglang:([a-z0-9_]+))(\{)?")
#: Panels in a row, their height, and the width of a dashboard, in Grafana's units.
_IN_A_ROW, _HEIGHT, _WIDTH = 3, 8, 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """A line, or several, of a graph."""

    expression: str  # PromQL, of all servers
    legend: str  # with labels in {{}}


class Graph(NamedTuple):
    """One picture."""

    title: str
    unit: str  # as Grafana names it
    queries: Sequence[Query]
    help: str = ""


def _by(*labels: str) -> str:
    return f"sum by ({', '.join(('instance', *labels))})"


def _rate(series: str, *labels: str) -> str:
    """A second, of bytes or of what each rank does by itself."""
    return f"{_by(*labels)} (rate({series}[$__rate_interval]))"


def _counted(series: str, *labels: str) -> str:
    """A second, of requests and pages, of which every rank of tensor parallelism counts the same."""
    return f"{_by(*labels)} (max without (tp_rank) (rate({series}[$__rate_interval])))"


def _quantile(share: float, series: str, *labels: str) -> str:
    return f"histogram_quantile({share}, {_by(*labels, 'le')} (rate({series}_bucket[$__rate_interval])))"


def _p50_p99(series: str, legend: str, *labels: str) -> list[Query]:
    return [Query(_quantile(share, series, *labels), f"{legend} p{share * 100:.0f}") for share in (0.5, 0.99)]


def _now(series: str, *labels: str) -> str:
    return f"{_by(*labels)} ({series})"


_SERVER = "{{instance}}"
_TIER = "{{instance}} {{tier}}"
_LINK = "{{instance}} {{link}}"
_DEVICE = "{{instance}} {{path}}"
_DEVICE_LABELS = ("device", "path")
_PROMPTS = _rate("sglang:prompt_tokens_total")

#: Row by row.
ROWS: dict[str, Sequence[Graph]] = {
    "What users wait for": (
        Graph("Time to first token", "s", _p50_p99("sglang:time_to_first_token_seconds", _SERVER)),
        Graph(
            "Where the tokens of prompts came from",
            "short",
            [
                Query(_rate("sglang:cached_tokens_total", "cache_source"), "{{instance}} {{cache_source}}"),
                Query(
                    # Until something was cached there is no series of it.
                    f"{_PROMPTS} - ({_rate('sglang:cached_tokens_total')} or 0 * {_PROMPTS})",
                    "{{instance}} computed",
                ),
            ],
            "Tokens a second: from the device, from a tier, or computed.",
        ),
        Graph(
            "Requests",
            "short",
            [
                Query("max by (instance) (sglang:num_running_reqs)", "{{instance}} running"),
                Query("max by (instance) (sglang:num_queue_reqs)", "{{instance}} waiting"),
            ],
        ),
    ),
    "What is wrong": (
        Graph(
            "Never to happen",
            "short",
            [
                Query("sum by (instance) (swift_tiers_hung_threads)", "{{instance}} threads that hang"),
                Query(_counted("swift_tiers_failed_loads_total"), "{{instance}} failed loads a second"),
                Query(_rate("swift_tiers_checksum_failures_total", "tier"), f"{_TIER} damaged pages a second"),
                Query(_rate("swift_tiers_device_corrupt_units_total", "path"), f"{_DEVICE} damaged units a second"),
                Query(_rate("swift_tiers_lend_faults_total"), "{{instance}} faults in lending a second"),
                Query("count by (instance) (swift_tiers_gpu_answers == 0)", "{{instance}} GPUs that do not answer"),
            ],
            "Nothing here is as it should be.",
        ),
        Graph(
            "Pages not taken in",
            "short",
            [Query(_counted("swift_tiers_refusals_total", "tier", "reason"), "{{instance}} {{tier}}: {{reason}}")],
            "Pages a second, by reason. `prefix not held`, `too many wait` and `lease ended` are in order.",
        ),
        Graph(
            "Devices that are out, or gone",
            "short",
            [
                Query("swift_tiers_device_in_service == 0", f"{_DEVICE} out of service"),
                Query("swift_tiers_device_takes_pages == 0", f"{_DEVICE} takes no pages"),
                Query("swift_tiers_stripe_missing_devices > 0", "{{instance}} missing at the start"),
            ],
            "A line is there while it is so.",
        ),
    ),
    "Restores": (
        Graph(
            "Restores by how they ended",
            "short",
            [Query(_counted("swift_tiers_restores_total", "outcome"), "{{instance}} {{outcome}}")],
            "A second: `split`, a part was computed meanwhile.",
        ),
        Graph(
            "Restores that were not as planned",
            "percentunit",
            [
                Query(
                    f"{_counted(f'swift_tiers_{one}_total')} / {_counted('swift_tiers_restores_started_total')}", legend
                )
                for one, legend in (
                    ("restores_late", "{{instance}} late"),
                    ("restores_copied_first", "{{instance}} copied before their forward"),
                )
            ]
            + [Query(_counted("swift_tiers_restore_lost_pages_total"), "{{instance}} pages lost a second")],
        ),
        Graph(
            "A page's way up",
            "s",
            _p50_p99("swift_tiers_restore_seconds", _TIER, "tier"),
            "host: the copy of a request's pages to the device; others: the read of one page.",
        ),
    ),
    "Tiers": (
        Graph(
            "Filled",
            "percentunit",
            [
                Query(
                    f"{_now('swift_tiers_used_bytes', 'tier')} / {_now('swift_tiers_limit_bytes', 'tier')}",
                    _TIER,
                ),
                Query(
                    f"{_now('swift_tiers_pinned_pages', 'tier')} / ({_now('swift_tiers_pages', 'tier')} > 0)",
                    f"{_TIER} pinned",
                ),
            ],
            "Of what operators allow; of the pages there, those that cannot be evicted.",
        ),
        Graph(
            "Bytes",
            "bytes",
            [
                Query(_now("swift_tiers_used_bytes", "tier"), f"{_TIER} used"),
                Query(_now("swift_tiers_capacity_bytes", "tier"), f"{_TIER} capacity"),
                Query(_now("swift_tiers_stripe_saved_bytes"), "{{instance}} saved by ssd.codec"),
            ],
        ),
        Graph(
            "Pages",
            "short",
            [
                Query(f"max by (instance, tier) (swift_tiers_{one}_pages)", f"{_TIER} {legend}")
                for one, legend in (("only", "that no other tier has"), ("unread", "not entered since the start"))
            ],
        ),
        Graph(
            "Hits",
            "short",
            [
                Query(_counted("swift_tiers_hits_total", "tier"), f"{_TIER} hits"),
                Query(_counted("swift_tiers_misses_total", "tier"), f"{_TIER} misses"),
            ],
            "Pages a second that requests got from a tier, or did not find there.",
        ),
        Graph(
            "Into a tier, and up from it",
            "Bps",
            [
                Query(_rate("swift_tiers_written_bytes_total", "tier"), f"{_TIER} written"),
                Query(_rate("swift_tiers_read_bytes_total", "tier"), f"{_TIER} read"),
            ],
        ),
        Graph(
            "Evictions",
            "short",
            [Query(_counted("swift_tiers_evictions_total", "tier"), _TIER)],
            "Pages a second that were dropped or demoted to make room.",
        ),
    ),
    "Links": (
        Graph("Bytes over a link", "Bps", [Query(_rate("swift_tiers_link_bytes_total", "link"), _LINK)]),
        Graph(
            "While it copies",
            "Bps",
            [
                Query(
                    f"{_rate('swift_tiers_link_bytes_total', 'link')} / "
                    f"{_rate('swift_tiers_link_seconds_total', 'link')}",
                    _LINK,
                )
            ],
            "What one copy gets of a link; copies side by side count each.",
        ),
        Graph("A copy", "s", _p50_p99("swift_tiers_link_copy_seconds", _LINK, "link")),
        Graph(
            "Pages in a copy",
            "short",
            [
                Query(
                    f"{_rate('swift_tiers_link_pages_total', 'link')} / "
                    f"{_rate('swift_tiers_link_transfers_total', 'link')}",
                    _LINK,
                )
            ],
        ),
        Graph(
            "Room on the GPU for pages past host memory",
            "percentunit",
            [
                Query(
                    f"{_now(f'swift_tiers_{one}_used_pages')} / ({_now(f'swift_tiers_{one}_pages')} > 0)",
                    f"{{{{instance}}}} {one}",
                )
                for one in ("landing", "outgoing")
            ],
        ),
        Graph(
            "NVLink",
            "Bps",
            [
                Query(_rate("swift_tiers_gpu_nvlink_bytes_total", "direction"), "{{instance}} {{direction}}"),
            ],
            "Of the GPUs, by everybody.",
        ),
    ),
    "SSDs": (
        Graph(
            "Bytes of a device",
            "Bps",
            [
                Query(_rate("swift_tiers_device_read_bytes_total", *_DEVICE_LABELS), f"{_DEVICE} read"),
                Query(_rate("swift_tiers_device_written_bytes_total", *_DEVICE_LABELS), f"{_DEVICE} written"),
            ],
        ),
        Graph(
            "Requests of a device",
            "s",
            [
                *_p50_p99("swift_tiers_device_request_seconds", _DEVICE, *_DEVICE_LABELS),
            ],
        ),
        Graph(
            "Under way, and waiting",
            "short",
            [
                Query(_now("swift_tiers_device_in_flight", *_DEVICE_LABELS), f"{_DEVICE} in flight"),
                Query(_now("swift_tiers_write_queue_pages"), "{{instance}} pages to be written"),
            ],
            "A queue that only grows: the devices are too slow for this traffic.",
        ),
        Graph(
            "Requests a second",
            "short",
            [
                Query(_rate("swift_tiers_device_reads_total", *_DEVICE_LABELS), f"{_DEVICE} reads"),
                Query(_rate("swift_tiers_device_writes_total", *_DEVICE_LABELS), f"{_DEVICE} writes"),
                Query(_rate("swift_tiers_device_read_errors_total", *_DEVICE_LABELS), f"{_DEVICE} reads that failed"),
                Query(_rate("swift_tiers_device_write_errors_total", *_DEVICE_LABELS), f"{_DEVICE} writes that failed"),
            ],
        ),
        Graph(
            "Filled",
            "percentunit",
            [
                Query(
                    f"{_now('swift_tiers_device_used_bytes', *_DEVICE_LABELS)} / "
                    f"{_now('swift_tiers_device_capacity_bytes', *_DEVICE_LABELS)}",
                    _DEVICE,
                )
            ],
        ),
        Graph(
            "Reads of pages",
            "short",
            [
                Query(_rate("swift_tiers_stripe_reads_total", "outcome"), "{{instance}} {{outcome}}"),
                Query(_rate("swift_tiers_stripe_coded_pages_total"), "{{instance}} written coded"),
            ],
        ),
    ),
    "Neighbours and remote stores": (
        Graph(
            "Lent and borrowed",
            "bytes",
            [Query(_now(f"swift_tiers_{one}_bytes"), f"{_SERVER} {one}") for one in ("lent", "lendable", "borrowed")],
        ),
        Graph(
            "Leases",
            "short",
            [
                Query(_now("swift_tiers_leases", "side"), "{{instance}} {{side}}"),
                Query(_rate("swift_tiers_lend_ignored_total"), "{{instance}} letters ignored a second"),
                Query(_rate("swift_tiers_lend_other_releases_total"), "{{instance}} … of another release"),
            ],
        ),
        Graph(
            "The remote store",
            "short",
            [
                *(
                    Query(_counted(f"swift_tiers_remote_{one}_total"), f"{_SERVER} {one}")
                    for one in ("questions", "late", "errors", "lost", "bad")
                ),
                Query("min by (instance) (swift_tiers_remote_engine_asked)", "{{instance}} is asked: 1, or 0"),
            ],
            "A second: questions; what came too late, was answered with an error, had gone, was damaged.",
        ),
    ),
    "GPUs and events": (
        Graph(
            "Memory of GPUs",
            "bytes",
            [Query(_now("swift_tiers_gpu_memory_used_bytes"), _SERVER)],
            "In use, by everybody.",
        ),
        Graph("Links of GPUs", "short", [Query(_now("swift_tiers_gpu_nvlinks"), "{{instance}} NVLinks")]),
        Graph(
            "Events",
            "short",
            [Query(_rate("swift_tiers_events_total"), _SERVER)],
            "A second: `swift-tiers inspect events` says what.",
        ),
    ),
}


def make_dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana's JSON."""
    return {
        "uid": "swift-tiers",
        "title": "swift-tiers",
        "description": "Printed by `swift-tiers monitoring dashboard`.",
        "tags": ["sglang", "swift-tiers"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair over all graphs
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    for name, series in (
        ("model", "label_values(swift_tiers_capacity_bytes, model_name)"),
        ("instance", 'label_values(swift_tiers_capacity_bytes{model_name=~"$model"}, instance)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "definition": series,
            "query": {"query": series, "refId": name},
            "refresh": 2,  # whenever another time is looked at
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    width = _WIDTH // _IN_A_ROW
    for title, graphs in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }
        y += 1
        for at, graph in enumerate(graphs):
            number += 1
            column = at % _IN_A_ROW
            yield _panel(number, graph, {"x": column * width, "y": y, "w": width, "h": _HEIGHT})
            if column == _IN_A_ROW - 1 or at == len(graphs) - 1:
                y += _HEIGHT


def _panel(number: int, graph: Graph, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": graph.title,
        "description": graph.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": graph.unit, "min": 0, "custom": {"showPoints": "never", "fillOpacity": 5}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": _of_chosen(query.expression),
                "legendFormat": query.legend,
                "range": True,
            }
            for at, query in enumerate(graph.queries)
        ],
    }


def _of_chosen(expression: str) -> str:
    """The query, of the servers that are chosen."""

    def chosen(found: re.Match[str]) -> str:
        ours, of_sglang, labels = found.groups()
        name = f"{ours}{{" if ours else f'{{__name__=~"sglang[:_]{of_sglang}", '
        return f"{name}{_CHOSEN}{', ' if labels else '}'}"

    return _SERIES.sub(chosen, expression)
