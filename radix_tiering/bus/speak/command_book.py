"""What becomes of commands, on the bus: each rank writes what it did, and the leader what follows from all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...base.errors import CommandTooLateError, shorten
from ...base.events import EventLog
from ...base.runner import Runner
from ...figures.forms import to_text
from ..contract.commands import CommandRefusedError
from ..contract.schema import COMMAND_TTL, Keys
from ..redis.batch import RedisBatch, Reply

#: How long after a command's deadline the ranks are waited for that have not said what they did, seconds. What they say
#: later still counts, for `LATE_SECONDS` more.
SETTLE_SECONDS, LATE_SECONDS = 60.0, 600.0
#: How long after a command has come its outcome is looked for more often, seconds.
HURRY_SECONDS = 5.0
#: Commands whose outcomes are kept here, to be written again should Redis lose them; and that may be under way.
MOST_NOTES, MOST_UNDER_WAY = 256, 1024

ACCEPTED, DONE, REFUSED, EXPIRED, PARTLY = "accepted", "done", "refused", "expired", "partly"

Outcome = str | CommandRefusedError


class Verdict(NamedTuple):
    """State and reason of a command."""

    state: str
    reason: str


def verdict(ranks: Sequence[str], said: Mapping[str, str], *, overdue: bool) -> Verdict:
    """What follows from what the ranks have `said`: `done`, `done: RESULT`, `refused: REASON` or `expired`.

    `overdue`: those that have said nothing are not waited for any more.
    """
    silent = [rank for rank in ranks if rank not in said]
    if silent and not overdue:
        return Verdict(ACCEPTED, "")
    failed = {rank: text for rank, text in said.items() if text.partition(":")[0] != DONE}
    if not failed and not silent:
        return Verdict(DONE, "")
    if len(failed) == len(said) and not silent:
        refusals = [text for text in failed.values() if text != EXPIRED]
        return Verdict(REFUSED, refusals[0].partition(": ")[2]) if refusals else Verdict(EXPIRED, _TOO_LATE)
    reasons = [f"{rank} {text}" for rank, text in sorted(failed.items())]
    reasons += [f"no answer from {', '.join(silent)}"] if silent else []
    return Verdict(PARTLY, shorten("; ".join(reasons)))


_TOO_LATE = "its deadline had passed before it was begun"


class _Note:
    """What this rank has to say of one command."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.unsaid: set[str] = set()  # names of fields that Redis may not have
        self.changed = 0.0  # when it last was, by the monotonic clock
        self.deadline: float | None = None  # by Redis' clock; None where nothing is left to settle by this rank
        self.said: dict[str, str] = {}  # outcomes by rank, as far as they are known here

    @property
    def under_way(self) -> bool:
        """Whether its outcome is still to come from ranks that are waited for."""
        return self.deadline is not None and self.fields["state"] == ACCEPTED

    def set(self, now: float, **fields: str) -> None:
        for name, value in fields.items():
            if self.fields.get(name) != value:
                self.fields[name] = value
                self.unsaid.add(name)
                self.changed = now


