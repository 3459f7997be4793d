"""What is copied between the tiers, how fast, and how busy each way is?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import LinkView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, size, text

from ...model.charts import ChartSeries, Drawn, beside, chart, fitting
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.drawn import drawn
from ..parts.measures import PERCENTILES, RATES, TIERS, added, seconds_cell, sum_of
from ..parts.rank_table import HOME, SAID, said_cell
from ..parts.view import ConsoleView, Scene
from ..parts.ways import Flow, flow, flows, way_of
from .gpu_tables import gpu_table, reach_table
from .wires import carried_line, gpu_lines, wire_lines, wires

#: Cells of a sparkline in a table, and the least of one in the matrix.
SPARK, LEAST_SPARK = 20, 3
#: Cells of a rate: `1023.9MiB/s`, and of the names of the matrix' rows.
RATE, NAME = 11, 7
#: Cells of a chart that stands beside others, at least.
CHART = 38
#: GPUs that are told of above the table, at most.
MOST_GPUS = 6

#: Bytes per second look by look, by the name of a link.
_Rates = Mapping[str, Sequence[float | None]]

_FIGURES = (
    Column("rate/s", right=True, rank=9, unit="B/s, last 2 s"),
    Column("history", widest=SPARK, rank=5, unit="B/s, last 2 s"),
    Column("busy", right=True, rank=8, unit="s of copying in a second, last 2 s"),
    Column("p50", right=True, rank=6, unit="s of a copy, last 60 s"),
    Column("p99", right=True, rank=8, unit="s of a copy, last 60 s"),
    Column("speed of one/s", right=True, rank=2, unit="B/s while copying, since the start"),
    Column("copies/s", right=True, rank=4, unit="last 2 s"),
    Column("pages/s", right=True, rank=3, unit="last 2 s"),
    Column("total", right=True, rank=7, unit="B since the start"),
    Column("copies", right=True, rank=2, unit="since the start"),
    Column("pages", right=True, rank=1, unit="since the start"),
    Column("time", right=True, rank=1, unit="s of copying since the start"),
)
_ENDS = (Column("from", widest=20, rank=9), Column("to", widest=20, rank=9))
WAYS = (*_ENDS, *_FIGURES, Column("ranks", True, rank=0))
PLACES = (*HOME, *_FIGURES, SAID)
LINKS = (*HOME, *_ENDS, *_FIGURES, SAID)


class Links(ConsoleView):
    """Top: the matrix, and every way. In a way: its history, and each rank that copies over it; in
    a rank of it, what its GPU does and whom it reaches."""

    NAME = "links"
    TITLE = "Links"
    QUESTION = "what is copied between tiers, how fast, and how busy is each way?"
    LINES_SHARE = 0.65

    def windows(self, place: Place) -> str:
        return f"{RATES}, {PERCENTILES}"

    def lines(self, scene: Scene) -> list[Text]:
        name = scene.place.name("link")
        if name is not None:
            return _details(scene, name)
        found = flows(scene.moment.ranks(scene.server), scene.moment.history)
        if not found:
            return []
        rates = {one.name: one.rates(scene.moment.history, "bytes") for one in found}
        lines = [*_matrix(scene, found, rates), _totals(scene, found, rates)]
        room = scene.room(self.LINES_SHARE, len(found))
        wired = wire_lines(scene, wires(scene.moment, scene.server))
        if len(wired) < room - len(lines):
            lines += [*([Text()] if wired and scene.height > 30 else []), *wired]
            lines += gpu_lines(scene, min(MOST_GPUS, room - len(lines) - 1))
        lines.append(Text())
        return [*lines, *_histories(scene, found, rates, room - len(lines))]

    def table(self, scene: Scene) -> Table:
        name, history = scene.place.name("link"), scene.moment.history
        if name is None:
            found = flows(scene.moment.ranks(scene.server), history)
            return Table(WAYS, [_way_row(scene, one) for one in found], empty=_nothing(scene))
        if scene.place.name("rank") is not None:
            return reach_table(scene)
        here = [flow(name, [link], history) for link in _links(scene, name)]
        return Table(PLACES, [_place_row(scene, one) for one in here], empty=_nothing(scene))


def link_table(scene: Scene) -> Table:
    """Every link of every rank by itself."""
    history = scene.moment.history
    here = [flow(link.link, [link], history) for rank in scene.moment.ranks(scene.server) for link in rank.links]
    return Table(LINKS, [_link_row(scene, one) for one in here], empty=_nothing(scene))


def _nothing(scene: Scene) -> str:
    if scene.moment.snapshot is None:
        return ""
    state = scene.moment.server(scene.server)
    if scene.server is not None and (state is None or not state.server.alive):
        return f"{text(scene.server)} is gone: it copies nothing"
    return "nobody says anything of links"


def _links(scene: Scene, name: str) -> list[LinkView]:
    rank = scene.place.name("rank")
    ranks = scene.moment.ranks(scene.server)
    return [
        link for one in ranks if rank in (None, one.name) for link in one.links if link.link == name
    ]  # fmt: skip


# ---- the matrix ----


def _matrix(scene: Scene, found: Sequence[Flow], rates: _Rates) -> list[Text]:
    """Sources at the left, destinations at the top; donors as far as there is room."""
    ends = {end for one in found for end in one.way}
    tiers = [tier for tier in TIERS if tier in ends]
    donors = sorted(ends - set(tiers))
    room = scene.width - NAME - 1
    width = min(40, room // max(1, len(tiers)))
    others = donors[: max(0, (room - width * len(tiers)) // width)]
    others = others[: max(0, scene.room(Links.LINES_SHARE) - len(tiers) - 5)]
    by_way = {(one.way.source, one.way.destination): one for one in found}
    rows, across = [*tiers, *others], [*tiers, *others]
    name = max(NAME, *(min(20, scene.width // 4, len(text(row))) for row in rows))
    width = max(2, min(width, (scene.width - name - 1) // len(across)))
    heads: list[tuple[str, str] | str] = [f"{'from':<{name}} "]
    for end in across:
        label = scene.glyphs.cut(f"to {text(end)}", width - 1)
        heads += [(f"{label:>{width - 1}}", _style(end)), " "]
    lines = [scene.line(*heads)]
    top = max((one.bytes_per_second or 0.0 for one in found), default=0.0)
    for source in rows:
        parts: list[tuple[str, str] | str] = [(f"{scene.glyphs.cut(text(source), name):<{name}} ", _style(source))]
        for destination in across:
            parts += [*_matrix_cell(scene, by_way.get((source, destination)), rates, width - 1, top), " "]
        lines.append(scene.line(*parts))
    return lines


def _matrix_cell(scene: Scene, one: Flow | None, rates: _Rates, width: int, top: float) -> Drawn:
    """Its history and its rate."""
    if one is None:
        return [f"{NONE:>{width}}"]
    rate = _rate(one.bytes_per_second)
    room = width - max(RATE, len(rate)) - 1
    spark = scene.glyphs.spark(rates[one.name], room) if room >= LEAST_SPARK else ""
    busiest = top > 0 and one.bytes_per_second == top
    return [(spark, _style(one.way.source)), (f"{rate:>{width - len(spark)}}", "title" if busiest else "text")]


def _style(end: str) -> str:
    return end if end in TIERS else "peer"


def _totals(scene: Scene, found: Sequence[Flow], rates: _Rates) -> Text:
    """What single donors have is in `peer`."""
    ways = [one for one in found if not one.way.is_donor]
    rate = sum_of(one.bytes_per_second for one in ways)
    history = added(rates[one.name] for one in ways)
    highest = max((value for value in history if value is not None), default=None)
    busy = sum_of(one.busy for one in ways)
    whole = sum_of(one.sum("bytes") for one in ways)
    room = max(0, min(60, scene.width - 70))
    spark = scene.glyphs.spark(history, room) + "  " if room >= LEAST_SPARK else ""
    parts = fitting(
        scene.width,
        [(f"{'all':<{NAME}} ", "title"), (spark, "good"), (_rate(rate), "text"), ", at most ", _rate(highest)],
        ["; busy ", (_busy(busy), "text"), " s/s"],
        ["; since the start ", (size(whole), "text")],
    )
    return scene.line(*parts)


def _histories(scene: Scene, found: Sequence[Flow], rates: _Rates, room: int) -> list[Text]:
    """A chart for each way between tiers, the same time in each; where the terminal is high enough."""
    ways = [one for one in found if not one.way.is_donor]
    down = -(-len(ways) // max(1, scene.width // CHART))
    across = -(-len(ways) // max(1, down))
    height = min(10, room // max(1, down) - 2)
    if not ways or height < 3:
        return []
    width = (scene.width - 2 * (across - 1)) // across
    lines = []
    for first in range(0, len(ways), across):
        row = [
            ChartSeries(
                f"{text(one.way.source)} to {text(one.way.destination)}", _style(one.way.source),
                rates[one.name], _rate, one.bytes_per_second,
            )
            for one in ways[first : first + across]
        ]  # fmt: skip
        lines += [scene.line(*parts) for parts in beside(*(chart(scene.glyphs, one, width, height) for one in row))]
        lines.append(Text())
    return lines


# ---- rows ----


def _ends(one: Flow) -> tuple[Cell, ...]:
    return tuple(Cell(text(end), style=_style(end)) for end in (one.way.source, one.way.destination))


def _way_row(scene: Scene, one: Flow) -> Row:
    cells = (
        *_ends(one),
        *_figures(scene, one),
        Cell(count(len(one.links)), len(one.links)),
    )
    stale = all(scene.moment.is_old(link) for link in one.links)
    return Row(one.name, cells, scene.place.enter(PlaceStep("link", one.name)), one.links, stale)


def _place_row(scene: Scene, one: Flow) -> Row:
    link = one.links[0]
    cells = (*_home(link), *_figures(scene, one), said_cell(scene, link))
    place = Place(
        "links", (PlaceStep("link", one.name), PlaceStep("server", link.server), PlaceStep("rank", link.rank))
    )
    return Row(f"{link.server} {link.rank}", cells, place, link, scene.moment.is_old(link))


def _link_row(scene: Scene, one: Flow) -> Row:
    row = _place_row(scene, one)
    home = len(HOME)
    return row._replace(key=f"{row.key} {one.name}", cells=(*row.cells[:home], *_ends(one), *row.cells[home:]))


def _home(link: LinkView) -> tuple[Cell, ...]:
    return Cell(text(link.server), style="title"), Cell(text(link.rank))


def _figures(scene: Scene, one: Flow) -> tuple[Cell, ...]:
    """Of `_FIGURES`."""
    speed, now = one.speed, one.bytes_per_second
    spark = scene.glyphs.spark(one.rates(scene.moment.history, "bytes", SPARK), SPARK)
    return (
        Cell(UNKNOWN if now is None else size(now), now),
        Cell(spark, now, _style(one.way.source)),
        Cell(_busy(one.busy), one.busy),
        seconds_cell(one.p50),
        seconds_cell(one.p99),
        Cell(NONE if speed is None else size(speed), speed),
        _per_second(one.transfers_per_second),
        _per_second(one.pages_per_second),
        Cell(size(one.sum("bytes")), one.sum("bytes")),
        *(Cell(count(value), value) for value in (one.sum("transfers"), one.sum("pages"))),
        Cell(seconds(one.sum("seconds")), one.sum("seconds")),
    )


def _busy(value: float | None) -> str:
    """Seconds of copying in a second."""
    return UNKNOWN if value is None else f"{value:.2f}"


def _per_second(value: float | None) -> Cell:
    return Cell(UNKNOWN if value is None else count(round(value, 1)), value)


# ---- one way ----


def _details(scene: Scene, name: str) -> list[Text]:
    """What it is, and how it went: bytes, copies, and how busy it was."""
    links = _links(scene, name)
    way = way_of(name)
    lines = [
        scene.line(
            (text(way.source), _style(way.source)), " to ", (text(way.destination), _style(way.destination)),
            f"  {way.meaning}",
        )
    ]  # fmt: skip
    lines[0].truncate(scene.width)
    if not links:
        return [*lines, scene.line(("this link is not on the bus any more, or its server is gone", "warning"))]
    one = flow(name, links, scene.moment.history)
    of = f"{count(len(links))} ranks, worst " if len(links) > 1 else ""
    parts = fitting(
        scene.width,
        [f"{of}p50 ", (_when(one.p50), "text"), "  p99 ", (_when(one.p99), "text")],
        ["  one copy ", (_rate(one.speed), "text")],
        ["  in all ", (size(one.sum("bytes")), "text")],
        [f" in {count(one.sum('transfers'))} copies"],
        [f", {seconds(one.sum('seconds'))} of copying"],
    )
    lines.append(scene.line(*parts))
    carried = carried_line(scene, name)
    if carried is not None:
        lines.append(carried)
    alone = scene.place.name("rank") is not None
    if alone and (gpu := gpu_table(scene)).rows:
        lines += drawn(scene, gpu, 1, whole=False)
    history = scene.moment.history
    span = history.span(links[0])
    big = ChartSeries(
        f"bytes, the last {seconds(span)}", _style(way.source), one.rates(history, "bytes"), _rate, one.bytes_per_second
    )
    small = (
        ChartSeries(
            "copies/s",
            "note",
            one.rates(history, "transfers"),
            lambda value: count(round(value, 1)),
            one.transfers_per_second,
        ),
        ChartSeries("busy, s/s", "good", one.rates(history, "seconds"), _busy, one.busy),
    )
    below = scene.room(Links.LINES_SHARE, len(reach_table(scene).rows)) if alone else scene.room(Links.LINES_SHARE)
    room = below - len(lines)
    lower = max(2, min(10, room // 3)) if room >= 8 else 0
    upper = max(2, min(24, room - 1 - (lower + 1 if lower else 0)))
    lines += [scene.line(*parts) for parts in chart(scene.glyphs, big, scene.width, upper)]
    if lower:
        half = (scene.width - 2) // 2
        pair = beside(*(chart(scene.glyphs, series, half, lower) for series in small))
        lines += [scene.line(*parts) for parts in pair]
    return lines


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"


def _when(value: float | None) -> str:
    return NONE if value is None else seconds(value)
