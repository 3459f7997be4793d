"""What is known after one look and all those before it."""

from __future__ import annotations

from ..model.alarms import Alarm, Alarms
from ..model.events import EventHistory
from ..model.history import History
from .feed import Look

#: A look that is older than the one before by more than this, seconds, is of another Redis.
BACK_SECONDS = 1.0
#: Of looks that were passed over, every so many are searched for alarms: for how long each has been there.
ALARMED = 4


class Watcher:
    """Takes looks in the order in which they come. One thread at a time."""

    def __init__(self) -> None:
        self.history = History()
        self.events = EventHistory()
        self._alarms = Alarms()
        self._time: float | None = None

    def take(self, look: Look) -> tuple[Alarm, ...]:
        """What is wrong now. `history` is another one after a jump."""
        now = look.snapshot.time
        if look.anew or (self._time is not None and now < self._time - BACK_SECONDS):
            # Rates would be those between two times that have nothing to do with each other.
            self.history, self._alarms = History(), Alarms()
            self.events.clear()
        self._time = now
        for number, passed in enumerate(look.passed):
            self.history.observe(passed)
            if number % ALARMED == 0:
                self._alarms.of(passed, self.history)
        self.history.observe(look.snapshot)
        self.events.add(look.items)
        return self._alarms.of(look.snapshot, self.history)
