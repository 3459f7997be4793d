"""Small tier stacks of models, what is done with one, and the check that all of its accounts balance.

Tests of the engine and worlds share this: no SGLang, devices in memory, and pages whose bytes follow from their keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from swift_tiers.kernels.page_digest import host_page_digest
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import ROOT_KEY, Namespace, PageGeometry
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand, CommandRefusedError
from swift_tiers.radix_tiering.bus.speak.steering import carry_out
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST, Copy
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.host.landing import LandingSlots
from swift_tiers.radix_tiering.tiers.peer import LentMemory
from swift_tiers.radix_tiering.tiers.ssd import Placement
from swift_tiers.radix_tiering.tiers.ssd.direct_reads import DirectReads
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import Tier
from swift_tiers.radix_tiering.way.down import Put
from swift_tiers.radix_tiering.way.observing import tier_map
from swift_tiers.radix_tiering.way.request_restore import Restore

from .model_peer import ModelPeer

#: How long something may take that has to happen, seconds: a guard against hanging.
WAIT = 60.0
#: Seconds between two looks whether something has happened.
LOOK = 0.0005
#: 4 KiB pages: 2 layers x (K, V) x 4 tokens x 256 bytes.
GEOMETRY = PageGeometry(layers=2, planes=2, tokens=4, row_bytes=256)
#: Pages of two and of three stripe units of 4 KiB, which most of them lie in one and two of where they are coded.
OF_SEVERAL_UNITS = [PageGeometry(layers=3, planes=2, tokens=4, row_bytes=row_bytes) for row_bytes in (256, 512)]


def namespace(**changes: Any) -> Namespace:
    fields: dict[str, Any] = {
        "model": "m",
        "weights": "w",
        "dtype": "float32",
        "geometry": GEOMETRY,
        "first_layer": 0,
        "kv_heads": 2,
        "head_dim": 32,
        "rank": "tp0/1",
    }
    return Namespace(**{**fields, **changes})


def memory_ssd(devices: int = 2, size: int = 2**20, unit: int = 4096, array: Any = None, **options: Any) -> SsdTier:
    array = array or MemoryArray([size] * devices, seed=1)
    return SsdTier(array, [f"memory{device}" for device in range(len(array.sizes))], unit, **options)


def new_stack(
    host_pages: int = 16,
    ssd: SsdTier | None = None,
    space: Namespace | None = None,
    lent: Tier | None = None,
    landing: LandingSlots | None = None,
    direct: DirectReads | None = None,
    runner: Runner = THREADS,
    others: Sequence[Tier] = (),
    fill_behind: bool = False,
    copies_beside: bool = False,
    events: EventLog | None = None,
    **config: Any,
) -> TierStack:
    """A stack with room for `host_pages` in host memory. `others`: more tiers, farther than these. `fill_behind`,
    `copies_beside`: see `TierStack`. `config`: sections of the configuration."""
    space = space or namespace()
    host = HostTier(space.geometry, host_pages * space.geometry.stride_bytes)
    settings = parse_config(config)
    if isinstance(lent, ModelPeer):
        lent.limit = settings.peer.borrow_limit
        landing = lent if landing is None and lent.slots else landing
    if direct is not None and ssd is not None:
        ssd.land_by(direct)
    return TierStack(
        space,
        settings,
        host,
        [tier for tier in (lent, ssd, *others) if tier is not None],
        runner=runner,
        landing=landing,
        fill_behind=fill_behind,
        copies_beside=copies_beside,
        events=events,
    )


def copy_of(stack: TierStack, page: Page, tier: str) -> Copy | None:
    """The whole copy that a tier has of `page`; None if it has none, or there is no such tier."""
    if tier not in (copies.name for copies in stack.table.of):
        return None
    copy = page.copy_in(stack.table.named(tier).number)
    return copy if copy is not None and copy.whole else None


def placement_of(stack: TierStack, page: Page) -> Placement:
    """The slots of the devices that its copy on ssd has; empty where it has none."""
    copy = copy_of(stack, page, "ssd")
    placement: Placement = () if copy is None else stack.tiers["ssd"].place_facts(copy)["ssd_placement"]
    return placement


def chain(*names: object) -> list[bytes]:
    """Page keys of a sequence: each depends on all before it, as SGLang's do."""
    keys, previous = [], b""
    for name in names:
        previous = hashlib.sha256(previous + str(name).encode()).digest()
        keys.append(previous)
    return keys


