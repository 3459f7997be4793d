"""What a tier stack says about itself: everything that is counted, and where one page is. The same of every tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ..base.events import EventLog
from ..base.page import KEY_BYTES, Namespace
from ..base.slot_map import TierMap
from ..figures.counters import LinkCounters, PageFacts, PagePlaces, StackSnapshot, TierSnapshot
from ..table.held_page import Page
from ..table.page_table import PAGES_PER_HOLD, PageTable
from ..table.tier_copies import HOST
from ..table.use_times import UseTimes
from ..tiers.host.host_tier import HostTier
from ..tiers.host.landing import LandingSlots
from ..tiers.tier import Tier
from .down import Mover
from .filling import Filling
from .up import Restorer

#: Slots that are looked at while the page table is locked, which takes less of each than of pages.
SLOTS_AT_ONCE = 4096


class Observed(Protocol):
    """What is told of: a tier stack."""

    @property
    def table(self) -> PageTable: ...
    @property
    def host(self) -> HostTier: ...
    @property
    def tiers(self) -> Mapping[str, Tier]: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def movers(self) -> Mapping[str, Mover]: ...
    @property
    def fillings(self) -> Mapping[str, Filling]: ...
    @property
    def links(self) -> Mapping[str, LinkCounters]: ...
    @property
    def landing(self) -> LandingSlots | None: ...
    @property
    def restorer(self) -> Restorer: ...
    @property
    def events(self) -> EventLog: ...
    @property
    def hung_threads(self) -> int: ...
    @property
    def use_times(self) -> UseTimes: ...
    @property
    def clock(self) -> Callable[[], float]: ...


def take_snapshot(stack: Observed) -> StackSnapshot:
    """The whole stack at one moment; the devices a moment later. Any thread; takes short locks only."""
    table, landing = stack.table, stack.landing
    with table.lock:
        stack.use_times.note(table.time, stack.clock())
        directory = table.directory(stack.digest)
        backlog = sum(mover.backlog for mover in stack.movers.values() if mover.copies.durable)
    links = dict(stack.links)
    details: dict[str, Any] = {"stripe": None, "devices": (), "io_engine": "", "remote_engine": ""}
    details |= dict.fromkeys(("remote_questions", "remote_late", "remote_errors", "remote_lost", "remote_bad"), 0)
    details |= {"remote_engine_asked": None}
    details |= {"outgoing_pages": 0, "outgoing_used_pages": 0}
    for tier in stack.tiers.values():
        links |= tier.links
        details |= tier.details()
    geometry = stack.namespace.geometry
    return StackSnapshot(
        namespace=stack.digest.hex(),
        page_bytes=geometry.page_bytes,
        page_codec=geometry.codec,
        tokens_per_page=geometry.tokens,
        tiers=_tiers(stack),
        links={name: link.snapshot() for name, link in links.items()},
        directory=directory,
        restores=stack.restorer.snapshot(),
        write_queue_pages=backlog,
        landing_pages=landing.slots if landing is not None else 0,
        landing_used_pages=landing.used_slots if landing is not None else 0,
        hung_threads=stack.hung_threads,
        events_emitted=stack.events.emitted,
        **details,
    )


def _tiers(stack: Observed) -> dict[str, TierSnapshot]:
    """What each tier below the device holds and has counted, by name."""
    host, table, found = stack.host, stack.table, {}
    with table.lock:
        copies = table.of[HOST]
        found[host.name] = copies.counters.snapshot(
            capacity_bytes=host.capacity_bytes,
            limit_bytes=host.limit_bytes,
            used_bytes=host.used_slots * host.geometry.stride_bytes,
            pages=copies.pages,
            only_pages=table.only_in(HOST),
            pinned_pages=table.pinned_in(HOST),
            unread_pages=0,
        )
    for tier in stack.tiers.values():
        capacity, copies = tier.capacity_bytes, table.named(tier.name)
        with table.lock:
            most = tier.limit_bytes if copies.limit is None else min(capacity, copies.limit)
            found[tier.name] = copies.counters.snapshot(
                capacity_bytes=capacity,
                limit_bytes=capacity if most is None else most,
                used_bytes=copies.used_bytes,
                pages=copies.pages,
                only_pages=table.only_in(copies.number),
                pinned_pages=table.pinned_in(copies.number),
                unread_pages=stack.fillings[tier.name].unread if tier.durable else 0,
            )
    return found


def whole_key(stack: Observed, begin: bytes) -> bytes | None:
    """The key of the only page of this stack's namespace whose key begins so; None if none does, or several do."""
    if len(begin) == KEY_BYTES:
        return begin
    found = stack.table.keys_beginning(stack.digest, begin)
    return found[0] if len(found) == 1 else None


