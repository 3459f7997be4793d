"""What the tier stack says about itself: everything that is counted, and where one page is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.page import KEY_BYTES
from ..base.slot_map import MapPiece, SlotState, TierMap
from ..figures.counters import PageFacts, PagePlaces, StackSnapshot
from ..table.held_page import HostState, Page
from ..tiers.peer_memory import LeaseSlots

if TYPE_CHECKING:
    from ..stack import TierStack

#: Pages that are looked at while the page table is locked.
PAGES_AT_ONCE = 64


def take_snapshot(stack: TierStack) -> StackSnapshot:
    """The whole stack at one moment; the devices a moment later. Any thread; takes short locks only."""
    table, host, writer = stack.table, stack.host, stack.writer
    with table.lock:
        stack.use_times.note(table.time, stack.clock())
        tiers = {
            "host": stack.host_counters.snapshot(
                capacity_bytes=host.capacity_bytes,
                limit_bytes=host.limit_bytes,
                used_bytes=host.used_slots * host.geometry.stride_bytes,
                pages=table.resident_pages,
                pinned_pages=table.pinned_in_host,
            )
        }
        directory = table.directory(stack.digest)
        stored_pages, stored_bytes, pinned_on_ssd = table.stored_pages, table.stored_bytes, table.pinned_on_ssd
        ssd_limit = table.ssd_limit
        shared_pages, pinned_at_peers = table.peer_copies.pages, table.pinned_at_peers
        backlog = writer.backlog if writer is not None else 0
    stripe, devices = stack.ssd.snapshot() if stack.ssd is not None else (None, ())
    if stripe is not None:
        capacity = sum(device.capacity_bytes for device in devices if device.in_service)
        tiers["ssd"] = stack.ssd_counters.snapshot(
            capacity_bytes=capacity,
            limit_bytes=capacity if ssd_limit is None else min(capacity, ssd_limit),
            used_bytes=stored_bytes,
            pages=stored_pages,
            pinned_pages=pinned_on_ssd,
        )
    geometry = stack.namespace.geometry
    links = {name: link.snapshot() for name, link in stack.links.items()}
    if stack.peer is not None:
        capacity = stack.peer.capacity_bytes
        most = stack.config.peer.borrow_limit
        tiers["peer"] = stack.peer_counters.snapshot(
            capacity_bytes=capacity,
            limit_bytes=capacity if most is None else most,
            used_bytes=shared_pages * geometry.page_bytes,
            pages=shared_pages,
            pinned_pages=pinned_at_peers,
        )
        links |= {name: link.snapshot() for name, link in stack.peer.links.items()}
    return StackSnapshot(
        namespace=stack.digest.hex(),
        rank=stack.namespace.rank,
        page_bytes=geometry.page_bytes,
        tokens_per_page=geometry.tokens,
        tiers=tiers,
        links=links,
        directory=directory,
        stripe=stripe,
        devices=devices,
        restores=stack.restorer.snapshot(),
        io_engine=stack.ssd.description if stack.ssd is not None else "",
        write_queue_pages=backlog,
        landing_pages=stack.landing.slots if stack.landing is not None else 0,
        landing_used_pages=stack.landing.used_slots if stack.landing is not None else 0,
        events_emitted=stack.events.emitted,
    )


def whole_key(stack: TierStack, begin: bytes) -> bytes | None:
    """The key of the only page of this stack's namespace whose key begins so; None if none does, or several do."""
    if len(begin) == KEY_BYTES:
        return begin
    found = stack.table.keys_beginning(stack.digest, begin)
    return found[0] if len(found) == 1 else None


