"""One page's life: who holds it, its copies, its checksum, its last use, its origin, and the pages around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import PageView, RankedView, RequestView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, count, seconds, size, text

from ...feeds.feed import ViewQuestion
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import (
    KEY_DIGITS,
    LISTED_DIGITS,
    answer_line,
    flowing,
    is_stale,
    views_of,
    whole_keys,
)
from ..parts.blocks_offers import page_offers
from ..parts.view import ConsoleView, OfferedAction, Scene
from .blocks_tier import SHARE, slot_place

#: Both ways in which answers name a slot of borrowed memory.
_PEER = re.compile(r"(\S+?)(?:/| lease )(\d+)(?:/| slot )(\d+)", re.ASCII)

COLUMNS = (
    Column("server", widest=20, rank=8),
    Column("rank", rank=6),
    Column("what", rank=9),
    Column("where", widest=70, rank=9),
    Column("Enter leads to", widest=40, rank=4),
)


class PageLevel(ConsoleView):
    """A page by its key, at all servers; the first 16 digits will do, and fewer where the whole key was seen."""

    NAME = "blocks"

    def lines(self, scene: Scene) -> list[Text]:
        key = page_key(scene)
        named = text(scene.place.name("page") or "")
        if key is None:
            return [
                scene.line(("page ", "title"), (named, "title"), ("  cannot be asked for", "warning")),
                scene.line("give its key, or the first 16 digits; requests, events and sequences show keys of pages"),
            ]
        whole = _whole(scene, key) or key
        lines = [
            scene.line(("page ", "title"), (whole if scene.width >= KEY_DIGITS + 8 else whole[:LISTED_DIGITS], "title"))
        ]
        lines.append(answer_line(scene, _question(scene, key), "who holds this page"))
        views: list[PageView] = list(views_of(scene, _question(scene, key)))
        if views and not any(view.held or view.device_slot is not None for view in views):
            lines.append(
                scene.line(("nobody holds it: it was evicted, dropped or flushed, or never stored", "warning"))
            )
        spaces = {text(view.namespace)[:LISTED_DIGITS] for view in views if view.namespace}
        lines[1].append_text(scene.line(f"namespace {', '.join(sorted(spaces))}" if spaces else ""))
        age = scene.answers[_question(scene, key)].age if views else 0.0
        lives = [_life(scene, view, age) for view in views]
        room, more = scene.room(SHARE) - len(lines) - 2, 0
        while lives and sum(map(len, lives)) > room and len(lives) > 1:
            lives.pop()
            more += 1
        lines += [line for life in lives for line in life]
        if more:
            lines.append(scene.line(f"and {more} more ranks: they are in the table"))
        told = {view.checksum for view in views if view.checksum}
        if len(told) > 1:
            lines.append(scene.line(("checksums differ: ", "note"), "these ranks computed the page each by itself"))
        users = _users(scene, whole)
        if users:
            rids = ", ".join(scene.glyphs.cut(text(one.rid), 12) for one in users[:4])
            lines.append(scene.line(f"prompts of {count(len(users))} requests end with it: {rids}"))
        return lines

    def table(self, scene: Scene) -> Table:
        key = page_key(scene)
        if key is None or _question(scene, key) not in scene.answers:
            return ConsoleView.EMPTY
        views: list[PageView] = list(views_of(scene, _question(scene, key)))
        stale = is_stale(scene, _question(scene, key))
        rows = [row._replace(stale=stale) for view in views for row in _copies(scene, view)]
        rows += [_user_row(scene, one) for one in _users(scene, _whole(scene, key) or key)]
        return Table(COLUMNS, rows, empty="nobody has told of it")

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        key = page_key(scene)
        if key is None:
            return ()
        subject = scene.selected.subject if scene.selected is not None else None
        server = subject.server if isinstance(subject, (PageView, RequestView)) else scene.server
        if server is None:
            holders = [view.server for view in views_of(scene, _question(scene, key)) if view.held]
            server = holders[0] if holders else None
        return page_offers(scene, server, _whole(scene, key) or "")

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        key = page_key(scene)
        return (_question(scene, key),) if key is not None else ()


def page_key(scene: Scene) -> str | None:
    """What is to be asked for: the whole key of the page that the place names, or its first digits; None if there are
    too few."""
    named = (scene.place.name("page") or "").lower()
    if not all(digit in "0123456789abcdef" for digit in named) or len(named) > KEY_DIGITS:
        return None
    if len(named) == KEY_DIGITS:
        return named
    found = {key for key in whole_keys(scene).values() if named and key.startswith(named)}
    if len(found) == 1:
        return found.pop()
    return named[: len(named) // 2 * 2] if len(named) >= LISTED_DIGITS else None


def _whole(scene: Scene, key: str) -> str | None:
    """The whole key, where it is known."""
    if len(key) == KEY_DIGITS:
        return key
    found = {view.whole_key for view in views_of(scene, _question(scene, key)) if view.whole_key}
    return found.pop() if len(found) == 1 else None


def _question(scene: Scene, key: str) -> ViewQuestion:
    """Asked of all servers, to be compared."""
    return ViewQuestion("page", key, scene.only)


def _users(scene: Scene, key: str) -> list[RequestView]:
    ranks = scene.moment.ranks(scene.only)
    return [one for rank in ranks for one in rank.requests if one.last_page == key]


def _life(scene: Scene, view: PageView, age: float) -> list[Text]:
    """What one rank said `age` seconds ago, in two lines."""
    name = f"{text(view.server)} {text(view.rank)}  "
    if view.held is None:
        return [scene.line((name, "title"), ("says nothing of it", "warning"))]
    if not view.held:
        only = "on the device only; not stored below" if view.device_slot is not None else "not known here"
        return [scene.line((name, "title"), (only, "muted"))]
    used = "not lately"
    if view.last_used_seconds is not None:
        used = f"{seconds(round(view.last_used_seconds + (view.age_seconds or 0.0) + age, 1))} ago"
    pins = view.pins
    checksum = scene.glyphs.cut(text(view.checksum), LISTED_DIGITS + 1) if view.checksum else "not known yet"
    facts: list[tuple[tuple[str, str] | str, ...]] = [
        ((name, "title"), (text(view.origin) or "origin not told", "text")),
        (f"used {count(view.uses)} times, last {used}",),
        ((f"pins {count(pins)}", "pinned" if pins else "muted"),),
        (f"  page {count(view.depth)}, {count(view.children)} behind it",),
        (size(view.bytes),),
        (f"checksum {checksum}",),
        (f"generation {NONE if view.generation is None else view.generation}",),
    ]
    return flowing(scene, facts)


def _copies(scene: Scene, view: PageView) -> Iterator[Row]:
    if not view.held and view.device_slot is None:
        yield _row(scene, view, "nothing", "not known here" if view.held is False else "not told", None, "")
        return
    yield from _places(scene, view, view.device_slot, view.host_slot, view.peer, view.ssd_placement)
    home = (PlaceStep("server", view.server), PlaceStep("rank", view.rank))
    if view.held:
        steps = (*home, PlaceStep("prefix", view.whole_key or view.key))
        yield _row(
            scene, view, "sequence", f"{count(view.depth)} pages up to this one", Place("blocks", steps), "its pages"
        )
        parent = Place("blocks", (PlaceStep("page", view.parent),)) if view.parent else None
        where = scene.glyphs.cut(text(view.parent), 40) if view.parent else "none: it is the first"
        yield _row(scene, view, "page before", where, parent, "that page's life")


def _places(
    scene: Scene, view: RankedView, device: int | None, host: int | None, peer: str, ssd: tuple[tuple[int, int], ...]
) -> Iterator[Row]:
    """A row for each copy, and for each stripe unit of the one on ssd."""
    server, rank = view.server, view.rank
    for tier, slot in (("device", device), ("host", host)):
        if slot is not None:
            yield _row(scene, view, tier, f"slot {slot}", slot_place(server, rank, tier, slot), f"the map of {tier}")
    if peer:
        match = _PEER.fullmatch(peer)
        place = slot_place(server, rank, "peer", int(match[3]), f"{match[1]}/{match[2]}") if match else None
        yield _row(scene, view, "peer", text(peer), place, "the map of peer")
    for unit, (device_number, slot) in enumerate(ssd):
        where = f"unit {unit} of {len(ssd)}: device {device_number}, slot {slot}"
        place = slot_place(server, rank, "ssd", slot, str(device_number))
        yield _row(scene, view, "ssd", where, place, "the map of ssd")


def _row(scene: Scene, view: RankedView, what: str, where: str, place: Place | None, leads: str) -> Row:
    cells = (
        Cell(text(view.server), style="title"), Cell(text(view.rank)), Cell(what, style=what), Cell(where),
        Cell(leads if place is not None else NONE, style="muted"),
    )  # fmt: skip
    return Row(f"{view.server} {view.rank} {what} {where}", cells, place, view)


def _user_row(scene: Scene, request: RequestView) -> Row:
    steps = (PlaceStep("server", request.server), PlaceStep("rank", request.rank), PlaceStep("request", request.rid))
    where = f"{text(request.rid)}  {text(request.state)}"
    row = _row(scene, request, "request", where, Place("blocks", steps), "its pages")
    return row._replace(stale=scene.moment.is_old(request))
