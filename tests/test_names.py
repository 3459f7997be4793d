"""A class name stands for one concept in the whole house: a newcomer who searches for it finds one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("kernels", "radix_tiering", "sglang_ext", "console", "ops")
#: Names of what is modelled, in models of it that are not installed, or stand in for the real one.
MODELLED = {
    "Arrival", "Blocks", "Cell", "Claim", "Clock", "Donor", "Figure", "Gpu", "Request", "Server", "Stripes", "Table",
    "Way",
}  # fmt: skip
#: They tell nothing of what a thing is.
RIDDLES = {"Asked", "Became", "Known", "Looked", "Said", "Seen", "Told"}


def test_a_class_name_stands_for_one_concept() -> None:
    places = defaultdict(list)
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    several = {name: where for name, where in places.items() if len(where) > 1 and name not in MODELLED}
    assert not several, "name one of them after what it is"
    assert not RIDDLES & places.keys()
