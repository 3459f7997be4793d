"""`./swift bench beside` at its smallest size."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from swift_tiers.ops.commands.bench.report import MISSED
from swift_tiers.ops.lab.bench.beside import BESIDE, FIRST, arguments

from support.scheduler_process import SchedulerProcess


def measured(s, file):
    from swift_tiers.ops.lab.bench.beside import measure

    return measure(s, argparse.Namespace(tokens=400, copy=0.05, rounds=1, json=Path(file)))


@pytest.mark.exhaustive
def test_it_runs(tmp_path: Path) -> None:
    """A bound that is missed is none of the suite's business: the machine may be busy."""
    file = tmp_path / "figures.json"
    with SchedulerProcess(arguments(tmp_path)) as process:
        assert process(measured, str(file)) in (0, MISSED)
    told = json.loads(file.read_text())
    assert [figure["name"] for figure in told["figures"]] == [
        "others, copied beside", "others, copied first", "first token, copied first",
    ]  # fmt: skip
    ((_, beside),), ((_, first),) = told["turns"][BESIDE], told["turns"][FIRST]
    assert beside < first, "nobody decoded while it was copied"
