"""Snapshots as entries, one for each view, so that only what has changed need be written down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    DirectoryView,
    LeasesView,
    LinkView,
    RankState,
    RankView,
    RequestView,
    ServerState,
    ServerView,
    Snapshot,
    StripeSetView,
    TierView,
    TreeView,
    View,
)

#: (server), (server, rank), (server, rank, kind), or (server, rank, kind, which).
Path = tuple[str, ...]
Fields = dict[str, Any]

#: What a rank's state has one of, and what it has several of, with the field that tells them apart.
SINGLE: dict[str, type[View]] = {
    "rank": RankView, "stripe_set": StripeSetView, "tree": TreeView, "directory": DirectoryView,
    "gpu": GpuView,
}  # fmt: skip
SEVERAL: dict[str, tuple[type[View], str]] = {
    "tiers": (TierView, "tier"), "devices": (DeviceView, "number"), "links": (LinkView, "link"),
    "requests": (RequestView, "rid"), "lent": (LeasesView, "borrower"), "borrowed": (LeasesView, "donor"),
    "reaches": (ReachView, "gpu"),
}  # fmt: skip
#: Instead of an age, which differs from look to look: when the view was true, by Redis' clock, to this many digits.
TRUE_AT, DIGITS = "true_at", 4


class Entries(msgspec.Struct, frozen=True):
    """A look, or how it differs from the one before."""

    time: float  # of the look, by Redis' clock
    entries: list[tuple[Path, Fields]]  # new ones with all fields, others with those that have changed
    gone: list[Path] = []
    order: list[Path] | None = None  # of all entries, where it does not follow from the above


def entries_of(snapshot: Snapshot) -> dict[Path, Fields]:
    """One for each view, in the order of the snapshot."""
    found: dict[Path, Fields] = {}
    for state in snapshot.servers:
        name = state.server.server
        found[name,] = _fields(state.server, snapshot.time)
        for rank in state.ranks:
            found[name, rank.name] = {}
            for path, view in _views(rank):
                found[name, rank.name, *path] = _fields(view, snapshot.time)
    return found


def _views(rank: RankState) -> Iterator[tuple[Path, View]]:
    for kind in SINGLE:
        view = getattr(rank, kind)
        if view is not None:
            yield (kind,), view
    for kind, (_, which) in SEVERAL.items():
        for view in getattr(rank, kind):
            yield (kind, str(getattr(view, which))), view


def _fields(view: View, now: float) -> Fields:
    fields: Fields = msgspec.to_builtins(view)
    age = fields.pop("age_seconds")
    fields[TRUE_AT] = None if age is None else round(now - age, DIGITS)
    fields.pop("server")
    fields.pop("rank", None)
    return fields


def changes(before: Mapping[Path, Fields], after: Mapping[Path, Fields], time: float) -> Entries:
    """What makes `after` of `before`."""
    entries: list[tuple[Path, Fields]] = []
    for path, fields in after.items():
        former = before.get(path)
        if former is None:
            entries.append((path, fields))
        elif fields != former:
            entries.append((path, {name: value for name, value in fields.items() if former.get(name, ...) != value}))
    gone = [path for path in before if path not in after]
    kept = [path for path in before if path in after]
    plain = [*kept, *(path for path, _ in entries if path not in before)]
    follows = plain == list(after) or _groups(plain) == _groups(after)
    return Entries(time, entries, gone, None if follows else list(after))


def _groups(paths: Iterable[Path]) -> dict[Path, list[str]]:
    """What stands beside each other: servers, ranks of a server, views of a kind. Only their order matters."""
    groups: dict[Path, list[str]] = {}
    for path in paths:
        if len(path) != 3:
            groups.setdefault(path[:-1], []).append(path[-1])
    return groups


def check_numbers(value: Any) -> None:
    """Raise ValidationError for what is no number: nobody who shows figures expects it."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise msgspec.ValidationError(f"{value} is no figure")
    elif isinstance(value, dict):
        for one in value.values():
            check_numbers(one)
    elif isinstance(value, list | tuple):
        for one in value:
            check_numbers(one)


class State:
    """A snapshot that is put together from entries. What has not changed is not decoded again."""

    def __init__(self) -> None:
        self._time = 0.0
        self._fields: dict[Path, Fields] = {}
        self._views: dict[Path, View] = {}  # without age

    def begin(self, entries: Entries) -> None:
        """A whole look."""
        self._fields, self._views = {}, {}
        self.change(entries)

    def change(self, entries: Entries) -> None:
        """Raises msgspec.ValidationError, and KeyError for an order of what is not there."""
        check_numbers(entries.time)
        self._time = entries.time
        for path in entries.gone:
            self._fields.pop(path, None)
            self._views.pop(path, None)
        for path, fields in entries.entries:
            check_numbers(fields)
            self._fields[path] = {**self._fields.get(path, {}), **fields}
            self._views.pop(path, None)
        if entries.order is not None:
            self._fields = {path: self._fields[path] for path in entries.order}

    def snapshot(self) -> Snapshot:
        """Raises msgspec.ValidationError for what is not as views are."""
        ranks: dict[tuple[str, str], dict[str, Any]] = {}
        servers: dict[str, ServerView] = {}
        for path in self._fields:
            if len(path) == 1:
                servers[path[0]] = self._view(path, ServerView)
            elif len(path) == 2:
                ranks[path[0], path[1]] = {"name": path[1]}
            elif len(path) in (3, 4) and (path[0], path[1]) in ranks:
                self._add(ranks[path[0], path[1]], path)
            else:
                raise msgspec.ValidationError(f"{path} is no view")
        return Snapshot(
            time=self._time,
            servers=tuple(
                ServerState(
                    server=server, ranks=tuple(RankState(**said) for (home, _), said in ranks.items() if home == name)
                )
                for name, server in servers.items()
            ),
        )

    def _add(self, rank: dict[str, Any], path: Path) -> None:
        kind = path[2]
        if kind in SINGLE:
            rank[kind] = self._view(path, SINGLE[kind])
        elif kind in SEVERAL:
            rank[kind] = (*rank.get(kind, ()), self._view(path, SEVERAL[kind][0]))

    def _view(self, path: Path, kind: type[Any]) -> Any:
        fields, view = self._fields[path], self._views.get(path)
        if view is None:
            said = {name: value for name, value in fields.items() if name != TRUE_AT} | {"server": path[0]}
            if len(path) > 1:
                said["rank"] = path[1]
            view = self._views[path] = msgspec.convert(said, kind)
        true_at = fields.get(TRUE_AT)
        age = round(max(0.0, self._time - true_at), DIGITS) if isinstance(true_at, (int, float)) else None
        return msgspec.structs.replace(view, age_seconds=age)
