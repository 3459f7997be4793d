"""Run one bench: it measures a thing and its reference in one run, and exits 3 if a bound does not hold."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Sequence
from pathlib import Path

from swift_tiers.ops.base.errors import USAGE, CommandError

SUMMARY = "measure something against its reference"
#: The benches of a checkout or an installation: every module here that has a `main(argv) -> int`.
FOLDER = Path(__file__).parent / "bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="list the benches and exit")
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; `NAME --help` shows its own options")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="options of that bench")


def run(options: argparse.Namespace) -> int:
    benches = find_benches(FOLDER)
    if options.list:
        width = max((len(name) for name in benches), default=0)
        for name, summary in benches.items():
            print(f"{name:<{width}}  {summary}")
        return 0
    known = ", ".join(benches) or "none"
    if options.name is None:
        raise CommandError(f"bench: which one? There are: {known}", USAGE)
    name = options.name.replace("-", "_")
    if name not in benches:
        raise CommandError(f"bench: there is no {options.name!r}; there are: {known}", USAGE)
    return run_bench(name, options.arguments)


def run_bench(name: str, arguments: Sequence[str]) -> int:
    """The exit code of `main(arguments)` of bench `name`: 0 if its bounds hold, 3 if not."""
    module = importlib.import_module(f"swift_tiers.ops.lab.bench.{name}")
    code: int = module.main(list(arguments))
    return code


def find_benches(folder: Path) -> dict[str, str]:
    """Name and one-line summary of every bench in `folder`, found without importing any (they import torch)."""
    benches = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            benches[path.stem] = summary_of(ast.get_docstring(tree) or "")
    return benches


def summary_of(docstring: str) -> str:
    """The first paragraph's first sentence on one line, without the "how to run it" that some begin with."""
    paragraph = " ".join(docstring.split("\n\n", 1)[0].split())
    if paragraph.startswith("`python -m"):
        paragraph = paragraph.partition(": ")[2] or paragraph
    sentence, _, _ = paragraph.partition(". ")
    return sentence.rstrip(".")
