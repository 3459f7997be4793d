"""What a reader knows of the requests that ranks list, so that each snapshot need not read all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .views import RequestView

#: Id and arrival of a request: a client may use the id of an ended one again.
Member = tuple[str, float]
Views = tuple[RequestView, ...]


class Listed(NamedTuple):
    """The requests of a rank, by arrival."""

    former: tuple[tuple[Member, RequestView], ...]  # as they were in a snapshot before: nothing of them is read
    members: Sequence[Member] = ()  # those after them
    known: Mapping[Member, RequestView] = {}  # of these, those that had ended: nothing changes any more

    @property
    def unknown(self) -> list[str]:
        """Ids of those that have to be read."""
        return [member[0] for member in self.members if member not in self.known]


class _Reading(NamedTuple):
    """What was found of one rank's requests."""

    time: float  # of the reading, by Redis' clock
    whole_time: float  # when all of its list was read
    found: tuple[tuple[Member, RequestView], ...]
    ended: Mapping[Member, RequestView]

    @property
    def since(self) -> float:
        """When the oldest one arrived that may still change; what is new arrived later, but for rare exceptions."""
        live = (member[1] for member, view in self.found if view.live)
        return next(live, self.found[-1][0][1] if self.found else float("-inf"))


class RequestMemory:
    """Of each list of requests, by its key. Any thread: it is replaced as a whole.

    There are 256 ended requests of each rank. Reading them all again took most of a snapshot's time, and then reading
    which they are.
    """

    def __init__(self) -> None:
        self._readings: Mapping[str, _Reading] = {}

    def recent(self, keys: Iterable[str], now: float, seconds: float) -> dict[str, Listed]:
        """The lists of which something was read at most so long ago, as they were. `now`: by Redis' clock."""
        readings = {key: self._readings.get(key) for key in keys}
        return {key: Listed(one.found) for key, one in readings.items() if one and _is_within(now, one.time, seconds)}

    def since(self, key: str, now: float, seconds: float) -> float | None:
        """From which arrival on the list has to be read, if all of it was at most so long ago."""
        one = self._readings.get(key)
        return one.since if one is not None and _is_within(now, one.whole_time, seconds) else None

    def recall(self, key: str, members: Sequence[Member], since: float | None) -> Listed:
        """A list that was read just now, from this arrival on; what came before is as it was."""
        reading = self._readings.get(key)
        if reading is None:
            return Listed((), members)
        former = () if since is None else tuple(one for one in reading.found if one[0][1] < since)
        return Listed(former, members, reading.ended)

    def keep(
        self, read: Mapping[str, tuple[Listed, Views, bool]], recent: Iterable[str], now: float, *, everybody: bool
    ) -> None:
        """Lists that were read just now, what was found of those in them, and whether it was all of the list. What is
        no longer listed is forgotten, and lists that are neither in `read` nor in `recent` if `everybody` was looked
        at."""
        before = self._readings
        kept = {key: before[key] for key in recent if key in before} if everybody else dict(before)
        for key, (listed, views, whole) in read.items():
            by_id = {view.rid: view for view in views[len(listed.former) :]}
            found = ((member, by_id[member[0]]) for member in listed.members if member[0] in by_id)
            together = (*listed.former, *found)
            ended = {member: view for member, view in together if not view.live}
            former = before.get(key)
            kept[key] = _Reading(now, now if whole or former is None else former.whole_time, together, ended)
        self._readings = kept


def _is_within(now: float, then: float, seconds: float) -> bool:
    return seconds > 0 and 0 <= now - then <= seconds
