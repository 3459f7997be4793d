"""Check the device files of stripe sets that no server has open, and mend them with `--repair`.

A directory stands for every `swift-tiers-*.stripe` file in and below it; files and block devices may be named too.
Devices of different stripe sets are told apart by themselves. Exits 0 where nothing is wrong (what a crash leaves is
not), 3 where something is (with `--repair`: still is), 1 where the check could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swift_tiers.radix_tiering.base.errors import FormatError
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.bus.hear.figures import text

from ..base.arguments import path_argument
from ..base.errors import FOUND, USAGE, CommandError
from ..base.new_file import check_new_file, write_new_file
from ..base.output import reader_may_leave
from ..base.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
    from swift_tiers.radix_tiering.tiers.ssd.fsck import RepairResult, Report

SUMMARY = "check stripe sets, and repair them"
#: What a server calls its device files.
PATTERN = "swift-tiers-*.stripe"


class Checked(NamedTuple):
    """One stripe set and what was found. `before` is what `--repair` was given; None without it."""

    paths: list[Path]
    report: Report
    before: Report | None
    repaired: RepairResult | None

    @property
    def sound(self) -> bool:
        return self.report.sound and (self.repaired is None or not self.repaired.failed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=path_argument, metavar="PATH", help="directory, device file or block device"
    )
    parser.add_argument("--repair", action="store_true", help="mend what can be mended")
    parser.add_argument(
        "--forget-missing",
        action="store_true",
        help="with --repair: devices that are not named here are gone for good, and not missed any more",
    )
    parser.add_argument("--headers-only", action="store_true", help="do not read the pages themselves: much faster")
    parser.add_argument("--json", type=path_argument, metavar="FILE", help="write the findings there")


def run(options: argparse.Namespace) -> int:
    from ..base.terminal import Terminal

    if options.forget_missing and not options.repair:
        raise CommandError("--forget-missing changes what the devices say: give --repair too", USAGE)
    check_new_file("--json", options.json)
    findings = FsckFindings(removed=options.repair)
    try:
        examine(findings, options)
        if options.json is not None:
            write_new_file("--json", options.json, json.dumps(findings.content, indent=1).encode() + b"\n")
    finally:
        # Only now, and also before an error: a reader that leaves must end neither a check nor a repair.
        with reader_may_leave():
            findings.show(Terminal())
    return 0 if findings.sound else FOUND


@dataclass
class FsckFindings:
    """About all that was named, so far."""

    removed: bool  # what remained of devices
    remains: dict[Path, str] = field(default_factory=dict)  # and why they are no devices
    results: list[Checked] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)  # files that are of no set, and why

    @property
    def sound(self) -> bool:
        return not self.unknown and all(one.sound for one in self.results) and (self.removed or not self.remains)

    @property
    def content(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "sound": self.sound,
            "stripe_sets": [describe(result) for result in self.results],
            "remains": {str(path): what for path, what in self.remains.items()},
            "no_set": self.unknown,
        }

    def show(self, console: Console) -> None:
        for path, what in self.remains.items():
            outcome = f"repaired: {path}: removed" if self.removed else f"warning: {path}: {what}; --repair removes it"
            console.print(outcome, soft_wrap=True)
        for names, why in self.unknown.items():
            console.print(f"error: {names}: {why}", soft_wrap=True)
        for result in self.results:
            show(result, console)


def examine(findings: FsckFindings, options: argparse.Namespace) -> None:
    """Check everything, and repair it if asked to. Raises CommandError, SwiftTiersError; what was found is kept."""
    devices = find_devices(options.paths)
    for path, what in find_remains(options.paths, devices).items():
        if options.repair:
            _remove(path)
        findings.remains[path] = what
    groups = group_by_set([path for path in devices if path not in findings.remains])
    for paths in groups:
        try:
            result = check_set(
                paths,
                repair_it=options.repair,
                payloads=not options.headers_only,
                forget_missing=options.forget_missing,
            )
        except FormatError as error:
            why = with_paths(str(error), paths)
            if len(groups) == 1:
                raise FormatError(why) from None
            # As files that were made, and have never joined a set.
            findings.unknown[", ".join(map(str, paths))] = why
            continue
        findings.results.append(result)


def with_paths(message: str, paths: Sequence[Path]) -> str:
    """A message about devices of an array, which it knows by their numbers, for who has named them by their paths."""
    message = re.sub(r"\bdevices (\d+) and (\d+)", r"device \1 and device \2", message)
    return re.sub(r"\bdevice (\d+)", lambda found: str(paths[int(found[1])]), message)


def find_remains(paths: Sequence[Path], devices: Sequence[Path]) -> dict[Path, str]:
    """Files of this user in or below `paths`, or among `devices`, that are no device any more, or not yet; and why."""
    from swift_tiers.radix_tiering.tiers.ssd.files import half_made, is_empty_file

    remains: dict[Path, str] = {}
    folders = {one.parent for path in paths if path.is_dir() for one in path.rglob(f"{PATTERN}*")}
    for folder in sorted(folders):
        remains.update((_real(one), "half-made, by a server that was killed") for one, _ in half_made(folder))
    for path in devices:
        # Whatever else is empty is somebody's, and was named by mistake.
        if path.match(f"{PATTERN}*") and is_empty_file(path) and path.lstat().st_uid == os.geteuid():
            remains[path] = "is empty: nothing of it is left, and the next start makes it anew"
    return remains


def _remove(path: Path) -> None:
    """Remove what is left of a device. Raises StripeSetBusyError where a server has it by now."""
    from swift_tiers.radix_tiering.tiers.ssd.files import open_device_file

    device = open_device_file(path)
    try:
        path.unlink(missing_ok=True)
    finally:
        device.close()


def find_devices(paths: Sequence[Path]) -> list[Path]:
    """The device files that `paths` stand for, each once. Raises CommandError."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            below = sorted(path.rglob(PATTERN))
            if not below and not any(path.rglob(f"{PATTERN}*")):
                raise CommandError(f"{path}: no {PATTERN} in or below it; name the directories of the servers' SSDs")
            found.update((_real(one), None) for one in below)
        elif path.exists():
            found[path.resolve()] = None
        else:
            raise CommandError(f"{path}: does not exist", USAGE)
    return list(found)


