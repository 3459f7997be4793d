"""What `./swift test` runs, and what only `./swift test --all` does; and what neither takes from the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.examples import ALL_VARIABLE, FEWEST, SHARE, examples
from support.redis import OWN_PATH

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from hypothesis import settings

def test_common(): pass

@pytest.mark.exhaustive
def test_variant(): pass

def test_random(): print("examples:", settings().max_examples)
"""


def run_suite(folder: Path, *words: str) -> str:
    """The end of what pytest prints about a suite of three tests under the conftest of this one."""
    (folder / "test_three.py").write_text(TESTS)
    names = (ALL_VARIABLE, OWN_PATH, "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(ROOT / "pyproject.toml"), "-s", "-rN"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), str(folder), *words]
    done = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_the_default_run_leaves_variants_out_and_says_so(tmp_path: Path, processes: list[str]) -> None:
    out = run_suite(tmp_path, *processes)
    assert "2 passed" in out
    assert "1 exhaustive tests were deselected" in out
    assert "./swift test --all" in out
    if not processes:
        assert f"examples: {100 // SHARE}" in out


def test_all_is_all(tmp_path: Path) -> None:
    out = run_suite(tmp_path, "--all")
    assert "3 passed" in out
    assert "deselected" not in out
    assert "examples: 100" in out


def test_a_few_examples_stay_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALL_VARIABLE, raising=False)
    assert [examples(most) for most in (3, 20, 400)] == [3, FEWEST, 400 // SHARE]
    monkeypatch.setenv(ALL_VARIABLE, "1")
    assert [examples(most) for most in (3, 20, 400)] == [3, 20, 400]


@pytest.mark.parametrize("name", ["redis-server", "redis-cli"])
def test_no_test_reaches_a_redis_that_somebody_has_installed(name: str) -> None:
    """It would make tests pass here that fail elsewhere."""
    done = subprocess.run([name, "--version"], capture_output=True, text=True)
    assert done.returncode == 97
    assert f"started {name} from PATH" in done.stderr
