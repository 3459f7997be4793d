"""The tiers and the requests of all ranks; above them, the tiers of one rank as heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView, TierView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, share, size, text

from ...feeds.feed import ViewQuestion
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import answer_line, answer_of
from ..parts.blocks_offers import page_offers, tier_offers
from ..parts.heat_map import Stretch, draw, layout
from ..parts.lazy_rows import LazyRows
from ..parts.measures import fill, share_cell
from ..parts.settled import Settled, SettledCells, request_key
from ..parts.view import ConsoleView, OfferedAction, Scene
from .blocks_tier import SHARE, legend, stretches
from .slot_map import slot_map

#: Cells before a line of signs: the tier, and how full it is.
GUTTER = 13
#: Signs of a request's pages in the table.
STRIP = 12

#: Cells of the other columns, where all of them are shown.
OTHERS = 66


class TopLevel(ConsoleView):
    """Everything, or what is of one server or rank. Maps are asked of the rank under the cursor: no one looks at
    others."""

    NAME = "blocks"

    def lines(self, scene: Scene) -> list[Text]:
        rank = _looked_at(scene)
        if rank is None:
            return []
        return _maps(scene, rank)

    def table(self, scene: Scene) -> Table:
        subjects = _subjects(scene)
        columns = _columns(scene)
        cells = [partial(cell, scene) for cell in CELLS]
        rows = LazyRows(subjects, _key, partial(_row, scene), columns, cells, partial(_settled, scene))
        empty = "no tiers and no requests are on this bus" if scene.moment.snapshot is not None else ""
        if scene.place.steps and not subjects:
            empty = "this server or rank is not on the bus any more, or says nothing of its tiers"
        return Table(columns, rows, empty=empty)

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        subject = scene.selected.subject if scene.selected is not None else None
        if not isinstance(subject, _Subject):
            return ()
        if isinstance(subject.of, TierView):
            return tier_offers(scene, subject.of.server, subject.of.tier)
        return page_offers(scene, subject.of.server, subject.of.last_page)

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        rank = _looked_at(scene)
        if rank is None:
            return ()
        return tuple(ViewQuestion("map", tier.tier, tier.server) for tier in rank.tiers)


def _columns(scene: Scene) -> tuple[Column, ...]:
    """Names of requests are cut, and what a tier holds, so that the other columns have room."""
    name = 14 if scene.width < 110 else 20 if scene.width < 150 else 34
    what = max(33, scene.width - OTHERS - name)
    return (
        Column("server", widest=14 if scene.width < 110 else 30, rank=9),
        Column("rank", rank=5),
        Column("blocks of", widest=name, rank=9),
        Column("state", rank=4),
        Column("pages", right=True, rank=8),
        Column("full", right=True, rank=3, unit="share, 0 to 1"),
        Column("fill", rank=7, unit="share, 0 to 1"),
        Column("what is where", widest=what, rank=8),
    )


class _Subject(NamedTuple):
    """One row: a tier or a request of a rank."""

    rank: RankState
    of: TierView | RequestView


def _subjects(scene: Scene) -> list[_Subject]:
    """Rank by rank: its tiers, its requests that live, then those that have ended, the newest first."""
    wanted = scene.place.name("rank")
    found: list[_Subject] = []
    for rank in scene.moment.ranks(scene.server):
        if wanted in (None, rank.name):
            found += (_Subject(rank, tier) for tier in rank.tiers)
            found += (_Subject(rank, request) for request in rank.requests if request.live)
            found += (_Subject(rank, request) for request in reversed(rank.requests) if not request.live)
    return found


def _name(subject: _Subject) -> str:
    return subject.of.tier if isinstance(subject.of, TierView) else subject.of.rid


def _key(subject: _Subject) -> str:
    return f"{subject.of.server} {subject.of.rank} {_name(subject)}"


def _row(scene: Scene, subject: _Subject) -> Row:
    of = subject.of
    steps = (PlaceStep("server", of.server), PlaceStep("rank", of.rank))
    step = PlaceStep("tier", of.tier) if isinstance(of, TierView) else PlaceStep("request", of.rid)
    cells = tuple(cell(scene, subject) for cell in CELLS)
    # What is over does not get old: it is not said again.
    over = isinstance(of, RequestView) and not of.live
    stale = bool(scene.moment.lost) or (not over and scene.moment.is_old(of))
    return Row(_key(subject), cells, Place("blocks", (*steps, step)), subject, stale)


def _blocks_of(scene: Scene, subject: _Subject) -> Cell:
    return Cell(text(_name(subject)), style=subject.of.tier if isinstance(subject.of, TierView) else "")


def _state(scene: Scene, subject: _Subject) -> Cell:
    of = subject.of
    if isinstance(of, TierView):
        return Cell("tier")
    return Cell(text(of.state) or UNKNOWN, style="good" if of.live else "muted")


def _pages(scene: Scene, subject: _Subject) -> Cell:
    pages = subject.of.pages
    return Cell(NONE if pages is None else count(pages), pages)


def _full(scene: Scene, subject: _Subject) -> Cell:
    return share_cell(fill(subject.of)) if isinstance(subject.of, TierView) else Cell(NONE)


def _fill(scene: Scene, subject: _Subject) -> Cell:
    of = subject.of
    if isinstance(of, TierView):
        return Cell(scene.glyphs.bar(fill(of), STRIP), fill(of), of.tier)
    return Cell(_strip(scene, of.tiers, of.pages))


def _where(scene: Scene, subject: _Subject) -> Cell:
    of = subject.of
    if isinstance(of, RequestView):
        return Cell(", ".join(f"{text(tier)} {pages}" for tier, pages in of.tiers) or NONE)
    view = answer_of(scene, ViewQuestion("map", of.tier, of.server), of.server, of.rank)
    if view is not None and view.slots is not None:
        counts = slot_map(view).counts
        about = "~" if (view.slots_per_cell or 1) > 1 else ""
        return Cell(", ".join(f"{text(state)} {about}{count(slots)}" for state, slots in counts.items()))
    pinned = f", {count(of.pinned_pages)} pages pinned" if of.pinned_pages else ""
    return Cell(f"{size(of.used_bytes)} of {size(of.limit_bytes or of.capacity_bytes)}{pinned}")


#: A cell of each column, by itself: who sorts wants one column of all.
CELLS: tuple[Callable[[Scene, _Subject], Cell], ...] = (
    lambda scene, subject: Cell(text(subject.of.server), style="title"),
    lambda scene, subject: Cell(text(subject.of.rank)),
    _blocks_of, _state, _pages, _full, _fill, _where,
)  # fmt: skip


_SETTLED = Settled()


def _settled(scene: Scene, subject: _Subject) -> SettledCells | None:
    """Requests that have ended; the app's thread only."""
    of = subject.of
    if isinstance(of, TierView) or of.live:
        return None
    key = scene.glyphs.ascii, request_key(of)
    return _SETTLED.of(key, lambda: tuple(cell(scene, subject) for cell in CELLS))