def _real(path: Path) -> Path:
    """By one name however it was reached; a symbolic link in its place stays one, and is refused."""
    return path.parent.resolve() / path.name


def group_by_set(paths: Sequence[Path], seconds: float | None = None) -> list[list[Path]]:
    """The devices of each stripe set. One that says nothing goes to the set with files of its name.

    `seconds`: how long all of them together may take to answer; by default what a server waits. Raises CommandError
    where one cannot be read.
    """
    sets: dict[bytes, list[Path]] = {}
    mute: list[Path] = []
    for path, set_id in _read_set_ids(paths, seconds).items():
        if set_id is None:
            mute.append(path)
        else:
            sets.setdefault(set_id, []).append(path)
    groups = list(sets.values())
    lone: list[list[Path]] = []
    for path in mute:
        homes = [group for group in groups if any(one.name == path.name for one in group)]
        if len(homes) == 1:
            homes[0].append(path)
        else:
            lone.append([path])
    return groups + lone


def _read_set_ids(paths: Sequence[Path], seconds: float | None) -> dict[Path, bytes | None]:
    """`_read_set_id` of all at once; None, too, for a device that does not answer in time."""
    from swift_tiers.radix_tiering.tiers.ssd.blockio import STALL_SECONDS

    answers: dict[Path, bytes | None] = dict.fromkeys(paths)
    errors: list[CommandError] = []

    def ask(path: Path) -> None:
        try:
            answers[path] = _read_set_id(path)
        except CommandError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(path,), name="swift-fsck", daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + (STALL_SECONDS if seconds is None else seconds)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    return dict(answers)


def _read_set_id(path: Path) -> bytes | None:
    """Which stripe set the device belongs to, by the first superblock copy that is whole; None if none is."""
    from swift_tiers.radix_tiering.tiers.ssd.claiming import read_copies
    from swift_tiers.radix_tiering.tiers.ssd.layout import Superblock

    try:
        with open(path, "rb") as file:
            copies = read_copies(lambda offset, length: os.pread(file.fileno(), length, offset))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}") from error
    return next((copy.set_id for copy in copies if isinstance(copy, Superblock)), None)


