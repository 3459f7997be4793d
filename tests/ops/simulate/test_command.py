"""`swift-tiers simulate`, and that docs/evaluation.md says what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.simulate import traces
from swift_tiers.ops.simulate.command import HEAD
from swift_tiers.ops.simulate.scenarios import scenarios
from swift_tiers.ops.simulate.tables import as_markdown, as_text, table

from support.command_line import run_command

EVALUATION = Path(__file__).parents[3] / "docs" / "evaluation.md"
#: Longer than a few seconds: of these it is only checked that the tables are there.
SLOW = {"bound-batch", "cacheflow-workloads", "swiftcache-tail", "mooncake-sizes", "mooncake-cluster"}


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "simulate", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(scenarios())


def test_a_wrong_name_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["simulate"], ["simulate", "nothing"]):
        code, out, err = run_command(capsys, *words)
        assert (code, out) == (2, "")
        assert err.startswith("swift-tiers: error: simulate: ")
        assert err.count("\n") == 1
        assert "cacheflow-lengths" in err


def test_tables_as_json_have_what_the_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "simulate", "--json", "cacheflow-lengths")
    assert code == 0
    [found] = json.loads(out)
    assert found["columns"][0] == "tokens"
    code, out, _ = run_command(capsys, "simulate", "cacheflow-lengths")
    assert all(str(cell) in out for row in found["rows"] for cell in row if cell is not None)


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="columns differ"):
        table("name", "title", ["a", "b"], [[1]])


def test_tables_look_alike_whatever_is_in_them() -> None:
    one = table("name", "Title", ["a", "longer"], [[1, None], [0.25, "x"]], ["A note."])
    assert as_text(one) == "Title\n  a     longer\n  1     –\n  0.25  x\n  A note."
    assert as_markdown(one) == "### Title\n\n| a | longer |\n|---|---|\n| 1 | – |\n| 0.25 | x |\n\nA note.\n"


def test_the_evaluation_has_its_head() -> None:
    assert EVALUATION.read_text().startswith(HEAD)


@pytest.mark.parametrize("name", [name for name in scenarios() if name not in SLOW])
def test_the_evaluation_says_what_the_simulation_gives(name: str) -> None:
    if name.startswith("mooncake") and not (traces.directory() / traces.MOONCAKE).exists():
        pytest.skip(f"no trace at {traces.directory()}: set {traces.VARIABLE} to have its tables checked")
    for result in scenarios()[name].run():
        assert as_markdown(result) in EVALUATION.read_text(), (
            f"{name} gives something else now; run `swift-tiers simulate all --markdown > docs/evaluation.md`"
        )


def test_the_tables_of_slow_scenarios_are_there() -> None:
    assert set(scenarios()) >= SLOW
    titles = [line for line in EVALUATION.read_text().splitlines() if line.startswith("### ")]
    for words in ("Batches: makespan", "Figure 4", "Figure 7: conversations", "Mooncake's conversation", "64 machines"):
        assert any(words in title for title in titles), words


def test_without_the_trace_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(traces.VARIABLE, str(tmp_path))
    code, out, err = run_command(capsys, "simulate", "mooncake-beginning")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert traces.VARIABLE in err


def test_simulate_is_a_command() -> None:
    assert "simulate" in cli.COMMANDS
