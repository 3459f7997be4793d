"""A dashboard for Grafana: what users wait for, and what the tiers below the device do, by server.

Each query is of the servers that are chosen above the dashboard. What SGLang itself tells (`sglang:…`) is there where
it belongs to the question: time to first token, and where the tokens of prompts came from. Prometheus 2 has these as
`sglang_…`: to who asks in its way, what writes them for SGLang tells no colons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    legend: str = ""  # behind the server, with labels in {{}}


class Graph(NamedTuple):
    """One picture."""

    title: str
    unit: str  # as Grafana names it
    queries: Sequence[Query]
    help: str = ""


def _now(series: str, *labels: str) -> str:
    return f"sum by ({', '.join(('instance', *labels))}) ({series})"


def _rate(series: str, *labels: str) -> str:
    """A second, of bytes or of what each rank does by itself."""
    return _now(f"rate({series}[$__rate_interval])", *labels)


def _counted(series: str, *labels: str) -> str:
    """A second, of requests and pages, of which every rank of tensor parallelism counts the same."""
    return _now(f"max without (tp_rank) (rate({series}[$__rate_interval]))", *labels)


def _share(how: Callable[..., str], part: str, whole: str, *labels: str) -> str:
    return f"{how(f'swift_tiers_{part}', *labels)} / {how(f'swift_tiers_{whole}', *labels)}"


def _lines(how: Callable[..., str], of: str, named: Mapping[str, str], *labels: str) -> list[Query]:
    """One of each series of ours, by the word that stands behind what it is `of`."""
    return [Query(how(f"swift_tiers_{series}", *labels), f"{of} {word}".strip()) for word, series in named.items()]


def _p50_p99(series: str, of: str, *labels: str) -> list[Query]:
    buckets = _rate(f"{series}_bucket", *labels, "le")
    return [
        Query(f"histogram_quantile({share}, {buckets})", f"{of} p{share * 100:.0f}".strip()) for share in (0.5, 0.99)
    ]


_TIER, _LINK, _DEVICE = "{{tier}}", "{{link}}", "{{path}}"
_DEVICE_LABELS = ("device", "path")
_PROMPTS = _rate("sglang:prompt_tokens_total")

#: Row by row.
ROWS: dict[str, Sequence[Graph]] = {
    "What users wait for": (
        Graph("Time to first token", "s", _p50_p99("sglang:time_to_first_token_seconds", "")),
        Graph(
            "Where the tokens of prompts came from",
            "short",
            [
                Query(_rate("sglang:cached_tokens_total", "cache_source"), "{{cache_source}}"),
                # Until something was cached there is no series of it.
                Query(f"{_PROMPTS} - ({_rate('sglang:cached_tokens_total')} or 0 * {_PROMPTS})", "computed"),
            ],
            "Tokens a second: from the device, from a tier, or computed.",
        ),
        Graph(
            "Requests",
            "short",
            [
                Query("max by (instance) (sglang:num_running_reqs)", "running"),
                Query("max by (instance) (sglang:num_queue_reqs)", "waiting"),
            ],
        ),
    ),
    "What is wrong": (
        Graph(
            "Never to happen",
            "short",
            [
                *_lines(_now, "", {"threads that hang": "hung_threads"}),
                *_lines(_counted, "", {"failed loads a second": "failed_loads_total"}),
                *_lines(_rate, _TIER, {"damaged pages a second": "checksum_failures_total"}, "tier"),
                *_lines(_rate, _DEVICE, {"damaged units a second": "device_corrupt_units_total"}, "path"),
                *_lines(_rate, "", {"faults in lending a second": "lend_faults_total"}),
                Query("count by (instance) (swift_tiers_gpu_answers == 0)", "GPUs that do not answer"),
            ],
            "Above zero something is broken.",
        ),
        Graph(
            "Pages not taken in",
            "short",
            _lines(_counted, "{{tier}}: {{reason}}", {"": "refusals_total"}, "tier", "reason"),
            "Pages a second, by reason. `prefix not held`, `too many wait` and `lease ended` are in order.",
        ),
        Graph(
            "Devices that are out, or gone",
            "short",
            [
                Query("swift_tiers_device_in_service == 0", f"{_DEVICE} out of service"),
                Query("swift_tiers_device_takes_pages == 0", f"{_DEVICE} takes no pages"),
                Query("swift_tiers_stripe_missing_devices > 0", "missing at the start"),
            ],
            "A line is there while it is so.",
        ),
    ),
    "Restores": (
        Graph(
            "Restores by how they ended",
            "short",
            [
                *_lines(_counted, "{{outcome}}", {"": "restores_total"}, "outcome"),
                *_lines(_counted, "", {"pages lost": "restore_lost_pages_total"}),
            ],
            "A second: `split`, a part was computed meanwhile; pages lost were found, and did not come.",
        ),
        Graph(
            "Restores that were not as planned",
            "percentunit",
            [
                Query(_share(_counted, "restores_late_total", "restores_started_total"), "late"),
                Query(
                    _share(_counted, "restores_copied_first_total", "restores_started_total"),
                    "copied before their forward",
                ),
            ],
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
                Query(_share(_now, "used_bytes", "limit_bytes", "tier"), _TIER),
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
                *_lines(_now, _TIER, {"used": "used_bytes", "capacity": "capacity_bytes"}, "tier"),
                *_lines(_now, "", {"saved by ssd.codec": "stripe_saved_bytes"}),
            ],
        ),
        Graph(
            "Pages",
            "short",
            [
                Query("max by (instance, tier) (swift_tiers_only_pages)", f"{_TIER} that no other tier has"),
                Query("max by (instance, tier) (swift_tiers_unread_pages)", f"{_TIER} not entered since the start"),
            ],
        ),
        Graph(
            "Hits",
            "short",
            _lines(_counted, _TIER, {"hits": "hits_total", "misses": "misses_total"}, "tier"),
            "Pages a second that requests got from a tier, or did not find there.",
        ),
        Graph(
            "Into a tier, and up from it",
            "Bps",
            _lines(_rate, _TIER, {"written": "written_bytes_total", "read": "read_bytes_total"}, "tier"),
        ),
        Graph(
            "Evictions",
            "short",
            _lines(_counted, _TIER, {"": "evictions_total"}, "tier"),
            "Pages a second that were dropped or demoted to make room.",
        ),
    ),
    "Links": (
        Graph("Bytes over a link", "Bps", _lines(_rate, _LINK, {"": "link_bytes_total"}, "link")),
        Graph(
            "While it copies",
            "Bps",
            [Query(_share(_rate, "link_bytes_total", "link_seconds_total", "link"), _LINK)],
            "What one copy gets of a link; copies side by side count each.",
        ),
        Graph("A copy", "s", _p50_p99("swift_tiers_link_copy_seconds", _LINK, "link")),
        Graph(
            "Pages in a copy",
            "short",
            [Query(_share(_rate, "link_pages_total", "link_transfers_total", "link"), _LINK)],
        ),
        Graph(
            "Room on the GPU for pages past host memory",
            "percentunit",
            [
                Query(f"{_now(f'swift_tiers_{one}_used_pages')} / ({_now(f'swift_tiers_{one}_pages')} > 0)", one)
                for one in ("landing", "outgoing")
            ],
        ),
        Graph(
            "NVLink",
            "Bps",
            _lines(_rate, "{{direction}}", {"": "gpu_nvlink_bytes_total"}, "direction"),
            "Of the GPUs, by everybody.",
        ),
    ),
    "SSDs": (
        Graph(
            "Bytes of a device",
            "Bps",
            _lines(
                _rate,
                _DEVICE,
                {"read": "device_read_bytes_total", "written": "device_written_bytes_total"},
                *_DEVICE_LABELS,
            ),
        ),
        Graph("Requests of a device", "s", _p50_p99("swift_tiers_device_request_seconds", _DEVICE, *_DEVICE_LABELS)),
        Graph(
            "Under way, and waiting",
            "short",
            [
                *_lines(_now, _DEVICE, {"in flight": "device_in_flight"}, *_DEVICE_LABELS),
                *_lines(_now, "", {"pages to be written": "write_queue_pages"}),
            ],
            "A queue that only grows: the devices are too slow for this traffic.",
        ),
        Graph(
            "Requests a second",
            "short",
            _lines(
                _rate,
                _DEVICE,
                {
                    "reads": "device_reads_total",
                    "writes": "device_writes_total",
                    "reads that failed": "device_read_errors_total",
                    "writes that failed": "device_write_errors_total",
                },
                *_DEVICE_LABELS,
            ),
        ),
        Graph(
            "Filled",
            "percentunit",
            [Query(_share(_now, "device_used_bytes", "device_capacity_bytes", *_DEVICE_LABELS), _DEVICE)],
        ),
        Graph(
            "Reads of pages",
            "short",
            [
                *_lines(_rate, "{{outcome}}", {"": "stripe_reads_total"}, "outcome"),
                *_lines(_rate, "", {"written coded": "stripe_coded_pages_total"}),
            ],
        ),
    ),
    "Neighbours and remote stores": (
        Graph(
            "Lent and borrowed",
            "bytes",
            _lines(_now, "", {one: f"{one}_bytes" for one in ("lent", "lendable", "borrowed")}),
        ),
        Graph(
            "Leases",
            "short",
            [
                *_lines(_now, "{{side}}", {"": "leases"}, "side"),
                *_lines(
                    _rate,
                    "",
                    {
                        "letters ignored a second": "lend_ignored_total",
                        "… of another release": "lend_other_releases_total",
                    },
                ),
            ],
        ),
        Graph(
            "The remote store",
            "short",
            [
                *_lines(
                    _counted,
                    "",
                    {one: f"remote_{one}_total" for one in ("questions", "late", "errors", "lost", "bad")},
                ),
                Query("min by (instance) (swift_tiers_remote_engine_asked)", "is asked: 1, or 0"),
            ],
            "A second: questions; what came too late, was answered with an error, had gone, was damaged.",
        ),
    ),
    "GPUs and events": (
        Graph("Memory of GPUs", "bytes", _lines(_now, "", {"": "gpu_memory_used_bytes"}), "In use, by everybody."),
        Graph("Links of GPUs", "short", _lines(_now, "", {"NVLinks": "gpu_nvlinks"})),
        Graph(
            "Events",
            "short",
            _lines(_rate, "", {"": "events_total"}),
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
                "legendFormat": f"{{{{instance}}}} {query.legend}".rstrip(),
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
