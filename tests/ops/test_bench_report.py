"""What the benches share: turns, bounds and the closing line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_tiers.ops.base import CommandError
from swift_tiers.ops.commands.bench.report import MISSED, Figure, finish, parser, take_turns
from swift_tiers.ops.lab.bench import attention

from support.command_line import run_command


def test_every_round_runs_every_case_and_the_order_alternates() -> None:
    ran: list[str] = []

    def case(name: str) -> int:
        ran.append(name)
        return len(ran)

    results = take_turns({name: lambda name=name: case(name) for name in "abc"}, rounds=2)
    assert "".join(ran) == "cba" + "abc" + "cba"
    assert results == {"a": [4, 9], "b": [5, 8], "c": [6, 7]}, "the first round does not count"


def test_bounds() -> None:
    assert Figure("f", 1.0, at_least=1.0, at_most=1.0).holds
    assert not Figure("f", 0.9, at_least=1.0).holds
    assert not Figure("f", 1.1, at_most=1.0).holds
    assert not Figure("f", None).holds, "what could not be measured meets nothing"


def test_the_closing_line_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Figure("fast", 2.0, "x", at_least=1.5), Figure("slow", None, at_least=1.5)
    assert finish("name", [good], {}, None) == 0
    assert capsys.readouterr().out == "name: fast=2x (>= 1.5)\n"
    assert finish("name", [good, bad], {"rounds": [1]}, tmp_path / "report.json") == MISSED
    assert capsys.readouterr().out == "name: fast=2x (>= 1.5) slow=unmeasured (>= 1.5 MISSED)\n"
    content = json.loads((tmp_path / "report.json").read_text())
    assert [figure["holds"] for figure in content["figures"]] == [True, False]
    assert content["rounds"] == [1]


def test_what_is_smaller_than_its_bounds_are_for_is_held_against_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Figure("slow", 1.0, "x", at_least=1.5)
    assert finish("name", [slow], {}, tmp_path / "report.json", smaller=True) == 0
    said, closing = capsys.readouterr().out.splitlines()
    assert said == "name: smaller than its bounds are for; they are not applied"
    assert closing == "name: slow=1x"
    assert json.loads((tmp_path / "report.json").read_text())["smaller"] is True


def test_figures_are_written_over_nothing_and_that_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for path in (mine, tmp_path, tmp_path / "a.stripe", tmp_path / "no" / "file"):
        with pytest.raises(CommandError, match=r"give another|name another"):
            parser("name", None, rounds=1).parse_args(["--json", str(path)])
    with pytest.raises(CommandError, match="is there already"):
        finish("name", [], {}, mine)
    assert mine.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "words",
    [
        ("ssd", "--rounds", "0"), ("ssd", "--size", "-5"), ("ssd", "--directory", "/nonexistent"),
        ("ssd_raw", "--folder", "/nonexistent"), ("multiturn", "--agents", "0"),
        ("multiturn", "--model-path", "/nonexistent"), ("codec", "--text", "/nonexistent"),
        ("codec", "--model-path", "/nonexistent"), ("host", "--rounds", "many"),
    ],
)  # fmt: skip
def test_what_a_bench_would_stumble_over_is_one_line_before_it_begins(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(capsys, "bench", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words[1] in err


def test_attention_holds_chunks_against_one_piece_and_the_rest_against_torch_native() -> None:
    seconds = {
        f"{name}/{who}": [5.0, took] for name in attention.BOUNDS for who, took in (("native", 4.0), ("swift", 2.0))
    }
    seconds["cold/swift"] = [8.0, 1.0]
    values = {figure.name: figure.value for figure in attention.figures(seconds)}
    assert values.pop("cold") == 0.25
    assert {values.pop(f"chunk_{size}") for size in attention.CHUNKS} == {2.0}
    assert set(values.values()) == {0.5}
