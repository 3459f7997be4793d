"""Events in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import swift_tiers.radix_tiering
import swift_tiers.sglang_ext
from swift_tiers.console.model.event_words import KINDS, kind_of, words
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.bus.hear.trouble import Mark


def event(kind: str = "device.out", **fields: object) -> StreamEvent:
    return StreamEvent(
        server="alpha",
        rank="dp0-tp0",
        entry="1-0",
        sequence=1,
        time=1.0,
        happened=1.0,
        age_seconds=0.0,
        kind=kind,
        fields=fields,
    )


DOCUMENT = Path(__file__).parents[2] / "docs" / "bus.md"
#: What whoever tells of something calls.
EMITS = ("emit", "_emit", "_missed")


def _told(package: object) -> Iterator[str]:
    """The kinds in `….emit("KIND", …)` of a package's source, and those that a tier has for its parts."""
    for path in Path(next(iter(package.__path__))).rglob("*.py"):  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and "part_" in ast.unparse(node.targets[0]):
                kinds = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                yield from (kind for kind in kinds if kind and not kind.startswith("model."))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EMITS:
                yield from (
                    one.value
                    for one in ast.walk(node.args[0])
                    if isinstance(one, ast.Constant) and isinstance(one.value, str) and "." in one.value.strip(".")
                )


def _ends(package: object) -> Iterator[str]:
    """`.END` of the kinds in `….emit(f"{…}.END", …)` of a package's source."""
    for path in Path(next(iter(package.__path__))).rglob("*.py"):  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EMITS:
                last = node.args[0].values[-1] if isinstance(node.args[0], ast.JoinedStr) else None
                if isinstance(last, ast.Constant):
                    yield str(last.value)


def test_every_kind_that_servers_tell_is_known() -> None:
    told = {*_told(swift_tiers.radix_tiering), *_told(swift_tiers.sglang_ext)}
    assert len(told) > 30
    assert told <= KINDS.keys()
    # Outcomes of commands are told under names that are put together.
    assert {"command.accepted", "command.done", "command.refused", "command.expired", "command.partly"} <= KINDS.keys()


def test_every_kind_is_in_the_document_of_the_bus() -> None:
    section = DOCUMENT.read_text().partition("\n## Events\n")[2].partition("\n## ")[0]
    named = {
        kind for row in re.findall(r"^\|(.*?)\|", section, re.M) for kind in re.findall(r"`([a-z]+\.[a-z_]+)`", row)
    }
    assert named == KINDS.keys()


def test_every_kind_that_is_put_together_ends_like_one_that_is_known() -> None:
    """A tier's name comes first in those that any tier may tell."""
    ends = {*_ends(swift_tiers.radix_tiering), *_ends(swift_tiers.sglang_ext)}
    assert ".namespace_refused" in ends
    assert {end for end in ends if not any(kind.endswith(end) for kind in KINDS)} == set()


def test_kinds_of_other_releases_are_judged_by_their_names() -> None:
    assert kind_of(event("pump.failed")).mark is Mark.WARNING
    assert kind_of(event("page.is_corrupt")).mark is Mark.WRONG
    assert kind_of(event("moon.risen")).mark is Mark.NOTE


def test_values_have_the_units_of_their_fields() -> None:
    said = words(event(from_bytes=3 << 30, seconds=0.018, limit_bytes=None, pages=12, device="/ssd2/a.stripe"))
    assert said == "from 3GiB  in 18 ms  limit none  pages 12  device /ssd2/a.stripe"


def test_what_comes_from_outside_cannot_move_the_cursor() -> None:
    said = words(event(**{"na\x1bme": "\x1b[2Jbad", "nested": {"a\n": "\x07"}}))
    assert said.isprintable()
