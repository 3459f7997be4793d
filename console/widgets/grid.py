"""A table of any length: draws the rows that are visible, and asks for no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..model.glyphs import UNICODE, Glyphs
from ..model.palette import Palette
from ..model.table import GAP, Row, Sorting, Table, fit, fitted

#: Rows that are measured for the width of columns, beside those that are visible.
MEASURED = 50
#: Rows that are kept between two looks at most: a screen is drawn several times, and scrolled.
KEPT = 1000


class Grid(ScrollView, can_focus=True):
    """Rows under a line of headings that stays. The cursor stays on its row when rows come and go around it.

    Textual's DataTable keeps every cell and measures it; here a row is made when it is drawn, so that 100,000 rows
    cost what 50 cost (see ops/lab/bench/console.py).
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home,g", "jump(0)", "first", show=False),
        Binding("end,G", "jump(-1)", "last", show=False),
        Binding("enter", "enter", "open", show=False),
    ]

    class Entered(Message):
        """Enter, or a click on the row under the cursor."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class Moved(Message):
        """The cursor is on another row."""

    class Headed(Message):
        """A heading was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._table = Table((), ())
        self._rows: Sequence[Row] = ()
        self._cursor = 0
        self._wanted: list[int] = []  # cells that each column would fill
        self._widths: list[int] = []  # and those that it has
        self._shown: list[int] = []  # columns that have room, by their number
        self._sorting = Sorting()
        self._height = 0  # before it was resized
        self._made: dict[int, Row] = {}  # of `_rows`, by their number
        self._strips: list[Strip] = []  # of what is visible, from the top
        self._ground = Style()  # that they were made on
        self.palette = Palette()
        self.glyphs: Glyphs = UNICODE
        self.dimmed = False  # everything is stale

    # ---- what it shows ----

    @property
    def cursor(self) -> int:
        return self._cursor

    @property
    def row(self) -> Row | None:
        """The one under the cursor."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def rows(self) -> Sequence[Row]:
        """As they are shown: sifted and sorted."""
        return self._rows

    @property
    def table(self) -> Table:
        return self._table

    @property
    def is_hidden(self) -> bool:
        return self.has_class("-hidden")

    def show(self, table: Table, rows: Sequence[Row], sorting: Sorting) -> None:
        """Show these rows of the table; the cursor stays where it was if the row is still there."""
        before = self.row
        if [column.name for column in table.columns] != [column.name for column in self._table.columns]:
            self._wanted = []
            before = None
            self._cursor = _find(rows, table.start, 0) if table.start else 0
            begins = max(0, self._cursor - self.size.height // 2)
            # Only once the new rows have made room for it.
            self.call_after_refresh(self.scroll_to, 0, begins, animate=False)
        self._table, self._rows, self._sorting, self._made = table, rows, sorting, {}
        follows = table.follow and self._cursor == 0
        if before is not None and not follows and (self._cursor >= len(rows) or rows[self._cursor].key != before.key):
            self._cursor = _find(rows, before.key, self._cursor)
        self._cursor = max(0, min(self._cursor, len(rows) - 1))
        size = Size(self.size.width, len(rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self._redraw()

    def select(self, key: str) -> None:
        """Put the cursor on the row with this key, if it is there."""
        at = _find(self._rows, key, -1)
        if at >= 0:
            self._go(at)

    # ---- drawing ----

    def _redraw(self) -> None:
        """Make the lines that are visible, and draw those again that are not what they were."""
        self._measure()
        before, height = self._strips, self.size.height
        self._ground = self.rich_style
        self._strips = [self._make_line(y, self._ground) for y in range(height)]
        if len(before) != height:
            self.refresh()
            return
        changed = [y for y in range(height) if self._strips[y] != before[y]]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.rich_style != self._ground:
            self._strips = []

    def render_line(self, y: int) -> Strip:
        if len(self._strips) != self.size.height:
            self._draw_missing()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def _draw_missing(self) -> None:
        """It has become higher, or lower: lines that stay as they are need not be made again."""
        before = self._widths, self._shown
        self._measure()
        kept = self._strips[: self.size.height] if before == (self._widths, self._shown) else []
        self._ground = self.rich_style
        missing = range(len(kept), self.size.height)
        self._strips = [*kept, *(self._make_line(number, self._ground) for number in missing)]

    def _make_line(self, y: int, ground: Style) -> Strip:
        width = self.size.width
        if y == 0:
            return self._heading(width, ground)
        number = y - 1 + self.scroll_offset.y
        if not self._rows and number == 0:
            empty = "nothing passes the filter; esc takes it away" if self._table.rows else self._table.empty
            return Strip([Segment(set_cell_size(f" {empty}", width), ground + self.palette["muted"])])
        if number >= len(self._rows):
            return Strip.blank(width, ground)
        return self._line(self._rows_at(number, number + 1)[0], width, ground, number == self._cursor)

    def _heading(self, width: int, ground: Style) -> Strip:
        title = ground + self.palette["muted"] + Style(bold=True, underline=not self.glyphs.ascii)
        blank = title + Style(bold=False)  # apart from the words: pictures of the screen lose spaces before them
        segments = [Segment(" ", blank)]
        for number in self._shown:
            column = self._table.columns[number]
            name = column.name
            if column.name == self._sorting.column:
                name += self.glyphs.down if self._sorting.descending else self.glyphs.up
            words = fit(name, self._widths[number], column.right, self.glyphs)
            said = words.lstrip(" ")
            segments += [
                Segment(" " * (len(words) - len(said)), blank),
                Segment(said, title),
                Segment(" " * GAP, blank),
            ]
        hidden = len(self._table.columns) - len(self._shown)
        if hidden > 0:
            segments.append(Segment(f"+{hidden}", title))
        return Strip(segments).adjust_cell_length(width, title)

    def _line(self, row: Row, width: int, ground: Style, at_cursor: bool) -> Strip:
        if at_cursor:
            ground += self.palette["cursor"]
        segments = [Segment(self.glyphs.right if at_cursor else " ", ground)]
        for number in self._shown:
            column, cell = self._table.columns[number], row.cells[number]
            # Of what is old, what is wrong with it still stands out.
            stale = self.dimmed or (row.stale and cell.style != "wrong")
            style = self.palette["stale" if stale else cell.style or "text"]
            words = fit(cell.text, self._widths[number], column.right, self.glyphs)
            said = words.strip(" ")
            before = len(words) - len(words.lstrip(" ")) if said else 0
            # Apart: pictures of the screen lose spaces before words, and some styles would show them behind.
            segments += [Segment(" " * before, ground), Segment(said, ground + style)]
            segments.append(Segment(" " * (len(words) - before - len(said) + GAP), ground))
        return Strip(segments).adjust_cell_length(width, ground)

    def _measure(self) -> None:
        """Widths only grow while the columns stay the same, so that nothing jumps."""
        columns = self._table.columns
        first = self.scroll_offset.y
        shown = self._rows_at(first, first + max(1, self.size.height))
        if not self._wanted:
            # What comes first is measured once, so that scrolling changes little.
            shown = [*shown, *self._rows_at(0, MEASURED)]
        wanted = [*self._wanted] or [0] * len(columns)
        for number, column in enumerate(columns):
            longest = max((cell_len(row.cells[number].text) for row in shown), default=0)
            heading = cell_len(column.name) + (column.name == self._sorting.column)
            wanted[number] = max(heading, min(column.widest, max(wanted[number], longest)))
        self._wanted = wanted
        self._shown, self._widths = fitted(columns, wanted, max(1, self.scrollable_content_region.width - 1))

    def _rows_at(self, first: int, last: int) -> list[Row]:
        """Those of these numbers that there are, made where they are not yet."""
        last = min(last, len(self._rows))
        missing = [number for number in range(first, last) if number not in self._made]
        if missing:
            if len(self._made) > KEPT:
                self._made, missing = {}, [first, last - 1]
            begin, end = missing[0], missing[-1] + 1
            self._made.update(zip(range(begin, end), self._rows[begin:end], strict=True))
        return [self._made[number] for number in range(first, last)]

    # ---- moving ----

    def action_move(self, by: int) -> None:
        self._go(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self._cursor + by * max(1, self.size.height - 2))

    def action_jump(self, to: int) -> None:
        self._go(to if to >= 0 else len(self._rows) + to)

    def action_enter(self) -> None:
        row = self.row
        if row is not None:
            self.post_message(self.Entered(row))

    def _go(self, to: int) -> None:
        to = max(0, min(to, len(self._rows) - 1))
        if to == self._cursor:
            return
        self._cursor = to
        # The heading covers the first line, so the row above the cursor's must be in sight, too.
        self.scroll_to_region(Region(0, to, 1, 2), animate=False, force=True)
        self._redraw()
        self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._strips = []
        self.refresh()

    def on_resize(self) -> None:
        if self._strips and self._strips[0].cell_length != self.size.width:
            self._strips = []
        before, self._height = self._height, self.size.height
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        top = self.scroll_offset.y
        if top <= self._cursor < top + before - 1:
            # What has become lower still shows the cursor.
            self.scroll_to_region(Region(0, self._cursor, 1, 2), animate=False, force=True)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            at = 1
            for number in self._shown:
                at += self._widths[number] + GAP
                if event.x < at:
                    self.post_message(self.Headed(self._table.columns[number].name))
                    return
            return
        number = event.y - 1 + self.scroll_offset.y
        if number >= len(self._rows):
            return
        if number == self._cursor or event.chain > 1:
            self._go(number)
            self.action_enter()
        else:
            self._go(number)


def _find(rows: Sequence[Row], key: str, near: int) -> int:
    """Where the row with this key is; `near` if it is nowhere. Rows that know it themselves are asked."""
    find = getattr(rows, "index_of", None)
    if find is not None:
        found = find(key)
        return near if found is None else int(found)
    return next((number for number, row in enumerate(rows) if row.key == key), near)
