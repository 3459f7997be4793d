"""Asking the ranks of a server something, and waiting for what they say: where a page is, what a tier holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple

from ...base.errors import BusError
from ...base.runner import THREADS, Runner
from ..contract.round_trips import RoundTrips
from ..contract.schema import MOST_LISTED_NODES, TIER_NAME
from ..contract.view_reading import AnyView, aged, read_view
from ..contract.views import (
    MapView,
    NodesView,
    PageView,
    PrefixView,
    ServerView,
)
from .waiting import wait_for

#: Entries that the streams which readers write are kept at, about.
STREAM_ENTRIES = 1000
#: An answer that is at most so much older than the question need not be given anew, seconds.
FRESH_SECONDS = 1.0
#: How long a server may take to look at what is asked of it, seconds: it does so once a second at least.
PATIENCE_SECONDS = 3.0

_PAGE_KEY = re.compile(r"[0-9a-f]{64}")
_BEGUN_KEY = re.compile(r"([0-9a-f]{2}){8,32}")


class Answers(NamedTuple, Generic[AnyView]):
    """What became of a question. `silent`: server and rank that did not answer in time."""

    answers: tuple[AnyView, ...]
    silent: tuple[tuple[str, str], ...]


class Question(NamedTuple, Generic[AnyView]):
    """Something that every rank of a server can be asked."""

    name: str  # of the field of an entry, and of the key of the answer
    word: str  # what the field says
    view: type[AnyView]  # of the answer
    known: Mapping[str, str]  # words of the answer's key, which the view has too
    suits: Callable[[AnyView], bool] = lambda answer: True  # whether an answer to somebody else would do


def page_question(page: str) -> Question[PageView]:
    """`page`: its key, or the beginning of it. Raises BusError for what is neither."""
    if not _BEGUN_KEY.fullmatch(page):
        raise BusError(
            f"page {page[:80]!r}: is not the key of a page; give its 64 digits, 0-9 and a-f, "
            "or the first of them: 16 at least, evenly many"
        )
    return Question("page", page, PageView, {"key": page})


def prefix_question(page: str) -> Question[PrefixView]:
    """Raises BusError for what is not the key of a page."""
    return Question("prefix", _checked_page(page), PrefixView, {"key": page})


def map_question(tier: str) -> Question[MapView]:
    """Raises BusError for what cannot be a tier's name; a rank without one of this name says so."""
    if not TIER_NAME.fullmatch(tier):
        raise BusError(f"tier {tier[:80]!r}: is no name of a tier; `swift-tiers inspect tiers` says which there are")
    return Question("map", tier, MapView, {"tier": tier})


def nodes_question(count: int) -> Question[NodesView]:
    """Raises BusError for a count that no server answers."""
    if not 1 <= count <= MOST_LISTED_NODES:
        raise BusError(f"{count} nodes: cannot be asked for; give 1 to {MOST_LISTED_NODES}")

    def suits(answer: NodesView) -> bool:
        return answer.nodes is None or answer.listed is None or answer.listed >= min(count, answer.nodes)

    return Question("nodes", str(count), NodesView, {}, suits)


def ask_ranks(
    bus: RoundTrips,
    servers: Sequence[ServerView],
    question: Question[AnyView],
    timeout: float,
    runner: Runner = THREADS,
) -> Answers[AnyView]:
    """Ask every rank of `servers`, which are alive."""
    homes = {
        bus.keys.of(question.name, server=one.server, rank=rank, **question.known): (one, rank)
        for one in servers
        for rank in one.ranks
    }
    # Answers may be long, and are looked for often: first, from when they are.
    times = {key: lambda pipeline, key=key: pipeline.hget(key, "time") for key in homes}
    whole = {key: lambda pipeline, key=key: pipeline.hgetall(key) for key in homes}
    entry = {question.name: question.word}
    streams = [bus.keys.of("questions", server=one.server) for one in servers]
    ask = {
        key: lambda pipeline, key=key: pipeline.xadd(key, entry, maxlen=STREAM_ENTRIES, approximate=True)
        for key in streams
    }
    earlier, asked = bus.ask({**times, **ask})
    answered: dict[str, AnyView] = {}

    def gather() -> bool | None:
        said, _ = bus.ask({key: times[key] for key in homes if key not in answered})
        offsets = {key: homes[key][0].clock_offset_seconds for key in said}
        new = [key for key, time in said.items() if _is_fresh(time, earlier[key], asked, offsets[key])]
        if new:
            answers, now = bus.ask({key: whole[key] for key in new})
            for key, fields in answers.items():
                server, rank = homes[key]
                if fields:
                    view = read_view(question.view, fields, server=server.server, rank=rank, **question.known)
                    if question.suits(view):
                        answered[key] = aged(view, server.clock_offset_seconds, now)
        return True if len(answered) == len(homes) else None

    wait_for(gather, timeout, runner)
    silent = tuple((one.server, rank) for key, (one, rank) in homes.items() if key not in answered)
    return Answers(tuple(answered[key] for key in homes if key in answered), silent)


def _checked_page(page: str) -> str:
    if not _PAGE_KEY.fullmatch(page):
        raise BusError(f"page {page[:80]!r}: is not the key of a page; give its 64 digits, 0-9 and a-f")
    return page


def _is_fresh(time: str | None, earlier: str | None, asked: float, offset: float | None) -> bool:
    """Whether what was said then answers our question, or one that was asked just before it."""
    if time != earlier:
        return time is not None
    try:
        return offset is not None and time is not None and asked - (float(time) - offset) <= FRESH_SECONDS
    except ValueError:
        return False
