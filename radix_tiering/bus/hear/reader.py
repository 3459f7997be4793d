"""What is on the bus, typed, for whoever looks: `inspect`, the console. Also the way to ask and to command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import Flag, auto
from functools import partial
from types import TracebackType
from typing import Any

import redis

from ...base.config import BusConfig
from ...base.errors import BusError
from ...base.runner import THREADS, Runner
from ..contract.commands import AnyCommand
from ..contract.gpu_views import MOST_REACHES, GpuView, ReachView
from ..contract.neighbours import lease_name
from ..contract.request_memory import Listed, RequestMemory
from ..contract.round_trips import Question as Fetch
from ..contract.round_trips import RoundTrips
from ..contract.schema import (
    LINKS,
    MOST_DONOR_LINKS,
    MOST_TIERS,
    TIERS,
    Keys,
)
from ..contract.view_reading import AnyView, aged, read_server, read_view
from ..contract.views import (
    MOST_PARTNERS,
    CommandView,
    DeviceView,
    DirectoryView,
    LeasesView,
    LinkView,
    MapView,
    NodesView,
    PageView,
    PrefixView,
    RankState,
    RankView,
    RequestView,
    ServerState,
    ServerView,
    Snapshot,
    StripeSetView,
    TierView,
    TreeView,
)
from ..redis.connection import bus_errors, connect
from .asking import (
    PATIENCE_SECONDS,
    Answers,
    Question,
    ask_ranks,
    map_question,
    nodes_question,
    page_question,
    prefix_question,
)
from .commanding import send_command
from .event_reading import Cursor, EventsRead, newest_entries, newest_events, read_events

#: Devices of a set that are looked for at most, whatever its key says.
MOST_DEVICES = 1024


class Part(Flag):
    """What a snapshot is to hold beside the servers."""

    RANKS = auto()
    TIERS = auto()
    DEVICES = auto()  # and their stripe sets
    LINKS = auto()  # and GPUs, with the ways between them
    TREES = auto()
    DIRECTORIES = auto()
    REQUESTS = auto()
    LEASES = auto()


NOTHING = Part(0)
EVERYTHING = ~NOTHING


class BusReader:
    """The bus as a reader sees it. Any thread may use it, several at once too.

    Nothing is searched for: every key follows from the list of servers, so a snapshot takes four round trips, however
    much else Redis holds (one more for every 500 keys). A key that vanishes meanwhile is left out, a field that is not
    there is None. Every method raises BusError for a Redis that cannot be used and for a bus of another schema version.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str = "swift",
        errors: Callable[[], AbstractContextManager[None]] = nullcontext,
        runner: Runner = THREADS,
    ) -> None:
        """`client` answers in text; `close` closes it. `errors` is to make a BusError of what it raises within.
        `runner`: by whose time answers are waited for."""
        self._bus = RoundTrips(client, Keys(prefix), errors)
        self._runner = runner
        self._memory = RequestMemory()

    @classmethod
    def open(cls, config: BusConfig, name: str = "reader") -> BusReader:
        """A reader with a connection of its own, to Redis `swift-tiers:NAME`. Raises ConfigError, BusError."""
        return cls(connect(config, name), config.prefix, partial(bus_errors, config))

    def close(self) -> None:
        self._bus.close()

    def __enter__(self) -> BusReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- state ----

    def snapshot(
        self,
        parts: Part = EVERYTHING,
        server: str | None = None,
        *,
        requests_seconds: float = 0.0,
        ended_seconds: float = 0.0,
    ) -> Snapshot:
        """These parts of all servers, or of one; without any server if there is none of that name.

        Requests are most of what there is to read. Those that this reader has read in the last `requests_seconds` are
        told as they were then, with the ages that they had; those that have ended, if it has read the whole list of
        them in the last `ended_seconds`.
        """
        servers, now = self._read_servers(server)
        homes = [(one, rank) for one in servers for rank in one.ranks]
        lists = [self._key("requests", *home) for home in homes] if Part.REQUESTS in parts else []
        recent = self._memory.recent(lists, now, requests_seconds)
        since = {key: self._memory.since(key, now, ended_seconds) for key in lists if key not in recent}
        found: dict[str, Any] = {**recent}
        if homes and parts:
            first = {key: _list_question(key, arrival) for key, arrival in since.items()}
            first |= dict(ask for home in homes for ask in self._questions(parts, *home))
            asked, now = self._bus.ask(first)
            found |= asked
            for key, arrival in since.items():
                found[key] = self._memory.recall(key, found[key], arrival)
            further = dict(ask for home in homes for ask in self._further_questions(parts, *home, found))
            if further:
                more, now = self._bus.ask(further)
                found |= more
        states = tuple(
            ServerState(server=one, ranks=tuple(self._rank_state(parts, one, rank, found, now) for rank in one.ranks))
            for one in servers
        )
        if Part.REQUESTS in parts:
            said = dict(zip(lists, (rank.requests for state in states for rank in state.ranks), strict=True))
            read = {key: (found[key], said[key], arrival is None) for key, arrival in since.items()}
            self._memory.keep(read, recent, now, everybody=server is None)
        return Snapshot(time=now, servers=states)

    def servers(self) -> tuple[ServerView, ...]:
        """All that are alive, and those that were within the last hour."""
        return tuple(self._read_servers(None)[0])

    def ranks(self, server: str | None = None) -> tuple[RankView, ...]:
        return tuple(state.rank for state in self._rank_states(Part.RANKS, server) if state.rank)

    def tiers(self, server: str | None = None) -> tuple[TierView, ...]:
        return tuple(tier for state in self._rank_states(Part.TIERS, server) for tier in state.tiers)

    def stripe_sets(self, server: str | None = None) -> tuple[StripeSetView, ...]:
        return tuple(state.stripe_set for state in self._rank_states(Part.DEVICES, server) if state.stripe_set)

    def devices(self, server: str | None = None) -> tuple[DeviceView, ...]:
        return tuple(device for state in self._rank_states(Part.DEVICES, server) for device in state.devices)

    def links(self, server: str | None = None) -> tuple[LinkView, ...]:
        return tuple(link for state in self._rank_states(Part.LINKS, server) for link in state.links)

    def leases(self, server: str | None = None) -> tuple[LeasesView, ...]:
        """Of each rank, what it lends, then what it borrows: two views of what servers of this bus lend each other."""
        states = self._rank_states(Part.LEASES, server)
        return tuple(view for state in states for view in (*state.lent, *state.borrowed))

    def trees(self, server: str | None = None) -> tuple[TreeView, ...]:
        return tuple(state.tree for state in self._rank_states(Part.TREES, server) if state.tree)

    def directories(self, server: str | None = None) -> tuple[DirectoryView, ...]:
        return tuple(state.directory for state in self._rank_states(Part.DIRECTORIES, server) if state.directory)

    def requests(self, server: str | None = None) -> tuple[RequestView, ...]:
        """Live ones and those that ended lately, by arrival; each once for every rank that sees it."""
        return tuple(request for state in self._rank_states(Part.REQUESTS, server) for request in state.requests)

    def request(self, rid: str, server: str | None = None) -> tuple[RequestView, ...]:
        """What every rank says about one request; nothing if none knows it (any more)."""
        servers, now = self._read_servers(server)
        homes = [(one, rank) for one in servers for rank in one.ranks]
        found, now = self._bus.ask(dict(self._hash("request", *home, rid=rid) for home in homes))
        return _present(self._view(RequestView, "request", *home, found, now, rid=rid) for home in homes)

    # ---- events ----

    def events(self, server: str, after: Cursor | None = None, count: int = 1000) -> EventsRead:
        """Up to `count` events of a server, oldest first, from where `after` came from; without it, from the oldest.

        What is missing between two events of a rank is there as a `Gap`, and so is what has been trimmed since `after`.
        `cursor` of the result goes on from here. A server that is gone still has its events.
        """
        return read_events(self._bus, server, after or Cursor(), count)

    def newest_events(self, server: str, count: int = 100) -> EventsRead:
        """The newest events of a server, oldest first. What came before them is no gap."""
        return newest_events(self._bus, server, count)

    def newest_entries(self, servers: Iterable[str]) -> dict[str, str]:
        """Of each server, the id of its newest event's entry: where a cursor stands that has read everything."""
        return newest_entries(self._bus, servers)

    # ---- asking ----

    def page(self, page: str, server: str | None = None, timeout: float = PATIENCE_SECONDS) -> Answers[PageView]:
        """Ask every living rank, or those of one server, what it knows of the page with this key (64 hex digits).

        Waits at most `timeout` seconds, until all have answered; who has not is named in the result.
        """
        return self._ask(page_question(page), server, timeout)

    def prefix(self, page: str, server: str | None = None, timeout: float = PATIENCE_SECONDS) -> Answers[PrefixView]:
        """The same of the whole sequence that ends with this page."""
        return self._ask(prefix_question(page), server, timeout)

    def map(self, tier: str, server: str | None = None, timeout: float = PATIENCE_SECONDS) -> Answers[MapView]:
        """Likewise: what is in each slot of a tier, `device`, `peer`, `host` or `ssd`."""
        return self._ask(map_question(tier), server, timeout)

    def nodes(
        self, count: int = 100, server: str | None = None, timeout: float = PATIENCE_SECONDS
    ) -> Answers[NodesView]:
        """Likewise: the `count` (1 to 1,000) largest subtrees of SGLang's radix tree."""
        return self._ask(nodes_question(count), server, timeout)

    def _ask(self, question: Question[AnyView], server: str | None, timeout: float) -> Answers[AnyView]:
        asked = [one for one in self.servers() if one.alive] if server is None else [self._living(server)[0]]
        return ask_ranks(self._bus, asked, question, timeout, self._runner)

    def command(self, server: str, author: str, command: AnyCommand, timeout: float = 10.0) -> CommandView:
        """Send one command and wait until nothing more becomes of it: `done`, `refused`, `expired` or `partly`.

        `timeout`, seconds: after that the server must not begin with it any more. `author` is for the audit. Raises
        BusError if the server is not alive or obeys no commands, and CommandRefusedError for what it would refuse at
        sight: then nothing was sent. Raises CommandUnclearError if its outcome is not known.
        """
        one, now = self._living(server)
        return send_command(self._bus, one, author, command, timeout, now, self._runner)

    def _living(self, name: str) -> tuple[ServerView, float]:
        servers, now = self._read_servers(name)
        if servers and servers[0].alive:
            return servers[0], now
        alive = ", ".join(one.server for one in self.servers() if one.alive and one.server != name)
        raise BusError(f"server {name}: is {'gone' if servers else 'not known here'}; alive are: {alive or 'none'}")

    # ---- how ----

    def _read_servers(self, only: str | None) -> tuple[list[ServerView], float]:
        key = self._bus.keys.of("servers")
        answers, now = self._bus.ask({key: lambda pipeline: pipeline.zrange(key, 0, -1, withscores=True)})
        heartbeats = {name: score for name, score in sorted(answers[key]) if only is None or name == only}
        if not heartbeats:
            return [], now
        keys = {name: self._bus.keys.of("info", server=name) for name in heartbeats}
        said, now = self._bus.ask({name: _hash_question(keys[name]) for name in heartbeats})
        return [read_server(name, said[name], heartbeat, now) for name, heartbeat in heartbeats.items()], now

    def _questions(self, parts: Part, server: ServerView, rank: str) -> Iterator[tuple[str, Fetch]]:
        """Keys and how to ask for them: those that follow from server and rank, but for the list of requests."""
        if parts & (Part.RANKS | Part.TIERS | Part.LINKS | Part.LEASES):
            yield self._hash("rank", server, rank)
        if Part.TIERS in parts:
            yield from (self._hash("tier", server, rank, tier=tier) for tier in TIERS)
        if Part.DEVICES in parts:
            yield self._hash("stripe", server, rank)
        if Part.LINKS in parts:
            yield from (self._hash("link", server, rank, link=link) for link in LINKS)
            yield self._hash("gpu", server, rank)
        if Part.TREES in parts:
            yield self._hash("tree", server, rank)
        if Part.DIRECTORIES in parts:
            yield self._hash("directory", server, rank)

    def _further_questions(
        self, parts: Part, server: ServerView, rank: str, found: dict[str, Any]
    ) -> Iterator[tuple[str, Fetch]]:
        """Those that follow from the answers to the first."""
        for number in range(self._device_count(server, rank, found)):
            yield self._hash("ssd", server, rank, number=str(number))
        if Part.REQUESTS in parts:
            unknown = found[self._key("requests", server, rank)].unknown
            yield from (self._hash("request", server, rank, rid=rid) for rid in unknown)
        gpu = self._view(GpuView, "gpu", server, rank, found)
        if gpu is not None:
            yield from (self._hash("reach", server, rank, gpu=uuid) for uuid in gpu.reaches[:MOST_REACHES])
        said = self._view(RankView, "rank", server, rank, found)
        if said is None:
            return
        if Part.TIERS in parts:
            yield from (self._hash("tier", server, rank, tier=tier) for tier in _other_tiers(said))
        if Part.LINKS in parts:
            yield from (self._hash("link", server, rank, link=link) for link in _donor_links(said))
        if Part.LEASES in parts:
            yield from (self._hash("lent", server, rank, borrower=name) for name in said.lends_to[:MOST_PARTNERS])
            yield from (self._hash("borrowed", server, rank, donor=name) for name in said.borrows_from[:MOST_PARTNERS])

    def _device_count(self, server: ServerView, rank: str, found: dict[str, Any]) -> int:
        stripe_set = self._view(StripeSetView, "stripe", server, rank, found)
        return min(stripe_set.devices or 0, MOST_DEVICES) if stripe_set else 0

    def _rank_state(self, parts: Part, server: ServerView, rank: str, found: dict[str, Any], now: float) -> RankState:
        home = (server, rank, found, now)
        said, own = self._view(RankView, "rank", *home), lease_name(server.server, rank)
        links = (*LINKS, *_donor_links(said)) if said is not None else LINKS
        tiers = (*TIERS, *_other_tiers(said)) if said is not None else TIERS
        gpu = self._view(GpuView, "gpu", *home)
        others = gpu.reaches[:MOST_REACHES] if gpu is not None else ()
        borrowers, donors = (said.lends_to, said.borrows_from) if said is not None else ((), ())
        numbers = range(self._device_count(server, rank, found))
        return RankState(
            name=rank,
            rank=said if Part.RANKS in parts else None,
            tiers=_present(self._view(TierView, "tier", *home, tier=tier) for tier in tiers),
            stripe_set=self._view(StripeSetView, "stripe", *home),
            devices=_present(self._view(DeviceView, "ssd", *home, number=number) for number in numbers),
            links=_present(self._view(LinkView, "link", *home, link=link) for link in links),
            gpu=gpu,
            reaches=_present(self._view(ReachView, "reach", *home, gpu=uuid) for uuid in others),
            lent=_present(self._view(LeasesView, "lent", *home, donor=own, borrower=name) for name in borrowers),
            borrowed=_present(self._view(LeasesView, "borrowed", *home, donor=name, borrower=own) for name in donors),
            tree=self._view(TreeView, "tree", *home),
            directory=self._view(DirectoryView, "directory", *home),
            requests=self._requests_of(*home) if Part.REQUESTS in parts else (),
        )

    def _requests_of(self, server: ServerView, rank: str, found: dict[str, Any], now: float) -> tuple[RequestView, ...]:
        listed: Listed = found[self._key("requests", server, rank)]
        read = _present(
            aged(listed.known[member], server.clock_offset_seconds, now)
            if member in listed.known
            else self._view(RequestView, "request", server, rank, found, now, rid=member[0])
            for member in listed.members
        )
        return (*(view for _, view in listed.former), *read)

    def _view(
        self,
        kind: type[AnyView],
        name: str,
        server: ServerView,
        rank: str,
        found: dict[str, Any],
        now: float = 0.0,
        **words: Any,
    ) -> AnyView | None:
        """The view of the key, if it was found. `words`: those of the key, and what else the view knows from them."""
        key = self._key(name, server, rank, **words)
        said = found.get(key)
        if not said:
            return None
        if not isinstance(said, kind):
            # Kept instead of what it was read from: some are wanted more than once.
            said = found[key] = read_view(kind, said, server=server.server, rank=rank, **words)
        return aged(said, server.clock_offset_seconds, now)

    def _hash(self, name: str, server: ServerView, rank: str, **words: str) -> tuple[str, Fetch]:
        key = self._key(name, server, rank, **words)
        return key, _hash_question(key)

    def _key(self, name: str, server: ServerView, rank: str, **words: Any) -> str:
        return self._bus.keys.of(name, server=server.server, rank=rank, **{word: str(words[word]) for word in words})

    def _rank_states(self, parts: Part, server: str | None) -> Iterator[RankState]:
        for state in self.snapshot(parts, server).servers:
            yield from state.ranks


def _other_tiers(rank: RankView) -> list[str]:
    """Those that not every rank may have."""
    return [name for name in rank.tiers if name not in TIERS][:MOST_TIERS]


def _donor_links(rank: RankView) -> list[str]:
    """Those that not every rank may have."""
    return [name for name in rank.links if name not in LINKS][:MOST_DONOR_LINKS]


def _hash_question(key: str) -> Fetch:
    return lambda pipeline: pipeline.hgetall(key)


def _list_question(key: str, since: float | None) -> Fetch:
    """For the requests that a rank lists; those that arrived at that time or later."""
    if since is None:
        return lambda pipeline: pipeline.zrange(key, 0, -1, withscores=True)
    return lambda pipeline: pipeline.zrange(key, repr(since), "+inf", byscore=True, withscores=True)


def _present(views: Iterable[AnyView | None]) -> tuple[AnyView, ...]:
    return tuple(view for view in views if view is not None)
