"""Run one bench: it measures a thing and its reference in one run, and exits 3 if a bound does not hold."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..base.errors import USAGE, CommandError
from ..base.progress import note
from .source_tree import LAB, has_lab, lab_module

SUMMARY = "measure something against its reference"
#: The benches that operators run on their own machines. A bench is a module there that has a `main(argv) -> int`.
OPERATORS = "swift_tiers.ops.commands.bench"
#: Those of developers, which only a source tree has.
DEVELOPERS = (
    "attention", "beside", "borrow", "bus", "console", "donor", "identity", "index", "interference", "interpreter",
    "launch", "lookup", "maps", "overhead", "pool_layout", "resize", "restart", "restore", "swiftkv",
    "writes",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="list the benches and exit")
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; `NAME --help` shows its own options")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="options of that bench")


def run(options: argparse.Namespace) -> int:
    benches = all_benches()
    if options.list:
        width = max((len(name) for name in benches), default=0)
        for name, bench in benches.items():
            print(f"{name:<{width}}  {bench.summary}")
        if not has_lab():
            note(f"in the source tree, by `./swift bench NAME`: {', '.join(DEVELOPERS)}")
        return 0
    known = ", ".join(benches) or "none"
    if options.name is None:
        raise CommandError(f"bench: which one? There are: {known}", USAGE)
    name = options.name.replace("-", "_")
    if name not in benches and name in DEVELOPERS:
        lab_module(f"bench.{name}", f"bench {options.name}")  # says where it is
    if name not in benches:
        raise CommandError(f"bench: there is no {options.name!r}; there are: {known}", USAGE)
    return run_bench(benches[name], options.arguments)


class Bench(NamedTuple):
    """One bench: its module's full name, and what it measures."""

    module: str
    summary: str


def run_bench(bench: Bench, arguments: Sequence[str]) -> int:
    """The exit code of its `main(arguments)`: 0 if its bounds hold, 3 if not."""
    module = importlib.import_module(bench.module)
    code: int = module.main(list(arguments))
    return code


def all_benches() -> dict[str, Bench]:
    """Every bench of this installation, by its name, without importing any (they import torch)."""
    found = find_benches(Path(__file__).with_name("bench"), OPERATORS)
    if has_lab():
        found |= find_benches(Path(__file__).parents[1] / "lab" / "bench", f"{LAB}.bench")
    return dict(sorted(found.items()))


def find_benches(folder: Path, package: str) -> dict[str, Bench]:
    """Every bench in the folder of a package, by its name."""
    benches = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            benches[path.stem] = Bench(f"{package}.{path.stem}", summary_of(ast.get_docstring(tree) or ""))
    return benches


def summary_of(docstring: str) -> str:
    """The first paragraph's first sentence on one line, without the "how to run it" that some begin with."""
    paragraph = " ".join(docstring.split("\n\n", 1)[0].split())
    if paragraph.startswith("`python -m"):
        paragraph = paragraph.partition(": ")[2] or paragraph
    sentence, _, _ = paragraph.partition(". ")
    return sentence.rstrip(".")
