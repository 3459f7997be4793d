"""The filter of tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.model.sieve import FilterError, Sieve
from swift_tiers.console.model.table import Cell, Column, Row, Table

COLUMNS = (Column("server"), Column("used"), Column("p99"), Column("reason"))
ROWS = (
    Row("a", (Cell("alpha"), Cell("4.0GiB", 4 * 2**30), Cell("12 ms", 0.012), Cell("no room"))),
    Row("b", (Cell("beta"), Cell("1.0GiB", 2**30), Cell("?", None), Cell("ssd out: room"))),
    Row("c", (Cell("gamma-ssd"), Cell("-", None), Cell("3.0 s", 3.0), Cell(""))),
)
TABLE = Table(COLUMNS, ROWS)


def passing(text: str) -> str:
    return "".join(row.key for row in Sieve(text).sift(TABLE))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", "abc"),
        ("ALPHA", "a"),
        ("ssd", "bc"),
        ("!ssd", "a"),
        ("ssd room", "b"),
        ("/^(al|be)/", "ab"),
        ("!/^(al|be)/", "c"),
        ("server:ssd", "c"),
        ("ser:ssd", "c"),
        ("server:/a$/", "ab"),
        ("!server:ssd", "ab"),
        ("used>2GiB", "a"),
        ("used<2GiB", "b"),
        ("p99>5ms", "ac"),
        ("p99>100ms", "c"),
        ("p99<1s !alpha", ""),
        ('reason:"no room"', "a"),
        ('"ssd out"', "b"),
        ("nowhere:ssd", ""),
        ("used>many", ""),
        ("out:", "b"),
    ],
)
def test_what_passes(text: str, keys: str) -> None:
    assert passing(text) == keys


@pytest.mark.parametrize(("text", "why"), [("/(/", "not a regular expression"), ('"open', "not closed")])
def test_what_cannot_be_understood_is_said(text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        Sieve(text)


def test_nothing_asked_for_gives_the_rows_themselves() -> None:
    assert Sieve("  ").sift(TABLE) is ROWS
    assert not Sieve("!")


@given(st.text(alphabet='ab:!<>/"( 1G', max_size=12))
def test_a_term_and_its_inverse_part_the_rows(text: str) -> None:
    """Whatever is typed is either an error or a filter; a single word and its inverse share out all rows."""
    try:
        sieve = Sieve(text)
    except FilterError:
        return
    kept = {row.key for row in sieve.sift(TABLE)}
    assert kept <= {"a", "b", "c"}
    if " " in text or '"' in text or text.startswith("!") or not sieve:
        return
    assert {row.key for row in Sieve(f"!{text}").sift(TABLE)} == {"a", "b", "c"} - kept
