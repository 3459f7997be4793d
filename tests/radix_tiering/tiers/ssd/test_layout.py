"""The bytes on the devices: what docs/ssd-format.md promises, and that no flipped bit goes unnoticed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, PageRecord, page_digest
from swift_tiers.radix_tiering.tiers.ssd import StoredPage
from swift_tiers.radix_tiering.tiers.ssd.layout import (
    CHECKPOINT_OFFSET,
    HEADER_DTYPE,
    RECORD_BYTES,
    RECORD_DTYPE,
    WRITE_IDENTITY,
    Defect,
    Geometry,
    SlotHeader,
    SlotPlace,
    Superblock,
    decode_header,
    decode_superblock,
    unit_identity,
    unit_length,
)
from swift_tiers.radix_tiering.tiers.ssd.namespaces import MAX_NAMESPACES, NamespaceTable
from swift_tiers.radix_tiering.tiers.ssd.transfers import verify_unit
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.headers import combined_digest, encode_header

SUPERBLOCK = Superblock(
    bytes(range(16)), 5, 1, 4, Geometry.of(1 << 22, 65536), 77, True, 3 * RECORD_BYTES, bytes(range(100, 116))
)
RECORD = PageRecord(bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 80)), 9, 150_000)
PLACE = SlotPlace(bytes(range(16)), 1, 42)


def header(payload: bytes, index: int = 2) -> tuple[bytes, bytes]:
    digest = combined_digest([page_digest(payload)] * 3)
    return encode_header(unit_identity(RECORD, 7, digest, 3, index, 3, 65536, PLACE), page_digest(payload)), digest


def test_golden_bytes() -> None:
    """A change here is a change of the format: raise LAYOUT_VERSION."""
    table = NamespaceTable()
    table.register(b"n" * 16, "model", 11)
    found = {
        "superblock": hashlib.sha256(SUPERBLOCK.encode()).hexdigest()[:16],
        "header": hashlib.sha256(header(b"payload")[0]).hexdigest()[:16],
        "table": hashlib.sha256(table.encode()).hexdigest()[:16],
    }
    assert found == {"superblock": "976b312068a23a80", "header": "71505bfa23b3d32b", "table": "792f49afa89a2211"}


def test_superblock_field_offsets() -> None:
    block = SUPERBLOCK.encode()
    assert len(block) == BLOCK_BYTES
    assert block[:8] == b"SWFTSUPR"
    fields = {8: 4, 12: 4, 32: 8, 40: 4, 44: 4, 48: 8, 56: 8, 64: 8, 72: 8, 80: 8, 88: 8, 96: 8}
    values = {at: int.from_bytes(block[at : at + size], "little") for at, size in fields.items()}
    geometry = SUPERBLOCK.geometry
    assert values == {
        8: 1, 12: 1, 32: 5, 40: 1, 44: 4, 48: 65536, 56: geometry.slot_count, 64: CHECKPOINT_OFFSET,
        72: geometry.first_slot - CHECKPOINT_OFFSET, 80: geometry.first_slot, 88: 77, 96: 3 * RECORD_BYTES,
    }  # fmt: skip
    assert block[104:120] == SUPERBLOCK.checkpoint_digest
    assert block[-16:] == page_digest(block[:-16])


def test_header_field_offsets() -> None:
    block, digest = header(b"payload")
    row = np.frombuffer(block, dtype=HEADER_DTYPE)[0]
    assert row["magic"].tobytes() == b"SWFTSLOT"
    numbers = ("version", "namespace_id", "depth", "unit_index", "unit_count", "device_index", "length",
               "payload_length", "generation", "slot")  # fmt: skip
    assert [int(row[name]) for name in numbers] == [1, 3, 9, 2, 3, 1, 150_000, 150_000 - 2 * 65536, 7, 42]
    assert row["key"].tobytes() == RECORD.key
    assert row["parent"].tobytes() == RECORD.parent
    assert row["digest"].tobytes() == digest
    assert block[176:192] == page_digest(b"payload")
    assert RECORD_DTYPE.itemsize - RECORD_DTYPE.fields["generation"][1] == WRITE_IDENTITY.size


def test_round_trips() -> None:
    assert decode_superblock(SUPERBLOCK.encode()) == SUPERBLOCK
    block, digest = header(b"payload")
    decoded = decode_header(block)
    assert decoded == SlotHeader(RECORD, 3, 2, 3, 150_000 - 2 * 65536, 7, digest, page_digest(b"payload"), PLACE)
    table = NamespaceTable()
    table.register(b"n" * 16, "Qwen3 é" * 40, 11)
    table.register(b"m" * 16, "", 12)
    table.flush(b"n" * 16, 20)
    again = NamespaceTable.decode(table.encode())
    assert again is not None
    assert (again.entries, again.sequence) == (table.entries, table.sequence)
    assert again.register(b"o" * 16, "x", 1) == (3, True)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_superblock_is_detected(bit: int) -> None:
    block = bytearray(SUPERBLOCK.encode())
    for at in range(BLOCK_BYTES):
        block[at] ^= 1 << bit
        assert isinstance(decode_superblock(bytes(block)), Defect), (at, bit)
        block[at] ^= 1 << bit


def test_every_flipped_bit_of_a_slot_is_detected() -> None:
    """Header and payload; the padding behind the payload is not part of the page and not looked at."""
    payload = np.random.default_rng(1).integers(0, 256, 3000, dtype=np.uint8)
    record = RECORD._replace(length=3000)
    digest = combined_digest([page_digest(payload.data)])
    stored = StoredPage(record, 7, digest, ((0, 42),))
    block = bytearray(encode_header(unit_identity(record, 7, digest, 3, 0, 1, 4096, PLACE), page_digest(payload.data)))

    def outcome() -> ReadOutcome:
        return verify_unit(stored, 0, 3, 4096, PLACE, bytes(block), payload)

    assert outcome() is ReadOutcome.OK
    for at in range(BLOCK_BYTES):
        for bit in range(8):
            block[at] ^= 1 << bit
            assert outcome().corrupt, (at, bit)
            block[at] ^= 1 << bit
    for at in range(len(payload)):
        for bit in range(8):
            payload[at] ^= 1 << bit
            assert outcome() is ReadOutcome.CHECKSUM, (at, bit)
            payload[at] ^= 1 << bit


def test_every_flipped_byte_of_a_namespace_table_is_detected() -> None:
    table = NamespaceTable()
    table.register(b"n" * 16, "model", 11)
    raw = bytearray(table.encode())
    for at in [*range(256), *range(256, len(raw), 97)]:
        raw[at] ^= 0x10
        assert NamespaceTable.decode(bytes(raw)) is None, at
        raw[at] ^= 0x10


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"key": b"k" * 32}, ReadOutcome.KEY),
        ({"namespace": b"n" * 16}, ReadOutcome.NAMESPACE),
        ({"length": 140_000}, ReadOutcome.LENGTH),
        ({"placement": ((1, 42),) * 2}, ReadOutcome.LENGTH),
        ({"generation": 8}, ReadOutcome.GENERATION),
        ({"digest": b"d" * 16}, ReadOutcome.GENERATION),
        ({"place": PLACE._replace(slot=43)}, ReadOutcome.PLACE),
        ({"place": PLACE._replace(set_id=b"s" * 16)}, ReadOutcome.PLACE),
        ({"place": PLACE._replace(device_index=0)}, ReadOutcome.PLACE),
        ({"namespace_id": 4}, ReadOutcome.NAMESPACE),
    ],
)
def test_a_sound_unit_of_something_else_is_not_accepted(change: dict, outcome: ReadOutcome) -> None:
    payload = np.zeros(150_000 - 2 * 65536, dtype=np.uint8)
    block, digest = header(payload.tobytes())
    fields = {name: value for name, value in change.items() if name in RECORD._fields}
    placement = change.get("placement", ((1, 42),) * 3)
    stored = StoredPage(RECORD._replace(**fields), change.get("generation", 7), change.get("digest", digest), placement)
    place = change.get("place", PLACE)
    assert verify_unit(stored, 2, change.get("namespace_id", 3), 65536, place, block, payload) is outcome


def test_blank_foreign_and_other_versions_are_told_apart() -> None:
    assert decode_superblock(bytes(BLOCK_BYTES)).kind == "blank"  # type: ignore[union-attr]
    assert decode_superblock(b"ext4 or so".ljust(BLOCK_BYTES, b"\1")).kind == "foreign"  # type: ignore[union-attr]
    body = bytearray(SUPERBLOCK.encode()[:-16])
    body[8] = 2
    assert decode_superblock(bytes(body) + page_digest(bytes(body))).kind == "version"  # type: ignore[union-attr]
    assert decode_superblock(bytes(body) + bytes(16)).kind == "damaged"  # type: ignore[union-attr]


@given(st.integers(1, 1 << 34), st.integers(1, 512).map(lambda blocks: blocks * BLOCK_BYTES))
def test_geometry_fills_the_device(size: int, unit_bytes: int) -> None:
    try:
        geometry = Geometry.of(size, unit_bytes)
    except ConfigError:
        assert size < CHECKPOINT_OFFSET + 2 * BLOCK_BYTES + unit_bytes
        return
    assert geometry.end <= size
    assert geometry.first_slot - CHECKPOINT_OFFSET >= geometry.slot_count * RECORD_BYTES
    assert geometry.first_slot % BLOCK_BYTES == geometry.slot_bytes % BLOCK_BYTES == 0
    assert size - geometry.end < geometry.slot_bytes + 2 * BLOCK_BYTES


@given(st.integers(1, 1 << 24), st.integers(1, 64).map(lambda blocks: blocks * BLOCK_BYTES))
def test_units_cover_a_page(length: int, unit_bytes: int) -> None:
    count = -(-length // unit_bytes)
    lengths = [unit_length(length, unit_bytes, index) for index in range(count)]
    assert sum(lengths) == length
    assert all(0 < part <= unit_bytes for part in lengths)


def test_a_full_namespace_table_gives_up_the_oldest_idle_one() -> None:
    table = NamespaceTable()
    for number in range(MAX_NAMESPACES):
        table.register(number.to_bytes(16, "big"), "old", 1)
    reopened = NamespaceTable.decode(table.encode())
    assert reopened is not None
    reopened.register((0).to_bytes(16, "big"), "used again", 5)
    identifier, changed = reopened.register(b"n" * 16, "new", 5)
    assert (identifier, changed) == (MAX_NAMESPACES + 1, True)
    assert reopened.get((0).to_bytes(16, "big")) is not None
    assert reopened.get((1).to_bytes(16, "big")) is None
    with pytest.raises(ConfigError):
        [table.register(b"x" * 15 + bytes([0]), "", 1)]