class CommandBook:
    """One thread, but for `report`."""

    def __init__(
        self,
        keys: Keys,
        server: str,
        rank: str,
        ranks: Sequence[str],
        events: EventLog,
        *,
        leader: bool,
        runner: Runner,
    ) -> None:
        """`ranks`: all of the server's; those of one tensor group have the same first part, as `dp0-tp0`, `dp0-tp1`."""
        self._keys = keys
        self._server = server
        self._rank = rank
        self.ranks = ranks
        self._group = [one for one in ranks if one.partition("-")[0] == rank.partition("-")[0]]
        self._events = events
        self._leader = leader
        self._wall = runner.time
        self._monotonic = runner.monotonic
        self._notes: dict[str, _Note] = {}  # oldest first
        self._reports: deque[tuple[str, Outcome, bool]] = deque()

    @property
    def hurries(self) -> bool:
        """Whether something is about to happen here: better look again soon."""
        young = self._monotonic() - HURRY_SECONDS
        return bool(self._reports) or any(note.changed > young and self._silent(note) for note in self._notes.values())

    @property
    def full(self) -> bool:
        """Whether so many commands are under way that no more should be accepted."""
        return sum(note.under_way for note in self._notes.values()) >= MOST_UNDER_WAY

    def report(self, identifier: str, outcome: Outcome, *, for_group: bool = False) -> None:
        """This rank, or with `for_group` all of its tensor group, has carried out a command, with a result in words,
        or refuses to. Any thread."""
        self._reports.append((identifier, outcome, for_group))

    def accept(self, identifier: str, author: str, kind: str, deadline: float) -> None:
        """A command has come, and is handed on."""
        if self._leader:
            note = self._note(identifier)
            note.deadline = deadline
            note.set(self._monotonic(), state=ACCEPTED, author=author, type=kind, reason="")
            self._tell(identifier, note)

    def turn_away(self, identifier: str, author: str, kind: str, reason: str | None, deadline: float) -> None:
        """A command has come that is not handed on: no rank of this group gets it. Without `reason`: it came too
        late."""
        note = self._note(identifier)
        outcome = EXPIRED if reason is None else f"{REFUSED}: {shorten(reason)}"
        note.said.update(dict.fromkeys(self._group, outcome))
        note.set(self._monotonic(), **{f"rank:{rank}": outcome for rank in self._group})
        if self._leader:
            # Should another group have taken it, which can be where it came just in time, that is told then.
            note.deadline = deadline
            found = verdict(self._group, note.said, overdue=False)
            note.set(self._monotonic(), author=author, type=kind, state=found.state, reason=found.reason)
            self._tell(identifier, note)

    def forget(self) -> None:
        """Redis may hold none of it."""
        for note in self._notes.values():
            note.unsaid.update(note.fields)

    def ask(self, batch: RedisBatch) -> None:
        """Leader: get what other ranks say of commands that are not settled."""
        for identifier, note in self._notes.items():
            if self._silent(note):
                batch.add("HGETALL", self._key(identifier), reply=self._hear(note))

    def write(self, batch: RedisBatch, redis_now: float) -> None:
        """Queue what has become of commands since."""
        while self._reports:
            identifier, outcome, for_group = self._reports.popleft()
            self._take(identifier, outcome, self._group if for_group else [self._rank])
        for identifier, note in list(self._notes.items()):
            if note.deadline is not None:
                self._settle(identifier, note, note.deadline, redis_now)
            if self._monotonic() - note.changed > COMMAND_TTL:
                del self._notes[identifier]
            elif note.unsaid:
                self._write(batch, identifier, note)
        # Nobody else tells what becomes of those that are under way.
        told = [identifier for identifier, note in self._notes.items() if not (note.under_way or note.unsaid)]
        for identifier in told[:-MOST_NOTES]:
            del self._notes[identifier]

    def _take(self, identifier: str, outcome: Outcome, ranks: Iterable[str]) -> None:
        if isinstance(outcome, CommandTooLateError):
            text = EXPIRED
        elif isinstance(outcome, CommandRefusedError):
            text = f"{REFUSED}: {shorten(str(outcome))}"
        else:
            text = f"{DONE}: {shorten(outcome)}" if outcome else DONE
        note = self._note(identifier)
        for rank in ranks:
            note.said[rank] = text
            note.set(self._monotonic(), **{f"rank:{rank}": text})

    def _settle(self, identifier: str, note: _Note, deadline: float, redis_now: float) -> None:
        found = verdict(self.ranks, note.said, overdue=redis_now > deadline + SETTLE_SECONDS)
        # Not back from a state that a command has been given at the door.
        if found.state not in (note.fields["state"], ACCEPTED):
            note.set(self._monotonic(), state=found.state, reason=found.reason)
            self._tell(identifier, note)
        if len(note.said) == len(self.ranks) or redis_now > deadline + SETTLE_SECONDS + LATE_SECONDS:
            note.deadline = None

    def _tell(self, identifier: str, note: _Note) -> None:
        """For the audit."""
        said = {name: note.fields[name] for name in ("author", "type", "reason") if note.fields[name]}
        self._events.emit(f"command.{note.fields['state']}", id=identifier, **said)

    def _silent(self, note: _Note) -> list[str]:
        """Of a command that this rank settles: the other ranks that have said nothing yet."""
        if note.deadline is None:
            return []
        return [rank for rank in self.ranks if rank != self._rank and rank not in note.said]

    def _hear(self, note: _Note) -> Reply:
        def hear(fields: Mapping[str, str]) -> None:
            for rank in self._silent(note):
                if (text := fields.get(f"rank:{rank}")) is not None:
                    note.said[rank] = text

        return hear

    def _write(self, batch: RedisBatch, identifier: str, note: _Note) -> None:
        unsaid = {name: note.fields[name] for name in note.unsaid}
        words = (word for pair in (unsaid | {"time": to_text(self._wall())}).items() for word in pair)

        def written(_: object) -> None:
            note.unsaid -= {name for name, value in unsaid.items() if note.fields[name] == value}

        batch.add("HSET", self._key(identifier), *words, reply=written)
        batch.add("PEXPIRE", self._key(identifier), round(COMMAND_TTL * 1000))

    def _note(self, identifier: str) -> _Note:
        if identifier not in self._notes:
            self._notes[identifier] = _Note()
        return self._notes[identifier]

    def _key(self, identifier: str) -> str:
        return self._keys.of("command", server=self._server, id=identifier)
