"""A figure is declared once: what is counted comes out on the bus, in its document, on `/metrics` and in the JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Generic, Never

import msgspec
import pytest

from swift_tiers.radix_tiering.bus.contract.records import record
from swift_tiers.radix_tiering.bus.contract.schema import KEYS
from swift_tiers.radix_tiering.bus.contract.view import RankedView
from swift_tiers.radix_tiering.bus.contract.view_reading import read_view
from swift_tiers.radix_tiering.bus.contract.views import TierView
from swift_tiers.radix_tiering.figures.counters import RestoreSnapshot, StackSnapshot, TierCounters, TierSnapshot
from swift_tiers.radix_tiering.figures.declare import (
    Figures,
    Gap,
    Kind,
    counter,
    each,
    fact,
    figures_of,
    gauge,
    several,
    text,
)
from swift_tiers.radix_tiering.figures.forms import NAMES

HOME = {"server": "alpha", "rank": "dp0-tp0"}

#: Adds one declaration to the source of the tiers' figures, counts, and prints where that shows.
ONE_MORE = """
import importlib.util, json, sys
from pathlib import Path

name = "swift_tiers.radix_tiering.figures.counters"
spec = importlib.util.find_spec(name)
source = Path(spec.origin).read_text()
known = '    hits: int | Gap = counter("pages that requests got from it")\\n'
assert source.count(known) == 1
source = source.replace(known, known + '    rescued_pages: int | Gap = counter("pages that were rescued | saved")\\n')
module = sys.modules[name] = importlib.util.module_from_spec(spec)
exec(compile(source, spec.origin, "exec"), module.__dict__)

from prometheus_client import CollectorRegistry, generate_latest
from swift_tiers.ops.commands.inspect.looks import describe
from swift_tiers.radix_tiering.bus.contract.records import tier_record
from swift_tiers.radix_tiering.bus.contract.schema_document import schema_markdown
from swift_tiers.radix_tiering.bus.contract.view_reading import read_view
from swift_tiers.radix_tiering.bus.contract.views import TierView
from swift_tiers.sglang_ext.tell.metrics import TierMetrics
sys.path.insert(0, sys.argv[1])
from support import telemetry

