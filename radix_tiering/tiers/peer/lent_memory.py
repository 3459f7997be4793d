"""Memory of other servers as a tier: what holds wherever the memory comes from, over shared memory or in a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.slot_map import MapPiece, SlotState, TierMap
from ...lending.leases import LeaseKey
from ...table.policy import BY_WORTH, EvictionPolicy
from ...table.tier_copies import Copy
from ..tier import Tier


class PeerPlace(NamedTuple):
    """Room for one page in lent memory."""

    key: LeaseKey
    slot: int  # from 0, within the lease's run


class LeaseSlots(NamedTuple):
    """The slots of one lease. Those that are in neither list are free."""

    key: LeaseKey
    slots: int
    held: list[int]  # reserved, with a page or not
    left: list[int]  # of these, given back, but in use still


class LentMemory(Tier):
    """Places (`PeerPlace`) for pages of one size, under leases that may be recalled at any time. A part is a lease, by
    its `LeaseKey`; a lane is a donor, by its name.

    Which pages: those that are worth most by `BY_WORTH`. While there is room every page is; then one that is worth
    more than the least of those there takes its place.
    """

    name = "peer"
    near = True
    most_queued = 4096
    most_evictions = 1
    full = ""
    part_leaves, part_lost = "borrowed.recalled", "borrowed.ended"

    #: Bytes of a page.
    page_bytes: int

    @abstractmethod
    def lease_slots(self) -> list[LeaseSlots]:
        """What is used of each lease that is not over, all of one moment."""

    def takes(self, length: int) -> bool:
        return self.capacity_bytes > 0

    def order(self, policy: EvictionPolicy) -> EvictionPolicy:
        return BY_WORTH

    def lane(self, place: PeerPlace) -> str:
        return place.key.donor

    def part_of(self, place: PeerPlace) -> LeaseKey:
        return place.key

    def part_facts(self, part: Any) -> dict[str, Any]:
        return {"donor": part.donor, "lease": part.lease}

    def facts(self, copy: Copy) -> dict[str, Any]:
        key, slot = copy.place
        return {"peer": f"{key.donor} lease {key.lease} slot {slot}"}

    def place_facts(self, copy: Copy) -> dict[str, Any]:
        key, slot = copy.place
        return {"peer": (key.donor, key.lease, slot)}

    def slot_map(self, held: Callable[[], Sequence[PeerPlace]], *, time: float) -> TierMap:
        leases = sorted(self.lease_slots(), key=lambda lease: lease.key)
        with_page: dict[LeaseKey, list[int]] = {}
        for key, slot in held():
            with_page.setdefault(key, []).append(slot)
        states = [_states(lease, with_page.get(lease.key, [])) for lease in leases]
        return TierMap(
            time=time,
            slot_bytes=self.page_bytes,
            states=np.concatenate([*states, np.zeros(0, np.uint8)]),
            pieces=tuple(MapPiece(f"{key.donor}/{key.lease}", slots) for key, slots, _, _ in leases),
        )


def _states(lease: LeaseSlots, with_page: list[int]) -> np.ndarray:
    """The slots of one lease: a page is being copied to those that are held and have none."""
    states = np.full(lease.slots, SlotState.BORROWED, np.uint8)
    states[lease.held] = SlotState.LOADING
    states[with_page] = SlotState.CACHED
    states[lease.left] = SlotState.PRIVATE
    return states
