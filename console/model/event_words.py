"""What an event says, in a few words; and how bad each kind of event is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.bus.hear.figures import count, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark


class EventMeaning(NamedTuple):
    """How bad it is, and what it means."""

    mark: Mark
    meaning: str


#: Every kind that servers of this release tell (a test holds it to their code).
KINDS = {
    "bus.fault": EventMeaning(Mark.WARNING, "a part of reporting failed and goes on"),
    "bus.lost": EventMeaning(Mark.WARNING, "the server could not reach Redis; it went on serving"),
    "bus.name_taken": EventMeaning(Mark.WRONG, "another server uses the same name on this bus"),
    "bus.returned": EventMeaning(Mark.OK, "the server reached Redis again, and said everything anew"),
    "borrowed.ended": EventMeaning(Mark.NOTE, "a lease is over: its pages can no longer be read there"),
    "borrowed.recalled": EventMeaning(
        Mark.NOTE, "a donor wants a lease back: what would be lost is saved as far as it can be"
    ),
    "command.accepted": EventMeaning(Mark.NOTE, "a command of an operator is being carried out"),
    "command.done": EventMeaning(Mark.OK, "a command of an operator was carried out"),
    "command.expired": EventMeaning(Mark.WARNING, "a command came too late and was not carried out"),
    "command.partly": EventMeaning(Mark.WARNING, "a command was carried out by some ranks only"),
    "command.refused": EventMeaning(Mark.WARNING, "a command was not carried out"),
    "device.added": EventMeaning(Mark.OK, "the stripe set has one more device"),
    "device.back": EventMeaning(Mark.OK, "a device that was out is in service again, with nothing on it"),
    "device.draining": EventMeaning(Mark.NOTE, "a device gets no new pages"),
    "device.takes_nothing": EventMeaning(
        Mark.WARNING, "a device gets no new pages: no room beneath its file, or mounted for reading alone"
    ),
    "device.left_out": EventMeaning(Mark.WRONG, "a device of the stripe set was not there at the start"),
    "device.out": EventMeaning(Mark.WRONG, "a device was taken out of service: its pages are misses"),
    "device.pages_lost": EventMeaning(Mark.NOTE, "the pages of a device that is out were forgotten"),
    "device.readmitted": EventMeaning(Mark.OK, "a device that was drained, or had no room, gets new pages again"),
    "donor.away": EventMeaning(Mark.NOTE, "a neighbour that is said to lend lends this server nothing"),
    "lease.pinned": EventMeaning(Mark.NOTE, "an operator wants this lease recalled last"),
    "lease.recalled": EventMeaning(Mark.NOTE, "an operator has recalled leases"),
    "lease.unpinned": EventMeaning(Mark.NOTE, "a lease is recalled like others again"),
    "lending.capped": EventMeaning(Mark.NOTE, "an operator has limited what is lent"),
    "lending.hung": EventMeaning(Mark.WRONG, "a copy into lent memory does not end: what is given back stays away"),
    "lending.sized": EventMeaning(
        Mark.NOTE, "the donor has decided how much it keeps, by its demand within the window"
    ),
    "lending.taken_back": EventMeaning(
        Mark.NOTE, "the donor needed lent memory for its own requests, and has it again"
    ),
    "linker.error": EventMeaning(Mark.WRONG, "a call from SGLang failed: the request was computed without the tiers"),
    "load.failed": EventMeaning(Mark.WRONG, "a copy to the device failed: its requests were answered with 503"),
    "namespace.changed": EventMeaning(Mark.NOTE, "the weights changed: pages of before are of another namespace"),
    "offload.failed": EventMeaning(Mark.WARNING, "pages could not be copied from the device"),
    "offload.given_up": EventMeaning(Mark.WARNING, "copies from the device were not awaited any longer"),
    "offload.not_aside": EventMeaning(
        Mark.WARNING, "pages could not be set aside for donors' GPUs: they go there through host memory for a while"
    ),
    "offload.paused": EventMeaning(
        Mark.WARNING, "the weights changed without a flush: no page is kept until /flush_cache"
    ),
    "offload.resumed": EventMeaning(Mark.OK, "the device was flushed: pages are kept again"),
    "page.corrupt": EventMeaning(Mark.WRONG, "a page was not what was written: dropped, never served"),
    "page.unreadable": EventMeaning(Mark.WARNING, "a page could not be read: it is a miss"),
    "policy.changed": EventMeaning(Mark.NOTE, "an operator has changed a value"),
    "prefix.dropped": EventMeaning(Mark.NOTE, "an operator has dropped a page and what follows it"),
    "prefix.pinned": EventMeaning(Mark.NOTE, "an operator has pinned a page and its prefix"),
    "prefix.unpinned": EventMeaning(Mark.NOTE, "a pinned prefix may be evicted again"),
    "remote.answers_again": EventMeaning(Mark.OK, "the remote engine answers again"),
    "remote.cannot_be_opened": EventMeaning(
        Mark.WARNING, "the remote engine cannot be opened: the server goes on without it, and tries again"
    ),
    "remote.does_not_answer": EventMeaning(Mark.WARNING, "the remote engine misses its deadlines: it is not asked"),
    "remote.engine_gone": EventMeaning(Mark.WARNING, "the process of the remote engine has ended: a new one is begun"),
    "remote.engine_ready": EventMeaning(Mark.OK, "the remote engine can be asked"),
    "remote.error": EventMeaning(Mark.WRONG, "an error in the remote tier: a miss"),
    "remote.fails": EventMeaning(Mark.WARNING, "the remote engine answers with errors: it is not asked"),
    "reporting.failed": EventMeaning(Mark.WARNING, "a part of reporting could not be started"),
    "restore.behind": EventMeaning(Mark.WARNING, "a restore fell behind its estimate: what had not come was computed"),
    "restore.error": EventMeaning(Mark.WRONG, "an error in a restore: the request was computed"),
    "restore.expired": EventMeaning(Mark.WARNING, "a restore passed its deadline: the rest was computed"),
    "restore.pages_lost": EventMeaning(Mark.WARNING, "pages that were found did not come, and were computed"),
    "ssd.namespace_refused": EventMeaning(Mark.WARNING, "the stripe set takes no pages of these weights"),
    "ssd.not_all_written": EventMeaning(Mark.WARNING, "the server ended before all pages were written"),
    "ssd.not_opened": EventMeaning(Mark.WRONG, "what the devices have could not be read: they are out of service"),
    "ssd.recovered": EventMeaning(Mark.OK, "the pages on the devices were found again at the start"),
    "ssd.write_failed": EventMeaning(Mark.WARNING, "a page could not be written: it stays in memory only"),
    "thread.goes_on": EventMeaning(Mark.OK, "a thread that hung goes on"),
    "thread.hangs": EventMeaning(Mark.WRONG, "a thread has not got on for long: what needs it waits"),
    "thread.restarted": EventMeaning(Mark.WARNING, "a thread had died and was started again"),
    "tier.capped": EventMeaning(Mark.NOTE, "an operator has limited a tier"),
    "tiers.flushed": EventMeaning(Mark.NOTE, "pages of this server's namespace were forgotten"),
}
#: Of kinds that another release tells: by the last word.
_SUSPECT = {"error": Mark.WRONG, "corrupt": Mark.WRONG, "failed": Mark.WARNING, "lost": Mark.WARNING}
#: Keys and digests are longer than this, and shown by their beginning.
LONG = 40


def kind_of(event: StreamEvent) -> EventMeaning:
    """An unknown kind is judged by its name."""
    return KINDS.get(event.kind) or EventMeaning(mark_of(event.kind), "")


def mark_of(kind: str) -> Mark:
    known = KINDS.get(kind)
    return _SUSPECT.get(kind.rpartition(".")[2].rpartition("_")[2], Mark.NOTE) if known is None else known.mark


def words(event: StreamEvent, leave_out: Iterable[str] = ()) -> str:
    """`device /ssd2 reason write failed pages 12`: each field without its unit, with its value as people read it."""
    left_out = set(leave_out)
    said = [f"{text(label(name))} {value_words(name, value)}" for name, value in _fields(event) if name not in left_out]
    return "  ".join(said)


def label(name: str) -> str:
    """A field's name without the unit that its value is shown with."""
    if name == "seconds":
        return "in"
    for unit in ("_bytes", "_seconds"):
        if name.endswith(unit):
            return name.removesuffix(unit).replace("_", " ")
    return name.replace("_", " ")


def value_words(name: str, value: Any, long: int = LONG) -> str:
    """One value, by the unit in its field's name; for a terminal."""
    if value is None:
        return "none"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("_bytes"):
            return size(value)
        if name.endswith("seconds"):
            return seconds(value)
        return count(value)
    said = text(value if isinstance(value, str) else json.dumps(value))
    return f"{said[:12]}.." if len(said) > long and " " not in said and "/" not in said else said


def _fields(event: StreamEvent) -> Iterable[tuple[str, Any]]:
    return ((str(name), value) for name, value in event.fields.items())
