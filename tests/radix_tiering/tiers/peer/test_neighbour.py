"""What waits for a donor: in which order, and what becomes of it when leases are recalled or end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.tiers.peer.jobs import Job, Land, PeerRead, PeerWrite
from swift_tiers.radix_tiering.tiers.peer.neighbour import Neighbour

PAGE = np.zeros(0, np.uint8)


class Place:
    """Counts how often its lease is looked at."""

    looks = 0

    def __init__(self, lease: int, slot: int) -> None:
        self._key, self.slot = LeaseKey("d", 1, lease), slot

    @property
    def key(self) -> LeaseKey:
        Place.looks += 1
        return self._key


def ignore(*_: object) -> None:
    """Nobody waits."""


def read(place: Any, *, demote: bool = False) -> PeerRead:
    return PeerRead(place, PAGE, b"", ignore, demote, True, 0.0)


def write(place: Any) -> PeerWrite:
    return PeerWrite(place, PAGE, b"", ignore, True, 0.0)


def land(place: Any) -> Land:
    return Land(place, 0, b"", ignore, True, 0.0)


def neighbour(*jobs: Job) -> Neighbour:
    made = Neighbour("d", "ipc:///d.lease", Path("/d.arena"))
    for job in jobs:
        made.put(job)
    return made


def slots(jobs: list[Any]) -> list[tuple[int, int]]:
    return [(job.place._key.lease, job.place.slot) for job in jobs]


def test_jobs_wait_in_the_order_in_which_they_came_whatever_their_lease() -> None:
    it = neighbour(*(read(Place(slot % 3, slot)) for slot in range(9)))
    assert slots(it.reads.first(2)) == [(0, 0), (1, 1)]
    assert slots(it.take(LeaseKey("d", 1, 2))) == [(2, 2), (2, 5), (2, 8)]
    it.put(read(Place(2, 9)))
    assert it.queued == 5
    assert slots(it.reads.first(100)) == [(0, 3), (1, 4), (0, 6), (1, 7), (2, 9)]
    assert not it.queued
    assert it.take(LeaseKey("d", 1, 2)) == []


def test_of_a_recalled_lease_reads_save_their_pages_and_the_rest_is_taken_out() -> None:
    waiting = [job(Place(lease, lease)) for lease in (1, 2) for job in (read, write, land)]
    it = neighbour(read(Place(1, 9), demote=True), *waiting)
    others = it.recall(LeaseKey("d", 1, 1))
    assert [type(job) for job in others] == [Land, PeerWrite]
    assert slots(others) == [(1, 1), (1, 1)]
    saved = it.demotes.first(100)
    assert slots(saved) == [(1, 9), (1, 1)]
    assert all(job.demote for job in saved)
    assert slots(it.take()) == [(2, 2)] * 3


def test_what_waits_for_other_leases_is_not_looked_at_when_leases_end() -> None:
    """Each job costs so much, however many leases there are: many end at once."""
    leases, jobs = 100, 1000
    it = neighbour(*(read(Place(slot % leases, slot)) for slot in range(jobs)))
    Place.looks = 0
    recalled = [it.recall(LeaseKey("d", 1, lease)) for lease in range(leases)]
    taken = [it.take(LeaseKey("d", 1, lease)) for lease in range(leases)]
    assert not any(recalled)
    assert sum(map(len, taken)) == jobs
    assert Place.looks <= 4 * jobs
