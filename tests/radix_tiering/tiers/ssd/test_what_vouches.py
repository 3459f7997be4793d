"""What is written in an order that a crash must not undo, and what a unit is checked for: each check by itself.

Other checks, of other bytes, would catch most of what these let through. Each must hold by itself all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, page_digest
from swift_tiers.radix_tiering.tiers.ssd import StoredPage
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
from swift_tiers.radix_tiering.tiers.ssd.checkpoint import read_checkpoint
from swift_tiers.radix_tiering.tiers.ssd.layout import SlotPlace, unit_identity
from swift_tiers.radix_tiering.tiers.ssd.members import find_members, probe_all, read_tables, write_table
from swift_tiers.radix_tiering.tiers.ssd.namespaces import NamespaceTable
from swift_tiers.radix_tiering.tiers.ssd.transfers import verify_unit
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.headers import combined_digest, encode_header
from support.recording_array import RecordingArray

#: Ways in which what was not synced is lost at each moment: both copies of a table must be torn at once to be seen.
LOSSES = 400


# ---- order ----


def power_cuts(recording: RecordingArray, since: int, losses: int) -> Iterator[tuple[str, MemoryArray]]:
    """The devices after a power cut at every position from `since` on, with what was not synced lost in many ways."""
    for position in range(since, recording.position + 1):
        for lose in range(losses):
            images = recording.images_at(position, lose=lose)
            yield f"at {position}, lose={lose}", MemoryArray.from_images(images)


def many_namespaces(table: NamespaceTable) -> None:
    """Fill a table, so that it takes more than one block, which a device may write without the others."""
    for number in range(300):
        table.register(number.to_bytes(16, "little"), f"namespace {number}", 1)


def written_at_once(rig, recording: RecordingArray) -> None:
    """As at a start, and by fsck."""
    table = NamespaceTable(sequence=7)
    many_namespaces(table)
    assert write_table(recording, 0, table.encode(), Patience()) == 0


def written_beside_transfers(rig, recording: RecordingArray) -> None:
    """As of an open stripe set."""
    stripes = rig.open(recording)
    many_namespaces(stripes._table)
    stripes.register_namespace(rig.NAMESPACE, "one more")
    stripes.flush_namespace(rig.NAMESPACE)


@pytest.mark.parametrize("write", [written_at_once, written_beside_transfers])
def test_a_whole_copy_of_the_namespace_table_is_there_at_every_moment(rig, write: Callable) -> None:
    """Without it nothing of the device is recovered: a page of an unknown namespace may have been flushed."""
    stripes = rig.open(array := rig.memory(devices=1))
    stripes.register_namespace(rig.OTHER, "from before")
    stripes.close(None)
    recording = RecordingArray(array)
    since = recording.position
    write(rig, recording)
    assert recording.position > since + 3
    for label, left in power_cuts(recording, since, LOSSES):
        tables = [table for table in read_tables(left, 0, Patience()) if table is not None]
        assert tables, f"both copies are torn {label}"
        assert tables[0].entries or tables[-1].entries, label


def test_a_superblock_vouches_only_for_a_checkpoint_that_is_durable(rig) -> None:
    recording = RecordingArray(rig.memory(devices=2, slots=60))
    stripes = rig.open(recording)
    stripes.register_namespace(rig.NAMESPACE, "test")
    stored = [rig.put(stripes, number, length=8192) for number in range(70)]
    since = recording.position
    stripes.close(stored)
    clean = 0
    for label, left in power_cuts(recording, since, 25):
        for one in probe_all(left, Patience()):
            if one.clean and one.superblock is not None:
                clean += 1
                found = read_checkpoint(left, one.device, one.superblock, Patience())
                assert found is not None, f"device {one.device} says that its index is whole {label}"
    assert clean >= 25, "an orderly close marks the devices"
    assert find_members(MemoryArray.from_images(recording.images_at(recording.position)), Patience()).device_count == 2


# ---- what a unit is checked for ----


class Unit:
    """A unit on a device and what a reader asks for; the two agree until one is changed."""

    def __init__(self, rig) -> None:
        self.record = rig.record(1, 4096)
        self.payload = np.frombuffer(os.urandom(4096), np.uint8)
        self.digest = combined_digest([page_digest(self.payload)])
        self.wanted = SlotPlace(b"set-id-for-tests", 1, 5)
        self.written, self.generation = self.wanted, 7

    def verify(self) -> ReadOutcome:
        """A header that is whole, with the right key, content and checksums, of `generation` at `written`."""
        identity = unit_identity(self.record, self.generation, self.digest, 3, 0, 1, 8192, self.written)
        block = encode_header(identity, page_digest(self.payload))
        assert len(block) == BLOCK_BYTES
        stored = StoredPage(self.record, 7, self.digest, ((1, 5),))
        return verify_unit(stored, 0, 3, 8192, self.wanted, block, self.payload)


@pytest.fixture
def unit(rig) -> Unit:
    return Unit(rig)


def test_the_unit_that_was_asked_for_is_taken(unit: Unit) -> None:
    assert unit.verify() is ReadOutcome.OK


@pytest.mark.parametrize("generation", [6, 8, 0])
def test_a_unit_of_another_write_is_not_taken_though_it_holds_the_same(unit: Unit, generation: int) -> None:
    """A generation below the namespace's least was flushed, whatever its bytes."""
    unit.generation = generation
    assert unit.verify() is ReadOutcome.GENERATION


@pytest.mark.parametrize("change", [{"slot": 6}, {"device_index": 0}, {"set_id": b"set-id-of-others"}])
def test_a_unit_that_was_written_for_another_place_is_not_taken_though_it_holds_the_same(unit: Unit, change) -> None:
    """A device that writes elsewhere than it was told would show it, and another slot's owner may overwrite it."""
    unit.written = unit.wanted._replace(**change)
    assert unit.verify() is ReadOutcome.PLACE
