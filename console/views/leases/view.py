"""Who lends how much to whom, until when, and why so much?"""

from __future__ import annotations

from itertools import zip_longest

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
from swift_tiers.radix_tiering.bus.contract.views import LeaseEntry, LeasesView, RankState, RankView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, ago, count, epoch, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.lease_pairs import (
    Pair,
    PairedLease,
    difference,
    differences,
    leases_of,
    pairs_of,
    views_of,
)
from swift_tiers.radix_tiering.bus.hear.rank_troubles import rank_troubles
from swift_tiers.radix_tiering.bus.hear.trouble import Trouble
from swift_tiers.radix_tiering.bus.hear.troubles import lease_troubles

from ...model.charts import ChartSeries, beside, chart
from ...model.palette import MARKS
from ...model.place import PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.drawn import drawn
from ..parts.rank_table import RankColumn, mark_cell, rank_table, sized
from ..parts.view import ConsoleView, OfferedAction, Scene
from .lease_history import history, of_pair, recalls, told
from .lease_offers import offers_for

PAIRS = (
    Column("state", rank=9, words=True),
    Column("donor", widest=32, rank=9),
    Column("borrower", widest=32, rank=9),
    Column("leases", right=True, rank=6),
    Column("lent", right=True, rank=8, unit="B"),
    Column("borrowed", right=True, rank=8, unit="B"),
    Column("both say", widest=30, rank=7),
    Column("ends in", right=True, rank=7, unit="s"),
    Column("returning", right=True, rank=5, unit="B"),
    Column("pinned", right=True, rank=4, unit="B"),
    Column("recalls", right=True, rank=3),
    Column("said", right=True, rank=2, unit="s ago"),
    Column("epoch", rank=1),
)
LEASES = (
    Column("lease", right=True, rank=9),
    Column("bytes", right=True, rank=8, unit="B"),
    Column("at the donor", rank=9),
    Column("at the borrower", rank=8),
    Column("ends in", right=True, rank=9, unit="s"),
    Column("at the borrower in", right=True, rank=5, unit="s"),
    Column("pinned", rank=6, unit="B"),
    Column("both say", widest=40, rank=7),
)
#: Cells of the bar that says how much of what is at others' disposal is lent, and at least of a sparkline.
BAR, SPARK = 10, 12
#: From this size of the view on there are charts: so many at most, each so many lines high beneath its title.
WIDE, TALL, CHARTS, CHART = 130, 36, 4, 4


