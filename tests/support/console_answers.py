"""What the servers of the console's world answer when they are asked: maps, sequences, pages, nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from swift_tiers.console.feeds.feed import ViewAnswers, ViewQuestion
from swift_tiers.radix_tiering.bus.contract.views import (
    MapPart,
    MapView,
    NodeEntry,
    NodesView,
    PageView,
    PrefixPage,
    PrefixView,
)

RANK = "dp0-tp0"
KEY = "5e" * 32
PARENT = "a7" * 32
STRANGER = "0b" * 32
SLOT_BYTES = 368_640
Runs = tuple[tuple[str, int], ...]


def map_view(server: str, tier: str, cells: Runs, **changes: Any) -> MapView:
    """A map of these runs; its slots are its cells unless `changes` say otherwise."""
    said: dict[str, Any] = {
        "slots": sum(length for _, length in cells), "first_slot": 1 if tier == "device" else 0,
        "slot_bytes": SLOT_BYTES, "slots_per_cell": 1, "age_seconds": 0.4, "rank": RANK,
    }  # fmt: skip
    return MapView(server=server, tier=tier, cells=cells, **{**said, **changes})


def large_map(server: str = "alpha", tier: str = "device", slots: int = 100_000, seed: int = 7) -> MapView:
    """As a busy server's: short runs of everything, as many as the longest answer has."""
    chance = random.Random(seed)
    states = ("cached", "free", "private", "pinned", "cached", "lent", "loading", "cached", "free", "recomputing")
    runs: list[tuple[str, int]] = []
    left = slots
    while left:
        length = min(left, 1 + int(chance.expovariate(0.3)))
        runs.append((states[chance.randrange(len(states))], length))
        left -= length
    return map_view(server, tier, tuple(runs))


def prefix_view(server: str, key: str = KEY, pages: int = 128, listed: int | None = None) -> PrefixView:
    """The first half is on the device, too; the last pages lie deeper; one in forty is nowhere."""
    listed = pages if listed is None else listed
    table = tuple(_listed(depth, pages, key) for depth in range(pages - listed + 1, pages + 1))
    return PrefixView(server=server, rank=RANK, key=key, age_seconds=0.3, pages=pages, listed=listed, table=table)


def _listed(depth: int, pages: int, key: str) -> PrefixPage:
    name = key[:16] if depth == pages else PARENT[:16] if depth == pages - 1 else f"{depth:016x}"
    if depth % 40 == 0:
        return PrefixPage(depth, name)
    units = ((depth % 4, 100 + depth), ((depth + 1) % 4, 300 + depth)) if depth > pages // 4 else ()
    return PrefixPage(
        depth, name, device=16 + depth if depth <= pages // 2 else None,
        host=depth if depth % 3 else None, ssd=units,
        peer=f"alpha.dp0-tp0/12/{depth}" if depth % 3 == 0 and depth > pages // 2 else "",
    )  # fmt: skip


def page_view(server: str, key: str = KEY, **changes: Any) -> PageView:
    """A page that is held in every tier."""
    said: dict[str, Any] = {
        "rank": RANK, "held": True, "whole_key": key, "age_seconds": 0.2, "namespace": "c0ffee" * 8, "depth": 128,
        "parent": PARENT, "children": 1, "bytes": SLOT_BYTES, "uses": 12, "pins": 1, "host_slot": 127,
        "peer": "alpha.dp0-tp0 lease 12 slot 5", "ssd_placement": ((0, 228), (1, 428)), "generation": 3,
        "device_slot": 144, "checksum": "9f" * 16, "last_used_seconds": 4.0, "origin": "computed here",
    }  # fmt: skip
    return PageView(server=server, key=key, **{**said, **changes})


def nodes_view(server: str, table: tuple[NodeEntry, ...] | None = None, **changes: Any) -> NodesView:
    """A tree of a system prompt with conversations behind it, and a document apart."""
    table = tuple(_nodes()) if table is None else table
    said: dict[str, Any] = {"rank": RANK, "age_seconds": 0.6, "nodes": 412, "listed": len(table), "complete": True}
    return NodesView(server=server, table=table, **{**said, **changes})


def _nodes() -> Iterator[NodeEntry]:
    """Larger subtrees first, as servers list them."""
    yield NodeEntry(3, None, 2048, 61_440, 940, 3, 0.4, "1f" * 8)
    yield NodeEntry(17, 3, 8192, 30_720, 120, 2, 0.4, "2e" * 8)
    yield NodeEntry(90, None, 24_576, 24_576, 2, 0, 3700.0, "77" * 8)
    yield NodeEntry(21, 3, 6144, 14_336, 61, 0, 95.0, "")
    yield NodeEntry(33, 17, 12_288, 12_288, 9, 1, 1.2, KEY[:16])
    yield NodeEntry(34, 17, 10_240, 10_240, 4, 0, 210.0, "3d" * 8)
    yield NodeEntry(40, 21, 8192, 8192, None, None, None, "")
    yield NodeEntry(22, 3, 6016, 6016, 3, 0, 18.0, "4c" * 8)


_CELLS: dict[str, Runs] = {
    "device": (
        ("free", 16), ("private", 64), ("cached", 110), ("private", 69), ("pinned", 40), ("cached", 20_000),
        ("loading", 96), ("recomputing", 40), ("cached", 18_000), ("lent", 5000), ("free", 3170),
    ),
    "peer": (("cached", 300), ("borrowed", 424), ("loading", 4), ("cached", 500), ("borrowed", 228)),
    "host": (("cached", 90_000), ("pinned", 12), ("loading", 30), ("cached", 90_000), ("free", 6371)),
}  # fmt: skip


def _map(server: str, tier: str) -> MapView:
    if tier == "ssd":
        # A device of four is out, where the world has it so.
        devices = [("cached", 1400), ("free", 2600)], [("cached", 1480), ("free", 2520)], [("out", 4000)]
        last = [("cached", 1560), ("loading", 3), ("free", 2437)]
        second = devices[2] if server == "alpha" else [("cached", 1520), ("free", 2480)]
        cells = tuple(run for part in (*devices[:2], second, last) for run in part)
        parts = tuple(MapPart(str(number), 1_024_000) for number in range(4))
        return map_view(
            server, tier, cells, slots=4_096_000, slots_per_cell=256, slot_bytes=131_072, parts=parts,
        )  # fmt: skip
    if tier == "peer":
        if server != "beta":
            return MapView(server=server, rank=RANK, tier=tier, age_seconds=0.4, reason="it borrows nothing")
        parts = tuple(MapPart(f"alpha.dp0-tp0/{lease}", 728) for lease in (12, 13))
        return map_view(server, tier, _CELLS[tier], parts=parts)
    return map_view(server, tier, _CELLS[tier])


def _page(server: str, key: str) -> PageView:
    if key == KEY:
        return page_view(server)
    if key == PARENT:
        return page_view(server, key, depth=127, parent="c3" * 32, pins=0, device_slot=None, peer="")
    return PageView(server=server, rank=RANK, key=key, held=False, age_seconds=0.2)


_ANSWERS: dict[str, Callable[[str, str], Any]] = {
    "map": _map,
    "prefix": lambda server, key: prefix_view(server, key, pages=128 if key == KEY else 0),
    "page": _page,
    "nodes": lambda server, count: nodes_view(server),
}


def answers_of(servers: tuple[str, ...], question: ViewQuestion) -> ViewAnswers:
    """Of those that are asked, among those that are alive."""
    asked = [server for server in servers if question.server in (None, server)]
    return ViewAnswers(views=tuple(_ANSWERS[question.kind](server, question.what) for server in asked))
