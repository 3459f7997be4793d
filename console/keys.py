"""The keys that live here and now: in the bottom line, in the help, and as commands of the palette."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider

from swift_tiers.radix_tiering.bus.hear.figures import text

from .model.actions import SPELLINGS
from .screens.help import Section
from .views import VIEWS

if TYPE_CHECKING:
    from .app import ConsoleApp

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


def key_line(app: ConsoleApp, width: int) -> Text:
    """What may be done about the row comes first."""
    line = Text(no_wrap=True, end="")
    keys = [(offer.key, offer.label, "warning") for offer in app.offers()]
    if app.feed.player is not None:
        keys += [(key, what, "note") for key, what in PLAYING]
    taken = {key for key, _, _ in keys}
    keys += [(key, what, "accent") for key, what in SHOWN if key not in taken]
    for key, what, style in keys:
        word = f"{key} {what}  "
        if line.cell_len + len(word) - 2 > width:
            continue
        line.append(f"{key} ", app.style(style))
        line.append(f"{what}  ", app.style("muted"))
    return line


def help_sections(app: ConsoleApp) -> list[Section]:
    """Everything that can be pressed or typed just here."""
    offers = [(offer.key, text(f"{offer.what}: {offer.effect}")) for offer in app.offers()]
    sections: list[Section] = [(f"{app.view.TITLE}: {app.view.QUESTION}", _here(app))]
    if offers:
        sections.append(("Steer: each asks before it does anything", offers))
    elif app.readonly:
        sections.append(("Steering is off", [("", "readonly, or nothing here obeys commands")]))
    sections.append(("Move", [
        (f"1-{len(VIEWS)}", ", ".join(view.TITLE for view in VIEWS)),
        ("tab, shift+tab", "the next view, the one before"),
        ("up down j k, page up/down", "rows; g and G: the first, the last"),
        ("enter, esc", "into a row, and back; the mouse does, too"),
        ("/", "filter: words, /regex/, field:value, field>4GiB, !not, \"with spaces\"; esc takes it away"),
        ("s S r", "sort by the next column, the one before; turn the order around; or click a heading"),
        (":", "command line; up: what was typed before; right: take the suggestion"),
        ("ctrl+p", "palette"),
    ]))  # fmt: skip
    sections.append(("Screen", [
        ("space", "pause: the screen stays as it is, reading goes on"),
        ("+ -", "look more or less often"),
        ("m", "the table alone, the lines alone, both"),
        ("e", "export what is shown: csv, json, svg"),
        ("t", "dark or light"),
        ("q, ctrl+c", "leave; servers do not notice"),
    ]))  # fmt: skip
    if app.feed.player is not None:
        sections.append(("Recording", [
            ("space", "play or stop"), ("[ ]", "10 seconds back, on"), (", .", "one look back, on"),
            ("< >", "half, twice as fast; `:seek 90`, `:speed 4`"),
        ]))  # fmt: skip
    sections.append(("Typed after :", [(spelling.usage, spelling.what) for spelling in SPELLINGS]))
    return sections


def _here(app: ConsoleApp) -> list[tuple[str, str]]:
    row = app.grid.row
    opens = row is not None and row.place is not None
    return [("enter", "opens the row under the cursor" if opens else "opens nothing here")]


class CommandsProvider(Provider):
    """The views, the servers, what may be done here, for ctrl+p."""

    async def discover(self) -> Hits:
        for name, what, run in self._commands():
            yield DiscoveryHit(name, run, help=what)

    async def search(self, query: str) -> AsyncIterator[Hit]:
        matcher = self.matcher(query)
        for name, what, run in self._commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=what)

    def _commands(self):  # type: ignore[no-untyped-def]  # triples of two texts and what Textual calls
        app = cast("ConsoleApp", self.app)
        for view in VIEWS:
            yield f"View {view.TITLE}", view.QUESTION, partial(app.action_view, view.NAME)
        for state in app.moment.servers:
            name = state.server.server
            yield f"Server {text(name)}", "show this one only", partial(app.typed.line, f"server {name}")
        yield "All servers", "show all of them", partial(app.typed.line, "server all")
        for offer in app.offers():
            yield text(offer.what[0].upper() + offer.what[1:]), text(offer.effect), partial(app.steering.begin, offer)
        for kind in ("csv", "json", "svg"):
            yield f"Export {kind}", "what is shown", partial(app.typed.line, f"export {kind}")
        yield "Keys", "those that live here", app.action_help
        yield "Pause", "stop the screen, or let it go on", app.action_pause
        yield "Theme", "dark or light", app.action_theme
        yield "Quit", "leave; servers do not notice", app.action_quit
