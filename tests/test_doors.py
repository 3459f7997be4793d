"""The doors of the rooms and of their packages: what `__init__.py` says is there is there, and comes when it is asked
for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from support import forked

ROOT = Path(__file__).parents[1]
ROOMS = ("radix_tiering", "sglang_ext", "console", "ops")
#: What takes its time to import, and no door imports by itself.
HEAVY = ("torch", "sglang", "textual", "redis", "zmq", "numpy", "msgspec")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names_of(tree: ast.Module) -> list[str] | None:
    """Its `__all__`; None where it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def shown_to_checkers(tree: ast.Module) -> set[str] | None:
    """What it imports under `if TYPE_CHECKING`; None where it has no such block."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    if not blocks:
        return None
    return {alias.name for block in blocks for node in block.body for alias in node.names}  # type: ignore[attr-defined]


PATHS = [path for room in ROOMS for path in sorted((ROOT / room).rglob("__init__.py"))]
DOORS = {str(path.parent.relative_to(ROOT)): path for path in PATHS if names_of(tree_of(path)) is not None}


def package_of(door: str) -> ModuleType:
    return import_module(f"swift_tiers.{door.replace('/', '.')}")


def test_rooms_have_doors() -> None:
    assert {"radix_tiering", "radix_tiering/bus", "radix_tiering/lending", "radix_tiering/restore"} < DOORS.keys()
    assert {"sglang_ext", "console", "console/views", "ops/base"} < DOORS.keys()


@pytest.mark.parametrize("door", DOORS)
def test_a_door_says_what_is_behind_it(door: str) -> None:
    tree = tree_of(DOORS[door])
    names = names_of(tree)
    assert names
    assert len(set(names)) == len(names)
    assert ast.get_docstring(tree)
    modules = {path.stem for path in DOORS[door].parent.glob("*.py")}
    assert not modules & set(names), "a module of that name would take its place"


@pytest.mark.parametrize("door", [door for door in DOORS if not door.startswith("sglang_ext")])
def test_every_name_of_a_door_is_there(door: str) -> None:
    package = package_of(door)
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_every_name_of_a_door_to_sglang_is_there() -> None:
    """In a process of its own, where SGLang is as nobody has prepared it."""
    packages = [f"swift_tiers.{door.replace('/', '.')}" for door in DOORS if door.startswith("sglang_ext")]
    code = f"""
from importlib import import_module
for package in map(import_module, {packages}):
    print(*[f"{{package.__name__}}.{{name}}" for name in package.__all__ if getattr(package, name) is None])
"""
    done = forked.run(code, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()


@pytest.mark.parametrize("door", DOORS)
def test_a_lazy_door_shows_type_checkers_the_same_names(door: str) -> None:
    tree = tree_of(DOORS[door])
    shown = shown_to_checkers(tree)
    assert shown is None or shown == set(names_of(tree) or ())


def test_a_door_refuses_what_it_does_not_have() -> None:
    with pytest.raises(AttributeError, match=r"module 'swift_tiers\.radix_tiering' has no attribute 'Nothing'"):
        _ = package_of("radix_tiering").Nothing
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from swift_tiers.sglang_ext import Nothing")


def loaded(modules: list[str]) -> set[str]:
    """Which of the heavy ones a fresh process has after importing these."""
    code = f"import sys, {', '.join(modules)}; print(*set({HEAVY!r}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_doors_are_light() -> None:
    """SGLang imports the first three in each of its processes."""
    light = ["sglang_ext.plugin", "sglang_ext.platform.registering", "radix_tiering", "radix_tiering.base.errors"]
    light += ["radix_tiering.restore", "radix_tiering.lending", "radix_tiering.bus.hear", "radix_tiering.bus.speak"]
    light += ["sglang_ext.way", "sglang_ext.build", "sglang_ext.pools", "console", "console.model", "ops.base"]
    assert loaded([f"swift_tiers.{name}" for name in light]) == set()


def test_what_a_console_shows_needs_no_textual() -> None:
    assert "textual" not in loaded(["swift_tiers.console.session", "swift_tiers.console.plain"])
