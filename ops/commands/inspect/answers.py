"""What the ranks answer about tiers, sequences and the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.view_reading import AnyView
from swift_tiers.radix_tiering.bus.contract.views import MapView, NodesView, PrefixView
from swift_tiers.radix_tiering.bus.hear.asking import Answers
from swift_tiers.radix_tiering.bus.hear.figures import NONE, count, seconds, size, text

from .tables import FittingTable, Look, describe, place

#: How a slot of each state is drawn.
SIGNS = {
    "free": ".", "private": "r", "cached": "c", "pinned": "P", "lent": "L", "borrowed": "-", "loading": ">",
    "recomputing": "*", "out": "x",
}  # fmt: skip
#: Cells of a drawn map: in a line, and lines of each rank's.
CELLS_IN_A_LINE, MOST_LINES = 100, 40


def show_map(tier: str, answers: Answers[MapView]) -> Look:
    """How many slots are in which state, and then the slots themselves, each a sign."""
    table = FittingTable(" rank|slots|bytes of one| " + "|".join(SIGNS) + "|age")
    drawn: list[RenderableType] = []
    for view in answers.answers:
        slots = slots_by_state(view)
        if view.slots is None:
            table.add_row(place(view), NONE, NONE, *[NONE] * len(SIGNS), seconds(view.age_seconds))
            drawn.append(Text(f"{place(view)}: {text(view.reason)}"))
            continue
        states = [count(slots[state]) if state in slots else NONE for state in SIGNS]
        table.add_row(place(view), count(view.slots), size(view.slot_bytes), *states, seconds(view.age_seconds))
        drawn += [Text(""), Text(_heading(view)), *map(Text, _lines(view))]
    legend = "  ".join(f"{sign} {state}" for state, sign in SIGNS.items())
    return _look({"tier": tier}, answers, [table, *drawn, Text(""), Text(legend, "dim")])


def slots_by_state(view: MapView) -> Counter[str]:
    """Where a cell stands for several slots, about."""
    found: Counter[str] = Counter()
    for state, slots in _runs_of_slots(view):
        found[state] += slots
    return found


def show_prefix(page: str, answers: Answers[PrefixView]) -> Look:
    """A line for each page of the sequence and each rank that knows it."""
    table = FittingTable(" rank|page| key| device| host| peer| ssd (device/slot)")
    known: list[RenderableType] = []
    for view in answers.answers:
        if not view.pages:
            known.append(Text(f"{place(view)}: does not know it"))
            continue
        known.append(
            Text(
                f"{place(view)}: {view.pages} pages, of which {sum(one.device is not None for one in view.table)} of "
                f"the {len(view.table)} listed are on the device, {seconds(view.age_seconds)} ago"
            )
        )
        for one in view.table:
            units = " ".join(f"{device}/{slot}" for device, slot in one.ssd)
            table.add_row(
                place(view), str(one.depth), one.key, _slot(one.device), _slot(one.host), text(one.peer) or NONE,
                units or NONE,
            )  # fmt: skip
    return _look({"page": page}, answers, [Text(f"the sequence that page {page} ends"), *known, table])


def show_nodes(answers: Answers[NodesView]) -> Look:
    """A line for each of the largest subtrees."""
    table = FittingTable(" rank|node|parent|tokens|with what follows|hits|in use|idle| key of its last page")
    known: list[RenderableType] = []
    for view in answers.answers:
        if view.nodes is None:
            known.append(Text(f"{place(view)}: {text(view.reason)}"))
            continue
        part = "" if view.complete else ", of which only a part is known"
        known.append(Text(f"{place(view)}: {view.nodes} nodes{part}, {seconds(view.age_seconds)} ago"))
        for one in view.table:
            table.add_row(
                place(view), str(one.node), _slot(one.parent), count(one.tokens), count(one.subtree_tokens),
                count(one.hits), count(one.locks), seconds(one.idle_seconds), one.key or NONE,
            )  # fmt: skip
    return _look({}, answers, [*known, table])


def _look(asked: dict[str, Any], answers: Answers[AnyView], shown: Sequence[RenderableType]) -> Look:
    silent = [{"server": server, "rank": rank} for server, rank in answers.silent]
    return Look(
        {**asked, "answers": describe(answers.answers), "silent": silent},
        [*(Text(f"WRONG {text(server)} {text(rank)}: did not answer") for server, rank in answers.silent), *shown],
    )


def _heading(view: MapView) -> str:
    share = view.slots_per_cell or 1
    several = f", {share} to a sign, which shows what most of them are" if share > 1 else ""
    parts = f"; parts: {', '.join(f'{text(name)} ({slots})' for name, slots in view.parts)}" if view.parts else ""
    return f"{place(view)}: from slot {view.first_slot}{several}{parts}"


def _lines(view: MapView) -> Iterator[str]:
    """The first ones; a part that begins, begins a line."""
    cells = "".join(SIGNS.get(state, "?") * number for state, number in view.cells)
    share = view.slots_per_cell or 1
    lengths = [-(-part.slots // share) for part in view.parts] or [len(cells)]
    lines, start = [], 0
    for length in lengths:
        part = cells[start : start + length]
        start += length
        lines += [part[first : first + CELLS_IN_A_LINE] for first in range(0, len(part), CELLS_IN_A_LINE)]
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES} lines more; --json has them all"


def _runs_of_slots(view: MapView) -> Iterator[tuple[str, int]]:
    """Runs of cells as runs of slots: the last cell of a part stands for what is left of it."""
    share = view.slots_per_cell or 1
    left = [part.slots for part in view.parts if part.slots] or [view.slots or 0]
    for state, cells in view.cells:
        while cells and left:
            taken = min(cells, -(-left[0] // share))
            slots = min(taken * share, left[0])
            yield state, slots
            cells -= taken
            left[0] -= slots
            if not left[0]:
                left.pop(0)


def _slot(number: int | None) -> str:
    return NONE if number is None else str(number)
