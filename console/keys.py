"""The keys that live here and now: in the bottom line, in the help, and as commands of the palette."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider

from swift_tiers.radix_tiering.bus.hear.figures import text

from .application import Application
from .model.actions import SPELLINGS
from .screens.help import Section
from .session import Session
from .views import VIEWS

#: Of the console as a whole; the grid has those that move its cursor.
BINDINGS: list[BindingType] = [
    *(Binding(str(number), f"view('{view.NAME}')", view.TITLE, show=False) for number, view in enumerate(VIEWS, 1)),
    Binding("tab", "next_view(1)", "next view", show=False, priority=True),
    Binding("shift+tab", "next_view(-1)", "view before", show=False, priority=True),
    Binding("slash", "filter", "filter"),
    Binding("colon", "command", "command"),
    Binding("question_mark", "help", "help"),
    Binding("s", "sort(1)", "sort by the next column", show=False),
    Binding("S", "sort(-1)", "sort by the column before", show=False),
    Binding("r", "reverse", "turn the order around", show=False),
    Binding("space", "pause", "pause"),
    Binding("plus,equals_sign", "rate(2.0)", "look more often", show=False),
    Binding("minus", "rate(0.5)", "look less often", show=False),
    Binding("m", "maximise", "table, lines, or both", show=False),
    Binding("e", "export", "export"),
    Binding("t", "theme", "dark or light", show=False),
    Binding("escape", "leave", "back", show=False),
    Binding("left_square_bracket", "jump(-1)", "10 s back", show=False),
    Binding("right_square_bracket", "jump(1)", "10 s on", show=False),
    Binding("comma", "step(-1)", "one look back", show=False),
    Binding("full_stop", "step(1)", "one look on", show=False),
    Binding("less_than_sign", "speed(0.5)", "half as fast", show=False),
    Binding("greater_than_sign", "speed(2.0)", "twice as fast", show=False),
    Binding("q", "quit", "leave", show=False),
    Binding("ctrl+c", "quit", "leave", show=False, priority=True),
]

#: What the bottom line shows, the most wanted first; what has no room is in the help.
SHOWN = (
    ("?", "help"), ("enter", "open"), ("esc", "back"), ("/", "filter"), (":", "command"), ("s", "sort"),
    ("space", "pause"), ("m", "maximise"), ("e", "export"), ("q", "quit"),
)  # fmt: skip
PLAYING = (("space", "play"), ("[ ]", "10 s"), (", .", "step"), ("< >", "speed"))


def key_line(session: Session, width: int) -> Text:
    """What may be done about the row comes first."""
    line = Text(no_wrap=True, end="")
    keys = [(offer.key, offer.label, "warning") for offer in session.offers()]
    if session.feed.player is not None:
        keys += [(key, what, "note") for key, what in PLAYING]
    taken = {key for key, _, _ in keys}
    keys += [(key, what, "accent") for key, what in SHOWN if key not in taken]
    for key, what, style in keys:
        word = f"{key} {what}  "
        if line.cell_len + len(word) - 2 > width:
            continue
        line.append(f"{key} ", session.style(style))
        line.append(f"{what}  ", session.style("muted"))
    return line


def help_sections(session: Session) -> list[Section]:
    """Everything that can be pressed or typed just here."""
    offers = [(offer.key, text(f"{offer.what}: {offer.effect}")) for offer in session.offers()]
    sections: list[Section] = [(f"{session.view.TITLE}: {session.view.QUESTION}", _here(session))]
    if offers:
        sections.append(("Steer: each asks before it does anything", offers))
    elif session.readonly:
        sections.append(("Steering is off", [("", "readonly, or nothing here obeys commands")]))
    sections.append(
        (
            "Move",
            [
                (f"1-{len(VIEWS)}", ", ".join(view.TITLE for view in VIEWS)),
                ("tab, shift+tab", "the next view, the one before"),
                ("up down j k, page up/down", "rows; g and G: the first, the last"),
                ("enter, esc", "into a row, and back; the mouse does, too"),
                ("/", 'filter: words, /regex/, field:value, field>4GiB, !not, "with spaces"; esc takes it away'),
                ("s S r", "sort by the next column, the one before; turn the order around; or click a heading"),
                (":", "command line; up: what was typed before; right: take the suggestion"),
                ("ctrl+p", "palette"),
            ],
        )
    )
    sections.append(
        (
            "Screen",
            [
                ("space", "pause: the screen stays as it is, reading goes on"),
                ("+ -", "look more or less often"),
                ("m", "the table alone, the lines alone, both"),
                ("e", "export what is shown: csv, json, svg"),
                ("t", "dark or light"),
                ("q, ctrl+c", "leave; servers do not notice"),
            ],
        )
    )
    if session.feed.player is not None:
        sections.append(
            (
                "Recording",
                [
                    ("space", "play or stop"),
                    ("[ ]", "10 seconds back, on"),
                    (", .", "one look back, on"),
                    ("< >", "half, twice as fast; `:seek 90`, `:speed 4`"),
                ],
            )
        )
    sections.append(("Typed after :", [(spelling.usage, spelling.what) for spelling in SPELLINGS]))
    return sections


def _here(session: Session) -> list[tuple[str, str]]:
    row = session.shown.row
    opens = row is not None and row.place is not None
    return [("enter", "opens the row under the cursor" if opens else "opens nothing here")]


class CommandsProvider(Provider):
    """The views, the servers, what may be done here, for ctrl+p."""

    async def discover(self) -> Hits:
        for command in self._application.commands():
            yield DiscoveryHit(command.name, command.run, help=command.what)

    async def search(self, query: str) -> AsyncIterator[Hit]:
        matcher = self.matcher(query)
        for command in self._application.commands():
            score = matcher.match(command.name)
            if score > 0:
                yield Hit(score, matcher.highlight(command.name), command.run, help=command.what)

    @property
    def _application(self) -> Application:
        return cast(Application, self.app)
