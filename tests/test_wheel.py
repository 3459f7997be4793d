"""What a wheel holds: everything that operators run, and nothing of `ops/lab`. And that it runs without that."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from swift_tiers.ops.commands.bench_command import DEVELOPERS, find_benches

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel() -> dict[str, Path]:
    """The files of a wheel, by their paths within it, as hatchling takes them; nothing is built or fetched."""
    builder = WheelBuilder(str(ROOT))
    return {file.distribution_path: Path(file.path) for file in builder.recurse_included_files()}


@pytest.fixture(scope="module")
def installed(wheel: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with these files, as pip unpacks them."""
    site = tmp_path_factory.mktemp("site")
    for name, path in wheel.items():
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return site


def run(installed: Path, *words: str, hangs: int = 250) -> subprocess.CompletedProcess[str]:
    """One command of what is installed there; after `hangs` seconds it is taken to hang."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "120"}
    command = [sys.executable, "-P", "-m", "swift_tiers.ops", *words]
    return subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, timeout=hangs)


def names_in(path: Path, package: list[str]) -> Iterator[str]:
    """Every module of ours, or name of one, that a file imports or spells."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_what_operators_run_is_in_it(wheel: Mapping[str, Path]) -> None:
    for name in (
        "ops/__main__.py", "ops/cli.py", "ops/base/errors.py", "ops/commands/bench/ssd.py",
        "ops/commands/bench/multiturn.py", "ops/commands/console_demo/feed.py", "ops/commands/simulate_command.py",
        "ops/commands/gpu_proof/proof.py", "ops/commands/doctor/command.py", "ops/commands/profile/procedure.py",
        "console/console.tcss", "sglang_ext/plugin.py", "radix_tiering/stack.py",
    ):  # fmt: skip
        assert f"swift_tiers/{name}" in wheel
    ours = [path for room in ("sglang_ext", "radix_tiering", "console", "kernels", "ops") for path in modules(room)]
    assert set(wheel.values()) >= {path for path in ours if "lab" not in path.relative_to(ROOT).parts}


def modules(room: str) -> list[Path]:
    return [path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts]


def test_nothing_of_the_lab_or_of_the_tests_is_in_it(wheel: Mapping[str, Path]) -> None:
    assert not [name for name in wheel if name.startswith(("swift_tiers/ops/lab", "swift_tiers/tests"))]
    assert {name.partition("/")[0] for name in wheel} == {"swift_tiers"}


def test_no_module_of_it_imports_the_lab(wheel: Mapping[str, Path]) -> None:
    found = [
        f"{name}: {one}"
        for name, path in wheel.items()
        if path.suffix == ".py" and path.name != "source_tree.py"
        for one in names_in(path, name.split("/")[:-1])
        if one.startswith("swift_tiers.ops.lab")
    ]
    assert not found


def test_the_source_tree_is_named_where_it_is_wanted(installed: Path) -> None:
    for words in (["simulate", "--list"], ["simulate", "cacheflow"], ["bench", "lookup"], ["bench", "pool-layout"]):
        result = run(installed, *words)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        assert f"part of the source tree, not of the wheel: there, run `./swift {words[0]}" in result.stderr


def test_benches_of_operators_are_listed(installed: Path) -> None:
    result = run(installed, "bench", "--list")
    assert result.returncode == 0, result.stderr
    names = [line.split()[0] for line in result.stdout.splitlines() if line]
    assert {"host", "ssd", "ssd_raw", "multiturn"} <= set(names)
    assert not set(names) & set(DEVELOPERS)
    assert "lookup" in result.stderr


@pytest.mark.exhaustive  # nothing that it imports is compiled there yet: minutes, on a machine that does other things
@pytest.mark.timeout(1200)
def test_the_demo_of_the_console_runs(installed: Path) -> None:
    result = run(installed, "console", "--demo", "--once", hangs=1000)
    assert result.returncode == 0, result.stderr
    assert "DEMO, all simulated" in result.stdout


def test_benches_of_developers_are_those_of_the_lab() -> None:
    assert sorted(find_benches(ROOT / "ops/lab/bench", "swift_tiers.ops.lab.bench")) == sorted(DEVELOPERS)
