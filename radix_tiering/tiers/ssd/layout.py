"""The bytes of a device of a stripe set: superblock, slot header, checkpoint record. docs/ssd-format.md in code.

All integers are little-endian. Every checksum is xxh3-128 (`page_digest`) in its canonical, big-endian byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple, TypeVar

import numpy as np

from ...base.errors import ConfigError
from ...base.page import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    KEY_BYTES,
    NAMESPACE_BYTES,
    PageRecord,
    page_digest,
    round_up,
)
from .arrays import device_file

#: Version of this layout. Magic, version and checksum of a superblock stay where they are in every version.
LAYOUT_VERSION = 1

#: Where the checksum of a 4 KiB block (superblock, slot header) lies; it covers everything before it.
CHECKSUM_OFFSET = BLOCK_BYTES - DIGEST_BYTES

SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS = device_file.SUPERBLOCK_MAGIC, device_file.SUPERBLOCK_OFFSETS
TABLE_BYTES = 64 << 10
TABLE_OFFSETS = (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + TABLE_BYTES)
CHECKPOINT_OFFSET = TABLE_OFFSETS[1] + TABLE_BYTES

_SUPERBLOCK = struct.Struct("<8sII16sQIIQQQQQQQ16s128s")
#: Slots have numbers of 31 bits.
MOST_SLOTS = (1 << 31) - 1
#: Members with an index below this can be forgotten: a bit each.
MAX_FORGOTTEN = 1024
_FLAG_CLEAN = 1

SLOT_MAGIC = b"SWFTSLOT"
#: Everything of a slot header that a reader knows beforehand, so that one comparison checks all of it: first what is
#: the same in every unit of a page, then what is not, but for the digest of the page at the end.
_IDENTITY = struct.Struct("<8sII16s16s32s32sIIIIQQQQ16s")
IDENTITY_BYTES = _IDENTITY.size
PAYLOAD_DIGEST_OFFSET = IDENTITY_BYTES
_HEADER_END = PAYLOAD_DIGEST_OFFSET + DIGEST_BYTES

#: A slot header as numpy sees it, for scans: one element is one whole 4 KiB block.
HEADER_DTYPE = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("namespace_id", "<u4"),
        ("set_id", "V16"),
        ("namespace", "V16"),
        ("key", "V32"),
        ("parent", "V32"),
        ("depth", "<u4"),
        ("unit_index", "<u4"),
        ("unit_count", "<u4"),
        ("device_index", "<u4"),
        ("length", "<u8"),
        ("payload_length", "<u8"),
        ("generation", "<u8"),
        ("slot", "<u8"),
        ("digest", "V16"),
        ("not_known_beforehand", f"V{BLOCK_BYTES - IDENTITY_BYTES}"),
    ]
)
_UNITS_AT: int = HEADER_DTYPE.fields["unit_count"][1]  # type: ignore[index]

#: One live slot in a checkpoint; 128 bytes. From `generation` on it is the same in every unit of one page write.
RECORD_DTYPE = np.dtype(
    [
        ("slot", "<u8"),
        ("unit_index", "<u4"),
        ("reserved", "<u4"),
        ("generation", "<u8"),
        ("length", "<u8"),
        ("namespace_id", "<u4"),
        ("depth", "<u4"),
        ("unit_count", "<u4"),
        ("reserved_2", "<u4"),
        ("key", "V32"),
        ("parent", "V32"),
        ("digest", "V16"),
    ]
)
#: The fields of a record from `generation` on.
WRITE_IDENTITY = struct.Struct("<QQIIII32s32s16s")
RECORD_BYTES = RECORD_DTYPE.itemsize

#: One number, or many.
Count = TypeVar("Count", int, np.ndarray)
#: Where each unit of a page lies: (device, slot), in the order of the units.
Placement = tuple[tuple[int, int], ...]


class StoredPage(NamedTuple):
    """A complete page on the stripe set. Valid for the session that handed it out: devices are array positions."""

    record: PageRecord
    generation: int  # unique per page write over the whole stripe set
    digest: bytes  # xxh3-128 over the digests of all units
    placement: Placement

    def uses(self, device: int) -> bool:
        """Whether a unit of this page lies on `device`."""
        return any(position == device for position, _ in self.placement)


class Geometry(NamedTuple):
    """Where things lie on one device; follows from its size and the stripe unit alone."""

    unit_bytes: int
    slot_count: int
    first_slot: int  # bytes

    @classmethod
    def of(cls, size: int, unit_bytes: int) -> Geometry:
        """The most slots that fit on a device of `size` bytes. Raises ConfigError where not even one does."""
        check_unit_bytes(unit_bytes)
        slot_bytes = BLOCK_BYTES + unit_bytes
        count = max(0, size - CHECKPOINT_OFFSET) // (slot_bytes + RECORD_BYTES)
        while count > 0 and first_slot_offset(count) + count * slot_bytes > size:
            count -= 1
        if count > MOST_SLOTS:
            raise ConfigError(
                f"a device of {size} bytes has {count} units of {unit_bytes}: make ssd.stripe_unit larger"
            )
        if count == 0:
            least = first_slot_offset(1) + slot_bytes
            raise ConfigError(f"a device of {size} bytes is too small for units of {unit_bytes}: give at least {least}")
        return cls(unit_bytes, count, first_slot_offset(count))

    @property
    def slot_bytes(self) -> int:
        return BLOCK_BYTES + self.unit_bytes

    @property
    def end(self) -> int:
        """The first byte after the last slot."""
        return self.first_slot + self.slot_count * self.slot_bytes

    def slot_offset(self, slot: int) -> int:
        return self.first_slot + slot * (BLOCK_BYTES + self.unit_bytes)


def first_slot_offset(slot_count: int) -> int:
    """The slots begin after a checkpoint region with room for a record of every slot."""
    return CHECKPOINT_OFFSET + round_up(slot_count * RECORD_BYTES, BLOCK_BYTES)


def check_unit_bytes(unit_bytes: int) -> None:
    if unit_bytes < BLOCK_BYTES or unit_bytes % BLOCK_BYTES:
        raise ConfigError(f"unit_bytes is {unit_bytes}: choose a positive multiple of {BLOCK_BYTES}, such as 262144")


def unit_count(length: Count, unit_bytes: int) -> Count:
    """Stripe units of a page of `length` bytes, or of many: int64."""
    return -(-length // unit_bytes)


def unit_length(length: int, unit_bytes: int, index: int) -> int:
    """Payload bytes of unit `index`: all but the last are full."""
    return min(unit_bytes, length - index * unit_bytes)


def stored_bytes(length: int, units: int, unit_bytes: int) -> int:
    """What lies in so many stripe units of a page of `length` bytes: these, or whole units where it is coded, which
    takes fewer."""
    return length if units == unit_count(length, unit_bytes) else units * unit_bytes


#: Bytes in front of a page that is coded; see `coding`. As many as half of it has follow, and some more.
CODE_HEADER_BYTES = 32


class Superblock(NamedTuple):
    """What one device says of itself and of its stripe set."""

    set_id: bytes
    sequence: int
    device_index: int
    device_count: int
    geometry: Geometry
    next_generation: int  # every generation used before is smaller
    clean: bool = False
    checkpoint_bytes: int = 0
    checkpoint_digest: bytes = bytes(DIGEST_BYTES)
    forgotten: frozenset[int] = frozenset()  # members that are gone for good, by index; no index is given twice

    def encode(self) -> bytes:
        body = _SUPERBLOCK.pack(
            SUPERBLOCK_MAGIC,
            LAYOUT_VERSION,
            _FLAG_CLEAN if self.clean else 0,
            self.set_id,
            self.sequence,
            self.device_index,
            self.device_count,
            self.geometry.unit_bytes,
            self.geometry.slot_count,
            CHECKPOINT_OFFSET,
            self.geometry.first_slot - CHECKPOINT_OFFSET,
            self.geometry.first_slot,
            self.next_generation,
            self.checkpoint_bytes,
            self.checkpoint_digest,
            sum(1 << index for index in self.forgotten).to_bytes(MAX_FORGOTTEN // 8, "little"),
        )
        return seal(body)


def forgotten_members(superblocks: Collection[Superblock]) -> frozenset[int]:
    """Members of a set that these no longer look for, by index. One that is among them is a member as before."""
    here = {superblock.device_index for superblock in superblocks}
    return frozenset[int]().union(*(superblock.forgotten for superblock in superblocks)) - here


class Defect(NamedTuple):
    """Why a superblock copy does not count."""

    kind: str  # "blank", "foreign", "version", "damaged"
    detail: str


def seal(body: bytes) -> bytes:
    """A 4 KiB block: `body`, zeros, and the checksum of both at the end."""
    block = body.ljust(CHECKSUM_OFFSET, b"\0")
    return block + page_digest(block)


def sealed(block: bytes) -> bool:
    """Whether the checksum at the end of a 4 KiB block is that of what comes before."""
    return page_digest(memoryview(block)[:CHECKSUM_OFFSET]) == block[CHECKSUM_OFFSET:]


def decode_superblock(block: bytes) -> Superblock | Defect:
    """The superblock in a 4 KiB block, or why there is none."""
    (
        magic,
        version,
        flags,
        set_id,
        sequence,
        index,
        count,
        unit_bytes,
        slots,
        checkpoint,
        checkpoint_room,
        first,
        generation,
        checkpoint_bytes,
        checkpoint_digest,
        forgotten,
    ) = _SUPERBLOCK.unpack_from(block)
    if magic != SUPERBLOCK_MAGIC:
        if not any(block):
            return Defect("blank", "all zeros")
        return Defect("damaged", "magic") if sealed(block) else Defect("foreign", "no superblock of a stripe set")
    if version != LAYOUT_VERSION:
        detail = f"format version {version}, this program reads {LAYOUT_VERSION}"
        return Defect("version" if sealed(block) else "damaged", detail)
    if not sealed(block):
        return Defect("damaged", "checksum")
    if (
        unit_bytes < BLOCK_BYTES
        or unit_bytes % BLOCK_BYTES
        or slots == 0
        or checkpoint != CHECKPOINT_OFFSET
        or first != first_slot_offset(slots)
        or checkpoint_room != first - checkpoint
        or checkpoint_bytes > slots * RECORD_BYTES
        or index >= count
        or (bits := int.from_bytes(forgotten, "little")).bit_length() > count
    ):
        return Defect("damaged", "fields contradict each other")
    return Superblock(
        set_id,
        sequence,
        index,
        count,
        Geometry(unit_bytes, slots, first),
        generation,
        bool(flags & _FLAG_CLEAN),
        checkpoint_bytes,
        checkpoint_digest,
        frozenset(index for index in range(bits.bit_length()) if bits >> index & 1),
    )


class SlotPlace(NamedTuple):
    """Where a unit lies, as its header says it: a unit written to the wrong place is not accepted."""

    set_id: bytes
    device_index: int
    slot: int


def unit_identity(
    record: PageRecord,
    generation: int,
    digest: bytes,
    namespace_id: int,
    index: int,
    units: int,
    unit_bytes: int,
    place: SlotPlace,
) -> bytes:
    """The first IDENTITY_BYTES of the header of unit `index` of a page in so many `units`. Those of its other units
    differ in the index, the length of the payload and the place alone."""
    stored = stored_bytes(record.length, units, unit_bytes)
    return _IDENTITY.pack(
        SLOT_MAGIC,
        LAYOUT_VERSION,
        namespace_id,
        place.set_id,
        record.namespace,
        record.key,
        record.parent,
        record.depth,
        index,
        units,
        place.device_index,
        record.length,
        unit_length(stored, unit_bytes, index),
        generation,
        place.slot,
        digest,
    )


def coded_identity(identity: bytes, units: int, digest: bytes) -> bytes:
    """`unit_identity` of a page that is coded now, in so many units, and of this digest."""
    coded = bytearray(identity)
    coded[_UNITS_AT : _UNITS_AT + 4] = units.to_bytes(4, "little")
    coded[-DIGEST_BYTES:] = digest
    return bytes(coded)


class SlotHeader(NamedTuple):
    """A slot header taken apart."""

    record: PageRecord
    namespace_id: int
    unit_index: int
    unit_count: int
    payload_length: int
    generation: int
    digest: bytes
    payload_digest: bytes
    place: SlotPlace


def decode_header(block: bytes) -> SlotHeader | str:
    """The header in a 4 KiB block, or what is wrong with it: "magic" or "checksum"."""
    (
        magic,
        version,
        namespace_id,
        set_id,
        namespace,
        key,
        parent,
        depth,
        index,
        count,
        device_index,
        length,
        payload_length,
        generation,
        slot,
        digest,
    ) = _IDENTITY.unpack_from(block)
    if magic != SLOT_MAGIC or version != LAYOUT_VERSION:
        return "magic"
    if not sealed(block):
        return "checksum"
    return SlotHeader(
        PageRecord(key, parent, namespace, depth, length),
        namespace_id,
        index,
        count,
        payload_length,
        generation,
        digest,
        block[PAYLOAD_DIGEST_OFFSET:_HEADER_END],
        SlotPlace(set_id, device_index, slot),
    )


def check_record(record: PageRecord) -> None:
    """Raise ValueError where a record cannot be written down."""
    if len(record.key) != KEY_BYTES or len(record.parent) != KEY_BYTES or len(record.namespace) != NAMESPACE_BYTES:
        raise ValueError(f"a page record needs keys of {KEY_BYTES} bytes and a namespace of {NAMESPACE_BYTES}")
    if record.length <= 0 or not 0 <= record.depth < 1 << 32:
        raise ValueError(f"page length {record.length} and depth {record.depth} must be positive and fit their fields")
