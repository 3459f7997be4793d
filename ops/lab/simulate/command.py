"""Runs scenarios and shows their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ...base.errors import USAGE, CommandError
from .head import HEAD
from .scenarios import scenarios
from .tables import Table, as_json, as_markdown, as_text


def run(options: argparse.Namespace) -> int:
    known = scenarios()
    if options.list:
        width = max(len(name) for name in known)
        for name, scenario in known.items():
            print(f"{name:<{width}}  {scenario.summary}")
        return 0
    names = _names(options.scenario, list(known))
    results: list[Table] = [one for name in names for one in known[name].run()]
    if options.json:
        print(json.dumps([as_json(one) for one in results], indent=1))
    elif options.markdown:
        print(as_document(results) if options.scenario == "all" else "\n".join(map(as_markdown, results)), end="")
    else:
        print("\n\n".join(map(as_text, results)))
    return 0


def as_document(results: Sequence[Table]) -> str:
    """The whole of docs/evaluation.md."""
    return "\n".join([HEAD, *map(as_markdown, results)])


def _names(wanted: str | None, names: list[str]) -> list[str]:
    if wanted is None:
        raise CommandError(f"simulate: what? One of {', '.join(names)}, or all", USAGE)
    if wanted == "all":
        return names
    chosen = [name for name in names if name == wanted or name.startswith(f"{wanted}-")]
    if not chosen:
        raise CommandError(f"simulate: there is no scenario {wanted[:80]!r}; there are: {', '.join(names)}, all", USAGE)
    return chosen
