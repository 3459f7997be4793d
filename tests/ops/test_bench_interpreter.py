"""`./swift bench interpreter` at its smallest size."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from swift_tiers.ops.commands.bench.report import MISSED
from swift_tiers.ops.lab.bench.interpreter import arguments

from support.scheduler_process import SchedulerProcess


def measured(s, file):
    from swift_tiers.ops.lab.bench.interpreter import measure

    return measure(s, argparse.Namespace(steps=20, rounds=1, pages=200, json=Path(file)))


@pytest.mark.exhaustive
def test_it_runs(tmp_path: Path) -> None:
    """A bound that is missed is none of the suite's business: the machine may be busy."""
    file = tmp_path / "figures.json"
    with SchedulerProcess(arguments(tmp_path)) as process:
        assert process(measured, str(file)) in (0, MISSED)
    told = json.loads(file.read_text())
    beside = ["writing", "writing elsewhere", "promoting", "promoting elsewhere"]
    assert [figure["name"] for figure in told["figures"]] == beside
    assert all(math.isfinite(figure["value"]) for figure in told["figures"])
    assert {name: len(rounds) for name, rounds in told["turns"].items()} == dict.fromkeys(["alone", *beside], 1)
    assert all(spent["pages"] > 0 for spent in told["spent"].values()), "nothing was written, or promoted"
