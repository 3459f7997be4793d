"""Who lends memory on this machine, as the bus tells it: lease names with their addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path

from ..redis.batch import RedisBatch
from .schema import Keys
from .view import lease_name

#: Servers that are looked at, those whose heartbeat is newest.
MOST_SERVERS = 256
#: Ranks that are looked at, of one server and of all together: whatever others say, it costs no more than that.
MOST_RANKS, MOST_RANKS_IN_ALL = 128, 1024
#: A lender that is on the bus no more is believed in for so long, seconds: a Redis that was emptied must not end
#: leases, and it takes servers 2 s to be there again. Leases themselves end without the bus.
PATIENCE_SECONDS = 10.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: What servers and ranks are called. Nobody who keeps to the contract has another name.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

#: Is told all lenders whenever they change: lease name -> lease address. Must return soon.
OnNeighbours = Callable[[Mapping[str, str]], None]


#: What tells a lease address that can be reached from here from one of the same name elsewhere; see `lease_scope`.
Scope = Callable[[str], str]


def lease_scope(address: str) -> str:
    """What the unix socket at a lease address lies in: `BOOT/UID/DEVICE:INODE`, this machine since it was booted, this
    user, this directory. Whoever finds the same there as the lender told can reach it: containers have host names of
    their own, and the same names for directories that are not the same. Empty where there is no such directory, or
    none can be: others write what they like."""
    try:
        directory = os.stat(Path(address.removeprefix("ipc://")).parent)
    except (OSError, ValueError):  # a NUL in it
        return ""
    return f"{_BOOT_ID.read_text().strip()}/{os.geteuid()}/{directory.st_dev:x}:{directory.st_ino:x}"


def counterparts(rank: str, ranks: Collection[str], others: Sequence[str]) -> list[str]:
    """With which `others`, ranks of another server, a `rank` deals, of all `ranks` of its own.

    Where both servers split their model alike among several ranks, those that have the same part: each has as much to
    keep as the others, and lends as much. Elsewhere all of them do.
    """
    parts, theirs = {_part(one) for one in ranks}, {_part(one) for one in others}
    if len(parts) == 1 or parts != theirs:
        return list(others)
    return [one for one in others if _part(one) == _part(rank)]


def replica_of(rank: str) -> str:
    """Of the model, which has requests of its own: `dp0` of `dp0-tp1`."""
    return rank.rpartition("-")[0]


def _part(rank: str) -> str:
    """Of the model: `tp1` of `dp0-tp1`."""
    return rank.rpartition("-")[2]


class Neighbours:
    """Looks in every turn of the publisher, with a batch of its own. One thread.

    What it reads is others', who may have written anything there: who says nothing that can be read is no neighbour.
    """

    def __init__(
        self,
        keys: Keys,
        own: str,
        scope: Scope,
        on_neighbours: OnNeighbours,
        monotonic: Callable[[], float],
        *,
        rank: str = "",
        ranks: Collection[str] = (),
    ) -> None:
        """`own`: this rank's lease name, which is left out. `scope`: only lenders whose addresses have the scope
        that they told are neighbours. `rank` is what its server calls it, of all `ranks`; see `counterparts`."""
        self._rank = rank
        self._ranks = ranks
        self._keys = keys
        self._own = own
        self._scope = scope
        self._on_neighbours = on_neighbours
        self._monotonic = monotonic
        # What is asked for follows from what was answered before: servers, then their ranks, then what these say.
        self._servers: tuple[str, ...] = ()
        self._homes: dict[str, str] = {}  # lease name -> key of the rank
        self._listed: tuple[str, ...] | None = None  # by this look's answer; None: there was none
        self._named: dict[str, dict[str, str]] = {}  # by server, as `_homes`
        self._said: dict[str, str] = {}  # lease name -> address, of those that lend here
        self._lenders: dict[str, str] = {}
        self._missing: dict[str, float] = {}  # lenders that say nothing, since when
        self._told: dict[str, str] = {}

    def ask(self, batch: RedisBatch) -> None:
        """Queue what is to be asked now."""
        self._listed, self._named, self._said = None, {}, {}
        batch.add("ZRANGE", self._keys.of("servers"), 0, MOST_SERVERS - 1, "REV", reply=self._list)
        for server in self._servers:
            key = self._keys.of("info", server=server)
            batch.add("HMGET", key, "ranks", reply=partial(self._name_ranks, server))
        for name, key in self._homes.items():
            batch.add("HMGET", key, "lease_address", "lease_scope", reply=partial(self._hear, name))

    def settle(self) -> bool:
        """After the batch: tell who is there, if that has changed; whether to look again soon, since somebody has come.

        Raises what `on_neighbours` raises; it is told again next time.
        """
        if self._listed is None:
            return False
        homes = self._bounded()
        hurry = not set(self._listed) <= set(self._servers) or not homes.keys() <= self._homes.keys()
        self._servers, self._homes = self._listed, homes
        self._update()
        if self._lenders != self._told:
            lenders = dict(self._lenders)
            self._on_neighbours(lenders)
            self._told = lenders
        return hurry

    def _bounded(self) -> dict[str, str]:
        """The ranks that were named, the first of every server before the second of any: nobody who names many leaves
        out those of others."""
        layers = zip_longest(*(named.items() for named in self._named.values()))
        return dict(islice((one for one in chain.from_iterable(layers) if one is not None), MOST_RANKS_IN_ALL))

    def _update(self) -> None:
        now = self._monotonic()
        for name, address in self._said.items():
            self._missing.pop(name, None)
            self._lenders[name] = address
        for name in self._lenders.keys() - self._said.keys():
            if now - self._missing.setdefault(name, now) >= PATIENCE_SECONDS:
                del self._lenders[name], self._missing[name]

    def _list(self, servers: list[str]) -> None:
        self._listed = tuple(server for server in servers if _NAME.fullmatch(server))

    def _name_ranks(self, server: str, said: list[str | None]) -> None:
        ranks = [rank for rank in (said[0] or "").split(",", MOST_RANKS)[:MOST_RANKS] if _NAME.fullmatch(rank)]
        named = self._named[server] = {}
        for rank in counterparts(self._rank, self._ranks, ranks):
            name = lease_name(server, rank)
            if name != self._own:
                named[name] = self._keys.of("rank", server=server, rank=rank)

    def _hear(self, name: str, said: list[str | None]) -> None:
        address, scope = said
        try:
            here = bool(address and scope) and scope == self._scope(address or "")
        except (ValueError, TypeError):  # of what is no address
            here = False
        if address and here:
            self._said[name] = address
