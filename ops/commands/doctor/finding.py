"""What a check is, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing is lost by it
    WARNING = "warning"  # works, but slower or less safe than it could
    WRONG = "wrong"  # does not work, or a server would refuse to start


class Finding(NamedTuple):
    """The outcome of one check: what is there, with figures, and what to do about it (empty: nothing)."""

    status: Status
    found: str
    remedy: str = ""


class Check(NamedTuple):
    """One thing to look at. `run` is called once, in a process of its own; what it raises becomes a finding."""

    name: str
    run: Callable[[], Finding]
    seconds: float = 5.0  # how long it may take; after that it is cut off


def ok(found: str, remedy: str = "") -> Finding:
    return Finding(Status.OK, found, remedy)


def note(found: str, remedy: str = "") -> Finding:
    return Finding(Status.NOTE, found, remedy)


def warning(found: str, remedy: str) -> Finding:
    return Finding(Status.WARNING, found, remedy)


def wrong(found: str, remedy: str) -> Finding:
    return Finding(Status.WRONG, found, remedy)


def combined(findings: Iterable[Finding]) -> Finding:
    """Several findings about one thing as one: the worst status, all texts and remedies. Stops at the first wrong one,
    which is then all there is to say."""
    taken = []
    for finding in findings:
        if finding.status is Status.WRONG:
            return finding
        taken.append(finding)
    worst = max((finding.status for finding in taken), key=list(Status).index)
    remedies = dict.fromkeys(finding.remedy for finding in taken if finding.remedy)
    return Finding(worst, "; ".join(finding.found for finding in taken), "; ".join(remedies))