def page_facts(stack: TierStack, key: bytes) -> PageFacts | None:
    """Where a page of this stack's namespace is; None if no whole copy of it is held. Any thread."""
    with stack.table.lock:
        page = stack.table.find(stack.digest, key)
        if page is None or not page.complete:
            return None
        return PageFacts(
            namespace=page.namespace.hex(),
            depth=page.depth,
            parent=page.parent.key.hex() if page.parent is not None else "",
            children=len(page.children),
            bytes=page.length,
            uses=page.uses,
            pins=page.pins + page.kept,
            host_slot=page.slot if page.host is HostState.RESIDENT else None,
            peer=_place_text(page),
            ssd_placement=page.stored.placement if page.stored is not None else (),
            generation=page.stored.generation if page.stored is not None else None,
            checksum=_checksum(page),
            last_used_seconds=stack.use_times.seconds_since(page.last_use, stack.clock()),
            origin="recovered" if page.recovered else "computed here",
        )


def prefix_places(stack: TierStack, key: bytes, most: int | None = None) -> list[PagePlaces]:
    """Where the pages of a sequence are, below the device, of which `key` is the last: in order, all or the last `most`
    of them; none if that page is not held. Any thread; each was there when it was looked at."""
    table = stack.table
    page = table.find(stack.digest, key)
    if page is None:
        return []
    chain = [page]
    while (before := chain[-1].parent) is not None and (most is None or len(chain) < most):
        chain.append(before)
    chain.reverse()
    found: list[PagePlaces] = []
    for start in range(0, len(chain), PAGES_AT_ONCE):
        with table.lock:
            found += [_places(one) for one in chain[start : start + PAGES_AT_ONCE]]
    return found


def tier_map(stack: TierStack, tier: str, *, time: float) -> TierMap | None:
    """What is in each slot of a tier below the device, all of one moment; None if there is no such tier here. Any
    thread. `time`: now, seconds since the epoch."""
    geometry = stack.namespace.geometry
    if tier == "host":
        with stack.table.lock:
            states = stack.host.states()
        return TierMap(time=time, slot_bytes=geometry.stride_bytes, states=states)
    if tier == "ssd" and stack.ssd is not None:
        return stack.ssd.slot_map(time=time)
    if tier == "peer" and stack.peer is not None:
        with stack.table.lock:
            leases, copies = stack.peer.lease_slots(), stack.table.peer_copies.slots()
        leases.sort(key=lambda lease: lease.key)
        return TierMap(
            time=time,
            slot_bytes=geometry.page_bytes,
            states=np.concatenate(
                [*(_borrowed(lease, copies.get(lease.key, [])) for lease in leases), np.zeros(0, np.uint8)]
            ),
            pieces=tuple(MapPiece(f"{key.donor}/{key.lease}", slots) for key, slots, _, _ in leases),
        )
    return None


def _borrowed(lease: LeaseSlots, with_page: list[int]) -> np.ndarray:
    """The slots of one lease: a page is being copied to those that are held and have none."""
    states = np.full(lease.slots, SlotState.BORROWED, np.uint8)
    states[lease.held] = SlotState.LOADING
    states[with_page] = SlotState.CACHED
    states[lease.left] = SlotState.PRIVATE
    return states


def _places(page: Page) -> PagePlaces:
    if page.dropped:
        return PagePlaces(page.depth, page.key.hex())
    peer = None
    if page.peer is not None:
        lease, slot = page.peer.place
        peer = (lease.donor, lease.lease, slot)
    return PagePlaces(
        page.depth,
        page.key.hex(),
        host_slot=page.slot if page.host is HostState.RESIDENT else None,
        peer=peer,
        ssd_placement=page.stored.placement if page.stored is not None else (),
    )


def _checksum(page: Page) -> str:
    """Of its bytes, as far as some copy says it."""
    if page.digest is not None:
        return page.digest.hex()
    if page.stored is not None:
        return page.stored.digest.hex()
    return page.peer.digest.hex() if page.peer is not None else ""


def _place_text(page: Page) -> str:
    if page.peer is None:
        return ""
    key, slot = page.peer.place
    return f"{key.donor} lease {key.lease} slot {slot}"
