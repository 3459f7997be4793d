"""Arrows between the rooms, and inside of them, point down: what a file imports lies on its own floor or below it.

Read from the source, imports inside functions and those for type checkers alike: what a reader has to know, not only
what is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "swift_tiers"

#: Each room, and those it may import.
ROOMS = {
    "kernels": set[str](),
    "radix_tiering": {"kernels"},
    "sglang_ext": {"kernels", "radix_tiering"},
    "console": {"radix_tiering"},
    "ops": {"kernels", "radix_tiering", "sglang_ext", "console"},
}
#: Folders of a room from the ground up, the room's own files beside them under ".". Those of one line are on one floor,
#: and do not know each other.
FLOORS = {
    "radix_tiering": [
        ["base"],
        ["base/virtual", "figures", "tiers/ssd/arrays", "lending/leases", "bus/redis"],
        ["gpus", "restore", "table", "lending/donation"],
        ["lending", "tiers", "tiers/host", "bus/contract"],
        ["tiers/remote"],
        ["tiers/testing", "tiers/ssd", "tiers/peer", "way", ".", "bus/hear"],
        ["bus/speak"],
        ["bus"],
    ],
    "sglang_ext": [["pools", "models"], ["models/served", "platform", "tell"], ["build"], ["way"], ["."]],
    "console": [
        ["model"],
        ["feeds", "widgets"],
        ["views/parts", "screens"],
        [
            "views/events", "views/leases", "views/overview", "views/stripes", "views/blocks", "views/tree",
            "views/links",
        ],
        ["views/restores"],
        ["views"],
        ["."],
    ],
    "ops": [
        ["base", "base/devices", "lab/torture/neighbours"],
        [
            "base/simulated", "commands/inspect", "commands/monitoring", "lab/simulate/devices", "lab/torture",
            "lab/torture/ranks",
        ],
        ["commands/console_demo", "commands/demo", "lab/simulate", "lab/simulate/scenarios"],
        ["commands/bench", "commands/profile", "commands/swiftkv"],
        ["commands/gpu_proof", "lab/bench"],
        ["commands"],
        ["commands/doctor"],
        ["."],
    ],
}  # fmt: skip
#: Floors that a room has at most.
MOST_FLOORS = 8
#: Folders of one floor that know each other: the door and its hall.
SAME_FLOOR = [{"way", "."}, {"lab/simulate", "lab/simulate/scenarios"}, {"lab/torture", "lab/torture/ranks"}]
#: Files that know each other, and what is to part them.
KNOWN_CIRCLES: set[tuple[str, str]] = set()


@cache
def modules() -> dict[str, Path]:
    """Every module of the five rooms: `radix_tiering.base.page` and its file."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named(tree: ast.AST, package: Sequence[str]) -> Iterator[str]:
    """What a module of `package` imports of ours, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix(f"{PACKAGE}.") for alias in node.names if alias.name.startswith(PACKAGE)
            )
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
            elif node.module and node.module.partition(".")[0] == PACKAGE:
                base = node.module.split(".")[1:]
            else:
                continue
            yield from (".".join([*base, alias.name]) for alias in node.names)


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    known, found = modules(), {}
    for name, path in known.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        wanted = {
            one if one in known else one.rpartition(".")[0] for one in named(ast.parse(path.read_text()), package)
        }
        found[name] = {one for one in wanted if one in known and one != name}
    return found


def file_of(module: str) -> str:
    return str(modules()[module].relative_to(ROOT))


def folder_of(module: str) -> str:
    """The folder of a module within its room; "." is the room's own."""
    return str(modules()[module].parent.relative_to(ROOT / module.partition(".")[0]))


def test_rooms_import_only_what_lies_beneath_them() -> None:
    upward = [
        f"{file_of(name)} -> {file_of(one)}"
        for name, found in imports().items()
        for one in found
        if (room := one.partition(".")[0]) != (own := name.partition(".")[0]) and room not in ROOMS[own]
    ]
    assert not upward


@pytest.mark.parametrize("room", FLOORS)
def test_arrows_inside_a_room_point_down(room: str) -> None:
    assert len(FLOORS[room]) <= MOST_FLOORS
    floor = {folder: number for number, folders in enumerate(FLOORS[room]) for folder in folders}
    mine = {name: found for name, found in imports().items() if name.partition(".")[0] == room}
    empty = {folder for folder in {folder_of(name) for name in mine} if folder not in floor}
    assert all(not modules()[name].read_text().count("import") for name in mine if folder_of(name) in empty), empty
    upward = [
        f"{file_of(name)} (floor {floor[here]}) -> {file_of(one)} (floor {floor[there]})"
        for name, found in mine.items()
        for one in found
        if one.partition(".")[0] == room
        and (here := folder_of(name)) in floor
        and (there := folder_of(one)) in floor
        and here != there
        and not (floor[there] < floor[here] or {here, there} in SAME_FLOOR)
    ]
    assert not upward


def test_what_is_installed_does_not_import_the_lab() -> None:
    """A wheel has `ops` without `ops/lab`."""
    found = [
        f"{file_of(name)} -> {file_of(one)}"
        for name, seen in imports().items()
        for one in seen
        if one.startswith("ops.lab") and not name.startswith("ops.lab")
    ]
    assert not found


def circles() -> list[set[str]]:
    """Groups of modules that reach each other by imports (Tarjan's strongly connected components)."""
    arrows, numbers, lowest = imports(), dict[str, int](), dict[str, int]()
    path: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        path.append(name)
        for one in sorted(arrows[name]):
            if one not in numbers:
                visit(one)
                lowest[name] = min(lowest[name], lowest[one])
            elif one in path:
                lowest[name] = min(lowest[name], numbers[one])
        if lowest[name] == numbers[name]:
            group = set(path[path.index(name) :])
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(group)

    for name in sorted(arrows):
        if name not in numbers:
            visit(name)
    return found


def test_no_file_knows_one_that_knows_it() -> None:
    known = {file for file, _ in KNOWN_CIRCLES}
    found = [{file_of(module) for module in group} for group in circles()]
    new = [sorted(group) for group in found if not group & known]
    assert not new
    gone = [file for file in known if not any(file in group for group in found)]
    assert not gone, "these are parted: take them from KNOWN_CIRCLES"
