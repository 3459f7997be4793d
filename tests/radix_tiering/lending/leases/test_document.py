"""docs/leases.md names every message, field, state and timer of the code, and no others."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import get_args

import pytest

from swift_tiers.radix_tiering.lending.leases import LeaseState, LinkState, RunState, Timing, Use
from swift_tiers.radix_tiering.lending.leases.effects import Back, Ended
from swift_tiers.radix_tiering.lending.leases.lease import _BEGINS
from swift_tiers.radix_tiering.lending.leases.messages import (
    MAX_EXTENTS,
    MAX_LEASES,
    MAX_LETTER_BYTES,
    VERSION,
    BorrowerMessage,
    DonorMessage,
    Reason,
)
from swift_tiers.radix_tiering.lending.leases.timing import RENEWALS_PER_TERM

DOCUMENT = (Path(__file__).parents[4] / "docs" / "leases.md").read_text()


def table(first_column: str) -> list[list[str]]:
    """The cells of the one table whose first column has this title, without its head."""
    found = re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    assert len(found) == 1, f"{len(found)} tables begin with {first_column!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_messages_and_their_fields() -> None:
    documented = [(names(row[0])[0], row[1], names(row[2])) for row in table("message")]
    sides = (("borrower", BorrowerMessage), ("donor", DonorMessage))
    coded = [
        (kind.__struct_config__.tag, side, list(kind.__struct_fields__))
        for side, union in sides
        for kind in get_args(union)
    ]
    assert documented == coded


@pytest.mark.parametrize(
    ("title", "states"),
    [
        ("state", RunState),
        ("link state", LinkState),
        ("lease state", LeaseState),
        ("back", Back),
        ("ended", Ended),
        ("use", Use),
    ],
)
def test_names(title: str, states: type[Enum]) -> None:
    assert [names(row[0])[0] for row in table(title)] == [state.value for state in states]


def test_reasons() -> None:
    (line,) = re.findall(r"^Reasons: .*?\n\n", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert names(line) == [reason.value for reason in Reason]


def test_which_use_begins_in_which_states() -> None:
    documented = {names(row[0])[0]: row[1].split(", ") for row in table("use")}
    assert documented == {use.value: [state.value for state in states] for use, states in _BEGINS.items()}


def test_timers_and_their_defaults() -> None:
    documented = {names(row[0])[0]: float(row[1].removesuffix(" s")) for row in table("timer")}
    defaults = Timing()
    assert documented == {name: getattr(defaults, name) for name in defaults.__struct_fields__}
    assert f"renewed {RENEWALS_PER_TERM} times a term" in DOCUMENT
    assert f"within {defaults.donor_deadline(0, defaults.term):.3f} s" in DOCUMENT


def test_limits() -> None:
    assert f"The lease protocol, version {VERSION}" in DOCUMENT
    assert MAX_LETTER_BYTES == 2**20
    assert "1 MiB a letter" in DOCUMENT
    assert f"{MAX_LEASES} leases and {MAX_EXTENTS} extents a message" in " ".join(DOCUMENT.split())


@pytest.mark.parametrize(
    ("heading", "states"),
    [("## The donor", [*RunState]), ("## The borrower", [*LinkState, *LeaseState])],
)
def test_diagrams_show_every_state(heading: str, states: list[Enum]) -> None:
    section = DOCUMENT.split(heading)[1]
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    drawn = {
        name for line in diagram.splitlines() for name in re.findall(r"(\w+) -->|--> (\w+)", line) for name in name
    }
    assert drawn - {""} == {state.value for state in states}
