"""`swift-tiers doctor`: which checks there are, in which order, and how what they find is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.read_config import load_config

from ...base.arguments import MOST_RANKS, check_between
from ...base.errors import FOUND
from ...base.output import reader_may_leave
from ...base.progress import progress
from ...base.terminal import Terminal
from . import accelerators, bus, gpu_memory, gpus, machine, remote, software, storage
from .finding import Check, Finding, Status
from .isolation import run_checks

#: A check that takes longer than this is named while it runs, seconds.
SLOW_SECONDS = 2.0
#: Readable without colour: the words differ, and what is wrong is in capitals.
_MARKS = {
    Status.OK: Text("ok", "green"),
    Status.NOTE: Text("note", "cyan"),
    Status.WARNING: Text("warning", "yellow"),
    Status.WRONG: Text("WRONG", "bold red"),
}


class FindingLine(NamedTuple):
    """One line of the table."""

    family: str
    name: str
    finding: Finding


def run_doctor(source: str | None, ranks: int, *, as_json: bool) -> int:
    """Run every check and show the findings; the exit code. Raises ConfigError and CommandError (usage)."""
    check_between("--ranks", ranks, 1, MOST_RANKS)
    config = load_config(source)
    lines = examine(families(config, ranks))
    with reader_may_leave():
        if as_json:
            print(json.dumps(describe(lines), indent=1))
        else:
            show(lines, Terminal())
    return 0 if sound(lines) else FOUND


def families(config: TiersConfig, ranks: int) -> dict[str, Sequence[Check]]:
    """Every check, by family, in the order of the table."""
    return {
        "software": list(software.checks()),
        "machine": list(machine.checks(config)),
        "accelerators": [*accelerators.checks(), *gpus.checks(config.peer), *gpu_memory.checks(config)],
        "storage": list(storage.checks(config, ranks)),
        "remote": list(remote.checks(config, ranks)),
        "bus": list(bus.checks(config.bus)),
    }


def examine(checks: dict[str, Sequence[Check]]) -> list[FindingLine]:
    """Run all, with progress on stderr."""
    named = [(family, check) for family, members in checks.items() for check in members]
    lines = []
    with progress("checking this machine", len(named)) as bar:

        def waiting(index: int, seconds: float) -> None:
            if seconds >= SLOW_SECONDS:
                bar.update(index, text=f"checking {named[index][1].name}")

        findings = run_checks([check for _, check in named], waiting)
        for index, ((family, check), finding) in enumerate(zip(named, findings, strict=True), start=1):
            lines.append(FindingLine(family, check.name, finding))
            bar.update(index)
    return lines


def sound(lines: Sequence[FindingLine]) -> bool:
    """Whether nothing is wrong; warnings are allowed."""
    return all(line.finding.status is not Status.WRONG for line in lines)


def describe(lines: Sequence[FindingLine]) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "ok": sound(lines),
        "checks": [
            {
                "name": line.name,
                "status": line.finding.status.value,
                "found": line.finding.found,
                "remedy": line.finding.remedy,
            }
            for line in lines
        ],
    }


def show(lines: Sequence[FindingLine], console: Console) -> None:
    """The table, with what to do beneath what was found."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("check", overflow="fold", ratio=1)
    table.add_column("found", overflow="fold", ratio=3)
    family = lines[0].family if lines else ""
    for line in lines:
        if line.family != family:
            table.add_section()
            family = line.family
        found = Text(line.finding.found)
        if line.finding.remedy:
            found.append(f"\n-> {line.finding.remedy}", "bold" if line.finding.status is Status.WRONG else "")
        table.add_row(_MARKS[line.finding.status], line.name, found)
    console.print(table)
    console.print(verdict(lines))


def verdict(lines: Sequence[FindingLine]) -> str:
    counts = {status: sum(line.finding.status is status for line in lines) for status in Status}
    wrong, warnings = counts[Status.WRONG], counts[Status.WARNING]
    text = "nothing is wrong" if not wrong else f"{wrong} of {len(lines)} checks found something WRONG"
    return f"{text}; {warnings} warning{'' if warnings == 1 else 's'}"
