"""What has become of leases, and what donors have decided about their sizes, from the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.bus.hear.figures import ago, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from ...model import event_words
from ...model.palette import MARKS
from ..parts.view import Scene

#: Kinds of events that tell of leases begin so.
KINDS = ("lease.", "lending.", "borrowed.")

#: So many of the last that were read are put in order.
SORTED = 200


class LeaseEvent(NamedTuple):
    """An event of a donor or a borrower, with the lease name of who tells it."""

    name: str
    event: StreamEvent


def told(scene: Scene) -> Iterator[LeaseEvent]:
    """From the newest to the oldest."""
    server = scene.server
    for item in scene.moment.events.newest():
        if isinstance(item, StreamEvent) and item.kind.startswith(KINDS):
            donor = str(item.fields.get("donor", ""))
            if server is None or server in (item.server, donor.rpartition(".")[0]):
                yield LeaseEvent(lease_name(item.server, item.rank), item)


def of_pair(events: Iterable[LeaseEvent], donor: str, borrower: str, number: str | None = None) -> Iterator[LeaseEvent]:
    """What concerns these two, or one of their leases."""
    for one in events:
        fields = one.event.fields
        if one.name == donor and not one.event.kind.startswith("borrowed."):
            mine = fields.get("borrower") in (None, "", borrower)
            if mine and (number is None or str(fields.get("lease")) == number):
                yield one
        elif one.name == borrower and fields.get("donor") == donor and number in (None, str(fields.get("lease"))):
            yield one


def recalls(scene: Scene) -> Counter[tuple[str, str]]:
    """Of each pair: leases that the borrower was asked to return, since the first event that is kept here."""
    return Counter(
        (str(one.event.fields.get("donor")), one.name) for one in told(scene) if one.event.kind == "borrowed.recalled"
    )


def history(scene: Scene, events: Iterable[LeaseEvent], room: int) -> list[Text]:
    """The newest first, under a heading."""
    lines: list[Text] = []
    # They were read server by server: what was read last need not have happened last.
    newest = sorted(islice(events, SORTED), key=lambda one: -one.event.happened)
    for one in newest[: max(0, room - 1)]:
        event = one.event
        mark = event_words.kind_of(event).mark
        lines.append(
            scene.line(
                (f"{ago(scene.moment.age_of_event(event)):>11}  ", "muted"),
                (f"{text(one.name)}  ", "text"),
                *_what(scene, event, mark),
            )
        )
    return [scene.line(("what has happened", "title")), *lines] if lines else []


def _what(scene: Scene, event: StreamEvent, mark: Mark) -> list[tuple[str, str]]:
    """A decision says what was decided and by which window; other events what they are and their fields."""
    fields = event.fields
    if event.kind == "lending.sized":
        return [*_decision(scene, event), ("  " + event_words.words(event, _DECIDED), "muted")]
    left_out = ("donor", "borrower") if fields.get("donor") or not fields.get("borrower") else ()
    whom = f" from {text(str(fields['donor']))}" if fields.get("donor") else ""
    return [(text(event.kind), MARKS[mark]), (f"{whom}  ", "text"), (event_words.words(event, left_out), "muted")]


#: Fields of `lending.sized` that `_decision` words.
_DECIDED = ("decision", "from_bytes", "to_bytes", "peak_bytes")


def _decision(scene: Scene, event: StreamEvent) -> list[tuple[str, str]]:
    """In the words of the paper: a donor that scales up takes memory back. The window is the donor's of now."""
    fields = event.fields
    before, after = fields.get("from_bytes"), fields.get("to_bytes")
    words = {"grow": ("ScaleDown: lends more", "lent"), "shrink": ("ScaleUp: takes back", "warning")}
    word, style = words.get(str(fields.get("decision")), (text(str(fields.get("decision", "sized"))), "text"))
    said = [(word, style)]
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        said.append((f", from {size(before)} to {size(after)}", "text"))
    peak, state = fields.get("peak_bytes"), scene.moment.rank(event.server, event.rank)
    window = state.rank.lend_window_seconds if state is not None and state.rank is not None else None
    if isinstance(peak, (int, float)):
        within = "" if window is None else f" within {seconds(window)}"
        said.append((f": needed {size(peak)}{within}", "muted"))
    return said
