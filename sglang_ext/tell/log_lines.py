"""What the server's log says of events that make it serve less: for whoever has no bus, or looks at the log first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.events import Event
from swift_tiers.radix_tiering.base.repeats import Repeats, more
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.tiers.peer.neighbour import LENDS_NO_MORE

logger = logging.getLogger(__name__)


class LoggedEvent(NamedTuple):
    """How an event is said."""

    level: int
    text: str  # with the event's fields in braces, and what to do about it
    subject: tuple[str, ...] = ()  # the fields that tell two events of a kind apart; others are the same news
    usual: tuple[str, ...] = ()  # reasons that are in order


#: By the kind of an event. Those are not here for which whoever emits them has a line, and those that are of use to
#: who follows the stream alone.
LINES: Mapping[str, LoggedEvent] = {
    "device.out": LoggedEvent(
        logging.ERROR,
        "{device} is out of service: {reason}; its pages are misses, the server goes on without it, and unless it has "
        "gone asks it again after a minute, up to an hour: see the kernel's log (dmesg), and replace it if need be",
        ("device", "reason"),
    ),
    "device.back": LoggedEvent(logging.WARNING, "{device} is in service again, with nothing on it", ("device",)),
    "device.takes_nothing": LoggedEvent(
        logging.WARNING,
        "{device} gets no new pages: {reason}; what it has is served: make room on its file system, or mount it for "
        "writing; it is tried again after a minute, up to an hour",
        ("device", "reason"),
    ),
    "device.left_out": LoggedEvent(
        logging.WARNING,
        "{device} was left out: {reason}; the server goes on without it: see `swift-tiers doctor`",
        ("device",),
    ),
    "device.pages_lost": LoggedEvent(logging.WARNING, "{device}: {pages} pages went with it", ("device",)),
    "ssd.namespace_refused": LoggedEvent(
        logging.WARNING, "nothing of this model goes to ssd any more: {reason}; see `swift-tiers doctor`", ("reason",)
    ),
    "ssd.not_all_written": LoggedEvent(
        logging.WARNING, "{pages} pages were not yet written to ssd when the server ended: they are misses after it"
    ),
    "ssd.write_failed": LoggedEvent(
        logging.WARNING, "a page could not be written to ssd: {reason}; see the kernel's log (dmesg)", ("reason",)
    ),
    "page.corrupt": LoggedEvent(
        logging.ERROR,
        "a page was damaged in the {tier} tier: dropped, never served; `swift-tiers inspect tiers` says what to do",
        ("tier",),
    ),
    "page.unreadable": LoggedEvent(
        logging.WARNING,
        "a page could not be read from the {tier} tier: {reason}; it is computed instead, see the kernel's log (dmesg)",
        ("tier", "reason"),
    ),
    "remote.engine_gone": LoggedEvent(
        logging.WARNING,
        "the remote engine is gone: {reason}; it is begun anew, and what only it has is a miss until then",
        ("reason",),
    ),
    "remote.cannot_be_opened": LoggedEvent(
        logging.WARNING,
        "the remote engine cannot be opened: {reason}; the server goes on without it, and tries again up to every "
        "minute: see remote.options, and what `swift-tiers doctor` says",
        ("reason",),
    ),
    "remote.fails": LoggedEvent(
        logging.WARNING,
        "the remote engine fails: {reason}; that is not asked of it for a while, see its own log",
        ("reason",),
    ),
    "remote.does_not_answer": LoggedEvent(
        logging.WARNING,
        "the remote engine did not answer within {seconds} s: it is not asked for a while, see docs/remote.md, traps",
    ),
    "remote.answers_again": LoggedEvent(logging.INFO, "the remote engine answers again"),
    "donor.away": LoggedEvent(
        logging.WARNING,
        "nothing is borrowed of {donor}: {reason}; see `swift-tiers inspect leases`",
        ("donor", "reason"),
        (LENDS_NO_MORE,),
    ),
}


class LogLines:
    """Says events in the log, the same news once in a while. Any thread."""

    def __init__(self, clock: Callable[[], float] = THREADS.monotonic) -> None:
        self._repeats = Repeats(clock)

    def hear(self, event: Event) -> None:
        line = LINES.get(event.kind)
        if line is None:
            return
        since = self._repeats.since((event.kind, *(str(event.fields.get(field)) for field in line.subject)))
        if since is not None:
            level = logging.INFO if event.fields.get("reason") in line.usual else line.level
            logger.log(level, "swift-tiers: %s%s", line.text.format_map(_Fields(event.fields)), more(since))


class _Fields(dict[str, Any]):
    """Fields of an event; one that it has not is empty."""

    def __missing__(self, name: str) -> str:
        return ""