def content(key: bytes, size: int = GEOMETRY.page_bytes) -> np.ndarray:
    """What the page `key` holds in these tests: uint8 [size], different for every key. Of pages of several stripe units
    each fourth is noise, which cannot be coded."""
    if size > GEOMETRY.page_bytes and not key[0] % 4:
        return np.random.default_rng(list(key)).integers(0, 256, size, np.uint8)
    return np.frombuffer((key * (-(-size // len(key))))[:size], dtype=np.uint8)


def put(
    stack: TierStack, keys: Sequence[bytes], parent: bytes = ROOT_KEY, depth: int = 1, *, by_device: bool = False
) -> int:
    """Offer a chain; how many of its pages were taken in now. `by_device`: the device says of them what it had."""
    offered = stack.intake.begin(keys, parent, depth)
    for index, slot in zip(offered.indices, offered.slots, strict=True):
        stack.host.page(slot)[:] = content(keys[index], stack.host.geometry.page_bytes)
    if by_device:
        device_says(stack, offered, keys)
    stack.intake.commit(offered)
    return len(offered.pages)


def device_says(stack: TierStack, offered: Put, keys: Sequence[bytes]) -> None:
    """Of those of `keys` that are being taken in, what it had."""
    if offered.slots:
        there = [content(keys[index], stack.host.geometry.page_bytes) for index in offered.indices]
        stack.host.digests.learn(offered.slots, device_digests(there))


def settle(stack: TierStack, restore: Restore) -> Restore:
    """Wait for a restore, whatever threads it takes."""
    wait_until(lambda: stack.restorer.poll(restore), "the restore does not settle", stack)
    return restore


def page_at(stack: TierStack, place: int) -> np.ndarray:
    """The bytes at a place that a restore promises: in host memory, or in landing memory."""
    if place < stack.host.slots:
        return stack.host.page(place)
    landed: np.ndarray = stack.landing.landed[place - stack.host.slots]  # type: ignore[union-attr]
    return landed[: stack.host.geometry.page_bytes]


def device_digests(pages: Sequence[np.ndarray]) -> np.ndarray:
    """What a device would say of pages with these bytes: int64 [pages, 2]."""
    return np.frombuffer(b"".join(map(host_page_digest, pages)), dtype=np.int64).reshape(-1, 2)


def rows_at(stack: TierStack, places: np.ndarray) -> np.ndarray:
    """The same of many places, as a slab of their own, for pools that copy from one: uint8 [places, stride]."""
    rows = np.zeros((len(places), stack.host.geometry.stride_bytes), np.uint8)
    for row, place in zip(rows, places.tolist(), strict=True):
        page = page_at(stack, place)
        row[: len(page)] = page
    return rows


def get(stack: TierStack, keys: Sequence[bytes]) -> int:
    """Restore a chain, compare every byte that is promised, give it back; how many pages came up."""
    restore = settle(stack, stack.restore(keys))
    for key, slot in zip(keys, restore.slots, strict=False):
        page = page_at(stack, int(slot))
        assert np.array_equal(page, content(key, len(page))), "wrong bytes"
    stack.restorer.release(restore)
    stack.restorer.wait_idle()  # its worker unpins; until it has, the pages cannot leave
    return restore.pages


def check(stack: TierStack) -> None:
    """Every rule of the page table, and nothing leaked once all is quiet."""
    assert stack.filler.wait_idle(WAIT), "what was kept is never found again"
    stack.wait_written(WAIT)
    stack.restorer.wait_idle()
    assert stack.errands.wait_idle(WAIT)
    peer, ssd = stack.tiers.get("peer"), stack.tiers.get("ssd")
    if isinstance(peer, ModelPeer):
        peer.settle()  # what lands for nobody any more holds its page until it has
    _wait_read(stack)
    if isinstance(ssd, SsdTier) and ssd.direct is not None:
        settle_direct: Callable[[], object] | None = getattr(ssd.direct, "settle", None)
        if settle_direct is not None:  # a model, whose device is behind
            settle_direct()
    with stack.table.lock:
        for name, mover in stack.movers.items():
            assert mover.wait_idle(WAIT), f"copies to {name} never end"
            assert stack.parts[name].wait_saved(WAIT), f"saving from {name} never ends"
        check_rules(stack.table)
        assert stack.table.pinned_pages == stack.table.operator_pins.kept_pages
        assert all(copies.coming_bytes == 0 for copies in stack.table.of)
        assert not stack.table.over_limit
        assert stack.host.used_slots == stack.table.of[HOST].pages
        _check_digests(stack)
    _check_restores_counted(stack)
    if (landing := stack.landing) is not None:
        wait_until(lambda: not landing.used_slots, "landing memory leaked", stack)
    if isinstance(ssd, SsdTier):
        pages = [page for page in stack.table.all_pages() if copy_of(stack, page, "ssd")]
        assert ssd.places.taken == len(pages), "places leaked"
        units = sum(len(placement_of(stack, page)) for page in pages)
        assert ssd.places.spared == sum(ssd.stripes.units(page.length) for page in pages) - units
        # What is asked of a device that went out is told before it has answered all of it: until then slots are held.
        wait_until(lambda: _units_in_use(ssd) == units, "stripe units leaked", stack)
        assert ssd.stripes.writing == (0, 0), "writes that have ended count as under way"
        assert ssd.stripes.reading == 0, "reads that have ended count as under way"
    check_maps(stack)


def _units_in_use(ssd: SsdTier) -> int:
    return sum(device.used_units for device in ssd.stripes.status().devices)


def _check_digests(stack: TierStack) -> None:
    """Wherever a page in host memory came from, something tells what it has to be when it is looked at next."""
    for page in stack.table.all_pages():
        if page.resident:
            known = page.digest is not None or bool(stack.host.digests.known([page.slot])[0])
            assert known, f"nobody could tell whether page {page.key.hex()[:8]} in host memory is damaged"


def wait_until(there: Callable[[], object], what: str, stack: TierStack | None = None) -> None:
    """Look every half millisecond, of the stack's time if one is given, whatever its clock says."""
    runner = THREADS if stack is None else stack.runner
    for _ in range(int(WAIT / LOOK)):
        if there():
            return
        runner.sleep(LOOK)
    raise AssertionError(what)


def _wait_read(stack: TierStack) -> None:
    """Reads go on for whoever no longer waits for them: a slot is taken until nothing writes to it any more."""
    wait_until(lambda: SlotState.LOADING.word not in slot_words(stack, "host"), "reads never end", stack)


def slot_words(stack: TierStack, tier: str) -> list[str]:
    """What is in each slot of a tier, as operators are told."""
    found = tier_map(stack, tier, time=1.0)
    assert found is not None
    return [SlotState(state).word for state in found.states]


def _check_restores_counted(stack: TierStack) -> None:
    """Of the restores that were begun every one has ended, in one way."""
    counts = msgspec.structs.asdict(stack.snapshot().restores)
    ended = sum(counts[f"restores_{how}"] for how in ("completed", "split", "cut_short", "expired", "cancelled"))
    assert counts["restores_started"] == ended, f"{counts['restores_started']} restores began, {ended} ended"


def check_maps(stack: TierStack) -> None:
    """Operators are told of every slot what the pages say, where all is quiet."""
    with stack.table.lock:
        pages = list(stack.table.all_pages())
    expected = ["free"] * stack.host.slots
    for page in pages:
        if page.resident:
            expected[page.slot] = "pinned" if page.pinned else "cached"
    assert slot_words(stack, "host") == expected
    ssd, peer = stack.tiers.get("ssd"), stack.tiers.get("peer")
    if isinstance(ssd, SsdTier):
        devices = ssd.snapshot()[1]
        striped = [
            ["free" if device.service == "in service" else "out"] * (device.capacity_bytes // ssd.stripes.unit_bytes)
            for device in devices
        ]
        for page in pages:
            for number, slot in placement_of(stack, page):
                striped[number][slot] = "cached"
        assert slot_words(stack, "ssd") == [word for device in striped for word in device]
    if isinstance(peer, LentMemory):
        # A lease that ends just now, with all its pages, would be in one of the two alone.
        with stack.table.lock:
            copies = [copy_of(stack, page, "peer") for page in stack.table.all_pages()]
            places = {copy.place for copy in copies if copy is not None}
            leases = sorted(peer.lease_slots())
        wait_until(lambda: not _stray(stack, peer), "pages are remembered of leases that are over", stack)
        found = tier_map(stack, "peer", time=1.0)
        assert found is not None
        if [(f"{lease.key.donor}/{lease.key.lease}", lease.slots) for lease in leases] == [*found.pieces]:
            assert [SlotState(state).word for state in found.states] == [
                "cached" if (lease.key, slot) in places else "borrowed"
                for lease in leases
                for slot in range(lease.slots)
            ]


def _stray(stack: TierStack, peer: LentMemory) -> set[LeaseKey]:
    """Leases that pages say they lie under, and that are none."""
    with stack.table.lock:
        copies = [copy_of(stack, page, "peer") for page in stack.table.all_pages()]
        known = {lease.key for lease in peer.lease_slots()}
        return {copy.place.key for copy in copies if copy is not None} - known


def obey(stack: TierStack, command: AnyCommand, seconds: float = WAIT) -> str | CommandRefusedError:
    """Carry out an operator's command and wait for its outcome, which must come once, and in so many seconds."""
    outcomes: list[str | CommandRefusedError] = []
    told = stack.runner.flag()

    def done(outcome: str | CommandRefusedError) -> None:
        outcomes.append(outcome)
        told.set()

    carry_out(stack, command, done)
    assert told.wait(seconds), "a command was never answered"
    assert len(outcomes) == 1
    return outcomes[0]


def refusal(stack: TierStack, command: AnyCommand) -> str:
    """Why a command is not carried out."""
    outcome = obey(stack, command)
    assert isinstance(outcome, CommandRefusedError), outcome
    return str(outcome)
