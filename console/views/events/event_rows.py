"""The rows of the event table: 20,000 of them, of which few are drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, overload

from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent
from swift_tiers.radix_tiering.bus.hear.event_tail import gap_words
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from ...model import event_words
from ...model.events import EventHistory
from ...model.palette import MARKS
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Sorting, Table, ordered

LOST = "LOST"
#: Selections that are kept: by server, and by what the operator has sifted for lately.
SELECTIONS = 4

Test = Callable[[Row], bool]


def make_row(number: int, item: StreamEvent | Gap, whole_date: bool) -> Row:
    """`number`: of the item in its log."""
    place = Place("events", (PlaceStep("event", str(number)),))
    who = Cell(text(item.server), style="title"), Cell(text(item.rank))
    if isinstance(item, Gap):
        head = Cell(NONE), Cell(LOST, int(Mark.WARNING), "warning")
        cells = (*head, *who, Cell(str(item.last), item.last), Cell(LOST, style="warning"), Cell(gap_words(item)))
        return Row(str(number), cells, place, item)
    mark = event_words.kind_of(item).mark
    style = MARKS[mark]
    cells = (
        Cell(time_words(item.happened, whole_date), item.happened, "muted"),
        Cell(str(mark), int(mark), style),
        *who,
        Cell(str(item.sequence), item.sequence, "muted"),
        Cell(text(item.kind), style=style),
        Cell(event_words.words(item)),
    )
    return Row(str(number), cells, place, item)


def time_words(happened: float, whole_date: bool) -> str:
    """By the clock of the machine that the console runs on."""
    try:
        when = datetime.fromtimestamp(happened)
    except (OverflowError, OSError, ValueError):
        return UNKNOWN  # somebody's clock is far out
    return f"{when:%m-%d %H:%M:%S}.{when.microsecond // 1000:03}" if whole_date else f"{when:%H:%M:%S}"


class _Selection(NamedTuple):
    """Numbers of the items that pass a test, ascending, of all before `upto`."""

    numbers: list[int]
    upto: int
    last: StreamEvent | Gap | None  # the item before `upto`: if that is another one, the log has been begun anew


class Shelf:
    """Rows that were made, and what passed tests. All of it follows from the log, so it may be thrown away."""

    def __init__(self) -> None:
        self.log = EventHistory()
        self._whole_date = False
        self._rows: dict[int, Row] = {}
        self._selections: dict[tuple[str, ...], _Selection] = {}

    def use(self, log: EventHistory, whole_date: bool) -> None:
        """From now on."""
        if log is not self.log or whole_date != self._whole_date:
            self._rows.clear()
            self._selections.clear()
        self.log, self._whole_date = log, whole_date

    def row(self, number: int) -> Row:
        """Raises IndexError."""
        item = self.log[number]
        row = self._rows.get(number)
        if row is None or row.subject is not item:
            if len(self._rows) > 2 * max(len(self.log), 100):
                self._rows = {one: row for one, row in self._rows.items() if one >= self.log.first}
            row = self._rows[number] = make_row(number, item, self._whole_date)
        return row

    def select(self, name: tuple[str, ...], passes: Callable[[int], bool], of: Sequence[int]) -> list[int]:
        """Those of the numbers that pass; a test has a name, so that only new items are tested when it comes again."""
        log, former = self.log, self._selections.pop(name, None)
        numbers, upto = ([], log.first) if former is None or not self._goes_on(former) else former[:2]
        numbers = numbers[bisect_left(numbers, log.first) :]
        start = bisect_left(of, max(upto, log.first))
        numbers += [of[at] for at in range(start, len(of)) if passes(of[at])]
        self._selections[name] = _Selection(numbers, log.count, log[log.count - 1] if len(log) else None)
        while len(self._selections) > SELECTIONS:
            del self._selections[next(iter(self._selections))]
        return numbers

    def _goes_on(self, former: _Selection) -> bool:
        at = former.upto - 1
        return self.log.first <= at < self.log.count and self.log[at] is former.last


class EventRows(Sequence[Row]):
    """The newest first. They are made when they are asked for."""

    def __init__(
        self, shelf: Shelf, columns: tuple[Column, ...], name: tuple[str, ...], numbers: Sequence[int]
    ) -> None:
        """`numbers`: ascending; `name`: of the test that they have passed."""
        self._shelf = shelf
        self._columns = columns
        self._name = name
        self._numbers = numbers

    @classmethod
    def of(cls, shelf: Shelf, columns: tuple[Column, ...], server: str | None) -> EventRows:
        """All, or those of one server."""
        log = shelf.log
        everything = range(log.first, log.count)
        if server is None:
            return cls(shelf, columns, (), everything)
        name = (server,)
        return cls(shelf, columns, name, shelf.select(name, lambda one: log[one].server == server, everything))

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self._shelf.row(self._numbers[len(self) - 1 - at])

    def index_of(self, key: str) -> int | None:
        """Where the row with this key is."""
        number = int(key) if key.isdecimal() else -1
        at = bisect_left(self._numbers, number)
        found = at < len(self) and self._numbers[at] == number
        return len(self) - 1 - at if found else None

    def sifted(self, name: str, passes: Test) -> EventRows:
        """Those that pass. `name` stands for the test: what has passed it before is not tested again."""
        names = (*self._name, "sifted", name)
        numbers = self._shelf.select(names, lambda number: passes(self._shelf.row(number)), self._numbers)
        return EventRows(self._shelf, self._columns, names, numbers)

    def ordered(self, column: str, descending: bool) -> Sequence[Row]:
        """Time is their own order; any other one costs a walk over all of them."""
        if column == "time" and descending:
            return self
        return ordered(Table(self._columns, list(self)), Sorting(column, descending))
