"""`./swift simulate`, and that docs/evaluation.md says what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.lab.simulate import traces
from swift_tiers.ops.lab.simulate.head import HEAD
from swift_tiers.ops.lab.simulate.scenarios import (
    bounds,
    cacheflow,
    conversations,
    mooncake,
    remote_link,
    scenarios,
    swiftkv,
)
from swift_tiers.ops.lab.simulate.tables import HELD, Cell, Table, as_markdown, as_text, compared, shown, table

from support.command_line import run_command

EVALUATION = Path(__file__).parents[3] / "docs" / "evaluation.md"
#: Longer than a few seconds: of these the default run makes some rows, and `--all` all of them.
SLOW = {"bound-batch", "cacheflow-workloads", "swiftcache-tail", "swiftkv-first-token", "mooncake-cluster"}
#: Longer than a few seconds for any row of theirs: of these the default run makes none.
SLOWEST = {"cacheflow-bandwidth", "mooncake-cells", "mooncake-sizes", "swiftcache-route", "swiftkv-tiers"}


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


CHANGED = "{} gives something else now; run `./swift simulate all --markdown > docs/evaluation.md`"


@pytest.mark.timeout(2700)  # `mooncake-sizes` plays hours of a trace, beside whatever other tests do
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name in SLOW | SLOWEST else name for name in scenarios()],
)
def test_the_evaluation_says_what_the_simulation_gives(name: str) -> None:
    skip_without_trace(name)
    for result in scenarios()[name].run():
        assert as_markdown(result) in EVALUATION.read_text(), CHANGED.format(name)
        check_against_the_paper(result)


def skip_without_trace(name: str) -> None:
    if name.startswith("mooncake") and not (traces.directory() / traces.MOONCAKE).exists():
        pytest.skip(f"no trace at {traces.directory()}: set {traces.VARIABLE} to have its tables checked")


def check_against_the_paper(result: Table) -> None:
    """What is said to be reproduced is, and what is said not to be is not, and says why."""
    for one in result.compared:
        assert one.holds == one.reproduced, f"{result.name}: {one}"
        if not one.reproduced:
            assert any("**Not reproduced:**" in note for note in result.notes), result.name
    if any(name == "paper" or name.startswith("paper:") for name in result.columns):
        assert result.compared, f"{result.name} shows numbers of a paper, and holds none of them"
        assert any(name.startswith(HELD) for name in result.columns), result.name


#: Of each slow scenario rows that are made soon.
SOME_ROWS: dict[str, Callable[[], list[list[Cell]]]] = {
    "bound-batch": lambda: [bounds.batch_row("linear", 1), bounds.batch_row("mostly attention", 2)],
    "cacheflow-workloads": lambda: [cacheflow.served("WildChat", "Llama-3.1-8B").row],
    "swiftcache-tail": lambda: conversations.tail_rows("Qwen3-32B", 9, conversations.WAYS[:1]),
    "swiftkv-first-token": lambda: [
        swiftkv.first_token_row(name, 2000, 0.1, [swiftkv.first_token(name, kind, 2000, 0.1) for kind in swiftkv.KINDS])
        for name in swiftkv.SERVED
    ],
    "mooncake-cluster": lambda: [mooncake.nothing_kept(traces.read())],
}


@pytest.mark.parametrize("stored", [remote_link.PREFIX, *remote_link.PREFIXES])
def test_two_pointers_over_a_link_are_never_slower_than_the_better_pure_way(stored: remote_link.StoredPrefix) -> None:
    for ratio, one in remote_link.measured(stored):
        assert one.of_better <= remote_link.BOUND, (ratio, one)


@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_evaluation_has_some_rows_of_what_a_slow_simulation_gives(name: str) -> None:
    skip_without_trace(name)
    assert {name, *SLOWEST} <= scenarios().keys()
    text = EVALUATION.read_text()
    for row in SOME_ROWS[name]():
        assert "| " + " | ".join(shown(cell) for cell in row) in text, CHANGED.format(name)


def test_slow_scenarios_hold_what_papers_say_as_well() -> None:
    """By what the document has of them; the others are compared when they are run."""
    one = cacheflow.served("WildChat", "Llama-3.1-8B")
    assert one.against.holds
    assert one.against.reproduced
    text = EVALUATION.read_text()
    column = [line.split(" | ") for line in text.splitlines() if line.startswith(("| WildChat", "| LMSYS", "| SWE-B"))]
    assert len(column) == 9
    for cells in column:
        against = compared(" ".join(cells[:2]), float(cells[7]), 1.1, 1.7)
        assert cells[-1].startswith("within 15%" if against.holds else "not reproduced"), cells
    tails = [line.split(" | ") for line in text.splitlines() if " | lent memory, as in " in line]
    assert len(tails) == 6
    for cells in tails:
        assert not compared(cells[0], float(cells[11]), 54, 69).holds
        assert cells[-1].startswith("not reproduced")


def test_a_number_outside_of_its_tolerance_is_not_reproduced() -> None:
    assert compared("", 1.44, 1.1, 1.25).holds == compared("", 0.9, 1.1, 1.25).holds is False
    assert compared("", 1.43, 1.1, 1.25).holds
    assert compared("", 0.94, 1.1).holds
    wrong = table("t", "T", ["paper", HELD], [["1.1", "within 15%"]], against=[compared("", 2.0, 1.1)])
    with pytest.raises(AssertionError):
        check_against_the_paper(wrong)
    silent = table("t", "T", ["paper"], [["1.1"]])
    with pytest.raises(AssertionError, match="holds none"):
        check_against_the_paper(silent)


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
