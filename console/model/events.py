"""The events that were read, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent

#: Events and gaps that are kept; older ones are on the bus, or in a recording.
KEPT = 20_000


class EventHistory:
    """One thread at a time. `count` grows by one for each item that ever came: a view sees by it what is new.

    Items are numbered in this order from 0, so that a number stays the same item's while others come and go.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._items: deque[StreamEvent | Gap] = deque(maxlen=kept)
        self.count = 0

    def add(self, items: Iterable[StreamEvent | Gap]) -> None:
        for item in items:
            self._items.append(item)
            self.count += 1

    def clear(self) -> None:
        """A player has jumped: what comes next is another time."""
        self._items.clear()
        self.count = 0

    @property
    def first(self) -> int:
        """The number of the oldest one that is kept."""
        return self.count - len(self._items)

    def __getitem__(self, number: int) -> StreamEvent | Gap:
        """Raises IndexError for what is kept no more, or has not come yet."""
        if not self.first <= number < self.count:
            raise IndexError(number)
        return self._items[number - self.first]

    def newest(self) -> Iterator[StreamEvent | Gap]:
        """From the newest to the oldest."""
        return reversed(self._items)

    def __len__(self) -> int:
        return len(self._items)
