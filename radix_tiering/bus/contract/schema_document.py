"""The table of keys in `docs/bus.md`, made from the contract.

`python -m swift_tiers.radix_tiering.bus.contract.schema_document docs/bus.md` renews it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .schema import KEYS, KeySpec

BEGIN = "<!-- made by radix_tiering/bus/contract/schema_document.py from schema.py and views.py; do not edit -->"
END = "<!-- end of what is made -->"

_TIMES = {"time", "started", "arrived", "ended", "deadline", "score"}
_UNITS = ("bytes", "tokens", "pages", "units", "seconds")


def schema_markdown(prefix: str = "swift") -> str:
    """One table of all keys: a row for each key, and beneath it one for each of its fields."""
    lines = [
        "| key | type | field | unit | meaning | TTL | written by | read by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for spec in KEYS:
        lines += _rows(spec, prefix)
    return "\n".join(lines) + "\n"


def renewed(document: str) -> str:
    """The document with the table as it should be. Raises ValueError where the marks of its place are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the lines {BEGIN!r} and {END!r} are missing, between which the table belongs")
    return f"{before}{BEGIN}\n\n{schema_markdown()}\n{END}{after}"


def _rows(spec: KeySpec, prefix: str) -> Iterator[str]:
    yield _row(
        f"`{prefix}:{spec.pattern}`", spec.kind.value, "", "", f"**{spec.meaning}**", spec.ttl, spec.writer, spec.reader
    )
    for field in spec.fields:
        yield _row("", "", f"`{field.name}`", unit_of(field.name), field.meaning, "", "", "")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def unit_of(field: str) -> str:
    """What the field's name says of its unit; empty where it is a plain count, or text."""
    if field in _TIMES:
        return "s since 1970"
    if field.endswith("bytes_per_second"):
        return "bytes/s"
    for unit in _UNITS:
        if re.search(rf"(^|_){unit}$", field) or field.startswith(f"{unit}_"):
            return {"seconds": "s", "units": "stripe units"}.get(unit, unit)
    return ""


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
