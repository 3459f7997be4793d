"""Where the stripe units of one prefix lie: how many on each device, and in which slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import PrefixPage, PrefixView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, text

from ...feeds.feed import ViewQuestion
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import answer_line, views_of
from ..parts.lanes import device_place
from ..parts.measures import imbalance
from ..parts.view import Scene

#: Digits of a key that are shown, cells of a bar, and runs of slots that are listed.
DIGITS, BAR, RUNS = 16, 20, 100
#: Cells that the columns beside the slots take, where there is room for all of them.
BESIDE = 90

UNITS = (
    Column("server", widest=20, rank=8),
    Column("rank", rank=4),
    Column("#", right=True, rank=9),
    Column("units", right=True, rank=9),
    Column("share", right=True, rank=7, unit="share, 0 to 1"),
    Column("by the largest", widest=BAR, rank=3, unit="share, 0 to 1"),
    Column("pages", right=True, rank=5),
    Column("slots", rank=8),
    Column("path", widest=40, rank=1),
)


class Placed(NamedTuple):
    """What lies on one device."""

    units: int
    pages: int
    slots: tuple[int, ...]  # in order


def placed(table: Iterable[PrefixPage]) -> dict[int, Placed]:
    """By the number of the device."""
    slots: dict[int, list[int]] = defaultdict(list)
    pages: dict[int, int] = defaultdict(int)
    for page in table:
        for device, slot in page.ssd:
            slots[device].append(slot)
        for device in {device for device, _ in page.ssd}:
            pages[device] += 1
    return {device: Placed(len(found), pages[device], tuple(sorted(found))) for device, found in sorted(slots.items())}


def slot_runs(slots: Sequence[int], room: int) -> str:
    """`3-9 12 40-41 and 5 more`: as many runs as `room` cells have place for, at most `RUNS`, at least one."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    sizes = [last - first + 1 for first, last in runs]
    shown = min(len(words), RUNS)
    while True:
        left = sum(sizes[shown:])
        said = " ".join([*words[:shown], *([f"and {left} more"] if left else [])])
        if len(said) <= room or shown <= 1:
            return said
        shown -= 1


def question(scene: Scene, page: str) -> ViewQuestion:
    return ViewQuestion("prefix", page, scene.server)


def lines(scene: Scene, page: str) -> list[Text]:
    asked = question(scene, page)
    head = scene.line(
        ("stripe units of the prefix that page ", "text"), (text(page)[:DIGITS], "title"), (" ends", "text")
    )
    shown = [head, answer_line(scene, asked, "where they lie")]
    for view in views_of(scene, asked):
        shown.append(_rank_line(scene, view))
    return [*shown, Text()]


def _rank_line(scene: Scene, view: PrefixView) -> Text:
    name = (f"{text(view.server)} {text(view.rank)} ", "title")
    if not view.pages:
        return scene.line(
            name, "does not know this page: it was dropped, or never was here" if view.pages == 0 else UNKNOWN
        )
    table = view.table
    on_ssd = sum(1 for page in table if page.ssd)
    others = (
        ("device", sum(1 for page in table if page.device is not None)),
        ("host", sum(1 for page in table if page.host is not None)),
        ("peers", sum(1 for page in table if page.peer)),
        (
            "nowhere",
            sum(1 for page in table if not page.ssd and page.device is None and page.host is None and not page.peer),
        ),
    )
    even = imbalance(float(one.units) for one in placed(table).values())
    also = ", ".join(f"{where} {count(pages)}" for where, pages in others if pages)
    of = f" (the last {count(len(table))} are listed)" if len(table) < view.pages else ""
    line = scene.line(
        name,
        f"{count(view.pages)} pages{of}: ",
        (f"on ssd {count(on_ssd)}", "ssd"),
        f", largest/mean {NONE if even is None else f'{even:.2f}'}",
        f"; also {also}" if also else "",
    )
    line.truncate(scene.width)
    return line


def table(scene: Scene, page: str) -> Table:
    """Also the devices on which none of it lies: that is what uneven looks like."""
    room = max(30, min(120, scene.width - BESIDE))
    rows = [row for view in views_of(scene, question(scene, page)) if view.pages for row in _rows(scene, view, room)]
    columns = tuple(one._replace(widest=room) if one.name == "slots" else one for one in UNITS)
    return Table(columns, rows, empty="no part of it lies on a device")


def _rows(scene: Scene, view: PrefixView, room: int) -> list[Row]:
    found = placed(view.table)
    rank = scene.moment.rank(view.server, view.rank)
    paths = {device.number: device.path for device in rank.devices} if rank is not None else {}
    whole = sum(one.units for one in found.values())
    most = max((one.units for one in found.values()), default=0)
    rows = []
    for number in sorted(found.keys() | paths.keys()):
        one = found.get(number, Placed(0, 0, ()))
        portion = one.units / whole if whole else None
        cells = (
            Cell(text(view.server), style="title"),
            Cell(text(view.rank)),
            Cell(str(number), number),
            Cell(count(one.units), one.units),
            Cell(NONE if portion is None else f"{portion:.0%}", portion),
            Cell(scene.glyphs.bar(one.units / most if most else 0.0, BAR), one.units, "ssd"),
            Cell(count(one.pages), one.pages),
            Cell(slot_runs(one.slots, room) or NONE),
            Cell(text(paths.get(number, "")) or UNKNOWN),
        )
        place = device_place(view.server, view.rank, number)
        rows.append(Row(f"{view.server} {view.rank} {number}", cells, place, None, scene.moment.is_old(view)))
    return rows
