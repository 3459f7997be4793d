"""The pages of a request, or of the sequence that a page ends: where each of them lies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import PrefixPage, PrefixView, RequestView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, text

from ...feeds.feed import ViewQuestion
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import (
    KEY_DIGITS,
    LISTED_DIGITS,
    answer_line,
    answer_of,
    flowing,
    is_stale,
    whole_keys,
)
from ..parts.blocks_offers import page_offers
from ..parts.heat_map import Stretch, draw, layout, strongest_of
from ..parts.lazy_rows import LazyRows
from ..parts.settled import Remembered
from ..parts.view import ConsoleView, OfferedAction, Scene
from .blocks_tier import SHARE

#: Where a page is, from the fastest; the last one: nothing is known of it.
PLACES = ("device", "peer", "host", "ssd", "compute", "nowhere", "unknown")
#: Cells before the signs.
GUTTER = 10

Codes = NDArray[np.int64]

COLUMNS = (
    Column("page", right=True, rank=9),
    Column("now", rank=9),
    Column("found", rank=7),
    Column("device", right=True, rank=8),
    Column("peer", widest=30, rank=5),
    Column("host", right=True, rank=8),
    Column("ssd", widest=34, rank=8),
    Column("copies", right=True, rank=4),
    Column("tokens", right=True, rank=3),
    Column("key", rank=6),
)


class SequenceLevel(ConsoleView):
    """Logical page -> tier, device, slot. The place names a request, or the last page of a sequence."""

    NAME = "blocks"

    def lines(self, scene: Scene) -> list[Text]:
        here = _Sequence(scene)
        lines = [here.title()]
        if here.gone:
            return [*lines, scene.line("requests stay on the bus for five minutes after their end; esc goes back")]
        lines.append(here.told())
        length = len(here)
        if not length:
            return lines
        now, found = here.now_codes, here.found_codes
        lines += flowing(
            scene,
            [
                ((f"{scene.glyphs.signs.get(place, '?')} ", _style(place)), (_word(place), "text"), f" {pages}")
                for place, pages in zip(PLACES, np.bincount(now, minlength=len(PLACES)).tolist(), strict=True)
                if pages
            ],
        )
        strips = [("now", now)] + ([("found", found)] if here.runs else [])
        room = max(1, (scene.room(SHARE) - len(lines)) // len(strips))
        width = scene.width - GUTTER
        cursor = _cursor(scene, length)
        for name, codes in strips:
            plan = layout([Stretch(0, length)], width, room)
            before = f"{name} 1:{plan.step}" if plan.step > 1 else name
            plan = plan._replace(stretches=(Stretch(0, length, before),))
            lines += draw(
                scene,
                plan,
                [*PLACES[:-1], "free" if name == "found" else "muted"],
                strongest_of(codes, len(PLACES)),
                gutter=GUTTER,
                cursor=cursor,
            )
        return lines

    def table(self, scene: Scene) -> Table:
        here = _Sequence(scene)
        if here.gone:
            return ConsoleView.EMPTY
        keys = whole_keys(scene)
        rows = LazyRows(range(len(here)), str, lambda at: here.row(at, keys), COLUMNS)
        return Table(COLUMNS, rows, empty="nothing is known of its pages yet")

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        here = _Sequence(scene)
        subject = scene.selected.subject if scene.selected is not None else None
        key = whole_keys(scene).get(subject.key, "") if isinstance(subject, PrefixPage) else ""
        return page_offers(scene, here.server, key or here.last_page)

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        here = _Sequence(scene)
        return (here.question,) if here.question is not None else ()


class _Sequence:
    """What the place names, put together from the request's facts and the answer of its rank."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.server, self.rank = scene.place.name("server") or "", scene.place.name("rank") or ""
        self.rid = scene.place.name("request") if scene.place.name("prefix") is None else None
        state = scene.moment.rank(self.server, self.rank)
        requests = state.requests if state is not None else ()
        self.request: RequestView | None = next((one for one in requests if one.rid == self.rid), None)
        self.gone = self.rid is not None and self.request is None
        self.page_tokens = state.rank.page_tokens if state is not None and state.rank is not None else None
        self.last_page = (self.request.last_page if self.request is not None else scene.place.name("prefix")) or ""
        self.answer: PrefixView | None = None
        self.stale = bool(scene.moment.lost)
        self.question: ViewQuestion | None = None
        if len(self.last_page) == KEY_DIGITS:
            self.question = ViewQuestion("prefix", self.last_page, self.server)
            self.stale = is_stale(scene, self.question)
            self.answer = answer_of(scene, self.question, self.server, self.rank)
        self.runs = self.request.tiers if self.request is not None else ()
        self._tier_ends = list(accumulate(pages for _, pages in self.runs))
        self.table: Sequence[Sequence[int]] = self.request.block_table if self.request is not None else ()
        self._block_ends = list(accumulate(last - first + 1 for first, last in self.table))

    @cached_property
    def _length(self) -> int:
        ends = [self._tier_ends[-1:] or [0], self._block_ends[-1:] or [0]]
        known = [end for (end,) in ends]
        known.append((self.request.pages if self.request is not None else 0) or 0)
        known.append((self.answer.pages if self.answer is not None else 0) or 0)
        return max(known)

    def __len__(self) -> int:
        return self._length

    def listed(self, at: int) -> PrefixPage | None:
        """What the rank said of a page, from 0. Of a long sequence it lists the last pages only."""
        table = self.answer.table if self.answer is not None else ()
        number = at + 1 - table[0].depth if table else -1
        return table[number] if 0 <= number < len(table) else None

    def found(self, at: int) -> str:
        """Where a page was when the request was admitted."""
        run = bisect_right(self._tier_ends, at)
        return self.runs[run][0] if run < len(self.runs) else ""

    def device_slot(self, at: int) -> int | None:
        run = bisect_right(self._block_ends, at)
        if run < len(self.table):
            return self.table[run][1] - (self._block_ends[run] - 1 - at)
        listed = self.listed(at)
        return listed.device if listed is not None else None

    def now(self, at: int) -> str:
        """The fastest place of a page."""
        listed = self.listed(at)
        if self.device_slot(at) is not None:
            return "device"
        return "unknown" if listed is None else fastest(listed)

    @cached_property
    def now_codes(self) -> Codes:
        """Of all pages at once, as numbers of PLACES."""
        codes = np.full(len(self), PLACES.index("unknown"), np.int64)
        if self.answer is not None and self.answer.table:
            first, told = self.answer.table[0].depth - 1, _TOLD.of(self.answer.table)
            codes[first : first + len(told)] = told[: max(0, len(self) - first)]
        codes[: self._block_ends[-1] if self._block_ends else 0] = PLACES.index("device")
        return codes

    @cached_property
    def found_codes(self) -> Codes:
        """Pages behind those of the prompt were computed since: nothing was found of them."""
        codes = np.full(len(self), PLACES.index("unknown"), np.int64)
        at = 0
        for name, pages in self.runs:
            codes[at : at + pages] = PLACES.index(name if name in PLACES else "unknown")
            at += pages
        return codes

    def row(self, at: int, keys: Mapping[str, str]) -> Row:
        scene, listed, device = self.scene, self.listed(at), self.device_slot(at)
        now = self.now(at)
        key = listed.key if listed is not None else ""
        units = " ".join(f"{number}:{slot}" for number, slot in listed.ssd) if listed is not None else ""
        host = listed.host if listed is not None else None
        peer = listed.peer if listed is not None else ""
        copies = (device is not None) + (host is not None) + bool(peer) + bool(units)
        first = None if self.page_tokens is None else at * self.page_tokens
        cells = (
            Cell(str(at + 1), at + 1),
            Cell(f"{scene.glyphs.signs.get(now, '?')} {_word(now)}", _word(now), _style(now)),
            Cell(text(self.found(at)) or NONE, style=self.found(at) or "muted"),
            _slot_cell(device, listed is not None),
            Cell(text(peer) or NONE),
            _slot_cell(host, listed is not None),
            Cell(units or (NONE if listed is not None else UNKNOWN)),
            Cell(str(copies) if listed is not None else UNKNOWN, copies if listed is not None else None),
            Cell(UNKNOWN if first is None else f"{first}-{first + (self.page_tokens or 0) - 1}", first),
            Cell(key or UNKNOWN),
        )
        return Row(str(at), cells, self._place(key, at, keys), listed, self.stale)

    def _place(self, key: str, at: int, keys: Mapping[str, str]) -> Place | None:
        """Its life."""
        return self.scene.place.enter(PlaceStep("page", keys.get(key, key))) if key else None

    def title(self) -> Text:
        scene = self.scene
        where = f"of {text(self.server)} {text(self.rank)}"
        if self.rid is None:
            return scene.line(("sequence ", "title"), f"up to page {text(self.last_page)[:LISTED_DIGITS]} {where}")
        name = f"{scene.glyphs.cut(text(self.rid), 12 if scene.width < 120 else 40)} "
        if self.request is None:
            return scene.line(
                ("request ", "title"), (name, "title"), where, ("  is not on the bus any more", "warning")
            )
        one = self.request
        return scene.line(
            ("request ", "title"),
            (name, "title"),
            where,
            (f"  {text(one.state) or UNKNOWN}", "good"),
            f"  {count(one.pages)} pages of {count(self.page_tokens)} tokens; prompt {count(one.prompt_tokens)}, "
            f"output {count(one.output_tokens)}",
        )

    def told(self) -> Text:
        scene = self.scene
        if self.question is None:
            return scene.line("the key of its last page is not known yet: only its block table is shown")
        line = answer_line(scene, self.question, "where its pages are")
        if self.answer is not None and self.answer.pages == 0:
            line.append_text(scene.line(("its last page is not known here", "warning")))
        elif self.answer is not None and len(self.answer.table) < (self.answer.pages or 0):
            line.append_text(scene.line(f"the last {len(self.answer.table)} of {self.answer.pages} pages are told"))
        return line


def fastest(page: PrefixPage) -> str:
    """The fastest place that has a copy."""
    if page.device is not None:
        return "device"
    if page.peer:
        return "peer"
    return "host" if page.host is not None else "ssd" if page.ssd else "nowhere"


def _codes(table: tuple[PrefixPage, ...]) -> Codes:
    return np.array([PLACES.index(fastest(page)) for page in table], np.int64)


_TOLD: Remembered[tuple[PrefixPage, ...], Codes] = Remembered(_codes)


def _slot_cell(slot: int | None, told: bool) -> Cell:
    return Cell(str(slot) if slot is not None else NONE if told else UNKNOWN, slot)


def _word(place: str) -> str:
    return {"unknown": "not told", "compute": "computed"}.get(place, place)


def _style(place: str) -> str:
    return {"unknown": "muted", "nowhere": "wrong"}.get(place, place)


def _cursor(scene: Scene, length: int) -> int | None:
    key = scene.selected.key if scene.selected is not None else ""
    return int(key) if key.isdecimal() and int(key) < length else None
