"""The console: what is where on the screen, and what each key does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.message import Message

from swift_tiers.console import looker
from swift_tiers.console.feeds.feed import Feed, Question
from swift_tiers.console.keys import BINDINGS, CommandsProvider, help_sections, key_line
from swift_tiers.console.looker import Looker
from swift_tiers.console.model.actions import Action, ActionError, read_action
from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.moment import Moment
from swift_tiers.console.model.navigation import Navigation
from swift_tiers.console.model.palette import Palette
from swift_tiers.console.model.place import Place
from swift_tiers.console.model.sieve import FilterError, Sieve
from swift_tiers.console.model.table import Sorting, ordered
from swift_tiers.console.model.watching import Watcher
from swift_tiers.console.screens.ask import AskScreen
from swift_tiers.console.screens.help import HelpScreen
from swift_tiers.console.status import crumbs_line, status_line, tabs_line
from swift_tiers.console.steering import Became, Steering
from swift_tiers.console.typed import THEMES, Typed
from swift_tiers.console.views import VIEWS
from swift_tiers.console.views.view import Answered, Offer, Scene, View
from swift_tiers.console.widgets.entry import Entry
from swift_tiers.console.widgets.grid import Grid
from swift_tiers.console.widgets.panel import Panel
from swift_tiers.console.widgets.scroll_bar import draw_plainly
from swift_tiers.console.widgets.status import Line
from swift_tiers.radix_tiering.bus.figures import text

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
    COMMANDS = App.COMMANDS | {CommandsProvider}
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
        self._dark = dark
        self._palette = Palette(dark)
        self._looker = Looker(feed, self.post_message, interval, monotonic)
        self._watcher = Watcher()
        self._moment = Moment(None, 0.0, "", self._watcher.history, (), self._watcher.events)
        self._rest = rest
        self._rested_at, self._pressed_at = monotonic(), 0.0
        self._looked_at: float | None = None
        self._lost = ""
        self.paused = False
        self._answers: dict[Question, looker.Answered] = {}
        self._layout = "both"
        self._sieve_before = Sieve()

    # ---- what is on the screen ----

    def compose(self) -> ComposeResult:
        yield Line(id="status")
        yield Line(id="tabs")
        yield Line(id="crumbs")
        yield Panel(id="panel")
        yield Grid(id="grid")
        yield Entry(id="entry")
        yield Line(id="keys")

    def on_mount(self) -> None:
        self.set_class(self.glyphs.ascii, "-ascii")
        self.theme = THEMES["dark" if self._dark else "light"]
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
    def view(self) -> View:
        return self.views[self.navigation.place.view]

    @property
    def moment(self) -> Moment:
        return self._moment

    @property
    def interval(self) -> float:
        return self._looker.interval

    def scene(self) -> Scene:
        """What is to be seen now, with the row under the cursor."""
        size = self.screen_stack[0].size
        answers = {
            question: Answered(said.answers, self.monotonic() - said.at, said.failed)
            for question, said in self._answers.items()
        }
        return Scene(
            moment=self._moment, place=self.navigation.place, only=self.navigation.only, width=max(20, size.width - 2),
            height=max(4, size.height - 4), alone=self._layout == "lines", palette=self._palette, glyphs=self.glyphs,
            answers=answers, selected=self.grid.row,
        )  # fmt: skip

    def offers(self) -> tuple[Offer, ...]:
        """What the operator may do here; nothing where nothing may be steered."""
        if self.readonly or self._moment.snapshot is None:
            return ()
        return self.view.offers(self.scene())

    @property
    def _is_open(self) -> bool:
        """Whether there is something to draw on. While the console is being left its widgets go one after the other,
        and messages of its threads still come."""
        return self.is_running and bool(self._screen_stack) and bool(self.screen_stack[0].query("#keys"))

    def paint(self) -> None:
        """Everything anew. What a view fails at is said in its place: the others go on."""
        if not self._is_open:
            return
        view, scene = self.view, self.scene()
        grid, panel = self.grid, self.panel
        grid.palette, grid.dimmed = self._palette, bool(self._moment.lost)
        try:
            table = view.table(scene)
            rows = self.navigation.sieve.sift(table, ordered(table, self.navigation.sorting))
            if table.columns:
                grid.show(table, rows, self.navigation.sorting)
            scene = replace(scene, selected=grid.row if table.columns else None)
            lines = view.lines(scene)
        except Exception as error:  # noqa: BLE001 - one view's fault must not take the console from the operator
            self.log.error(error)
            lines = [scene.line((f"this view failed: {type(error).__name__}: {error}", "wrong"))]
            lines.append(scene.line("please report it; the other views go on"))
            table = view.EMPTY
        if self._moment.lost and self._moment.snapshot is not None:
            # The reason is as fresh as can be; what the view says is not.
            lines = [Text(line.plain, self._palette["stale"], no_wrap=True, end="") for line in lines]
            lines = [scene.line((text(self._moment.lost), "wrong")), *lines]
        room = scene.room(view.LINES_SHARE) if table.columns else scene.height
        self._lay_out(lines, bool(table.columns), max(1, room))
        panel.show(lines)
        self._looker.set_questions(view.questions(scene))
        self.feed.requests_seconds = 0.0 if view.SHOWS_REQUESTS else looker.REQUESTS_SECONDS
        self._paint_edges()

    def _lay_out(self, lines: Sequence[Text], has_table: bool, room: int) -> None:
        """`m` leaves the table or the lines alone where there are both. `room`: the most that the lines take."""
        both = has_table and bool(lines)
        self.panel.set_class(not lines or (both and self._layout == "table"), "-hidden")
        self.grid.set_class(not has_table or (both and self._layout == "lines"), "-hidden")
        wanted = min(len(lines), room)
        if self.panel.styles.height is None or self.panel.styles.height.value != wanted:
            self.panel.styles.height = wanted
        if not self.entry.is_open and len(self.screen_stack) == 1:
            target = self.grid if has_table else self.panel
            if self.focused is not target and target.can_focus:
                target.focus()

    def _paint_edges(self) -> None:
        if not self._is_open:
            return
        root = self.screen_stack[0]
        width = root.size.width - 2
        root.query_one("#status", Line).show(status_line(self, width))
        root.query_one("#tabs", Line).show(tabs_line(self, width))
        root.query_one("#crumbs", Line).show(crumbs_line(self, width))
        root.query_one("#keys", Line).show(key_line(self, width))

    def style(self, name: str, action: str = "") -> Style:
        """Of a meaning; with an action, it can be clicked."""
        style = self._palette[name]
        return style + Style(meta={"@click": action}) if action else style

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
        if not self._is_open:
            return
        former = self._answers.get(event.question)
        if event.failed and former is not None and not former.failed:
            event = looker.Answered(event.question, former.answers, event.failed, former.at)
        self._answers[event.question] = event
        wanted = set(self.view.questions(self.scene()))
        self._answers = {one: said for one, said in self._answers.items() if one in wanted}
        # Painting costs: the next look, which is due, paints what is only newer.
        if not self.paused and (former is None or former.failed != event.failed or self.interval > looker.ASK_SECONDS):
            self.paint()

    def on_became(self, event: Became) -> None:
        self.steering.show(event)

    def _take(self, moment: Moment) -> None:
        if self.paused:
            self._paint_edges()
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
        self._paint_edges()

    def _age(self) -> float:
        return 0.0 if self._looked_at is None else max(0.0, self.monotonic() - self._looked_at)

    @property
    def lost(self) -> str:
        """Why there is no newer look, also while the screen is paused."""
        return self._lost

    def _take_theme(self, dark: bool) -> None:
        self._dark, self._palette = dark, Palette(dark)
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
            self._paint_edges()

    def action_select(self, key: str) -> None:
        """Put the cursor on a row: what clicks in a heat map do."""
        self.grid.select(key)

    # ---- sifting and sorting ----

    def action_filter(self) -> None:
        self._sieve_before = self.navigation.sieve
        columns = [f"{column.name}:" for column in self.grid.table.columns]
        self.entry.open("/", self.navigation.sieve.text, "words, /regex/, field:value, field>number, !not", columns)

    def action_command(self) -> None:
        hint = "a view, or server, sort, export, control ...; `help` lists all"
        self.entry.open(":", "", hint, self.typed.suggestions())

    def on_entry_changed(self, event: Entry.Changed) -> None:
        try:
            self.navigation.sieve = Sieve(event.text)
        except FilterError as error:
            self.entry.problem(str(error))
            return
        self.entry.problem("")
        self.paint()

    def on_entry_cancelled(self, event: Entry.Cancelled) -> None:
        if event.kind == "/":
            self.navigation.sieve = self._sieve_before
        self._close_entry()

    def on_entry_done(self, event: Entry.Done) -> None:
        try:
            if event.kind == "/":
                self.navigation.sieve = Sieve(event.text)
                self._close_entry()
            elif event.text.strip():
                action = read_action(event.text, tuple(self.views))
                self._close_entry()
                self.typed.perform(action)
            else:
                self._close_entry()
        except (ActionError, FilterError) as error:
            if event.kind == ":":
                self.entry.open(event.kind, event.text, "")
            self.entry.problem(str(error))

    def _close_entry(self) -> None:
        self.entry.close()
        self.grid.focus()
        self.paint()

    def action_sort(self, by: int) -> None:
        names = [None, *(column.name for column in self.grid.table.columns)]
        sorting = self.navigation.sorting
        at = names.index(sorting.column) if sorting.column in names else 0
        self.sort(names[(at + by) % len(names)], True)

    def action_reverse(self) -> None:
        sorting = self.navigation.sorting
        self.sort(sorting.column, not sorting.descending)

    def on_grid_headed(self, event: Grid.Headed) -> None:
        sorting = self.navigation.sorting
        self.sort(event.column, not sorting.descending if sorting.column == event.column else True)

    def sort(self, column: str | None, descending: bool) -> None:
        """By this column; None: as the view has them."""
        self.navigation.sorting = Sorting(column, descending)
        self.paint()

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
        self._paint_edges()

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
            self._paint_edges()

    # ---- the rest ----

    def action_maximise(self) -> None:
        self._layout = {"both": "table", "table": "lines", "lines": "both"}[self._layout]
        self.paint()

    def action_theme(self) -> None:
        self.theme = THEMES["light" if self._dark else "dark"]

    def action_help(self) -> None:
        self.push_screen(HelpScreen(help_sections(self), plain=self.glyphs.ascii))

    def action_export(self) -> None:
        def chosen(answer: str | None) -> None:
            if answer is not None:
                self.typed.perform(Action("export", tuple(answer.split()[:2]) or ("csv",)))

        self.push_screen(AskScreen("Export what is shown", "csv, json or svg, and a file if you like", "csv"), chosen)

    def tell(self, text: str, bad: bool = False) -> None:
        """A word that goes away by itself."""
        self.notify(text, severity="error" if bad else "information", timeout=8, markup=False)

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
