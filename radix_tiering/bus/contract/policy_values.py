"""Values of the configuration that `set-policy` changes: which there are, what they may be, and what they are now.

A server and whoever is about to command it ask the same functions, so that what can only be refused is refused before
it is sent. The configuration is imported where it is asked: it needs numpy, which the help of a command does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from ...base.errors import ConfigError
from ...base.units import Size
from .commands import AnyCommand, CapLending, CapTier, CommandRefusedError, SetPolicy

#: As `set-policy` names them: of the section `policy`, or with their section before them.
FIELDS: tuple[str, ...] = get_args(
    next(field.type for field in msgspec.structs.fields(SetPolicy) if field.name == "field")
)


class PolicyField(NamedTuple):
    """One of them, for people."""

    name: str
    now: str  # its value at a server, or empty where that is not known
    takes: str  # `"lru" | "lfu"`, or what kind of value it is
    meaning: str


def section_of(field: str) -> tuple[str, str]:
    """Section and name in the configuration."""
    section, _, name = field.rpartition(".")
    return section or "policy", name


#: What else has to be set in a section for its other fields to have an effect.
NEEDED: dict[str, dict[str, Any]] = {"remote": {"engine": "file"}, "ssd": {"directories": ["/ssd0"]}}


def policy_value(field: str, value: str | float) -> Any:
    """The value as the configuration has it. Raises CommandRefusedError, which says what it may be."""
    from ...base.read_config import parse_config

    section, name = section_of(field)
    try:
        return getattr(getattr(parse_config({section: {**NEEDED.get(section, {}), name: value}}), section), name)
    except ConfigError as error:
        raise CommandRefusedError(str(error)) from None


#: A limit below this is written with its unit: somebody who forgets it, and caps a tier at `200`, would empty it.
LEAST_WITHOUT_UNIT = 2**20


def limit_bytes(limit: str | int) -> int:
    """Raises CommandRefusedError."""
    try:
        return int(Size.parse(limit))  # a `Size` would stand on the bus as "8MiB"
    except ValueError as error:
        raise CommandRefusedError(f"limit: {error}") from None


def written_limit(typed: str) -> str | int:
    """What somebody has typed as a limit, as it goes into a command. Raises CommandRefusedError."""
    _check_unit(typed)
    count = limit_bytes(typed)
    return count if count >= LEAST_WITHOUT_UNIT or not count else f"{count}B"


def check_limit(command: AnyCommand) -> None:
    """Raises CommandRefusedError for a limit that is no size, or whose unit was forgotten, in a command off the bus."""
    match command:
        case CapTier(limit=limit) | CapLending(limit=limit) if limit is not None:
            _check_unit(limit)


def _check_unit(limit: str | int) -> None:
    written = str(limit).strip()
    if 0 < limit_bytes(limit) < LEAST_WITHOUT_UNIT and written[-1].isdigit():
        raise CommandRefusedError(
            f"limit: {written} would be {written} bytes; write its unit, as 8GiB, or 0 for nothing"
        )


def check_values(command: AnyCommand) -> None:
    """Raises CommandRefusedError for a value that every server must refuse."""
    match command:
        case SetPolicy(field=field, value=value):
            policy_value(field, value)
        case CapTier() | CapLending():
            check_limit(command)


def policy_fields(configuration: Mapping[str, Any]) -> list[PolicyField]:
    """All of them. `configuration`: of a server, as it says it on the bus."""
    from ...base.read_config import explain

    known = {(one.section, one.name): one for one in explain()}
    found = []
    for field in FIELDS:
        section, name = section_of(field)
        values = configuration.get(section)
        now = values.get(name) if isinstance(values, Mapping) else None
        one = known[section, name]
        found.append(PolicyField(field, "" if now is None else str(now), one.kind.replace('"', ""), one.description))
    return found
