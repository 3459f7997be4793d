"""The filter of a table: what `/` asks for.

Words are all wanted: `alpha ssd` keeps rows with both. A word is a substring without regard to case; `/REGEX/` a
regular expression; `field:value` looks into one column, whose name may be shortened (`srv:alpha` does not, `ser:alpha`
does); `field>NUMBER` and `field<NUMBER` compare, with the units of the field (`used>4GiB`, `p99>5ms`). A `!` before
any of them keeps what it would not. Quotes keep spaces: `reason:"no room"`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.units import Duration, Size

from .table import Cell, Column, Row, Table


class Test(NamedTuple):
    """One term, understood."""

    term: str  # as it was typed
    column: int | None  # None: any of them
    passes: Callable[[Cell], bool]
    wanted: bool  # whether rows with it are kept, or those without
    word: str = ""  # a plain substring: what is looked for
    between: tuple[float, float] | None = None  # a comparison: the number lies between these

    def keeps(self, row: Row) -> bool:
        cells = row.cells if self.column is None else (row.cells[self.column],)
        return any(map(self.passes, cells)) == self.wanted


class Tests(tuple[Test, ...]):
    """All terms: what rows that are too many to be made sift themselves by, test by test."""

    __slots__ = ()

    def __call__(self, row: Row) -> bool:
        return all(test.keeps(row) for test in self)


_TERM = re.compile(r"(?P<field>[A-Za-z][\w %/-]*?)(?P<sign>[:<>])(?P<value>.*)", re.DOTALL)


class FilterError(ValueError):
    """A filter that cannot be understood; the message says why."""


class Sieve:
    """One filter, made once and used for many tables."""

    def __init__(self, text: str = "") -> None:
        """Raises FilterError."""
        self.text = text.strip()
        self._terms = _terms(self.text)

    def __bool__(self) -> bool:
        return bool(self._terms)

    def sift(self, table: Table, rows: Sequence[Row] | None = None) -> Sequence[Row]:
        """The rows that pass: `rows` themselves where nothing is asked for."""
        rows = table.rows if rows is None else rows
        if not self._terms:
            return rows
        tests = Tests(_test(term, wanted, table.columns) for term, wanted in self._terms)
        sifted = getattr(rows, "sifted", None)
        if sifted is not None:  # rows that know what passed before, or which cells they have without being made
            found: Sequence[Row] = sifted(self.text, tests)
            return found
        return [row for row in rows if tests(row)]


def _terms(text: str) -> list[tuple[str, bool]]:
    """Each with whether it is wanted. Regular expressions are checked here, so that typing shows what is wrong."""
    try:
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace_split, lexer.commenters, lexer.escape, lexer.quotes = True, "", "", '"'
        words = list(lexer)
    except ValueError:
        raise FilterError('a quote " is not closed') from None
    terms = []
    for word in words:
        wanted = not word.startswith("!")
        term = word if wanted else word[1:]
        if term:
            _expression(term)
            terms.append((term, wanted))
    return terms


def _expression(term: str) -> re.Pattern[str] | None:
    if len(term) < 2 or not (term.startswith("/") and term.endswith("/")):
        return None
    try:
        return re.compile(term[1:-1], re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"{term}: not a regular expression: {error}") from None


def _test(term: str, wanted: bool, columns: Sequence[Column]) -> Test:
    expression = _expression(term)
    if expression is not None:
        return Test(term, None, _matching(expression), wanted)
    match = _TERM.fullmatch(term)
    column = _column(match["field"], columns) if match else None
    if match is None or column is None:
        return Test(term, None, _containing(term), wanted, term.casefold())
    if match["sign"] == ":":
        inner = _expression(match["value"])
        if inner is not None:
            return Test(term, column, _matching(inner), wanted)
        return Test(term, column, _containing(match["value"]), wanted, match["value"].casefold())
    limit = _number(match["value"])
    if limit is None:
        return Test(term, column, lambda cell: False, wanted)
    low, high = (limit, math.inf) if match["sign"] == ">" else (-math.inf, limit)
    return Test(
        term,
        column,
        lambda cell: (found := _number(cell.content)) is not None and low < found < high,
        wanted,
        between=(low, high),
    )


def _matching(expression: re.Pattern[str]) -> Callable[[Cell], bool]:
    return lambda cell: expression.search(cell.text) is not None


def _containing(value: str) -> Callable[[Cell], bool]:
    value = value.casefold()
    return lambda cell: value in cell.text.casefold()


def _column(name: str, columns: Sequence[Column]) -> int | None:
    """The one of that name, or the first that begins so."""
    name = name.casefold()
    names = [column.name.casefold() for column in columns]
    if name in names:
        return names.index(name)
    return next((number for number, other in enumerate(names) if other.startswith(name)), None)


def _number(value: Any) -> float | None:
    """`4GiB`, `5ms`, `95%`, `12`."""
    if isinstance(value, (int, float)):
        return float(value)
    text = str(value).strip()
    if text.endswith("%"):
        text, factor = text[:-1], 0.01
    else:
        factor = 1.0
    try:
        return float(text) * factor
    except ValueError:
        pass
    for kind in (Duration, Size):
        try:
            return float(kind.parse(text))
        except ValueError:
            continue
    return None
