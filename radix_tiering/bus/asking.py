"""Asking the ranks of a server something, and waiting for what they say: where a page is, what became of a command."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.commands import AnyCommand, Order, read_order, write_order
from swift_tiers.radix_tiering.bus.round_trips import RoundTrips
from swift_tiers.radix_tiering.bus.view_reading import aged, family_of, read_view
from swift_tiers.radix_tiering.bus.views import CommandView, PageView, ServerView
from swift_tiers.radix_tiering.bus.waiting import wait_for
from swift_tiers.radix_tiering.errors import BusError

#: Entries that the streams which readers write are kept at, about.
STREAM_ENTRIES = 1000
#: An answer about a page that is at most so much older than the question need not be given anew, seconds.
FRESH_SECONDS = 1.0
#: How long a server may take to look at what is asked of it, seconds: it does so once a second at least.
PATIENCE_SECONDS = 3.0
#: How long a command may take once its deadline has passed, if it was accepted before, seconds; at least its timeout.
FINISH_SECONDS = 5.0
#: How long ranks that have not said anything are waited for when a command is done, seconds.
STRAGGLER_SECONDS = 1.0

_PAGE_KEY = re.compile(r"[0-9a-f]{64}")


class PageAnswers(NamedTuple):
    """What became of a question. `silent`: server and rank that did not answer in time."""

    answers: tuple[PageView, ...]
    silent: tuple[tuple[str, str], ...]


def ask_page(bus: RoundTrips, servers: Sequence[ServerView], page: str, timeout: float) -> PageAnswers:
    """Ask every rank of `servers`, which are alive, for a page."""
    if not _PAGE_KEY.fullmatch(page):
        raise BusError(f"page {page[:80]!r}: is not the key of a page; give its 64 digits, 0-9 and a-f")
    homes = {
        bus.keys.of("page", server=one.server, rank=rank, key=page): (one, rank)
        for one in servers
        for rank in one.ranks
    }
    look = {key: lambda pipeline, key=key: pipeline.hgetall(key) for key in homes}
    streams = {bus.keys.of("questions", server=one.server): {"page": page} for one in servers}
    ask = {
        key: lambda pipeline, key=key, entry=entry: pipeline.xadd(key, entry, maxlen=STREAM_ENTRIES, approximate=True)
        for key, entry in streams.items()
    }
    earlier, asked = bus.ask({**look, **ask})
    answered: dict[str, PageView] = {}

    def gather() -> bool | None:
        said, now = bus.ask({key: question for key, question in look.items() if key not in answered})
        for key, fields in said.items():
            if fields and _is_fresh(fields, earlier[key], asked, homes[key][0].clock_offset_seconds):
                answered[key] = _page_view(fields, *homes[key], page, now)
        return True if len(answered) == len(homes) else None

    wait_for(gather, timeout)
    silent = tuple((one.server, rank) for key, (one, rank) in homes.items() if key not in answered)
    return PageAnswers(tuple(answered[key] for key in homes if key in answered), silent)


def _is_fresh(said: Mapping[str, str], earlier: Mapping[str, str], asked: float, offset: float | None) -> bool:
    """Whether it answers our question, or one that was asked just before it."""
    if said.get("time") != earlier.get("time"):
        return True
    try:
        return offset is not None and asked - (float(said["time"]) - offset) <= FRESH_SECONDS
    except (KeyError, ValueError):
        return False


def _page_view(said: Mapping[str, str], server: ServerView, rank: str, page: str, now: float) -> PageView:
    view = read_view(PageView, said, server=server.server, rank=rank, key=page)
    return aged(view, server.clock_offset_seconds, now)


def send_command(
    bus: RoundTrips, server: ServerView, author: str, command: AnyCommand, timeout: float, now: float
) -> CommandView:
    """Send one command to `server` and wait until nothing more becomes of it. `now`: by Redis' clock."""
    if not server.control:
        raise BusError(f"server {server.server}: obeys no commands; start it with bus.control = true")
    order = Order(id=uuid.uuid4().hex, author=author, deadline=now + timeout, command=command)
    entry = write_order(order)
    read_order(entry)  # raises CommandError for what the server would refuse
    stream = bus.keys.of("control", server=server.server)
    outcome = bus.keys.of("command", server=server.server, id=order.id)
    bus.ask({"sent": lambda pipeline: pipeline.xadd(stream, entry, maxlen=STREAM_ENTRIES, approximate=True)})

    def look() -> CommandView | None:
        answers, now = bus.ask({"outcome": lambda pipeline: pipeline.hgetall(outcome)})
        said = answers["outcome"]
        if not said:
            return None
        view = read_view(CommandView, said, server=server.server, id=order.id, ranks=family_of(said, "rank"))
        return aged(view, server.clock_offset_seconds, now)

    def final() -> CommandView | None:
        view = look()
        return view if view is not None and view.final else None

    def complete() -> CommandView | None:
        view = look()
        return view if view is not None and set(server.ranks) <= set(view.ranks) else None

    # Until the deadline, and then until the server can have seen that it has passed, and said so.
    found = wait_for(final, timeout + PATIENCE_SECONDS)
    if found is None and look() is not None:
        found = wait_for(final, max(timeout, FINISH_SECONDS))
    if found is None:
        raise _unfinished(server, look(), outcome, timeout)
    if found.state in ("done", "partly"):
        return wait_for(complete, STRAGGLER_SECONDS) or look() or found
    return found


def _unfinished(server: ServerView, seen: CommandView | None, key: str, timeout: float) -> BusError:
    if seen is None:
        return BusError(
            f"server {server.server}: nobody answered within {timeout:g} s, after which the command counts no more; "
            "see `swift-tiers inspect servers`, and send it again"
        )
    silent = [rank for rank in server.ranks if rank not in seen.ranks]
    said = f"no word from {', '.join(silent)}" if silent else "every rank has said what it did"
    return BusError(
        f"server {server.server}: accepted the command and has not finished it ({said}); see what "
        f"becomes of it with `redis-cli hgetall {key}`"
    )
