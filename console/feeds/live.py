"""The bus as it is now."""

from __future__ import annotations

from typing import Any

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import CommandView
from swift_tiers.radix_tiering.bus.hear.event_tail import EventTail
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.redis.connection import address_of

from .common_reader import CommonReader
from .feed import Feed, Look, ViewAnswers, ViewQuestion

#: How old lists of requests that have ended may be, seconds: they are read in every so many looks only.
ENDED_SECONDS = 2.0
#: Events of before that are shown at the start.
FORMER_EVENTS = 1000


class LiveFeed(Feed):
    """Opens the bus when it is first asked, and anew after a fault of Redis: it heals, and takes up a new password."""

    def __init__(self, config: BusConfig, author: str, steers: bool, timeout: float = 10.0) -> None:
        """`author`: who sends commands, for the audit. `timeout`, seconds: of a command. Raises ConfigError."""
        self.name = str(address_of(config))
        self.steers = steers
        self._author = author
        self._timeout = timeout
        self._reader = CommonReader(lambda: BusReader.open(config, "console"))
        self._tail = EventTail(None, FORMER_EVENTS)

    def look(self) -> Look:
        with self._reader.use() as reader:
            snapshot = reader.snapshot(requests_seconds=self.requests_seconds, ended_seconds=ENDED_SECONDS)
            # The events last: what they tell of is in a later snapshot at the latest, never in an earlier one only.
            items = self._tail.read(reader, [state.server.server for state in snapshot.servers])
        return Look(snapshot=snapshot, items=tuple(items))

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        with self._reader.use() as reader:
            return put_question(reader, question)

    def command(self, server: str, command: AnyCommand) -> CommandView:
        with self._reader.use() as reader:
            return reader.command(server, self._author, command, self._timeout)

    def close(self) -> None:
        self._reader.close()


def put_question(reader: BusReader, question: ViewQuestion) -> ViewAnswers:
    """Ask it on the bus, and wait for the answers."""
    said: Any
    if question.kind == "page":
        said = reader.page(question.what, question.server)
    elif question.kind == "map":
        said = reader.map(question.what, question.server)
    elif question.kind == "prefix":
        said = reader.prefix(question.what, question.server)
    else:
        said = reader.nodes(int(question.what), question.server)
    return ViewAnswers(views=said.answers, silent=said.silent)
