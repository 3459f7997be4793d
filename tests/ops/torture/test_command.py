"""`./swift torture`: what it prints, and how it ends."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from swift_tiers.ops.base.errors import USAGE
from swift_tiers.ops.commands import torture_command
from swift_tiers.ops.lab.torture import many, outcome, scenarios
from swift_tiers.ops.lab.torture.clients import Clients
from swift_tiers.ops.lab.torture.outcome import HAPPENINGS, KINDS, live
from swift_tiers.ops.lab.torture.plan import make_plan
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.way.down import Mover

from support import forked
from support.command_line import run_command
from support.mutate import mutate


@pytest.fixture(autouse=True, scope="module")
def sglang_is_loaded() -> None:
    """Where a world of servers begins: their process is forked from one that has it."""
    forked.loaded()


def test_it_counts_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run_command(capsys, "torture", "--seeds", "3")
    assert (code, error) == (0, "")
    assert "steps, " in out
    assert out.splitlines()[-1].endswith("a second; 0 failed")
    assert "  put " in out


def test_its_summary_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "torture", "--seeds", "2", "--seed", "7", "--kind", "calm", "--json")
    said = json.loads(out)
    assert code == 0
    assert (said["worlds"], said["first_seed"], said["last_seed"], said["failures"]) == (2, 7, 8, [])
    assert said["happened"].keys() >= set(HAPPENINGS)
    assert said["steps_per_second"] > 0


def test_a_step_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a defect makes a ring of a chain: without this, the process that looks grows until it is killed."""

    def loops(self: Clients, draw: object) -> None:
        while True:
            pass

    live(make_plan("calm", 1))  # everything is compiled
    monkeypatch.setattr(outcome, "STEP_SECONDS", 0.2)
    monkeypatch.setattr(Clients, "put", loops)
    found = live(make_plan("calm", 1))
    assert found.complaint.startswith("TimeoutError: a step takes")


def test_it_ends_when_its_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "torture", "--minutes", "0.005", "--json")
    assert code == 0
    assert 0.3 <= json.loads(out)["seconds"] < 30


def test_a_failure_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, Mover, "pump", "self._idle.notify_all()", "pass")
    code, out, _ = run_command(capsys, "torture", "--seeds", "20", "--kind", "calm")
    assert code == 1
    assert "history, virtual seconds:" in out
    again = next(line for line in out.splitlines() if line.startswith("again: "))
    failed = next(line for line in out.splitlines() if line.startswith("FAILED: "))
    code, out, _ = run_command(capsys, *again.removeprefix("again: ./swift ").split())
    assert code == 1
    assert failed in out


@pytest.mark.parametrize(
    ("kind", "module", "done"),
    [
        ("recall", scenarios, "recall         the lease is recalled"),
        ("recall-prefix", scenarios, "main           the first lease is recalled"),
        ("many", many, "main           life 0 has ended"),
    ],
)
def test_what_a_seed_says_all_of_has_a_history_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str, module: ModuleType, done: str
) -> None:
    def check(stack: TierStack) -> None:
        raise AssertionError("something is not as it should be")

    monkeypatch.setattr(module, "check", check)
    code, out, _ = run_command(capsys, "torture", "--seed", "1", "--seeds", "1", "--kind", kind)
    assert code == 1
    history = out.partition("history, virtual seconds:\n")[2].partition("again: ")[0]
    assert done in history, out


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "-1"],
        ["--seeds", "0"],
        ["--minutes", "nan"],
        ["--steps", "many"],
        ["--kind", "strange"],
        ["--keep", "client-0:1"],
        ["--keep", "client-0", "--kind", "calm", "--seeds", "1"],
        ["--keep", "client-9:1", "--kind", "calm", "--seeds", "1"],
        ["--keep", "client-0:x", "--kind", "calm", "--seeds", "1"],
        ["--fine", "--kind", "many"],
        ["--schedule", "3", "--kind", "recall", "--seeds", "1"],
    ],
)
def test_what_is_wrong_ends_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, error = run_command(capsys, "torture", *words)
    assert (code, out) == (USAGE, "")
    assert error.count("\n") == 1


def test_the_options_name_every_kind() -> None:
    assert torture_command.KINDS == KINDS
