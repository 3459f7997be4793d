"""The namespace table: which namespaces live on a stripe set, and which of their generations still count.

Each device keeps two copies, and every change goes to both copies of every device with a sync between them, so that
losing any one of them loses no flush.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...base.errors import ConfigError
from ...base.page import NAMESPACE_BYTES, page_digest
from .layout import LAYOUT_VERSION, TABLE_BYTES

TABLE_MAGIC = b"SWFTNAME"
_HEADER = struct.Struct("<8sIIQI20s")
_HEADER_BYTES = 64  # the checksum fills the header up to here
_ENTRY = struct.Struct("<IIQ16s96s")
DESCRIPTION_BYTES = 96
MAX_NAMESPACES = (TABLE_BYTES - _HEADER_BYTES) // _ENTRY.size


class NamespaceEntry(NamedTuple):
    identifier: int
    digest: bytes
    minimum_generation: int  # pages of an older generation are gone
    description: str


class NamespaceTable:
    """Not thread-safe: the stripe set's lock guards it."""

    def __init__(self, entries: tuple[NamespaceEntry, ...] = (), sequence: int = 0, next_identifier: int = 1) -> None:
        self.sequence = sequence
        self._next_identifier = next_identifier
        self._entries = {entry.digest: entry for entry in entries}
        self._named_now: set[bytes] = set()

    @property
    def entries(self) -> tuple[NamespaceEntry, ...]:
        return tuple(self._entries.values())

    def get(self, digest: bytes) -> NamespaceEntry | None:
        return self._entries.get(digest)

    def by_identifier(self) -> dict[int, NamespaceEntry]:
        return {entry.identifier: entry for entry in self._entries.values()}

    def register(self, digest: bytes, description: str, generation: int) -> tuple[int, bool]:
        """The id of a namespace, and whether the table changed.

        A new one starts at `generation`: what an earlier table may have known under this digest stays gone. In a
        full table the oldest namespace that nobody registered in this session, or that was retired since, makes room,
        which flushes it.
        Raises ConfigError where there is none, ValueError for a digest of the wrong size.
        """
        if len(digest) != NAMESPACE_BYTES:
            raise ValueError(f"a namespace digest has {NAMESPACE_BYTES} bytes, not {len(digest)}")
        known = self._entries.get(digest)
        if known is not None:
            self._named_now.add(digest)
            return known.identifier, False
        if len(self._entries) >= MAX_NAMESPACES:
            idle = next((name for name in self._entries if name not in self._named_now), None)
            if idle is None:
                raise ConfigError(f"the stripe set already serves {MAX_NAMESPACES} namespaces: use another stripe set")
            del self._entries[idle]
        entry = NamespaceEntry(self._next_identifier, digest, generation, _shorten(description))
        self._next_identifier += 1
        self._entries[digest] = entry
        self._named_now.add(digest)
        self.sequence += 1
        return entry.identifier, True

    def retire(self, digest: bytes, *, comes_back: bool = True) -> None:
        """Treat a namespace like one that nobody registered in this session: it may make room for another; as the
        oldest would, where it never `comes_back`."""
        self._named_now.discard(digest)
        if not comes_back and (entry := self._entries.pop(digest, None)) is not None:
            self._entries = {digest: entry, **self._entries}

    def flush(self, digest: bytes, generation: int) -> bool:
        """Let every page older than `generation` count no more; False where the namespace is unknown."""
        known = self._entries.get(digest)
        if known is None:
            return False
        self._entries[digest] = known._replace(minimum_generation=max(known.minimum_generation, generation))
        self.sequence += 1
        return True

    def encode(self) -> bytes:
        """One copy: TABLE_BYTES bytes."""
        entries = b"".join(
            _ENTRY.pack(entry.identifier, 0, entry.minimum_generation, entry.digest, entry.description.encode())
            for entry in self._entries.values()
        )
        head = _HEADER.pack(
            TABLE_MAGIC, LAYOUT_VERSION, len(self._entries), self.sequence, self._next_identifier, bytes(20)
        )
        body = entries.ljust(TABLE_BYTES - _HEADER_BYTES, b"\0")
        return head + page_digest(head + body) + body

    @classmethod
    def decode(cls, raw: bytes) -> NamespaceTable | None:
        """The table in one copy, or None where it is not whole."""
        head, checksum, body = raw[: _HEADER.size], raw[_HEADER.size : _HEADER_BYTES], raw[_HEADER_BYTES:]
        magic, version, count, sequence, next_identifier, _ = _HEADER.unpack(head)
        if magic != TABLE_MAGIC or version != LAYOUT_VERSION or count > MAX_NAMESPACES:
            return None
        if page_digest(head + body) != checksum:
            return None
        entries = []
        for index in range(count):
            identifier, _, minimum, digest, text = _ENTRY.unpack_from(body, index * _ENTRY.size)
            entries.append(NamespaceEntry(identifier, digest, minimum, text.rstrip(b"\0").decode(errors="replace")))
        return cls(tuple(entries), sequence, next_identifier)


class MemberTable(NamedTuple):
    """What one device of a stripe set knows."""

    table: NamespaceTable
    reach: int  # no generation that was ever written there is as high


def reconcile(members: Sequence[MemberTable], generation: int) -> NamespaceTable:
    """One table for devices that come together again, `generation` being one that none of them has used.

    The newest counts: a device that was away holds an earlier one. Unless it was written to meanwhile, without the
    others: then each may have handed out one id twice, or know of a flush that the other never heard of, and of every
    namespace of which they disagree nothing that was written so far counts any more. Two that have changed as often
    since, each by itself, are told apart by a sequence of its own for what they agree on.
    """
    if not members:
        return NamespaceTable()
    newest = max((member.table for member in members), key=lambda table: table.sequence)
    doubtful = {digest for member in members for digest in _disagreement(newest, member)}
    next_identifier = max(member.table._next_identifier for member in members)
    entries = set(newest.entries)  # in any order: what makes room first is no change
    split = any(member.table.sequence == newest.sequence and set(member.table.entries) != entries for member in members)
    if not doubtful and not split and next_identifier == newest._next_identifier:
        return newest
    agreed = NamespaceTable(newest.entries, newest.sequence + 1, next_identifier)
    for digest in doubtful:
        agreed.flush(digest, generation)
    return agreed


def _disagreement(newest: NamespaceTable, member: MemberTable) -> Iterator[bytes]:
    """Namespaces of `newest` of which pages may be found that are not theirs, or were flushed."""
    for entry in member.table.entries:
        known = newest.get(entry.digest)
        if known is None or known.identifier != entry.identifier:
            # Its pages bear an id that stands for another namespace now.
            yield from (other.digest for other in newest.entries if other.identifier == entry.identifier)
        elif entry.minimum_generation > known.minimum_generation:
            yield entry.digest
        elif entry.minimum_generation < known.minimum_generation < member.reach:
            # It went on beyond the flush without knowing of it.
            yield entry.digest


def _shorten(description: str) -> str:
    """At most DESCRIPTION_BYTES bytes of UTF-8, without cutting a character in two."""
    return description.encode()[:DESCRIPTION_BYTES].decode(errors="ignore")