def page_facts(stack: Observed, key: bytes) -> PageFacts | None:
    """Where a page of this stack's namespace is; None if no whole copy of it is held. Any thread."""
    with stack.table.lock:
        page = stack.table.find(stack.digest, key)
        if page is None or not page.complete:
            return None
        places: dict[str, Any] = {
            "host_slot": page.slot if page.resident else None,
            "peer": "",
            "ssd_placement": (),
            "generation": None,
        }
        for number, tier in enumerate(stack.tiers.values(), HOST + 1):
            copy = page.copy_in(number)
            if copy is not None and copy.whole:
                places |= tier.facts(copy)
        return PageFacts(
            namespace=page.namespace.hex(),
            depth=page.depth,
            parent=page.parent.key.hex() if page.parent is not None else "",
            children=page.followers,
            bytes=page.length,
            uses=page.uses,
            pins=page.pins + page.kept,
            checksum=_checksum(page),
            last_used_seconds=stack.use_times.seconds_since(page.last_use, stack.clock()),
            origin="recovered" if page.recovered else "computed here",
            **places,
        )


def prefix_places(stack: Observed, key: bytes) -> list[PagePlaces]:
    """Where the pages of a sequence are, below the device, of which `key` is the last: in order; none if that page is
    not held, or leaves meanwhile. Any thread; each was there when it was looked at."""
    table, found = stack.table, list[PagePlaces]()
    page = table.find(stack.digest, key)
    while page is not None:
        with table.lock:
            if page.dropped:
                return []
            for _ in range(PAGES_PER_HOLD):
                found.append(_places(stack, page))
                page = page.parent
                if page is None:
                    return found[::-1]
    return found


def tier_map(stack: Observed, tier: str, *, time: float) -> TierMap | None:
    """What is in each slot of a tier below the device, some thousand of one moment: the scheduler waits for the page
    table; None if there is no such tier here, or it has no slots. Any thread. `time`: now, seconds since the epoch."""
    table = stack.table
    if tier == stack.host.name:
        states = np.empty(stack.host.slots, np.uint8)
        for first in range(0, len(states), SLOTS_AT_ONCE):
            some = slice(first, first + SLOTS_AT_ONCE)
            with table.lock:
                states[some] = table.host_states(some)
        return stack.host.slot_map(states, time=time)
    if tier not in stack.tiers:
        return None
    copies = table.named(tier)

    def held() -> list[object]:
        rows, places = copies.listed(), list[object]()
        for first in range(0, len(rows), SLOTS_AT_ONCE):
            with table.lock:
                places += table.places_in(copies.number, rows[first : first + SLOTS_AT_ONCE])
        return places

    return stack.tiers[tier].slot_map(held, time=time)


def _places(stack: Observed, page: Page) -> PagePlaces:
    places: dict[str, Any] = {"host_slot": page.slot} if page.resident else {}
    for number, tier in enumerate(stack.tiers.values(), HOST + 1):
        copy = page.copy_in(number)
        if copy is not None and copy.whole:
            places |= tier.place_facts(copy)
    return PagePlaces(page.depth, page.key.hex(), **places)


def _checksum(page: Page) -> str:
    """Of its bytes, as far as some copy says it."""
    copies = (page.copy_in(tier) for tier in range(len(page.book.of)))
    digests = (copy.digest for copy in copies if copy is not None and copy.whole)
    return next((digest.hex() for digest in digests if digest is not None), "")
