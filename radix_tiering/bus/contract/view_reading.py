"""From what a key on the bus says to a view of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

from ...figures.story import RestoreStory
from .gpu_views import GpuView
from .views import (
    LeaseEntry,
    LeasesView,
    MapPart,
    MapView,
    NodeEntry,
    NodesView,
    PageView,
    PrefixPage,
    PrefixView,
    RankView,
    RequestView,
    ServerView,
    View,
)

_SECONDS = re.compile(r"-?\d+(\.\d+)?")
_PLACE = r"(?:device=\d+|host=\d+|peer=[^,=]+|ssd=\d+/\d+(?:\+\d+/\d+)*)"
_PREFIX_PAGE = re.compile(rf"(\d+):([0-9a-f]{{16}}):(-|{_PLACE}(?:,{_PLACE})*)", re.ASCII)
_NODE = re.compile(r"(\d+):(\d*):(\d+):(\d+):(\d*):(\d*):(\d*(?:\.\d+)?):([0-9a-f]*)", re.ASCII)

AnyView = TypeVar("AnyView", bound=View)


def read_view(kind: type[AnyView], said: Mapping[str, str], **known: Any) -> AnyView:
    """The view of a hash. What cannot be read counts as not said. `known`, what its key says, goes first."""
    fields: dict[str, Any] = {name: value for name, value in said.items() if value != ""}
    for family in kind.families:
        fields[family] = family_of(said, family)
    for name, read in _READERS.get(kind, {}).items():
        fields[name] = read(fields.get(name, ""))
    fields.update(known)
    try:
        view = msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return _read_what_can_be(kind, fields)
    if all(math.isfinite(value) for name in _floats(kind) if (value := getattr(view, name)) is not None):
        return view
    return _read_what_can_be(kind, fields)


def _read_what_can_be(kind: type[AnyView], fields: Mapping[str, Any]) -> AnyView:
    """Field by field, some of which cannot be read. Slow, and rarely wanted."""
    readable = {}
    for field in _fields(kind):
        if field.name in fields:
            try:
                value = msgspec.convert(fields[field.name], field.type, strict=False)
            except msgspec.ValidationError:
                continue
            if not isinstance(value, float) or math.isfinite(value):
                readable[field.name] = value
    return kind(**readable)


@cache
def _fields(kind: type[View]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Those of a view: finding them takes longer than reading a hash."""
    return msgspec.structs.fields(kind)


@cache
def _floats(kind: type[View]) -> tuple[str, ...]:
    return tuple(field.name for field in _fields(kind) if float in get_args(field.type))


def aged(view: AnyView, offset: float | None, now: float) -> AnyView:
    """`view` with its age. `offset`: its writer's clock minus Redis' clock, if known; `now`: by Redis' clock."""
    if view.time is None or offset is None:
        return view
    # Offsets are measured: what has only just been written may seem to come from the future.
    return msgspec.structs.replace(view, age_seconds=max(0.0, now - (view.time - offset)))


def read_server(name: str, said: Mapping[str, str], heartbeat: float, now: float) -> ServerView:
    """A server; one that says nothing is gone. Its heartbeat is by Redis' clock: its age needs no correction."""
    view = read_view(ServerView, said, server=name, alive=bool(said), age_seconds=max(0.0, now - heartbeat))
    if view.started is None or view.clock_offset_seconds is None:
        return view
    return msgspec.structs.replace(view, up_seconds=max(0.0, now + view.clock_offset_seconds - view.started))


def family_of(said: Mapping[str, str], name: str) -> dict[str, str]:
    """The fields that begin with `name` and a colon, by what follows it."""
    return {field.partition(":")[2]: value for field, value in said.items() if field.startswith(f"{name}:")}


def read_names(text: str) -> tuple[str, ...]:
    """`dp0-tp0,dp0-tp1` as names."""
    return tuple(name for name in text.split(",") if name)


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; empty where the text is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _read_tiers(text: str) -> tuple[tuple[str, int], ...]:
    """`device 12, host 30` as runs."""
    words = [run.split() for run in text.split(",")]
    if not all(len(run) == 2 and run[1].isdecimal() for run in words):
        return ()
    return tuple((tier, int(pages)) for tier, pages in words)


