"""Commands as they come in: each is checked, and handed on at most once, or turned away."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ...base.errors import shorten
from ...base.events import EventLog
from ..contract.commands import COMMANDS, CommandRefusedError, read_order, write_order
from ..contract.faults import Faults
from ..contract.policy_values import check_limit
from ..contract.schema import Keys
from .command_book import CommandBook
from .inbox import Entry, Inbox

#: Commands that are taken at a time.
MOST_ORDERS = 16
#: Ids that are remembered, so that none is carried out twice, whatever Redis tells after a restart.
MOST_IDS = 10_000
#: Entries of the stream that are there when a server begins: those of one that had its name before. Operators keep no
#: more of them.
MOST_FORMER = 1000

#: Characters of an author's name, as `commands.read_order` has it.
MOST_AUTHOR = 200

_KINDS = [str(kind.__struct_config__.tag) for kind in COMMANDS]
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: Takes an entry of the control stream, which is in order, to where it is carried out. Must return at once.
HandOn = Callable[[dict[str, str]], None]


class ControlInbox:
    """Of the first rank of each tensor group. One thread."""

    def __init__(
        self,
        keys: Keys,
        server: str,
        book: CommandBook,
        hand_on: HandOn,
        events: EventLog,
        faults: Faults,
        *,
        leader: bool,
    ) -> None:
        key = keys.of("control", server=server)
        self.inbox = Inbox(key, MOST_ORDERS, remembers=MOST_FORMER, former=self._remember_former)
        self._book = book
        self._hand_on = hand_on
        self._events = events
        self._faults = faults
        self._leader = leader
        self._ids: dict[str, None] = {}  # oldest first

    def _remember_former(self, entries: list[Entry]) -> None:
        """They were dealt with, or are too late: also where they come again, in a stream that has lost its end."""
        self._ids.update(dict.fromkeys(fields["id"] for _, fields in entries if "id" in fields))

    def take(self, redis_now: float) -> bool:
        """Deal with what was read; whether there may be more to read."""
        entries = self.inbox.take()
        for entry in entries:
            with self._faults.at("a command"):
                self._take(entry, redis_now)
        return len(entries) >= MOST_ORDERS

    def _take(self, entry: Entry, redis_now: float) -> None:
        number, fields = entry
        identifier = fields.get("id", "")
        if not _ID.fullmatch(identifier):
            if self._leader:
                self._events.emit("command.refused", entry=number, reason="it has no id, or none that can be in a key")
            return
        if identifier in self._ids:
            return
        self._ids[identifier] = None
        if len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]
        author, kind = _author_of(fields), _kind_of(fields)
        try:
            order = read_order(fields)
            check_limit(order.command)
        except CommandRefusedError as error:
            self._book.turn_away(identifier, author, kind, str(error), redis_now)
            return
        rank = getattr(order.command, "rank", None)
        if rank is not None and rank not in self._book.ranks:
            self._book.turn_away(identifier, author, kind, f"the server has no rank {shorten(rank)}", redis_now)
            return
        if not redis_now <= order.deadline:
            self._book.turn_away(identifier, author, kind, None, order.deadline)
            return
        if self._book.full:
            self._book.turn_away(identifier, author, kind, "too many commands are under way; send it later", redis_now)
            return
        try:
            self._hand_on(write_order(order))  # without what nobody has asked for, which may be long
        except Exception as error:
            self._book.turn_away(identifier, author, kind, f"cannot be handed on: {type(error).__name__}", redis_now)
            raise
        self._book.accept(identifier, author, kind, order.deadline)


def _author_of(fields: dict[str, str]) -> str:
    """Who is told to want it, as far as that can be shown."""
    return shorten(fields.get("author", ""), MOST_AUTHOR)


def _kind_of(fields: dict[str, str]) -> str:
    """The command's type, if there is such a one."""
    try:
        kind = json.loads(fields.get("command", ""))["type"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return kind if kind in _KINDS else ""
