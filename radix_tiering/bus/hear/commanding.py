"""Sending a command to a server, and waiting for what becomes of it."""

from __future__ import annotations

import uuid

from ...base.errors import BusError, CommandUnclearError, RedisRefusedError
from ...base.runner import THREADS, Runner
from ..contract.commands import AnyCommand, Order, read_order, write_order
from ..contract.round_trips import RoundTrips
from ..contract.view_reading import aged, read_view
from ..contract.views import CommandView, ServerView
from .asking import PATIENCE_SECONDS, STREAM_ENTRIES
from .waiting import wait_for

#: How long a command may take once its deadline has passed, if it was accepted before, seconds; at least its timeout.
FINISH_SECONDS = 5.0
#: How long ranks that have not said anything are waited for when a command is done, seconds.
STRAGGLER_SECONDS = 1.0


def send_command(
    bus: RoundTrips,
    server: ServerView,
    author: str,
    command: AnyCommand,
    timeout: float,
    now: float,
    runner: Runner = THREADS,
) -> CommandView:
    """Send one command to `server` and wait until nothing more becomes of it. `now`: by Redis' clock.

    Raises CommandUnclearError where the command was sent, or may have been, and its outcome is not known. Any other
    error means that nothing was sent.
    """
    if not server.control:
        raise BusError(
            f"server {server.server}: obeys no commands; start it with bus.control = true (one over several machines "
            "takes them on the first, or by bus.url)"
        )
    rank = getattr(command, "rank", None)
    if rank is not None and rank not in server.ranks:
        raise BusError(f"server {server.server}: has no rank {rank[:80]!r}; it has {', '.join(server.ranks)}")
    order = Order(id=uuid.uuid4().hex, author=author, deadline=now + timeout, command=command)
    entry = write_order(order)
    read_order(entry)  # raises CommandRefusedError for what the server would refuse
    sent = _SentCommand(bus, server, order.id)
    sent.send(entry)
    # Until the deadline, and then until the server can have seen that it has passed, and said so.
    found = wait_for(sent.final, timeout + PATIENCE_SECONDS, runner)
    if found is None and sent.seen is not None:
        found = wait_for(sent.final, max(timeout, FINISH_SECONDS), runner)
    if found is None:
        raise sent.unclear(timeout)
    if found.state in ("done", "partly"):
        wait_for(sent.complete, STRAGGLER_SECONDS, runner)
    return sent.seen or found


class _SentCommand:
    """A command on its way, and what was heard of it. Faults of Redis are waited out: the server goes on meanwhile."""

    def __init__(self, bus: RoundTrips, server: ServerView, identifier: str) -> None:
        self._bus = bus
        self._server = server
        self._id = identifier
        self._key = bus.keys.of("command", server=server.server, id=identifier)
        self._fault = ""  # the last one since it was sent
        self._blind = False  # whether the last look failed
        self.seen: CommandView | None = None  # the newest that was heard

    def send(self, entry: dict[str, str]) -> None:
        """Raises RedisRefusedError: then it was not sent. After other faults it may have been."""
        stream = self._bus.keys.of("control", server=self._server.server)
        question = {"sent": lambda pipeline: pipeline.xadd(stream, entry, maxlen=STREAM_ENTRIES, approximate=True)}
        try:
            self._bus.ask(question)
        except RedisRefusedError:
            raise
        except BusError as error:
            self._fault = str(error)

    def final(self) -> CommandView | None:
        """What became of it, once nothing more will."""
        self._look()
        return self.seen if self.seen is not None and self.seen.final else None

    def complete(self) -> CommandView | None:
        """What became of it, once every rank has said what it did."""
        self._look()
        return self.seen if self.seen is not None and set(self._server.ranks) <= set(self.seen.ranks) else None

    def _look(self) -> None:
        try:
            answers, now = self._bus.ask({"outcome": lambda pipeline: pipeline.hgetall(self._key)})
        except BusError as error:
            self._fault, self._blind = str(error), True
            return
        self._blind = False
        if said := answers["outcome"]:
            view = read_view(CommandView, said, server=self._server.server, id=self._id)
            self.seen = aged(view, self._server.clock_offset_seconds, now)

    def unclear(self, timeout: float) -> CommandUnclearError:
        """What is known of it, where no end of it was heard of."""
        name, where = f"server {self._server.server}", f"`redis-cli hgetall {self._key}`"
        if self._blind or (self.seen is None and self._fault):
            what = (
                "whether it has obeyed is not known"
                if self.seen is None
                else "has accepted the command, no more is known"
            )
            return CommandUnclearError(
                "not known", f"{name}: {what} ({self._fault}); before you send it again, see {where}"
            )
        if self.seen is None:
            return CommandUnclearError(
                "not answered",
                f"{name}: nobody answered within {timeout:g} s, after which the command counts no more; "
                f"see `swift-tiers inspect servers`, and send it again unless {where} says what became of it",
            )
        silent = [rank for rank in self._server.ranks if rank not in self.seen.ranks]
        said = f"no word from {', '.join(silent)}" if silent else "every rank has said what it did"
        return CommandUnclearError(
            "not finished",
            f"{name}: accepted the command and has not finished it ({said}); see what becomes of it with {where}",
        )