def _read_runs(text: str) -> tuple[tuple[int, int], ...]:
    """`17-40 3` as first and last pages: (17, 40), (3, 3)."""
    runs = [run.partition("-") for run in text.split()]
    if not all(first.isdecimal() and (last or first).isdecimal() for first, _, last in runs):
        return ()
    return tuple((int(first), int(last or first)) for first, _, last in runs)


def _read_placement(text: str) -> tuple[tuple[int, int], ...]:
    """`0:17 1:4` as devices and slots."""
    units = [unit.partition(":") for unit in text.split()]
    if not all(device.isdecimal() and slot.isdecimal() for device, _, slot in units):
        return ()
    return tuple((int(device), int(slot)) for device, _, slot in units)


def _read_leases(text: str) -> tuple[LeaseEntry, ...]:
    """`12:67108864:lent:1.9 13:67108864:recalled:0.0:pinned` as leases."""
    found = []
    for entry in text.split():
        lease, size, state, seconds, *pinned = (*entry.split(":"), "", "", "", "")[:5]
        if not (lease.isdecimal() and size.isdecimal() and _SECONDS.fullmatch(seconds)):
            return ()
        left = float(seconds)
        found.append(LeaseEntry(lease=int(lease), bytes=int(size), state=state, seconds_left=left, pinned=any(pinned)))
    return tuple(found)


def _read_parts(text: str) -> tuple[MapPart, ...]:
    """`0:4096 1:4096`, or `beta.dp0-tp0/12:64`, as stretches of slots."""
    parts = [part.rpartition(":") for part in text.split()]
    if not all(name and slots.isdecimal() for name, _, slots in parts):
        return ()
    return tuple(MapPart(name, int(slots)) for name, _, slots in parts)


def _read_cells(text: str) -> tuple[tuple[str, int], ...]:
    """`free 120 cached 30` as runs."""
    words = text.split()
    if len(words) % 2 or not all(count.isdecimal() for count in words[1::2]):
        return ()
    return tuple(zip(words[::2], map(int, words[1::2]), strict=True))


def _read_prefix(text: str) -> tuple[PrefixPage, ...]:
    """`1:0f3a...:device=17,ssd=0/5+1/9 2:77c0...:-` as pages and their places."""
    found = []
    for word in text.split():
        match = _PREFIX_PAGE.fullmatch(word)
        if match is None:
            return ()
        places = {} if match[3] == "-" else dict(place.split("=", 1) for place in match[3].split(","))
        units = [unit.split("/") for unit in places.get("ssd", "").split("+") if unit]
        found.append(
            PrefixPage(
                int(match[1]),
                match[2],
                device=int(places["device"]) if "device" in places else None,
                host=int(places["host"]) if "host" in places else None,
                peer=places.get("peer", ""),
                ssd=tuple((int(device), int(slot)) for device, slot in units),
            )
        )
    return tuple(found)


def _read_nodes(text: str) -> tuple[NodeEntry, ...]:
    """`17:4:1024:8192:3:1:12.5:0f3a...` as nodes; a number may be missing."""
    found = []
    for word in text.split():
        match = _NODE.fullmatch(word)
        if match is None:
            return ()
        node, parent, tokens, subtree, hits, locks, idle, key = match.groups()
        found.append(
            NodeEntry(
                int(node),
                _maybe_int(parent),
                int(tokens),
                int(subtree),
                _maybe_int(hits),
                _maybe_int(locks),
                float(idle) if idle else None,
                key,
            )
        )
    return tuple(found)


def _maybe_int(text: str) -> int | None:
    return int(text) if text else None


def _read_story(text: str) -> RestoreStory | None:
    """From JSON; None where it cannot be read."""
    try:
        return msgspec.json.decode(text, type=RestoreStory) if text else None
    except msgspec.DecodeError:
        return None


#: Fields whose text has a form of its own.
_READERS: dict[type[View], dict[str, Any]] = {
    ServerView: {"ranks": read_names, "configuration": read_object},
    RankView: {"links": read_names, "lends_to": read_names, "borrows_from": read_names},
    GpuView: {"reaches": read_names},
    LeasesView: {"table": _read_leases},
    RequestView: {"tiers": _read_tiers, "block_table": _read_runs, "restore_story": _read_story},
    PageView: {"ssd_placement": _read_placement},
    MapView: {"parts": _read_parts, "cells": _read_cells},
    PrefixView: {"table": _read_prefix},
    NodesView: {"table": _read_nodes},
}
