"""Entry points for servers that a command starts, where nothing has installed them: a folder on their path says them.

SGLang finds its plugins by what is installed. A source tree on PYTHONPATH is importable, and yet not installed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import swift_tiers

#: The group of what SGLang loads in each of its processes.
PLUGINS = "sglang.srt.plugins"
#: By group, then by name: what is to be imported.
Groups = Mapping[str, Mapping[str, str]]


def announce(folder: Path, distribution: str, groups: Groups) -> str:
    """Write `folder` for a distribution of that name; the PYTHONPATH with which a process finds its entry points."""
    about = folder / f"{distribution.replace('-', '_')}-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0\n")
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in points.items())
        for group, points in groups.items()
    )
    (about / "entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def are_installed() -> bool:
    """Whether processes of this Python find swift-tiers' own."""
    return any(point.value.startswith("swift_tiers.sglang_ext") for point in entry_points(group=PLUGINS))


def announce_own(folder: Path) -> dict[str, str]:
    """The environment variables with which a server finds swift-tiers as this process does; none are needed where it is
    installed."""
    if are_installed():
        return {}
    with open(Path(__file__).resolve().parents[3] / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    path = announce(folder, project["name"], project["entry-points"])
    # However it came onto this process' path.
    roots = [str(Path(room).resolve().parent) for room in swift_tiers.__path__]
    return {"PYTHONPATH": os.pathsep.join((path, *roots))}
