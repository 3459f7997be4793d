"""Runs scenarios and shows their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from swift_tiers.ops.errors import USAGE, CommandError
from swift_tiers.ops.simulate.scenarios import scenarios
from swift_tiers.ops.simulate.tables import Table, as_json, as_markdown, as_text

HEAD = """# Evaluation by simulation

Every table here is printed by `swift-tiers simulate NAME`, and this whole file by

    swift-tiers simulate all --markdown > docs/evaluation.md

A discrete-event simulation runs the planner, the two pointers, the batch's choice of what to load, the placement of
stripe units, the page table with its eviction and write-behind, and the sizing of what donors lend, all of which also
run in a server. Modelled are devices: how long a GPU computes, what NVLink, PCIe, networks and SSDs carry. Of leases
only their sizes are simulated. Times are virtual and random numbers seeded, so the figures are the same on every
machine. `mooncake-…` needs the trace (`SWIFT_TIERS_TRACES`).

**What this can show, and what not.** It shows what schedules and sizes do on devices that behave as assumed. It does
not show how fast a real server is: data sheets are not devices, and nobody else's software is modelled beyond the one
decision that a table is about. `ops/simulate/hardware.py`, `models.py` and `workloads.py` say where each figure comes
from. GPUs are taken to reach 0.5 of their peak in matrix products and 0.4 in attention, memory 0.8 of its bandwidth,
and each forward to wait 5 ms for its host; `cacheflow-usage` shows what other values would give. Where the paper's
number is missing, its text has none.
"""


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
