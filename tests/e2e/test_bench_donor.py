"""`./swift bench donor` at its smallest size: its last line can be read, and its figures are figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from swift_tiers.ops.commands.bench.report import MISSED
from swift_tiers.ops.lab.bench.donor import main

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

SMALL = ["--rounds", "1", "--conversations", "2", "--tokens", "128", "--pool", "2048", "--pause", "0.1"]


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*SMALL, "--json", str(tmp_path / "figures.json")])
    name, _, figures = capsys.readouterr().out.splitlines()[-1].partition(": ")
    assert name == "donor"
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [figure["name"] for figure in written["figures"]] == [
        word.partition("=")[0] for word in figures.split() if "=" in word and not word.startswith(("(", ">="))
    ]
    assert all(math.isfinite(figure["value"]) for figure in written["figures"])
    assert code == (0 if all(figure["holds"] for figure in written["figures"]) else MISSED)
    # Lending or not, no conversation is lost that is kept, and both sides were asked for the same.
    assert len(written["turns"]["kept"]) == len(written["turns"]["given"]) == 2
