"""The simulation as a feed of the console."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from swift_tiers.console.feeds.feed import Feed, Look, Nature, ViewAnswers, ViewQuestion
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand, CommandRefusedError
from swift_tiers.radix_tiering.bus.contract.views import CommandView, ServerState, Snapshot
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent

from ...base.devices.clock import Clock
from .answers import answer
from .lending import Post
from .orders import carry_out
from .remains import gone, remains
from .script import Script
from .views import ServerViews

#: What has happened before the first look, seconds, and how often that was looked at: so that there is a history.
BEFORE, APART = 20.0, 0.5
#: The most that one look lets go by, seconds: a console that was stopped does not wait for the time that it missed.
MOST_AT_ONCE = 5.0


class DemoFeed(Feed):
    """Virtual time goes on with the real one."""

    nature = Nature.DEMO
    name = "three servers"

    def __init__(
        self,
        *,
        steers: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall`: seconds since 1970, read once."""
        self.steers = steers
        self._monotonic = monotonic
        self._clock = Clock()
        began = wall() - BEFORE
        self._wall = lambda: began + self._clock.now
        self._lock = threading.Lock()
        self._script: Script | None = None
        self._views: dict[str, ServerViews] = {}
        self._last: dict[str, ServerState] = {}  # what each has said last
        self._told: dict[str, tuple[object, int]] = {}  # of each server, its life and the last event that was read
        self._looked = 0.0
        self._commands = 0

    def look(self) -> Look:
        with self._lock:
            if self._script is None:
                return self._begin()
            now = self._monotonic()
            passed = min(MOST_AT_ONCE, now - self._looked)
            self._looked = now
            self._advance(self._clock.now + passed)
            return Look(snapshot=self._snapshot(), items=tuple(self._events()))

    def _begin(self) -> Look:
        self._script = Script(Post(self._clock), self._wall)
        before = []
        for number in range(1, int(BEFORE / APART)):
            self._advance(number * APART)
            before.append(self._snapshot())
        self._advance(BEFORE)
        self._looked = self._monotonic()
        return Look(snapshot=self._snapshot(), items=tuple(self._events()), passed=tuple(before))

    def _advance(self, until: float) -> None:
        self._clock.run(until)
        self._clock.now = until

    def _running(self) -> Script:
        if self._script is None:
            raise BusError("the demo has not begun yet")
        return self._script

    def _snapshot(self) -> Snapshot:
        script = self._running()
        states = []
        for name, server in sorted(script.servers.items()):
            if server.alive:
                views = self._views.get(name)
                if views is None or views.server is not server:
                    views = self._views[name] = ServerViews(server)
                states.append(views.state())
                self._last[name] = states[-1]
            else:
                age = self._wall() - script.gone[name]
                states.append(remains(self._last.get(name), age) or gone(name, age))
        return Snapshot(time=self._wall(), servers=tuple(states))

    def _events(self) -> list[StreamEvent]:
        """Those since the last look, of all servers, by time."""
        found = []
        for name, server in self._running().servers.items():
            life, last = self._told.get(name, (server, 0))
            last = last if life is server else 0
            for event in server.events.since(last):
                last = event.sequence
                found.append(
                    StreamEvent(
                        server=name,
                        rank=server.rank,
                        entry=f"{int(event.time * 1000)}-0",
                        sequence=event.sequence,
                        time=event.time,
                        happened=event.time,
                        age_seconds=max(0.0, self._wall() - event.time),
                        kind=event.kind,
                        fields=event.fields,
                    )
                )
            self._told[name] = server, last
        return sorted(found, key=lambda event: event.happened)

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        with self._lock:
            servers = [
                server
                for name, server in sorted(self._running().servers.items())
                if server.alive and question.server in (None, name)
            ]
            return ViewAnswers(views=tuple(answer(server, question) for server in servers))

    def command(self, server: str, command: AnyCommand) -> CommandView:
        with self._lock:
            found = self._running().servers.get(server)
            if found is None or not found.alive:
                raise BusError(f"there is no server {server[:80]} in the demo")
            self._commands += 1
            identifier, kind = f"demo-{self._commands}", str(type(command).__struct_config__.tag)
            try:
                said = f"done: {carry_out(found, command)}"
                state, reason = "done", ""
            except CommandRefusedError as error:
                said, state, reason = f"refused: {error}", "refused", str(error)
            why = {"reason": reason} if reason else {}
            found.events.emit(f"command.{state}", id=identifier, author="demo", type=kind, **why)
            return CommandView(
                server=server,
                id=identifier,
                state=state,
                author="demo",
                type=kind,
                reason=reason,
                ranks={found.rank: said},
            )
