"""Power fails at every point of a workload; each time the stripe set opens, and no page is ever wrong.

The model: each version of a page that was ever handed to `write` may be found or not, whole, under its own name; a
version older than a flush that had returned may not; nothing else may. After an orderly close exactly the pages that
were passed to it are found, and they are readable.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

from swift_tiers.radix_tiering.tiers.ssd import StoredPage, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.fsck import check, repair
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.examples import seeds
from support.recording_array import RecordingArray


class Version(NamedTuple):
    number: int
    version: int
    namespace: bytes
    generation: int


class Workload:
    """Writes, overwrites, releases, flushes, sessions; remembers what a crash at each position may show."""

    def __init__(self, rig, seed: int, devices: int = 3, *, codes: bool = False) -> None:
        self.rig = rig
        self.codes = codes
        self.random = random.Random(seed)
        self.recording = RecordingArray(rig.memory(devices, 18 // devices, seed=seed))
        self.versions: dict[int, Version] = {}  # by generation
        self.lengths: dict[int, int] = {}
        self.flushed: list[tuple[int, bytes, int]] = []  # position from which on, namespace, generations below
        self.closed: list[tuple[int, set[int]]] = []  # position, generations
        self.live: dict[tuple[bytes, int], StoredPage] = {}

    def run(self, sessions: int, steps: int) -> None:
        for session in range(sessions):
            stripes = self.rig.open(self.recording, codes=self.codes)
            self.live = {(page.record.namespace, page.record.key[0]): page for page in stripes.recovered}
            for namespace in (self.rig.NAMESPACE, self.rig.OTHER):
                stripes.register_namespace(namespace, "crash")
            for _ in range(steps):
                self.step(stripes)
            clean = session % 2 == 0
            stripes.close(self.live.values() if clean else None)
            if clean:
                self.closed.append((self.recording.position, {page.generation for page in self.live.values()}))

    def step(self, stripes: StripeSet) -> None:
        namespace = self.random.choice((self.rig.NAMESPACE, self.rig.OTHER))
        number = self.random.randrange(6)
        old = self.live.get((namespace, number))
        kind = self.random.random()
        if kind < 0.08:
            stripes.flush_namespace(namespace)
            self.flushed.append((self.recording.position, namespace, stripes._next_generation - 1))
            for name in [name for name in self.live if name[0] == namespace]:
                stripes.release(self.live.pop(name).placement)
        elif kind < 0.3 and old is not None:
            stripes.release(self.live.pop((namespace, number)).placement)
        else:
            version = len(self.versions)
            length = self.random.choice((100, 8192, 9000, 20_000))
            record = self.rig.record(number, length, namespace)
            # A write that is cut off may be found as well: it is known before it is known to have succeeded.
            self.lengths[stripes._next_generation] = length
            self.versions[stripes._next_generation] = Version(number, version, namespace, stripes._next_generation)
            stored, reason = self.rig.write(stripes, record, self.rig.content(number, version, length))
            if stored is None:
                assert reason == "full"
                del self.versions[stripes._next_generation]
                return
            if old is not None:
                stripes.release(old.placement)
            self.live[(namespace, number)] = stored

    def check(self, images, position: int, label: str, *, orderly: bool, fsck: bool = False) -> None:
        array = MemoryArray.from_images(images, seed=position)
        if fsck:
            result = repair(array, check(array))
            assert not result.failed, label
            again = check(array)
            assert again.problems == () or again.sound, (label, again.problems)
        stripes = StripeSet.open(array)
        try:
            pages = stripes.recovered
            names = [(page.record.namespace, page.record.key) for page in pages]
            assert len(set(names)) == len(names), label
            for page, (outcome, data) in zip(pages, self.rig.read_all(stripes, pages), strict=True):
                known = self.versions[page.generation]
                assert known[:3:2] == (page.record.key[0], page.record.namespace), label
                assert page.record.length == self.lengths[page.generation], label
                for since, namespace, last in self.flushed:
                    flushed = since <= position and namespace == page.record.namespace and page.generation <= last
                    assert not flushed, f"{label}: {known} came back after a flush"
                if outcome is ReadOutcome.OK:
                    expected = self.rig.content(known.number, known.version, page.record.length)
                    assert (data == expected).all(), f"{label}: wrong bytes for {known}"
                else:
                    assert outcome.corrupt, (label, outcome)
                    assert not fsck, f"{label}: fsck kept a damaged page"
            if orderly:
                for closed, expected in self.closed:
                    if closed == position:
                        assert {page.generation for page in pages} == expected, f"{label}: not as closed"
                        assert stripes.scanned == (), label
            used = sum(len(page.placement) for page in pages)
            assert stripes.free_units == stripes.capacity_units - used, label
        finally:
            stripes.close(None)


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("seed", seeds(4))
def test_every_crash_point(rig, seed: int, codes: bool) -> None:
    workload = Workload(rig, seed, codes=codes)
    workload.run(sessions=3, steps=14)
    recording = workload.recording
    positions = [write.position for write in recording.writes] + [recording.position]
    count = 0
    for point in recording.crash_points(seed, tears=1, losses=1):
        # Everything before the next write has been issued; syncs in between are not counted as having happened.
        position = positions[point.writes - 1] + 1 if point.writes else 0
        workload.check(point.images, position, point.label, orderly=False)
        count += 1
    assert count > 200


@pytest.mark.parametrize("seed", seeds(4, 10))
def test_promises_made_survive_the_loss_of_everything_unsynced(rig, seed: int) -> None:
    """At the moment a flush or a close has returned, however much the devices' caches forget.

    With one device nothing is kept because another one kept it.
    """
    workload = Workload(rig, seed, devices=1)
    workload.run(sessions=3, steps=10)
    moments = {moment[0] for moment in [*workload.flushed, *workload.closed]}
    assert moments
    for position in sorted(moments):
        for lose in range(12):
            images = workload.recording.images_at(position, lose=lose)
            workload.check(images, position, f"at {position}, lose={lose}", orderly=True)


def test_fsck_mends_every_crash_point(rig) -> None:
    workload = Workload(rig, 99)
    workload.run(sessions=2, steps=8)
    for point in list(workload.recording.crash_points(99, tears=1, losses=1))[::3]:
        workload.check(point.images, -1, point.label, orderly=False, fsck=True)


def test_crashes_follow_each_other(rig) -> None:
    """Open, write, crash, over and over on the same images: what survives is always whole."""
    chance = random.Random(5)
    workload = Workload(rig, 5)
    for turn in range(25):
        stripes = rig.open(workload.recording)
        workload.live = {(page.record.namespace, page.record.key[0]): page for page in stripes.recovered}
        for namespace in (rig.NAMESPACE, rig.OTHER):
            stripes.register_namespace(namespace, "crash")
        for _ in range(5):
            workload.step(stripes)
        stripes.close(list(workload.live.values()) if turn % 5 == 0 else None)
        writes = workload.recording.writes
        after = chance.randrange(max(0, len(writes) - 12), len(writes) + 1)
        images = workload.recording.images_after(after, lose=turn)
        position = writes[after - 1].position + 1 if after else 0
        workload.flushed = [(0, *flush[1:]) for flush in workload.flushed if flush[0] <= position]
        workload.check(images, position, f"turn {turn}", orderly=False)
        workload.recording = RecordingArray(MemoryArray.from_images(images, seed=turn))


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_every_crash_point_of_a_device_that_joins(rig, seed: int) -> None:
    """Opened with the new device and without it: no page is wrong, and the set knows how many members it has."""
    workload = Workload(rig, seed, devices=2)
    recording = workload.recording
    stripes = rig.open(recording)
    for namespace in (rig.NAMESPACE, rig.OTHER):
        stripes.register_namespace(namespace, "crash")
    for _ in range(6):
        workload.step(stripes)
    began = len(recording.writes)
    assert stripes.add(np.zeros(rig.device_bytes(9), np.uint8), "new") == 2
    joined, joined_writes = recording.position, len(recording.writes)
    while not any(page.uses(2) for page in workload.live.values()):
        workload.step(stripes)
    for _ in range(6):
        workload.step(stripes)
    stripes.close(list(workload.live.values()) if seed % 2 else None)
    positions = [write.position for write in recording.writes] + [recording.position]
    for point in recording.crash_points(seed, tears=2, losses=2):
        position = positions[point.writes - 1] + 1 if point.writes else 0
        workload.check(point.images, position, point.label, orderly=False)
        workload.check(point.images[:2], position, f"{point.label}, without the new one", orderly=False)
        if point.writes < began:
            assert missing(point.images[:2]) == 0, point.label
        # Another device joins instead, and then the first one turns up again: no two of them have one index.
        array = MemoryArray.from_images([*point.images[:2], np.zeros(rig.device_bytes(9), np.uint8)])
        StripeSet.open(array).close(None)
        assert missing([*array.images, point.images[2]]) <= 1, point.label
    assert joined_writes - began >= 6, "two tables, two superblocks, and one of each member"
    for lose in range(8):
        images = recording.images_at(joined, lose=lose)
        assert missing(images) == 0, "it was a member when `add` returned"
        assert missing(images[:2]) == 1, "the others knew it then"
        assert missing([images[2], images[0]]) == 1, "the new one knows the others"


def missing(images) -> int:
    stripes = StripeSet.open(MemoryArray.from_images(images))
    try:
        return stripes.missing
    finally:
        stripes.close(None)