counters = module.TierCounters()
counters.rescued_pages += 3
gauges = dict.fromkeys(module.TierGauges.__struct_fields__, 0)
snapshot = counters.snapshot(**gauges)
said = tier_record(snapshot, module.NO_LATENCY, time=1.5)
view = read_view(TierView, said, server="alpha", rank="dp0-tp0", tier="host")
telemetry.tier = lambda **changes: snapshot
registry = CollectorRegistry()
TierMetrics({"tp_rank": 1}, registry).update(telemetry.stack(tiers={"host": snapshot}))
print(json.dumps({
    "hash": said["rescued_pages"],
    "view": view.rescued_pages,
    "silent": TierView(server="alpha", rank="dp0-tp0", tier="host").rescued_pages,
    "document": [row for row in schema_markdown().splitlines() if "rescued" in row],
    "metrics": [line for line in generate_latest(registry).decode().splitlines() if "rescued" in line],
    "json": describe([view])[0]["rescued_pages"],
}))
"""


def test_a_new_counter_is_one_line_where_it_is_declared_and_one_where_it_is_counted(pytestconfig: Any) -> None:
    tests = str(pytestconfig.rootpath / "tests")
    result = subprocess.run([sys.executable, "-c", ONE_MORE, tests], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    metrics = [line for line in found.pop("metrics") if "_created" not in line]
    assert found == {
        "hash": "3",
        "view": 3,
        "silent": None,
        "document": [r"|  |  | `rescued_pages` | pages | pages that were rescued \| saved |  |  |  |"],
        "json": 3,
    }
    assert metrics == [
        "# HELP swift_tiers_rescued_pages_total Of a tier: pages that were rescued | saved.",
        "# TYPE swift_tiers_rescued_pages_total counter",
        'swift_tiers_rescued_pages_total{tier="host",tp_rank="1"} 3.0',
    ]


# ---- declarations ----


class BoilerFigures(Figures, Generic[Gap]):
    """What there is of a boiler."""

    maker: str = text("who made it")
    litres: int | Gap = counter("that it heated")
    degrees: float | Gap = gauge("now")
    lit: bool | Gap = fact("1 if it burns")
    cause: str | None = fact("why it does not")
    users: tuple[str, ...] = several("who uses it", NAMES)
    faults: dict[str, int] = each("by kind")


class BoilerSnapshot(BoilerFigures[Never]):
    cellar: str


class BoilerView(RankedView, BoilerFigures[None]):
    boiler: str
    recent: int | None = gauge("in the last minute")


class Heated(Figures, Generic[Gap]):
    litres: int | Gap = counter("that it heated")
    seconds: float | Gap = counter("that it took")


class BoilerCounters(Heated[Never], counts=True):
    marks: list[int] = msgspec.field(default_factory=list)


SNAPSHOT = BoilerSnapshot(
    maker="Ann", litres=3, degrees=61.5, lit=True, cause=None, users=("a", "b"), faults={"leak": 2}, cellar="left"
)


def test_a_snapshot_says_everything() -> None:
    assert BoilerSnapshot.__struct_fields__ == ("cellar", *BoilerFigures.__struct_fields__)
    with pytest.raises(TypeError, match="cause"):
        BoilerSnapshot(**{name: value for name, value in msgspec.structs.asdict(SNAPSHOT).items() if name != "cause"})
    with pytest.raises(AttributeError):
        SNAPSHOT.litres = 4


def test_a_view_need_say_nothing() -> None:
    view = BoilerView(**HOME, boiler="1")
    figures = [getattr(view, name) for name, _, _ in figures_of(BoilerView)]
    assert figures == [None, "", None, None, None, None, (), {}, None]
    assert BoilerView(**HOME, boiler="2").faults is not view.faults
    assert isinstance(view, RankedView)
    assert hash(BoilerSnapshot) is not None


def test_what_counts_begins_at_nothing_and_changes() -> None:
    counters = BoilerCounters()
    assert (counters.litres, counters.seconds, counters.marks) == (0, 0.0, [])
    assert isinstance(counters.seconds, float), "else its text would have no digits after the point"
    counters.litres += 1
    assert BoilerCounters().litres == 0


def test_what_is_written_is_read() -> None:
    said = record(BoilerView, SNAPSHOT, time=1.5, recent=7)
    assert said == {
        "time": "1.500000", "maker": "Ann", "litres": "3", "degrees": "61.500000", "lit": "1", "cause": "",
        "users": "a,b", "faults:leak": "2", "recent": "7",
    }  # fmt: skip
    view = read_view(BoilerView, said, **HOME, boiler="1")
    assert (view.time, view.recent, view.boiler) == (1.5, 7, "1")
    for name in BoilerFigures.__struct_fields__:
        assert getattr(view, name) == getattr(SNAPSHOT, name), name


def test_what_nobody_says_is_empty_and_the_first_who_says_it_counts() -> None:
    assert set(record(BoilerView, None).values()) == {""}
    first, second = (BoilerCounters(litres=number) for number in (1, 2))
    assert record(BoilerView, first, second)["litres"] == "1"
    assert record(BoilerView, first, litres=5)["litres"] == "5"


def test_figures_keep_their_kinds_on_every_way() -> None:
    kinds = {name: figure.kind for name, figure, _ in figures_of(BoilerFigures)}
    for kind in (BoilerSnapshot, BoilerView):
        assert kinds.items() <= {name: figure.kind for name, figure, _ in figures_of(kind)}.items()
    assert kinds["litres"] is Kind.COUNTER
    assert [family for _, _, family in figures_of(BoilerView) if family] == ["faults"]


# ---- those of the product ----


def test_what_a_tier_counts_is_what_its_snapshot_and_its_view_say() -> None:
    counted = {name for name, _, _ in figures_of(TierCounters)}
    assert counted == {name for name, figure, _ in figures_of(TierSnapshot) if figure.kind is Kind.COUNTER} - {
        "refusals"
    }
    assert counted < {name for name, _, _ in figures_of(TierView)}


@pytest.mark.parametrize("kind", [TierSnapshot, StackSnapshot, RestoreSnapshot])
def test_no_figure_of_a_snapshot_has_a_default(kind: type[Figures]) -> None:
    assert all(field.required for field in msgspec.structs.fields(kind))


def test_every_number_has_a_unit_or_is_a_count() -> None:
    """No field says milliseconds, or kilobytes."""
    names = {field.name for spec in KEYS for field in spec.fields}
    assert not {name for name in names if {"ms", "milliseconds", "kilobytes", "mb"} & set(name.split("_"))}