class Leases(ConsoleView):
    """Top: who lends and borrows, why so much, and each pair. In a pair: its leases, and what became of them."""

    NAME = "leases"
    TITLE = "Leases"
    QUESTION = "who lends how much to whom, until when, and why so much?"

    def lines(self, scene: Scene) -> list[Text]:
        if scene.moment.snapshot is None:
            return []
        pair, number = _pair(scene), scene.place.name("lease")
        events = list(told(scene))
        room = max(4, scene.room(self.LINES_SHARE))
        if scene.place.name("borrower") is None:
            states = _ranks(scene)
            ranks = lending_table(scene)
            lines = [*drawn(scene, ranks, max(2, room // 2), whole=False), Text()] if ranks.rows else []
            lines += _charts(scene, states)
            # Two servers' lines are always there; the rest of the room is for what has happened.
            return [*lines, *history(scene, events, max(2, room - len(lines)))]
        if pair is None:
            gone = scene.line(("these two have no leases any more", "warning"), "; esc goes back")
            return [gone, *history(scene, of_pair(events, *_names(scene)), room - 1)]
        lines = _lease_lines(scene, pair, number) if number is not None else _pair_lines(scene, pair)
        about = of_pair(events, pair.donor, pair.borrower, number)
        return [*lines, *history(scene, about, (scene.height if number else room) - len(lines))]

    def table(self, scene: Scene) -> Table:
        if scene.place.name("lease") is not None:
            return self.EMPTY
        pair = _pair(scene)
        if scene.place.name("borrower") is not None:
            rows = [] if pair is None else [_lease_row(scene, lease) for lease in leases_of(pair)]
            return Table(LEASES, rows, empty="no lease is listed")
        return pair_table(scene)

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        pair, lease = _pair(scene), None
        if pair is None and scene.selected is not None and isinstance(scene.selected.subject, Pair):
            pair = scene.selected.subject
        if pair is not None and scene.place.name("borrower") is not None:
            if scene.place.name("lease") is not None:
                lease = _lease(pair, scene.place.name("lease"))
            elif scene.selected is not None and isinstance(scene.selected.subject, PairedLease):
                lease = scene.selected.subject
        return () if pair is None else offers_for(scene, pair, lease)


# ---- what is looked at ----


def _ranks(scene: Scene) -> list[RankState]:
    """Those that lend or borrow, or could; of a server, or of a donor, also those on the other side."""
    states = [state for state in scene.moment.ranks() if state.rank is not None and state.rank.lent_bytes is not None]
    names = {name for pair in _pairs(scene) for name in (pair.donor, pair.borrower)}
    one = scene.server
    return [
        state for state in states
        if _limits(scene) is False or _name(state) in names or (state.rank is not None and state.rank.server == one)
    ]  # fmt: skip


def _limits(scene: Scene) -> bool:
    return scene.server is not None or scene.place.name("donor") is not None


def _pairs(scene: Scene) -> list[Pair]:
    pairs = pairs_of(views_of(scene.moment.ranks()))
    server, donor = scene.server, scene.place.name("donor")
    if donor is not None:
        return [pair for pair in pairs if pair.donor == donor]
    if server is not None:
        return [pair for pair in pairs if server in (_server(pair.donor), _server(pair.borrower))]
    return pairs


def _names(scene: Scene) -> tuple[str, str]:
    return scene.place.name("donor") or "", scene.place.name("borrower") or ""


def _pair(scene: Scene) -> Pair | None:
    """The one that was entered."""
    donor, borrower = _names(scene)
    if not borrower:
        return None
    return next((pair for pair in _pairs(scene) if (pair.donor, pair.borrower) == (donor, borrower)), None)


def _lease(pair: Pair, number: str | None) -> PairedLease | None:
    return next((lease for lease in leases_of(pair) if str(lease.number) == number), None)


def _server(name: str) -> str:
    """Of a lease name."""
    return name.rpartition(".")[0]


def _name(state: RankState) -> str:
    assert state.rank is not None
    return lease_name(state.rank.server, state.rank.rank)


# ---- lines ----


def lending_table(scene: Scene) -> Table:
    """What each rank lends, of how much, and the window that decides that; then what it borrows."""

    def spark(name: str, field: str, style: str) -> RankColumn:
        return RankColumn(
            Column(name, widest=60, rank=5, unit="B"),
            lambda rank: Cell(_spark(scene, rank, field, _disposal(rank) if style == "lent" else None), style=style),
        )

    fields = (
        sized("lends", "lent_bytes", 8),
        RankColumn(Column("full", rank=7, unit="share, 0 to 1"), lambda rank: _full(scene, rank)),
        RankColumn(Column("of", right=True, rank=7, unit="B"), lambda rank: _size(_disposal(rank))),
        RankColumn(Column("at most", right=True, rank=6, unit="B"), lambda rank: _size(rank.lend_limit_bytes, "note")),
        RankColumn(Column("needed", right=True, rank=7, unit="B"), lambda rank: _size(rank.lend_peak_bytes)),
        RankColumn(Column("within", right=True, rank=6, unit="s"), lambda rank: _left_cell(rank.lend_window_seconds)),
        spark("lends over time", "lent_bytes", "lent"),
        sized("borrows", "borrowed_bytes", 8),
        spark("borrows over time", "borrowed_bytes", "borrowed"),
        RankColumn(Column("lends to", widest=48, rank=2), lambda rank: _all(rank.lends_to)),
        RankColumn(Column("borrows from", widest=48, rank=3), lambda rank: _all(rank.borrows_from)),
    )
    ranks = [state.rank for state in _ranks(scene) if state.rank is not None]
    return rank_table(scene, ranks, fields, lambda rank: rank_troubles(rank, scene.moment.history.lately(rank)))


def _full(scene: Scene, rank: RankView) -> Cell:
    """How much of what it could lend."""
    disposal = _disposal(rank)
    if not disposal or not rank.lease_address:
        return Cell(NONE)
    part = (rank.lent_bytes or 0) / disposal
    return Cell(scene.glyphs.bar(part, BAR), part, "lent")


def _all(names: tuple[str, ...]) -> Cell:
    return Cell(", ".join(map(text, names)) or NONE)


def _disposal(rank: RankView) -> int | None:
    """Bytes that are lent or could be now."""
    return None if rank.lendable_bytes is None else (rank.lent_bytes or 0) + rank.lendable_bytes


def _spark(scene: Scene, rank: RankView, field: str, highest: float | None = None) -> str:
    wide = max(SPARK, scene.width // 5 - 4)
    return scene.glyphs.spark(scene.moment.history.values(rank, field, length=wide), wide, highest).strip()


def _charts(scene: Scene, states: list[RankState]) -> list[Text]:
    """Lent and borrowed bytes of the last minutes, two of them beside each other, where there is room for it."""
    if scene.height < TALL or scene.width < WIDE:
        return []
    drawn = []
    for state in states:
        rank = state.rank
        assert rank is not None
        for field, style, word in (("lent_bytes", "lent", "lends"), ("borrowed_bytes", "borrowed", "borrows")):
            values = scene.moment.history.values(rank, field)
            if any(values):
                series = ChartSeries(f"{text(_name(state))} {word}", style, values, size)
                drawn.append(chart(scene.glyphs, series, (scene.width - 2) // 2, CHART))
    lines: list[Text] = []
    for left, right in zip_longest(drawn[0:CHARTS:2], drawn[1:CHARTS:2]):
        both = left if right is None else beside(left, right)
        lines += [scene.line(*parts) for parts in both]
    return lines


def _pair_lines(scene: Scene, pair: Pair) -> list[Text]:
    view = pair.lent or pair.borrowed
    assert view is not None
    lines = [
        _says(scene, "donor   ", pair.donor, pair.lent, "lent"),
        _says(scene, "borrower", pair.borrower, pair.borrowed, "borrowed"),
        *(scene.line(("differ: ", "warning"), (what, "text")) for what in differences(pair)[:3]),
        *(
            scene.line((f"{trouble.mark} ", MARKS[trouble.mark]), (trouble.what, "text"), f"; {trouble.remedy}")
            for trouble in _troubles(scene, pair)
        ),
        scene.line(
            "first ends in ", (_left(view.shortest_seconds), "text"), " unless renewed; being returned ",
            (size(view.recalled_bytes), "text"), ", pinned ", (size(view.pinned_bytes), "text"),
        ),
    ]  # fmt: skip
    if (view.listed or 0) < (view.leases or 0):
        lines.append(scene.line((f"the first {count(view.listed)} of {count(view.leases)} leases are listed", "note")))
    return lines


def _says(scene: Scene, who: str, name: str, view: LeasesView | None, style: str) -> Text:
    if view is None:
        return scene.line(f"{who} ", (text(name), "title"), (" says nothing of it", "warning"))
    what = f"{size(view.bytes)} in {count(view.leases)} leases"
    age = f", epoch {epoch(view.epoch)}, {ago(scene.moment.age_of(view))}"
    return scene.line(f"{who} ", (text(name), "title"), " says ", (what, style), age)


def _lease_lines(scene: Scene, pair: Pair, number: str) -> list[Text]:
    lease = _lease(pair, number)
    if lease is None:
        return [scene.line((f"lease {text(number)} has ended, or is not listed", "warning"), "; what is known of it:")]
    donor = scene.moment.server(_server(pair.donor))
    lines = [
        scene.line(
            (f"lease {lease.number} ", "title"), (size(lease.entry.bytes), "lent"),
            f" of {text(pair.donor)}, lent to {text(pair.borrower)}",
        ),
        _side(scene, "the donor", lease.at_donor, pair.lent is not None),
        _side(scene, "the borrower", lease.at_borrower, pair.borrowed is not None),
    ]  # fmt: skip
    odd = difference(lease)
    if odd:
        lines.append(scene.line(("differ: ", "warning"), (odd, "text"), "; if it stays so, see both servers' logs"))
    if donor is not None and not donor.server.control:
        lines.append(scene.line("its donor obeys no commands (bus.control)"))
    return lines


def _side(scene: Scene, who: str, entry: LeaseEntry | None, speaks: bool) -> Text:
    if entry is None:
        return scene.line(f"{who} ", ("does not know it" if speaks else "is not on the bus", "warning"))
    pinned = ", recalled last (pinned)" if entry.pinned else ""
    return scene.line(
        f"{who} says ",
        (text(entry.state) or UNKNOWN, _STATES.get(entry.state, "text")),
        f", ends in {_left(entry.seconds_left)} unless renewed{pinned}",
    )


# ---- rows ----

#: States in which a lease is not simply used.
_STATES = {
    "lent": "lent", "active": "borrowed", "recalled": "warning", "closing": "note", "draining": "note",
    "returned": "muted",
}  # fmt: skip


def _troubles(scene: Scene, pair: Pair) -> list[Trouble]:
    alive = {state.server.server: state.server.alive for state in scene.moment.servers}
    return [trouble for view in pair.views for trouble in lease_troubles(view, alive)]


def pair_table(scene: Scene) -> Table:
    """Every donor with each of its borrowers, the worst first."""
    recalled = recalls(scene)
    rows = [_pair_row(scene, pair, recalled[pair.donor, pair.borrower]) for pair in _pairs(scene)]
    rows.sort(key=lambda row: -row.cells[0].value)
    return Table(PAIRS, rows, empty="nobody lends here; see peer.donate and peer.borrow in the configuration")


def lease_table(scene: Scene) -> Table:
    """Every lease of every pair; what is not plainly lent comes first."""
    leases = [lease for pair in _pairs(scene) for lease in leases_of(pair)]
    leases.sort(key=lambda lease: lease.plain)
    return Table((*PAIRS[:3], *LEASES), [_named_lease_row(scene, lease) for lease in leases], empty="")


def _named_lease_row(scene: Scene, lease: PairedLease) -> Row:
    row, pair = _lease_row(scene, lease), lease.pair
    names = tuple(Cell(text(name), style="title") for name in (pair.donor, pair.borrower))
    return row._replace(
        key=f"{pair.donor} {pair.borrower} {row.key}", cells=(mark_cell(_troubles(scene, pair)), *names, *row.cells)
    )


def _pair_row(scene: Scene, pair: Pair, recalls: int) -> Row:
    view = pair.lent or pair.borrowed
    assert view is not None
    odd = differences(pair)
    if pair.lent is None or pair.borrowed is None:
        word, style = f"only the {'borrower' if pair.lent is None else 'donor'}", "warning"
    else:
        word, style = (odd[0], "note") if odd else ("the same", "good")
    ages = [age for one in pair.views if (age := scene.moment.age_of(one)) is not None]
    cells = (
        mark_cell(_troubles(scene, pair)),
        Cell(text(pair.donor), style="title"),
        Cell(text(pair.borrower), style="title"),
        Cell(count(view.leases), view.leases),
        _size(pair.lent.bytes if pair.lent else None, "lent"),
        _size(pair.borrowed.bytes if pair.borrowed else None, "borrowed"),
        Cell(word, style=style),
        _left_cell(view.shortest_seconds),
        _size(view.recalled_bytes, "warning" if view.recalled_bytes else ""),
        _size(view.pinned_bytes),
        Cell(count(recalls), recalls),
        Cell(ago(max(ages, default=None)), max(ages, default=None)),
        Cell(epoch(view.epoch)),
    )
    base = scene.place if scene.place.name("donor") is None else scene.place._replace(steps=scene.place.steps[:-1])
    place = base.enter(PlaceStep("donor", pair.donor), PlaceStep("borrower", pair.borrower))
    stale = any(scene.moment.is_old(one) for one in pair.views)
    return Row(f"{pair.donor} {pair.borrower}", cells, place, pair, stale)


def _lease_row(scene: Scene, lease: PairedLease) -> Row:
    entry, pair = lease.entry, lease.pair
    odd = difference(lease)
    one_side = pair.lent is None or pair.borrowed is None
    cells = (
        Cell(str(lease.number), lease.number, "title"),
        _size(entry.bytes),
        _state_cell(lease.at_donor),
        _state_cell(lease.at_borrower),
        _left_cell(entry.seconds_left),
        _left_cell(lease.at_borrower.seconds_left if lease.at_borrower else None),
        Cell("pinned" if entry.pinned else NONE, style="pinned" if entry.pinned else "muted"),
        Cell(odd or (NONE if one_side else "the same"), style="note" if odd else "muted" if one_side else "good"),
    )
    place = scene.place.enter(PlaceStep("lease", str(lease.number)))
    return Row(str(lease.number), cells, place, lease, any(scene.moment.is_old(one) for one in pair.views))


def _state_cell(entry: LeaseEntry | None) -> Cell:
    if entry is None:
        return Cell(NONE, style="muted")
    return Cell(text(entry.state) or UNKNOWN, style=_STATES.get(entry.state, ""))


def _left(value: float | None) -> str:
    if value is None:
        return NONE
    return seconds(value) if value >= 0 else f"over by {seconds(-value)}"


def _left_cell(value: float | None) -> Cell:
    return Cell(_left(value), value, "wrong" if value is not None and value < 0 else "")


def _size(value: float | None, style: str = "") -> Cell:
    return Cell(NONE, style="muted") if value is None else Cell(size(value), value, style)