def check_set(
    paths: Sequence[Path],
    *,
    repair_it: bool,
    payloads: bool,
    patience: Patience | None = None,
    forget_missing: bool = False,
) -> Checked:
    """Check one stripe set, and repair it if asked to. Raises StripeSetBusyError, FormatError, ConfigError.

    `patience`: with devices that do not answer; by default a server's.
    """
    from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience, close_array
    from swift_tiers.radix_tiering.tiers.ssd.files import open_array
    from swift_tiers.radix_tiering.tiers.ssd.fsck import check, repair

    array = open_array(paths)
    patience = patience or Patience()
    try:
        with progress(f"checking {len(paths)} device(s) from {paths[0]} on") as bar:

            def tick(stage: str, done: int, total: int) -> None:
                bar.update(done, max(1, total), f"checking {stage}")

            report = check(array, payloads, tick, patience, forget_missing)
            if not repair_it:
                return Checked(list(paths), report, None, None)
            result = repair(array, report, patience)
            return Checked(list(paths), check(array, payloads, tick, patience), report, result)
    finally:
        close_array(array, THREADS)


def describe(result: Checked) -> dict[str, Any]:
    """The findings for `--json`."""
    report = result.report
    return {
        "set_id": report.set_id.hex(),
        "sound": result.sound,
        "stripe_unit_bytes": report.unit_bytes,
        "missing_devices": report.missing,
        "forgotten_devices": len(report.forgotten),
        "pages": {
            "complete": report.complete,
            "incomplete": report.incomplete,
            "corrupt": report.corrupt,
            "unreachable": len(report.unreachable),
        },
        "devices": [
            {
                "path": str(path),
                "standing": device.standing.value,
                "clean": device.clean,
                "superblock_copies": list(device.superblock_copies),
                "namespace_tables_whole": list(device.table_copies),
                "slots": {
                    "all": device.slots,
                    "used": device.used,
                    "free": device.free,
                    "torn": device.torn,
                    "corrupt": device.corrupt,
                },
            }
            for path, device in zip(result.paths, report.devices, strict=True)
        ],
        "namespaces": [entry.digest.hex() for entry in report.namespaces],
        "problems": _problems(result.paths, report),
        "problems_before_repair": None if result.before is None else _problems(result.paths, result.before),
        "repaired": None if result.repaired is None else list(result.repaired.done),
        "not_repaired": None if result.repaired is None else list(result.repaired.failed),
    }


def _problems(paths: Sequence[Path], report: Report) -> list[dict[str, str | None]]:
    return [
        {
            "severity": problem.severity.value,
            "device": None if problem.device is None else str(paths[problem.device]),
            "what": problem.what,
            "remedy": problem.remedy,
        }
        for problem in report.problems
    ]


def show(result: Checked, console: Console) -> None:
    """Print the findings about one stripe set."""
    from rich import box
    from rich.table import Table

    report = result.report
    console.print(
        f"stripe set {report.set_id.hex()}: {len(result.paths)} device(s), {report.missing} missing"
        f"{f', {len(report.forgotten)} forgotten' if report.forgotten else ''}; "
        f"{report.complete} pages whole, {report.incomplete} not, {report.corrupt} damaged, "
        f"{len(report.unreachable)} unreachable; {len(report.namespaces)} namespace(s)"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", overflow="fold")
    for name in ("state", "closed"):
        table.add_column(name)
    for name in ("slots", "used", "free", "torn", "corrupt"):
        table.add_column(name, justify="right")
    for path, device in zip(result.paths, report.devices, strict=True):
        closed = "in order" if device.clean else "no"
        counts = (device.slots, device.used, device.free, device.torn, device.corrupt)
        table.add_row(text(str(path)), device.standing.value, closed, *(str(count) for count in counts))
    console.print(table)
    if result.before is not None and result.repaired is not None:
        for line in _problem_lines(result.paths, result.before):
            console.print(f"before the repair: {line}", soft_wrap=True)
        for line in result.repaired.done:
            console.print(f"repaired: {line}", soft_wrap=True)
        for line in result.repaired.failed:
            console.print(f"NOT repaired: {line}", soft_wrap=True)
    for line in _problem_lines(result.paths, report):
        console.print(line, soft_wrap=True)
    console.print("sound" if result.sound else "NOT SOUND")


def _problem_lines(paths: Sequence[Path], report: Report) -> Iterator[str]:
    for problem in report.problems:
        where = "" if problem.device is None else f"{text(str(paths[problem.device]))}: "
        yield f"{problem.severity.value}: {where}{problem.what}; {problem.remedy}"
