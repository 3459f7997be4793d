"""Pages that nobody has computed, as many as are wanted: keys that hang together as those of conversations do, and no
bytes. For benches and worlds of an index at scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swift_tiers.radix_tiering.base.page import KEY_BYTES, HeldPages
from swift_tiers.radix_tiering.table.newest_first import newest_first
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.ssd.layout import RECORD_DTYPE
from swift_tiers.radix_tiering.tiers.ssd.places import StripePlaces
from swift_tiers.radix_tiering.tiers.ssd.stored_pages import StoredPages
from swift_tiers.radix_tiering.way.sweeps import ENTERED_TOGETHER

#: Pages of the system prompt, of each conversation behind it, and of the sequence that hangs together in itself.
PROMPT, CONVERSATION, CHAIN = 64, 64, 2048


def chains_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys, each with that of the page before it behind it, int64 [count, 8], and depths; parents first, but in no
    order otherwise: as memory is after months."""
    random = np.random.default_rng(1)
    own = random.integers(-(2**63), 2**63, (count, KEY_BYTES // 8), np.int64)
    at = np.arange(count)
    in_conversation = (at - PROMPT) % CONVERSATION
    before = np.where((at >= PROMPT) & (in_conversation == 0), PROMPT - 1, at - 1)
    depths = np.where(at < PROMPT, at + 1, PROMPT + 1 + in_conversation)
    chain = at >= count - CHAIN
    before[chain], depths[chain] = at[chain] - 1, np.arange(1, CHAIN + 1)
    parents = own[before] * (depths > 1)[:, None]
    return np.concatenate([own, parents], axis=1), depths


def stored_of(keys: np.ndarray, depths: np.ndarray, units: int, length: int, namespace: bytes) -> StoredPages:
    """As pages of a namespace, of `units` stripe units on four devices each."""
    records = np.zeros(len(keys), RECORD_DTYPE)
    both = np.ascontiguousarray(keys).view(f"V{KEY_BYTES}")
    records["key"], records["parent"], records["depth"] = both[:, 0], both[:, 1], depths
    records["length"], records["namespace_id"], records["unit_count"] = length, 1, units
    records["generation"] = np.arange(1, len(keys) + 1)
    records["digest"] = np.ascontiguousarray(keys[:, :2]).view("V16").ravel()
    at = np.arange(len(keys) * units)
    return StoredPages(records, np.full(len(keys), units), at % 4, at // 4, {1: namespace})


def make_known(table: PageTable, places: StripePlaces, stored: StoredPages) -> None:
    """A table and its first tier beneath host memory have all of `stored` from now on."""
    unit_bytes = int(stored.records["length"][0] // stored.counts[0])
    for held in stored.held(places.found(stored, unit_bytes)):
        for _ in entering(table, held):
            pass


def entering(table: PageTable, held: HeldPages) -> Iterator[None]:
    """Enter what the first tier beneath host memory has, all of which hangs together, as a start enters it."""
    order, newest = newest_first(held), int(held.order.max())
    for start in range(0, len(order), ENTERED_TOGETHER):
        which = order[start : start + ENTERED_TOGETHER]
        some = held._replace(keys=held.keys[which], places=held.places[which])
        with table.lock:
            _, lost = table.recover(some, HOST + 1, held.order[which] - newest)
        assert not len(lost), "all of them hang together"
        yield
