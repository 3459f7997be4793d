"""What the console shows at one moment: the last look, how old it is, and what came before it."""

from __future__ import annotations

from dataclasses import dataclass

from swift_tiers.radix_tiering.bus.contract.view import seconds_since
from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView, ServerState, Snapshot, View
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent

from .alarms import Alarm
from .events import EventHistory
from .history import History

#: What a server said is old after so many of its intervals, and so many seconds.
OLD_INTERVALS, OLD_SECONDS = 4, 3.0


@dataclass(frozen=True)
class Moment:
    """`snapshot` None: nothing has been seen yet."""

    snapshot: Snapshot | None
    age: float  # seconds since the look, by the console's clock
    lost: str  # why there is no newer look; empty if there was no such error
    history: History
    alarms: tuple[Alarm, ...]
    events: EventHistory

    @property
    def servers(self) -> tuple[ServerState, ...]:
        return () if self.snapshot is None else self.snapshot.servers

    def ranks(self, server: str | None = None) -> list[RankState]:
        """Of all servers, or of one."""
        return [
            rank for state in self.servers if server is None or state.server.server == server for rank in state.ranks
        ]

    def server(self, name: str | None) -> ServerState | None:
        return next((state for state in self.servers if state.server.server == name), None)

    def rank(self, server: str | None, rank: str | None) -> RankState | None:
        state = self.server(server)
        return None if state is None else next((one for one in state.ranks if one.name == rank), None)

    def age_of(self, view: View) -> float | None:
        """Seconds since this was true: by Redis' clock until the look, by the console's since then."""
        if view.age_seconds is None:
            return None
        if isinstance(view, RequestView) and view.time is not None and self.snapshot is not None:
            # It may have been read some looks ago.
            state = self.server(view.server)
            offset = None if state is None else state.server.clock_offset_seconds
            if offset is not None:
                age = seconds_since(view.time - offset, self.snapshot.time)
                return None if age is None else age + self.age
        return view.age_seconds + self.age

    def age_of_event(self, event: StreamEvent) -> float | None:
        """Seconds since it happened, likewise."""
        if self.snapshot is None or event.age_seconds is None:
            return None
        return max(0.0, self.snapshot.time - event.happened) + self.age

    def is_old(self, view: View) -> bool:
        """Whether what it says may no longer be so: to be greyed."""
        if self.lost:
            return True
        state = self.server(view.server)
        interval = (state.server.interval_seconds if state is not None else None) or 0.0
        age = self.age_of(view)
        return age is not None and age > max(OLD_SECONDS, OLD_INTERVALS * interval)
