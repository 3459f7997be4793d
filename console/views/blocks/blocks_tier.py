"""One tier of one rank: a heat map of its slots, and all of them in a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import MapView, RankState
from swift_tiers.radix_tiering.bus.hear.figures import NONE, count, size, text

from ...feeds.feed import ViewQuestion
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import answer_line, answer_of, flowing, is_stale
from ..parts.blocks_offers import page_offers, tier_offers
from ..parts.heat_map import Stretch, draw, layout
from ..parts.view import ConsoleView, OfferedAction, Scene
from .block_holders import HeldCells, Holding, holders, no_one
from .slot_map import RARE, STATES, SlotCells, slot_map
from .slot_rows import SlotRows

#: Cells before a line of signs: the number of its first slot, or the name of its part.
GUTTER = 9
#: Of the height for lines, with a table beneath them.
SHARE = 0.65

SLOT, STATE = Column("slot", right=True, rank=9), Column("state", rank=9)
#: Behind them: of the device, who holds the slot; of tiers of several parts, which part it is in.
HOLDER = (
    Column("request", widest=34, rank=8),
    Column("its page", right=True, rank=7),
    Column("others", right=True, rank=3),
)
PART = (Column("part", widest=40, rank=8),)


class TierLevel(ConsoleView):
    """Its table has a row for each cell of the answer: for each slot, unless there are millions."""

    NAME = "blocks"

    def lines(self, scene: Scene) -> list[Text]:
        here = _Here.of(scene)
        lines = [_title(scene, here)]
        slots = here.slots
        if slots is None:
            return lines
        lines += legend(scene, slots.counts, about=slots.per_cell > 1)
        if not slots.one_piece:
            parts = enumerate(slots.parts)
            lines += flowing(scene, [(f"{slots.name(at)}: {count(part.slots)} slots",) for at, part in parts])
        cursor = cell_under_cursor(scene, slots)
        room = max(2, scene.room(SHARE) - len(lines) - 1)
        gutter = (
            GUTTER
            if slots.one_piece
            else max(GUTTER, min(24, 2 + max(len(slots.name(number)) for number in range(len(slots.parts)))))
        )
        plan = layout(stretches(slots), scene.width - gutter, room, cursor or 0)

        def label(stretch: Stretch, cell: int) -> str:
            if slots.one_piece or cell != stretch.first:
                return f"{slots.slots_of(cell)[0]:>{gutter - 2}}  "
            return stretch.label

        drawn = draw(scene, plan, slots.states, slots.strongest, gutter=gutter, label=label, cursor=cursor)
        return [*lines, _reading(scene, here, plan.step * slots.per_cell, len(plan.stretches)), *drawn]

    def table(self, scene: Scene) -> Table:
        here = _Here.of(scene)
        slots = here.slots
        if slots is None:
            return ConsoleView.EMPTY
        wanted, stale = _wanted_cell(scene, slots), is_stale(scene, here.question)
        columns = (SLOT, STATE, *(HOLDER if here.has_holders(slots) else ()), *(() if slots.one_piece else PART))
        names = [column.name for column in columns]
        rows = SlotRows(slots, lambda cell: here.row(scene, slots, cell, stale), names, lambda: here.held_cells(slots))
        return Table(columns, rows, empty="it has no slots", start="" if wanted is None else str(wanted))

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        here = _Here.of(scene)
        holding = scene.selected.subject if scene.selected is not None else None
        key = holding.request.last_page if isinstance(holding, Holding) else ""
        return (*page_offers(scene, here.server, key), *tier_offers(scene, here.server, here.tier))

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        return (_Here.of(scene).question,)


class _Here(NamedTuple):
    """What the place names, and what there is of it."""

    server: str
    rank: str
    tier: str
    state: RankState | None
    view: MapView | None

    @classmethod
    def of(cls, scene: Scene) -> _Here:
        server, rank, tier = (scene.place.name(kind) or "" for kind in ("server", "rank", "tier"))
        view = answer_of(scene, ViewQuestion("map", tier, server), server, rank)
        return cls(server, rank, tier, scene.moment.rank(server, rank), view)

    @property
    def question(self) -> ViewQuestion:
        return ViewQuestion("map", self.tier, self.server)

    @property
    def slots(self) -> SlotCells | None:
        return slot_map(self.view) if self.view is not None and self.view.slots is not None else None

    def has_holders(self, slots: SlotCells) -> bool:
        """Block tables are of the device. Where a cell stands for several slots nobody is named."""
        return self.tier == "device" and slots.per_cell == 1

    def holdings(self, slots: SlotCells, cell: int) -> list[Holding]:
        if not self.has_holders(slots) or self.state is None:
            return []
        return holders(self.state.requests).of(slots.slots_of(cell)[0])

    def held_cells(self, slots: SlotCells) -> HeldCells:
        """Those that requests hold."""
        if not self.has_holders(slots) or self.state is None:
            return no_one()
        held = holders(self.state.requests).held
        cells = held.cells - (slots.view.first_slot or 0)
        there = (cells >= 0) & (cells < slots.cells)
        return HeldCells(cells[there], {name: alike[there] for name, alike in held.alike.items()})

    def row(self, scene: Scene, slots: SlotCells, cell: int, stale: bool) -> Row:
        first, last = slots.slots_of(cell)
        state = slots.state(cell)
        held = self.holdings(slots, cell)
        server = PlaceStep("server", self.server)
        place = None
        if held:
            place = Place("blocks", (server, PlaceStep("rank", self.rank), PlaceStep("request", held[0].request.rid)))
        elif self.tier == "ssd" and not slots.one_piece:
            number = slots.parts[slots.part(cell)].name
            place = Place("stripes", (server, PlaceStep("device", f"{self.rank}:{number}")))
        elif self.tier == "peer":
            place = Place("leases", (server,))
        cells = [
            Cell(str(first) if first == last else f"{first}-{last}", first),
            Cell(f"{scene.glyphs.signs.get(state, '?')} {text(state)}", text(state), _word_style(state)),
        ]
        if self.has_holders(slots):
            others = len(held) - 1
            cells.append(Cell(text(held[0].request.rid) if held else NONE))
            cells.append(Cell(str(held[0].page) if held else NONE, held[0].page if held else None))
            cells.append(Cell(f"+{others}" if others > 0 else NONE, others if others > 0 else None))
        if not slots.one_piece:
            cells.append(Cell(slots.name(slots.part(cell))))
        return Row(str(cell), tuple(cells), place, held[0] if held else None, stale)


def stretches(slots: SlotCells) -> list[Stretch]:
    """A part each."""
    bounds = slots.starts.tolist()
    return [Stretch(first, end - first, slots.name(part)) for part, (first, end) in enumerate(pairwise(bounds))]


def _word_style(state: str) -> str:
    """Of its word: what is free is faint as a sign, and must be read as a word."""
    return "muted" if state == "free" else state


def cell_under_cursor(scene: Scene, slots: SlotCells) -> int | None:
    key = scene.selected.key if scene.selected is not None else ""
    return int(key) if key.isdecimal() and int(key) < slots.cells else None


def legend(scene: Scene, counts: Mapping[str, int | None], *, about: bool = False) -> list[Text]:
    """The sign and the slots of each state that there is, in the order of STATES; slots None: not said."""
    known = [state for state in STATES if state in counts] + [state for state in counts if state not in STATES]
    tilde = "~" if about else ""
    words: list[tuple[tuple[str, str] | str, ...]] = []
    for state in known:
        sign = scene.glyphs.signs.get(state, "?")
        slots = counts[state]
        told = () if slots is None else (f" {tilde}{count(slots)}",)
        words.append(((f"{sign} ", state), (text(state), "text"), *told))
    return flowing(scene, words)


def slot_place(server: str, rank: str, tier: str, slot: int, part: str = "") -> Place:
    """Where a tier is shown with the cursor on this slot."""
    name = f"{part}:{slot}" if part else str(slot)
    return Place(
        "blocks",
        (PlaceStep("server", server), PlaceStep("rank", rank), PlaceStep("tier", tier), PlaceStep("slot", name)),
    )


def _wanted_cell(scene: Scene, slots: SlotCells) -> int | None:
    """The cell of the slot that the place names."""
    part, _, slot = (scene.place.name("slot") or "").rpartition(":")
    return slots.cell_of(int(slot), part) if slot.isdecimal() else None


def _title(scene: Scene, here: _Here) -> Text:
    parts: list[tuple[str, str] | str] = [
        (f"{text(here.tier)} ", here.tier), (f"of {text(here.server)} {text(here.rank)}: ", "title"),
    ]  # fmt: skip
    slots, view = here.slots, here.view
    if here.state is None:
        parts.append(("this rank is not on the bus any more  ", "warning"))
    if slots is not None:
        total = None if slots.view.slot_bytes is None else (slots.view.slots or 0) * slots.view.slot_bytes
        parts.append((f"{slots.view.slots or 0:,} slots of {size(slots.view.slot_bytes)}, {size(total)}  ", "text"))
    elif view is not None:
        parts.append((f"{text(view.reason) or 'it says nothing of its slots'}  ", "warning"))
    line = scene.line(*parts)
    line.append_text(answer_line(scene, here.question, f"what is in each slot of {text(here.tier)}"))
    return line


def _reading(scene: Scene, here: _Here, per_sign: int, shown: int) -> Text:
    """How the map is to be read, and what is under the cursor."""
    slots = here.slots
    assert slots is not None
    cell = cell_under_cursor(scene, slots)
    parts: list[tuple[str, str] | str] = []
    if cell is not None:
        first, last = slots.slots_of(cell)
        part = slots.name(slots.part(cell))
        numbers = f"slot {first}" if first == last else f"slots {first}-{last}"
        where = f"{part} " if part else ""
        parts += [
            (f"{scene.glyphs.marked} ", "title"),
            f"{where}{numbers}: ",
            (slots.state(cell), _word_style(slots.state(cell))),
        ]
        parts.append("  ")
    wanted = scene.place.name("slot")
    if wanted is not None and _wanted_cell(scene, slots) is None:
        parts.append((f"slot {text(wanted)} is not there  ", "warning"))
    if per_sign > 1:
        rare = " ".join(scene.glyphs.signs[state] for state in reversed(RARE))
        parts.append(f"a sign is {count(per_sign)} slots: what most are, and few {rare} wherever they are")
    if shown < len(slots.parts):
        parts.append(f"  {shown} of {len(slots.parts)} parts shown")
    return scene.line(*parts)
