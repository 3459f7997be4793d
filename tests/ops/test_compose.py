"""The compose files of docs/remote.md: what they say is what was tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "compose").glob("*.yaml"))
DOCUMENT = (ROOT / "docs" / "remote.md").read_text()


def service(path: Path) -> tuple[str, dict[str, Any]]:
    ((name, said),) = yaml.safe_load(path.read_text())["services"].items()
    return name, said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_compose_file(path: Path) -> None:
    name, said = service(path)
    assert f"compose/{path.name}" in DOCUMENT
    assert said["network_mode"] == "host"
    assert said["restart"] == "unless-stopped"
    assert "libibverbs1" in said["build"]["dockerfile_inline"]
    # The wheel that the tests drive.
    with open(ROOT / "pyproject.toml", "rb") as file:
        (wanted,) = tomllib.load(file)["project"]["optional-dependencies"]["remote"]
    package, least = re.split(r">=|,", wanted)[:2]
    assert f"{package}=={least}" in said["build"]["dockerfile_inline"]
    # What it must be told it asks for, and says so where somebody looks who starts it.
    asked = set(re.findall(r"\$\{([A-Z_]+):\?", path.read_text()))
    assert asked
    usage = path.read_text().partition("services:")[0]
    assert all(f"{one}=" in usage for one in asked), name


def test_the_code_of_a_node_is_python() -> None:
    _, node = service(ROOT / "docs" / "compose" / "mooncake-node.yaml")
    compile(node["command"][-1], "node", "exec")
    for name in re.findall(r'told\["([A-Z]+)"\]', node["command"][-1]):
        assert name in node["environment"]
