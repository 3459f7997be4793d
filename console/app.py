"""The console: what is where on the screen, and what each key does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.message import Message

from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.bus.hear.figures import text

from . import looker
from .application import PaletteCommand, Widgets
from .feeds.feed import Feed, ViewQuestion
from .keys import BINDINGS, CommandsProvider, help_sections
from .looker import Looker
from .model.glyphs import ASCII, UNICODE
from .model.palette import Palette
from .model.place import Place
from .model.sieve import Sieve
from .painter import Painter
from .screens.commands import CommandsScreen
from .screens.help import HelpScreen
from .session import LAYOUTS, Reply, Session
from .sifting import Sifting
from .steering import CommandAnswered, Steering
from .typed import THEMES, Typed
from .views import VIEWS
from .widgets.entry import Entry
from .widgets.grid import Grid
from .widgets.notice import Notice
from .widgets.panel import Panel
from .widgets.scroll_bar import draw_plainly
from .widgets.status import StatusLine

#: Between two paintings of what only time changes (ages), seconds.
TICK_SECONDS = 1.0
#: Between two looks whether the screen has been laid out anew, seconds.
LAYOUT_SECONDS = 0.01
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
        monotonic: Callable[[], float] = THREADS.boot_time,
        now: Callable[[], datetime] = datetime.now,
        folder: Path | None = None,
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        """`monotonic` and `now` are the console's own clock, which goes on while the machine sleeps: what is shown then
        grows old. `folder` is where exports go (the current directory). `rest` is called now and then while nobody
        presses a key, first when the first look has been painted."""
        super().__init__()
        self.widgets = Widgets(
            StatusLine(id="status"),
            StatusLine(id="tabs"),
            StatusLine(id="crumbs"),
            Panel(id="panel"),
            Grid(id="grid"),
            Notice(id="said"),
            Entry(id="entry"),
            StatusLine(id="keys"),
        )
        self.grid, self.panel = self.widgets.grid, self.widgets.panel
        self.entry, self.said = self.widgets.entry, self.widgets.said
        self.session = Session(
            feed,
            self.grid,
            Palette(dark, self.no_color),
            ASCII if ascii else UNICODE,
            interval,
            readonly or not feed.steers,
            monotonic,
            now,
            folder,
        )
        self.navigation = self.session.navigation
        self.steering = Steering(self.session, self, self.said)
        self.typed = Typed(self.session, self, self.steering)
        self.painter = Painter(self.session, self, self.widgets)
        self.sifting = Sifting(self.session, self, self.widgets, self.typed)
        self._feed = feed
        self._looker = Looker(feed, self.post_message, interval, monotonic)
        self._monotonic = monotonic
        self._rest = rest
        self._rested_at, self._pressed_at = monotonic(), 0.0

    # ---- what is on the screen ----

    def compose(self) -> ComposeResult:
        yield from self.widgets

    def on_mount(self) -> None:
        self.set_class(self.session.glyphs.ascii, "-ascii")
        self.theme = THEMES["dark" if self.session.palette.dark else "light"]
        self.grid.glyphs = self.session.glyphs
        if self.session.glyphs.ascii:
            draw_plainly(self.grid)
            draw_plainly(self.panel)
        self.theme_changed_signal.subscribe(self, lambda theme: self._take_theme(theme.dark))
        self.grid.focus()
        self.paint()
        self.set_interval(TICK_SECONDS, self._tick)
        self._looker.start()

    def on_unmount(self) -> None:
        self._looker.stop()
        self._feed.close()

    @property
    def is_open(self) -> bool:
        """Whether there is something to draw on. While the console is being left its widgets go one after the other,
        and messages of its threads still come."""
        return self.is_running and bool(self._screen_stack) and bool(self.screen_stack[0].query("#keys"))

    @property
    def dialog_is_open(self) -> bool:
        return len(self.screen_stack) > 1

    def paint(self) -> None:
        """Everything anew."""
        self.painter.paint()

    def ask(self, questions: tuple[ViewQuestion, ...]) -> None:
        """What the view on the screen wants to know, from now on."""
        self._looker.set_questions(questions)

    def tell(self, text: str, bad: bool = False, stays: bool = False) -> None:
        """A word that goes away by itself, unless it stays until it is silenced."""
        self.said.say(text, self.session.palette["warning" if bad else "note"], bad, stays)

    def fail(self, error: Exception) -> None:
        self.log.error(error)

    def do(self, action: str) -> None:
        self.call_later(self.run_action, action)

    def when_line_has_gone(self, does: Callable[[], object]) -> None:
        if self.entry.is_on_screen and not self.entry.is_open:
            # A refresh may come before the layout in which the line is missing.
            self.set_timer(LAYOUT_SECONDS, partial(self.when_line_has_gone, does))
        else:
            self.call_after_refresh(does)

    # ---- what comes from outside ----

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._pressed_at = self._monotonic()
        await super().on_event(event)

    def on_look_taken(self, event: looker.LookTaken) -> None:
        if self.session.looked_at is None:
            self.call_after_refresh(self._rest)
        self.session.take_look(event.look, event.at)
        self._show()

    def on_lost(self, event: looker.Lost) -> None:
        self.session.take_loss(event.reason)
        self._show()

    def on_question_answered(self, event: looker.QuestionAnswered) -> None:
        if not self.is_open:
            return
        session = self.session
        former = session.take_answers(event.question, Reply(event.answers, event.at, event.failed))
        # Painting costs: the next look, which is due, paints what is only newer.
        if not session.paused and (
            former is None or former.failed != event.failed or session.interval > looker.ASK_SECONDS
        ):
            self.paint()

    def on_notice_changed(self) -> None:
        self.paint()

    def on_command_answered(self, event: CommandAnswered) -> None:
        if self.is_open:
            self.steering.show(event)

    def _show(self) -> None:
        """What has come, unless the screen is paused."""
        if self.session.paused:
            self.painter.edges()
        else:
            self.paint()

    def _tick(self) -> None:
        """Ages grow while nothing comes."""
        now, session = self._monotonic(), self.session
        if now - self._rested_at >= REST_SECONDS and now - self._pressed_at >= QUIET_SECONDS:
            self._rested_at = now
            self._rest()
        session.grow_old()
        moment = session.moment
        if not session.paused and (moment.lost or moment.age > 2 * session.interval + TICK_SECONDS):
            self.paint()
        else:
            self.painter.edges()

    def _take_theme(self, dark: bool) -> None:
        self.session.palette = Palette(dark, self.no_color)
        self.paint()

    def on_resize(self) -> None:
        self.call_after_refresh(self.paint)

    # ---- moving ----

    def action_view(self, name: str) -> None:
        self.navigation.turn(name)
        self.paint()

    def action_next_view(self, by: int) -> None:
        if self.dialog_is_open:
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
        if self.session.view.FOLLOWS_CURSOR:
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
        player = self._feed.player
        if player is not None:
            player.play(not player.playing)
            self.look_soon()
        else:
            self.session.paused = not self.session.paused
        self.paint()

    def action_rate(self, factor: float) -> None:
        self.set_rate(self.session.interval / factor)

    def set_rate(self, seconds: float) -> None:
        self._looker.set_interval(seconds)
        self.session.interval = self._looker.interval
        self.painter.edges()

    def look_soon(self) -> None:
        """What is shown has changed by the operator's doing."""
        self._looker.look_soon()

    def action_jump(self, by: int) -> None:
        if self._feed.player is not None:
            self._feed.player.seek(self._feed.player.position + by * JUMP_SECONDS)
            self.look_soon()

    def action_step(self, by: int) -> None:
        if self._feed.player is not None:
            self._feed.player.step(by)
            self.look_soon()

    def action_speed(self, factor: float) -> None:
        if self._feed.player is not None:
            self._feed.player.set_speed(self._feed.player.speed * factor)
            self.painter.edges()

    # ---- the rest ----

    def action_maximise(self) -> None:
        self.session.layout = LAYOUTS[self.session.layout]
        self.paint()

    def action_theme(self) -> None:
        self.set_theme(THEMES["light" if self.session.palette.dark else "dark"])

    def set_theme(self, name: str) -> None:
        self.theme = name

    def action_help(self) -> None:
        self.push_screen(HelpScreen(help_sections(self.session), plain=self.session.glyphs.ascii))

    def action_command_palette(self) -> None:
        if not self.dialog_is_open:
            self.push_screen(CommandsScreen(plain=self.session.glyphs.ascii))

    def action_export(self) -> None:
        self.typed.ask_export("csv")

    def on_key(self, event: Message) -> None:
        """Keys of what may be done here. The others have bindings."""
        key = getattr(event, "character", None)
        if key is None or self.entry.is_open or self.dialog_is_open:
            return
        for offer in self.session.offers():
            if offer.key == key:
                event.stop()
                self.steering.begin(offer)
                return

    def commands(self) -> Iterator[PaletteCommand]:
        """The views, the servers, what may be done here."""
        for view in VIEWS:
            yield PaletteCommand(f"View {view.TITLE}", view.QUESTION, partial(self.action_view, view.NAME))
        for state in self.session.moment.servers:
            name = state.server.server
            yield PaletteCommand(
                f"Server {text(name)}", "show this one only", partial(self.typed.line, f"server {name}")
            )
        yield PaletteCommand("All servers", "show all of them", partial(self.typed.line, "server all"))
        for offer in self.session.offers():
            what = text(offer.what[0].upper() + offer.what[1:])
            yield PaletteCommand(what, text(offer.effect), partial(self.steering.begin, offer))
        for kind in ("csv", "json", "svg"):
            yield PaletteCommand(f"Export {kind}", "what is shown", partial(self.typed.line, f"export {kind}"))
        yield PaletteCommand("Keys", "those that live here", self.action_help)
        yield PaletteCommand("Pause", "stop the screen, or let it go on", self.action_pause)
        yield PaletteCommand("Theme", "dark or light", self.action_theme)
        yield PaletteCommand("Quit", "leave; servers do not notice", self.action_quit)