def _strip(scene: Scene, runs: Sequence[tuple[str, int]], pages: int | None) -> str:
    """Where its pages were when it was admitted, in few signs; behind them, what has been computed since."""
    total = max(pages or 0, sum(length for _, length in runs))
    if not runs or not total:
        return NONE
    drawn, at = "", 0
    for name, length in runs:
        at += length
        drawn = drawn.ljust(max(1, round(STRIP * at / total)), scene.glyphs.signs.get(name, "?"))
    return drawn[:STRIP].ljust(STRIP, scene.glyphs.open)


def _looked_at(scene: Scene) -> RankState | None:
    """The rank of the row under the cursor, as it is now; without a row, the first one."""
    ranks = scene.moment.ranks(scene.server)
    subject = scene.selected.subject if scene.selected is not None else None
    if isinstance(subject, _Subject):
        found = scene.moment.rank(subject.of.server, subject.of.rank)
        if found in ranks:
            return found
    wanted = scene.place.name("rank")
    return next((rank for rank in ranks if rank.tiers and wanted in (None, rank.name)), None)


def _maps(scene: Scene, rank: RankState) -> list[Text]:
    """A few lines for each tier of a rank; the pages of the request under the cursor stand out on its device."""
    subject = scene.selected.subject if scene.selected is not None else None
    request = subject.of if isinstance(subject, _Subject) and isinstance(subject.of, RequestView) else None
    if not rank.tiers:
        return []
    first = rank.tiers[0]
    title = scene.line((f"{text(first.server)} {text(first.rank)}  ", "title"))
    title.append_text(answer_line(scene, ViewQuestion("map", first.tier, first.server), "what is in its slots"))
    states: dict[str, None] = {}
    for tier in rank.tiers:
        view = answer_of(scene, ViewQuestion("map", tier.tier, tier.server), tier.server, tier.rank)
        if view is not None and view.slots is not None:
            states.update(dict.fromkeys(slot_map(view).counts))
    if request is not None and request.block_table:
        name = scene.glyphs.cut(text(request.rid), 16)
        title.append_text(scene.line((f"  {scene.glyphs.marked} ", "title"), f"on the device of {name}"))
    heading = [title, *legend(scene, states)]
    # Tiers that have nothing to draw take a line each.
    drawn = sum(_drawn(scene, tier) for tier in rank.tiers)
    room = max(1, (scene.room(SHARE) - len(heading) - len(rank.tiers) + drawn) // max(1, drawn))
    return [*heading, *(line for tier in rank.tiers for line in _map(scene, tier, room, request))]


def _map(scene: Scene, tier: TierView, room: int, request: RequestView | None) -> Iterator[Text]:
    width = scene.width - GUTTER
    name = f"{text(tier.tier)[:7]:<7} {share(fill(tier), 1.0):>4} "
    view = answer_of(scene, ViewQuestion("map", tier.tier, tier.server), tier.server, tier.rank)
    if view is None:
        yield scene.line((name, tier.tier), (scene.glyphs.bar(fill(tier), width), "stale"))
    elif view.slots is None:
        reason = text(view.reason) or "it says nothing of its slots"
        yield scene.line((name, tier.tier), (reason, "muted"))
    else:
        slots = slot_map(view)
        # Parts follow one another here: they are apart where the tier is looked at alone.
        whole = [Stretch(0, slots.cells, name)] if len(slots.parts) > room else stretches(slots)
        plan = layout(whole, width, room)
        marked = slots.cells_of(request.block_table) if request is not None and tier.tier == "device" else []
        click = f"app.select({f'{tier.server} {tier.rank} {tier.tier}'!r})"
        lines = draw(
            scene,
            plan,
            slots.states,
            slots.strongest,
            gutter=GUTTER,
            marked=marked,
            click=click,
            label=lambda stretch, cell: name if cell == 0 else _part(stretch, cell),
        )
        for number, line in enumerate(lines):
            if number == 0:
                line.stylize(scene.palette[tier.tier], 0, GUTTER)
            yield line


def _drawn(scene: Scene, tier: TierView) -> bool:
    view = answer_of(scene, ViewQuestion("map", tier.tier, tier.server), tier.server, tier.rank)
    return view is not None and view.slots is not None


def _part(stretch: Stretch, cell: int) -> str:
    return f"  {stretch.label}" if cell == stretch.first and stretch.label else ""
