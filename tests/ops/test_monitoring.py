"""`swift-tiers monitoring`: each series that rules and dashboard name is one that a server has, and each alert is told
when its trouble comes, by Prometheus' own `promtool`, and not before."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from swift_tiers.ops.commands.monitoring.alerts import ALERTS, DEVICE_P99, as_markdown, as_yaml
from swift_tiers.ops.commands.monitoring.dashboard import make_dashboard
from swift_tiers.radix_tiering.bus.hear.tier_troubles import SICK_REFUSALS
from swift_tiers.sglang_ext.tell.metrics import TierMetrics

from support.command_line import run_command
from support.scrapes import ON_THE_DASHBOARD
from support.telemetry import gpu, leases, stack

ROOT = Path(__file__).parents[2]
RANK = {"model_name": "tiny", "tp_rank": "0"}
#: What Prometheus adds of where it has a series from.
SCRAPED = {"job", "instance"}
NAMED = re.compile(r"\b(?:swift_tiers[_:]|sglang:)[a-z0-9_:]+")


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """The labels of each series that a rank with everything has, but for those that are on all."""
    registry = CollectorRegistry()
    TierMetrics(RANK, registry).update(stack(), leases(), gpu())
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels.keys() - RANK.keys())
    return found


def graphs() -> Iterator[dict[str, Any]]:
    return (panel for panel in make_dashboard()["panels"] if panel["type"] == "timeseries")


def queries() -> list[tuple[str, str]]:
    """Each query of the dashboard, with SGLang's series as they are called, and with its legend."""
    asked = [(target["expr"], target["legendFormat"]) for graph in graphs() for target in graph["targets"]]
    return [(re.sub(r'\{__name__=~"sglang\[:_\](\w+)", ', r"sglang:\1{", query), legend) for query, legend in asked]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(as_yaml())["groups"]
    return list(group["rules"])


def test_the_rules_are_what_was_written() -> None:
    recorded, *alerts = rules()
    assert recorded["record"] == DEVICE_P99
    for rule, alert in zip(alerts, ALERTS, strict=True):
        assert rule["alert"] == f"SwiftTiers{alert.name}"
        assert rule["expr"] == alert.expression
        assert rule.get("for", "") == alert.lasting
        assert rule["labels"] == {"severity": alert.severity}
        assert rule["annotations"]["summary"].endswith(alert.says)
        assert rule["annotations"]["description"] == alert.remedy
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_every_series_that_is_named_is_told(told: dict[str, set[str]]) -> None:
    known = {*told, *ON_THE_DASHBOARD, DEVICE_P99}
    for expression in [rule["expr"] for rule in rules()] + [expression for expression, _ in queries()]:
        named = set(NAMED.findall(expression))
        assert named, expression
        assert named <= known, expression


def test_every_series_is_shown(told: dict[str, set[str]]) -> None:
    shown = {name for expression, _ in queries() for name in NAMED.findall(expression)}
    histograms = {name.removesuffix("_bucket") for name in told if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("sum", "count")}
    assert told.keys() - shown - parts == set()


def test_what_is_said_of_a_series_is_a_label_of_it(told: dict[str, set[str]]) -> None:
    """A label that a series has not got is an empty word in a legend, and sums what it should part."""
    labels = {**told, **ON_THE_DASHBOARD}
    for expression, legend in queries():
        of_series = [labels[name] | SCRAPED | RANK.keys() for name in NAMED.findall(expression)]
        kept = [set(found.split(", ")) for found in re.findall(r"by \(([a-z_, ]+)\)", expression)]
        for label in re.findall(r"\{\{([a-z_]+)\}\}", legend):
            assert all(label in ones for ones in [*of_series, *kept]), (expression, label)
        for label in set().union(*kept) - {"le"}:
            assert all(label in ones for ones in of_series), (expression, label)


def test_every_query_is_of_the_servers_that_are_chosen() -> None:
    for expression, _ in queries():
        selectors = re.findall(r"\b(?:swift_tiers_|sglang:)[a-z0-9_]+(.{25})", expression)
        assert selectors
        assert all(one == '{model_name=~"$model", in' for one in selectors), expression


def test_no_picture_covers_another() -> None:
    dashboard = make_dashboard()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells
    for graph in graphs():
        assert len({target["refId"] for target in graph["targets"]}) == len(graph["targets"])


def test_the_document_says_the_same() -> None:
    assert as_markdown() in (ROOT / "docs/operations.md").read_text(), (
        "print it anew: swift-tiers monitoring alerts --markdown"
    )


