"""The console: what is where on the screen, and what each key does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.message import Message

from . import looker
from .feeds.feed import Feed, Question
from .feeds.watching import Watcher
from .keys import BINDINGS, CommandsProvider, help_sections
from .looker import Looker
from .model.glyphs import ASCII, UNICODE
from .model.moment import Moment
from .model.navigation import Navigation
from .model.palette import Palette
from .model.place import Place
from .model.sieve import Sieve
from .painter import LAYOUTS, Painter
from .screens.commands import CommandsScreen
from .screens.help import HelpScreen
from .sifting import Sifting
from .steering import Became, Steering
from .typed import THEMES, Typed
from .views import VIEWS
from .views.parts.view import Offer, Scene, View
from .widgets.entry import Entry
from .widgets.grid import Grid
from .widgets.panel import Panel
from .widgets.said import Said
from .widgets.scroll_bar import draw_plainly
from .widgets.status import Line

#: Between two paintings of what only time changes (ages), seconds.
TICK_SECONDS = 1.0
#: Between two rests, seconds, and how long nothing must have been pressed before one.
REST_SECONDS, QUIET_SECONDS = 10.0, 2.0
#: Of a recording: what `[` and `]` jump, seconds.
JUMP_SECONDS = 10.0


class ConsoleApp(App[None]):
    """Everything on the screen follows from the last look and from where the operator is (`Scene`)."""

    TITLE = "swift-tiers"
    CSS_PATH = Path(__file__).with_name("console.tcss")  # also for classes that are made of this one
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {CommandsProvider}
    BINDINGS: ClassVar[list[BindingType]] = [*BINDINGS]

    def __init__(
        self,
        feed: Feed,
        *,
        interval: float = looker.USUAL,
        readonly: bool = False,
        ascii: bool = False,
        dark: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
        folder: Path | None = None,
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        """`monotonic` and `now` are the console's own clock; `folder` is where exports go (the current directory).
        `rest` is called now and then while nobody presses a key, first when the first look has been painted."""
        super().__init__()
        self.feed = feed
        self.readonly = readonly or not feed.steers
        self.folder = folder
        self.glyphs = ASCII if ascii else UNICODE
        self.monotonic = monotonic
        self.now = now
        self.views: dict[str, View] = {view.NAME: view() for view in VIEWS}
        self.navigation = Navigation(tuple(self.views))
        self.steering = Steering(self)
        self.typed = Typed(self)
        self.painter = Painter(self)
        self.sifting = Sifting(self)
        self.palette = Palette(dark, self.no_color)
        self._looker = Looker(feed, self.post_message, interval, monotonic)
        self._watcher = Watcher()
        self._moment = Moment(None, 0.0, "", self._watcher.history, (), self._watcher.events)
        self._rest = rest
        self._rested_at, self._pressed_at = monotonic(), 0.0
        self._looked_at: float | None = None
        self._lost = ""
        self.paused = False
        self.answers: dict[Question, looker.Answered] = {}

    # ---- what is on the screen ----

    def compose(self) -> ComposeResult:
        yield Line(id="status")
        yield Line(id="tabs")
        yield Line(id="crumbs")
        yield Panel(id="panel")
        yield Grid(id="grid")
        yield Said(id="said")
        yield Entry(id="entry")
        yield Line(id="keys")

    def on_mount(self) -> None:
        self.set_class(self.glyphs.ascii, "-ascii")
        self.theme = THEMES["dark" if self.palette.dark else "light"]
        self.grid.glyphs = self.glyphs
        if self.glyphs.ascii:
            draw_plainly(self.grid)
            draw_plainly(self.panel)
        self.theme_changed_signal.subscribe(self, lambda theme: self._take_theme(theme.dark))
        self.grid.focus()
        self.paint()
        self.set_interval(TICK_SECONDS, self._tick)
        self._looker.start()

    def on_unmount(self) -> None:
        self._looker.stop()
        self.feed.close()

    @property
    def grid(self) -> Grid:
        return self.screen_stack[0].query_one("#grid", Grid)

    @property
    def panel(self) -> Panel:
        return self.screen_stack[0].query_one("#panel", Panel)

    @property
    def entry(self) -> Entry:
        return self.screen_stack[0].query_one("#entry", Entry)

    @property
    def said(self) -> Said:
        return self.screen_stack[0].query_one("#said", Said)

    @property
    def view(self) -> View:
        return self.views[self.navigation.place.view]

    @property
    def moment(self) -> Moment:
        return self._moment

    @property
    def interval(self) -> float:
        return self._looker.interval

    def offers(self) -> tuple[Offer, ...]:
        """What the operator may do here; nothing where nothing may be steered."""
        if self.readonly or self._moment.snapshot is None:
            return ()
        return self.view.offers(self.scene())

    def scene(self) -> Scene:
        return self.painter.scene()

    def paint(self) -> None:
        """Everything anew."""
        self.painter.paint()

    def ask(self, questions: tuple[Question, ...]) -> None:
        """What the view on the screen wants to know, from now on."""
        self._looker.set_questions(questions)

    def style(self, name: str, action: str = "") -> Style:
        """Of a meaning; with an action, it can be clicked."""
        style = self.palette[name]
        return style + Style(meta={"@click": action}) if action else style

    def tell(self, text: str, bad: bool = False, stays: bool = False) -> None:
        """A word that goes away by itself, unless it stays until it is silenced."""
        self.said.say(text, self.palette["warning" if bad else "note"], bad, stays)

    # ---- what comes from outside ----

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._pressed_at = self.monotonic()
        await super().on_event(event)

    def on_looked(self, event: looker.Looked) -> None:
        alarms = self._watcher.take(event.look)
        if self._looked_at is None:
            self.call_after_refresh(self._rest)
        self._looked_at, self._lost = event.at, ""
        watcher = self._watcher
        self._take(Moment(event.look.snapshot, self._age(), "", watcher.history, alarms, watcher.events))

    def on_lost(self, event: looker.Lost) -> None:
        self._lost = event.reason
        self._take(replace(self._moment, age=self._age(), lost=event.reason))

    def on_answered(self, event: looker.Answered) -> None:
        if not self.painter.is_open:
            return
        former = self.answers.get(event.question)
        if event.failed and former is not None and not former.failed:
            event = looker.Answered(event.question, former.answers, event.failed, former.at)
        self.answers[event.question] = event
        wanted = set(self.view.questions(self.scene()))
        self.answers = {one: said for one, said in self.answers.items() if one in wanted}
        # Painting costs: the next look, which is due, paints what is only newer.
        if not self.paused and (former is None or former.failed != event.failed or self.interval > looker.ASK_SECONDS):
            self.paint()

    def on_said_changed(self) -> None:
        self.paint()

    def on_became(self, event: Became) -> None:
        if self.painter.is_open:
            self.steering.show(event)

    def _take(self, moment: Moment) -> None:
        if self.paused:
            self.painter.edges()
            return
        self._moment = moment
        self.paint()

    def _tick(self) -> None:
        """Ages grow while nothing comes."""
        now = self.monotonic()
        if now - self._rested_at >= REST_SECONDS and now - self._pressed_at >= QUIET_SECONDS:
            self._rested_at = now
            self._rest()
        if not self.paused:
            self._moment = replace(self._moment, age=self._age())
            if self._moment.lost or self._moment.age > 2 * self.interval + TICK_SECONDS:
                self.paint()
                return
        self.painter.edges()

    def _age(self) -> float:
        return 0.0 if self._looked_at is None else max(0.0, self.monotonic() - self._looked_at)

    @property
    def lost(self) -> str:
        """Why there is no newer look, also while the screen is paused."""
        return self._lost

    def _take_theme(self, dark: bool) -> None:
        self.palette = Palette(dark, self.no_color)
        self.paint()

    def on_resize(self) -> None:
        self.call_after_refresh(self.paint)

    # ---- moving ----

    def action_view(self, name: str) -> None:
        self.navigation.turn(name)
        self.paint()

    def action_next_view(self, by: int) -> None:
        if len(self.screen_stack) > 1:
            if by > 0:
                self.screen.focus_next()
            else:
                self.screen.focus_previous()
            return
        self.navigation.next(by)
        self.paint()

    def action_leave(self) -> None:
        self.said.silence()
        if self.navigation.sieve:
            self.navigation.sieve = Sieve()
        elif not self.navigation.back() and self.navigation.only is not None:
            self.navigation.limit(None)
        self.paint()

    def action_go(self, depth: int) -> None:
        """To one of the breadcrumbs; 0 is the view's top."""
        place = self.navigation.place
        self.navigation.enter(place._replace(steps=place.steps[:depth]))
        self.paint()

    def enter(self, place: Place) -> None:
        self.navigation.enter(place)
        self.paint()

    def on_grid_entered(self, event: Grid.Entered) -> None:
        if event.row.place is not None:
            self.enter(event.row.place)

    def on_grid_moved(self) -> None:
        if self.view.FOLLOWS_CURSOR:
            self.paint()
        else:
            self.painter.edges()

    def action_select(self, key: str) -> None:
        """Put the cursor on a row: what clicks in a heat map do."""
        self.grid.select(key)

    # ---- sifting and sorting ----

    def action_filter(self) -> None:
        self.sifting.open_filter()

    def action_command(self) -> None:
        self.sifting.open_command()

    def on_entry_changed(self, event: Entry.Changed) -> None:
        self.sifting.changed(event.text)

    def on_entry_cancelled(self, event: Entry.Cancelled) -> None:
        self.sifting.cancelled(event.kind)

    def on_entry_done(self, event: Entry.Done) -> None:
        self.sifting.done(event.kind, event.text)

    def action_sort(self, by: int) -> None:
        self.sifting.step(by)

    def action_reverse(self) -> None:
        self.sifting.reverse()

    def on_grid_headed(self, event: Grid.Headed) -> None:
        self.sifting.headed(event.column)

    # ---- time ----

    def action_pause(self) -> None:
        player = self.feed.player
        if player is not None:
            player.play(not player.playing)
            self.look_soon()
        else:
            self.paused = not self.paused
        self.paint()

    def action_rate(self, factor: float) -> None:
        self.set_rate(self.interval / factor)

    def set_rate(self, seconds: float) -> None:
        self._looker.set_interval(seconds)
        self.painter.edges()

    def look_soon(self) -> None:
        """What is shown has changed by the operator's doing."""
        self._looker.look_soon()

    def action_jump(self, by: int) -> None:
        if self.feed.player is not None:
            self.feed.player.seek(self.feed.player.position + by * JUMP_SECONDS)
            self.look_soon()

    def action_step(self, by: int) -> None:
        if self.feed.player is not None:
            self.feed.player.step(by)
            self.look_soon()

    def action_speed(self, factor: float) -> None:
        if self.feed.player is not None:
            self.feed.player.set_speed(self.feed.player.speed * factor)
            self.painter.edges()

    # ---- the rest ----

    def action_maximise(self) -> None:
        self.painter.layout = LAYOUTS[self.painter.layout]
        self.paint()

    def action_theme(self) -> None:
        self.theme = THEMES["light" if self.palette.dark else "dark"]

    def action_help(self) -> None:
        self.push_screen(HelpScreen(help_sections(self), plain=self.glyphs.ascii))

    def action_command_palette(self) -> None:
        if len(self.screen_stack) == 1:
            self.push_screen(CommandsScreen(plain=self.glyphs.ascii))

    def action_export(self) -> None:
        self.typed.ask_export("csv")

    def on_key(self, event: Message) -> None:
        """Keys of what may be done here. The others have bindings."""
        key = getattr(event, "character", None)
        if key is None or self.entry.is_open or len(self.screen_stack) > 1:
            return
        for offer in self.offers():
            if offer.key == key:
                event.stop()
                self.steering.begin(offer)
                return
