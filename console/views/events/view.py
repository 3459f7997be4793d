"""What has happened?"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent
from swift_tiers.radix_tiering.bus.hear.event_tail import gap_words
from swift_tiers.radix_tiering.bus.hear.figures import UNKNOWN, ago, count, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark
from swift_tiers.radix_tiering.bus.hear.troubles import SKEW_SECONDS

from ...model import event_words
from ...model.charts import Drawn, fitting
from ...model.palette import MARKS
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.view import ConsoleView, Scene
from .event_rows import LOST, EventRows, Shelf, time_words

#: From this width on there are dates and milliseconds, ranks and numbers.
WIDE = 120
EVENTS = (
    Column("time", rank=8),
    Column("mark", rank=7, words=True),
    Column("server", widest=14, rank=9),
    Column("rank", widest=10, rank=1),
    Column("number", right=True, rank=0),
    Column("kind", widest=20, rank=9),
    Column("what", widest=400, least=24, rank=9),
)
FIELDS = (
    Column("field", widest=24, rank=9),
    Column("value", widest=90, rank=9),
    Column("leads to", rank=5),
)
#: What the lines above the table are about, seconds; in so many parts of the sparkline.
LATELY, PARTS = 300.0, 30


class Events(ConsoleView):
    """The stream of all servers, the newest first; a cursor on the first row follows it. Enter: all of one event."""

    NAME = "events"
    TITLE = "Events"
    QUESTION = "what has happened?"

    def __init__(self) -> None:
        self._shelf = Shelf()  # of rows that follow from the log: they are expensive to make at each look

    def lines(self, scene: Scene) -> list[Text]:
        if scene.moment.snapshot is None:
            return []
        number = scene.place.name("event")
        return _summary(scene) if number is None else _about(scene, number)

    def table(self, scene: Scene) -> Table:
        number = scene.place.name("event")
        if number is not None:
            item = _item(scene, number)
            rows = (
                [] if not isinstance(item, StreamEvent) else [_field_row(item, *field) for field in item.fields.items()]
            )
            return Table(FIELDS, rows, empty="it has no fields") if isinstance(item, StreamEvent) else self.EMPTY
        wide = scene.width >= WIDE
        self._shelf.use(scene.moment.events, wide)
        empty = "nothing has been told" if scene.server is None else f"{text(scene.server)} has told nothing"
        return Table(EVENTS, EventRows.of(self._shelf, EVENTS, scene.server), empty=empty, follow=True)


class _Lately(NamedTuple):
    """Of the last five minutes: events by mark and by kind, what was lost, and how many there were in each part."""

    marks: Counter[Mark]
    kinds: Counter[str]
    lost: int
    parts: list[float]


def _lately(scene: Scene) -> _Lately:
    assert scene.moment.snapshot is not None
    lately = _Lately(Counter(), Counter(), 0, [0.0] * PARTS)
    lost, now = 0, scene.moment.snapshot.time
    for item in scene.moment.events.newest():
        if scene.server not in (None, item.server):
            continue
        if isinstance(item, Gap):
            lost += item.count or 1
            continue
        age = now - item.happened
        if age >= LATELY:
            break
        lately.marks[event_words.kind_of(item).mark] += 1
        lately.kinds[item.kind] += 1
        lately.parts[PARTS - 1 - max(0, int(age / LATELY * PARTS))] += 1
    return lately._replace(lost=lost)


def _summary(scene: Scene) -> list[Text]:
    """How much has happened lately, and of which kinds most."""
    lately, log = _lately(scene), scene.moment.events
    said: list[Drawn] = [[("last 5 min ", "title"), (scene.glyphs.spark(lately.parts, PARTS), "accent"), "  "]]
    for mark, word in ((Mark.WRONG, "WRONG"), (Mark.WARNING, "warnings"), (Mark.NOTE, "notes"), (Mark.OK, "ok")):
        if lately.marks[mark]:
            one = word.removesuffix("s") if lately.marks[mark] == 1 else word
            said.append([(f"{count(lately.marks[mark])} {one}  ", MARKS[mark])])
    if not lately.marks:
        said.append(["nothing  "])
    if lately.lost:
        said.append([(f"{count(lately.lost)} {LOST}  ", "warning")])
    said.append([f"{count(len(log))} kept"])
    lines = [scene.line(*fitting(scene.width, *said))]
    if lately.kinds:
        worst = sorted(lately.kinds.items(), key=lambda one: (-_mark(one[0]), -one[1]))
        most: list[Drawn] = [[(f"{text(kind)} {count(times)}  ", MARKS[_mark(kind)])] for kind, times in worst]
        lines.append(scene.line(*fitting(scene.width + 2, *most)))  # the last one's spaces may be cut
    return lines


def _mark(kind: str) -> Mark:
    return event_words.mark_of(kind)


# ---- one event ----


def _item(scene: Scene, number: str) -> StreamEvent | Gap | None:
    try:
        return scene.moment.events[int(number)]
    except (IndexError, ValueError):
        return None


def _about(scene: Scene, number: str) -> list[Text]:
    item = _item(scene, number)
    if item is None:
        kept = count(len(scene.moment.events))
        return [scene.line(("this event is kept no more", "warning"), f"; the newest {kept} are; esc goes back")]
    who = scene.line((f"{text(item.server)} {text(item.rank)}", "title"))
    if isinstance(item, Gap):
        return [scene.line((f"{LOST}: ", "warning"), (gap_words(item), "text")), who]
    kind = event_words.kind_of(item)
    differs = item.time is not None and abs(item.time - item.happened) > SKEW_SECONDS
    own = f", {time_words(item.time, True)} by its server's clock" if differs and item.time is not None else ""
    return [
        scene.line((f"{kind.mark} ", MARKS[kind.mark]), (text(item.kind), "title"), f"  {kind.meaning}"),
        scene.line(
            (f"{text(item.server)} {text(item.rank)}", "title"), f"  {time_words(item.happened, True)}"
            f" ({ago(scene.moment.age_of_event(item))}){own}",
        ),
        scene.line(f"number {item.sequence or UNKNOWN} of this rank, entry {text(item.entry)} of its server's stream"),
        Text(),
    ]  # fmt: skip


def _field_row(event: StreamEvent, name: str, value: object) -> Row:
    place = _target(event, str(name), value)
    cells = (
        Cell(text(event_words.label(str(name))), style="title"),
        Cell(event_words.value_words(str(name), value, long=200), value if isinstance(value, (int, float)) else None),
        Cell("" if place is None else place.view, style="muted"),
    )
    return Row(str(name), cells, place)


def _target(event: StreamEvent, name: str, value: object) -> Place | None:
    """Where this is looked into."""
    server, said = PlaceStep("server", event.server), str(value)
    if name in ("key", "page") and len(said) == 64:
        return Place("blocks", (PlaceStep("page", said),))
    if name == "rid":
        return Place("restores", (server, PlaceStep("request", said)))
    if name in ("lease", "leases", "donor", "borrower"):
        return Place("leases", (server,))
    if name == "device" or (name == "tier" and said == "ssd"):
        return Place("stripes", (server,))
    return None