def test_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "monitoring", "alerts") == (0, as_yaml(), "")
    assert run_command(capsys, "monitoring", "alerts", "--markdown") == (0, as_markdown(), "")
    code, printed, _ = run_command(capsys, "monitoring", "dashboard")
    assert (code, json.loads(printed)) == (0, make_dashboard())
    code, _, error = run_command(capsys, "monitoring", "dashboard", "--markdown")
    assert code == 2
    assert "--markdown is for alerts" in error


# ---- by promtool ----

promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus' promtool is not installed")
#: A server that is well: each series with values of a minute, as promtool has them.
WELL = {
    "hung_threads": "0x90",
    "failed_loads_total": "0x90",
    'checksum_failures_total{tier="ssd"}': "0x90",
    'device_in_service{device="0", path="/a"}': "1x90",
    'device_takes_pages{device="0", path="/a"}': "1x90",
    'device_corrupt_units_total{device="0", path="/a"}': "0x90",
    'device_read_errors_total{device="0", path="/a"}': "0x90",
    'device_write_errors_total{device="0", path="/a"}': "0x90",
    "stripe_missing_devices": "0x90",
    'restores_total{outcome="completed"}': "0+96x90",
    'restores_total{outcome="expired"}': "0+2x90",
    'restores_total{outcome="cut short"}': "0+2x90",
    "restores_started_total": "0+100x90",
    "restores_late_total": "0+4x90",
    'refusals_total{tier="host", reason="prefix not held"}': "0+5x90",
    'pinned_pages{tier="host"}': "95x90",
    'pages{tier="host"}': "100x90",
    'used_bytes{tier="host"}': "80x90",
    'limit_bytes{tier="host"}': "100x90",
    'pinned_pages{tier="ssd"}': "0x90",
    'pages{tier="ssd"}': "0x90",
    'used_bytes{tier="ssd"}': "0x90",
    'limit_bytes{tier="ssd"}': "100x90",
    "landing_used_pages": "8x8 7 8x8 7x60",
    "landing_pages": "8x90",
    "remote_engine_asked": "0x5 1x90",
    "remote_errors_total": "0x90",
    "remote_bad_total": "0x90",
    "remote_late_total": "0+9x90",
    "remote_questions_total": "0+100x90",
    "lend_faults_total": "0x90",
    "lend_other_releases_total": "0x90",
    "gpu_answers": "1x90",
    # Four devices, of which the last has too few requests to tell.
    **{
        f'device_request_seconds_{part}{{device="{device}", path="/{path}"{bound}}}': f"0+{count}x90"
        for device, path, slow in ((0, "a", 0), (1, "b", 0), (2, "c", 100), (3, "d", 1))
        for part, bound, count in (
            ("bucket", ', le="0.001"', 100 if device < 2 else 0),
            ("bucket", ', le="0.0035"', 100 if device < 2 else slow),
            ("bucket", ', le="+Inf"', 100 if device < 2 else slow),
            ("count", "", 100 if device < 2 else slow),
        )
    },
}
#: Of each alert, what is otherwise when it is told, and the labels that it has of what it is of.
_ON_A = {"device": "0", "path": "/a"}
SICK: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "ThreadHangs": ({"hung_threads": "0x44 2x45"}, RANK),
    "LoadsFail": ({"failed_loads_total": "0x40 1x45"}, RANK),
    "PagesDamaged": ({'checksum_failures_total{tier="ssd"}': "0x40 1x45"}, {**RANK, "tier": "ssd"}),
    "DeviceOut": ({'device_in_service{device="0", path="/a"}': "1x44 0x45"}, {**RANK, **_ON_A}),
    "DeviceTakesNoPages": ({'device_takes_pages{device="0", path="/a"}': "1x29 0x60"}, {**RANK, **_ON_A}),
    "DeviceUnitsDamaged": ({'device_corrupt_units_total{device="0", path="/a"}': "0x40 3x45"}, {**RANK, **_ON_A}),
    "DeviceErrors": ({'device_write_errors_total{device="0", path="/a"}': "0x40 1x45"}, {**RANK, **_ON_A}),
    "DeviceSlow": (
        {'device_request_seconds_bucket{device="2", path="/c", le="0.0035"}': "0x90"}
        | {'device_request_seconds_bucket{device="2", path="/c", le="0.1"}': "0+100x90"},
        {"device": "2", "path": "/c"},
    ),
    "DevicesMissing": ({"stripe_missing_devices": "1x90"}, RANK),
    "RestoresFallShort": ({'restores_total{outcome="expired"}': "0+4x90"}, {}),
    "RestoresLate": ({"restores_late_total": "0+6x90"}, {}),
    **{
        next(alert.name for alert in ALERTS if alert.expression.count(f'"{reason}"')): (
            {f'refusals_total{{tier="ssd", reason="{reason}"}}': "0+1x90"},
            {**RANK, "tier": "ssd", "reason": reason},
        )
        for reason in SICK_REFUSALS
    },
    "TierPinned": ({'used_bytes{tier="host"}': "95x90"}, {**RANK, "tier": "host"}),
    "LandingMemoryFull": ({"landing_used_pages": "7x20 8x60"}, RANK),
    "RemoteStoreAway": ({"remote_engine_asked": "1x30 0x60"}, RANK),
    "RemoteStoreErrors": ({"remote_errors_total": "0x40 1x45"}, RANK),
    "RemoteObjectsDamaged": ({"remote_bad_total": "0x40 1x45"}, RANK),
    "RemoteStoreLate": ({"remote_late_total": "0+11x90"}, {}),
    "LendingFaults": ({"lend_faults_total": "0x40 1x45"}, RANK),
    "OtherRelease": ({"lend_other_releases_total": "0x40 1x45"}, RANK),
    "GpuLost": ({"gpu_answers": "1x40 0x45"}, RANK),
}


def run_promtool(path: Path, *words: str, **files: Any) -> None:
    for name, content in files.items():
        (path / f"{name}.yaml").write_text(content if isinstance(content, str) else json.dumps(content))
    ended = subprocess.run(["promtool", *words], cwd=path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def series_of(changes: dict[str, str]) -> list[dict[str, str]]:
    """Those of a rank as Prometheus has them."""
    where = ", ".join(f'{name}="{value}"' for name, value in {"job": "sglang", "instance": "box", **RANK}.items())
    found = []
    for series, values in {**WELL, **changes}.items():
        name, _, labels = series.partition("{")
        found.append({"series": f"swift_tiers_{name}{{{where}, {labels or '}'}".replace(", }", "}"), "values": values})
    return found


def test_every_alert_has_a_trouble() -> None:
    assert SICK.keys() == {alert.name for alert in ALERTS}


@promtool
def test_promtool_takes_the_rules_and_the_queries(tmp_path: Path) -> None:
    run_promtool(tmp_path, "check", "rules", "--lint-fatal", "rules.yaml", rules=as_yaml())
    asked = [
        {"record": f"query_{at}", "expr": re.sub(r"\$(\w+)", lambda one: "1m" if "rate" in one[1] else ".*", query)}
        for at, (query, _) in enumerate(queries())
    ]
    run_promtool(tmp_path, "check", "rules", "q.yaml", q={"groups": [{"name": "queries", "rules": asked}]})


@promtool
def test_each_alert_is_told_with_its_trouble_and_no_other(tmp_path: Path) -> None:
    """After 45 minutes; a server that is well has none at any minute."""
    tests = [
        {
            "interval": "1m",
            "input_series": series_of({}),
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": f"SwiftTiers{alert.name}", "exp_alerts": []}
                for alert in ALERTS
                for minute in range(0, 60, 3)
            ],
        }
    ]
    for name, (changes, labels) in SICK.items():
        tests.append(
            {
                "interval": "1m",
                "input_series": series_of(changes),
                "alert_rule_test": [
                    {
                        "eval_time": "45m",
                        "alertname": f"SwiftTiers{alert.name}",
                        "exp_alerts": list(expected_of(alert, changes, labels)) if alert.name == name else [],
                    }
                    for alert in ALERTS
                ],
            }
        )
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    run_promtool(tmp_path, "test", "rules", "told.yaml", told=content, rules=as_yaml())


def expected_of(alert: Any, changes: dict[str, str], labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    labels = {"job": "sglang", "instance": "box", **labels}
    says = f"{{{{ $labels.instance }}}}: {alert.says}"
    for name, value in labels.items():
        says = says.replace(f"{{{{ $labels.{name} }}}}", value)
    (last,) = {values.split(" ")[-1].partition("x")[0] for values in list(changes.values())[:1]}
    yield {
        "exp_labels": {**labels, "severity": alert.severity},
        "exp_annotations": {"summary": says.replace("{{ $value }}", last), "description": alert.remedy},
    }
