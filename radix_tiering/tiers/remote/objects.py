"""Objects: what is stored in an engine, and how it is known again.

    header, 4 KiB | page | page | ... | page

An object holds `ObjectShape.pages` pages that follow each other, the last of them in a depth that is a multiple of that
number. Its name is the namespace's and the last page's key, which covers all before it. The header says what is in it:

    magic 8 | version 2 | pages 2 | depth of the last 4 | bytes of a page 8 | namespace 16 | for each page: key 32,
    xxh3-128 16 | xxh3-128 of all this 16

Engines return objects that are short, long, stale or somebody else's, and say that all is well (docs/remote.md):
nothing of an object is believed that has not been compared.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...base.page import BLOCK_BYTES, DIGEST_BYTES, KEY_BYTES, NAMESPACE_BYTES, page_digest, round_up
from ..tier import ReadOutcome

HEADER_BYTES = BLOCK_BYTES
MAGIC = b"SWTIERS\x01"
VERSION = 1
_HEAD = struct.Struct(f"<8sHHIQ{NAMESPACE_BYTES}s")
_ENTRY_BYTES = KEY_BYTES + DIGEST_BYTES
#: Pages whose keys and checksums a header has room for.
MOST_PAGES = 64
#: Whose names are remembered.
MOST_NAMESPACES = 1024


class ObjectShape(NamedTuple):
    """How pages lie in objects. Two servers share objects only if it is the same for both; else names never meet."""

    page_bytes: int
    pages: int  # of one object
    run: int  # pages that are asked for together: by the last one's object

    @classmethod
    def of(cls, page_bytes: int, page_tokens: int, object_bytes: int, run_tokens: int) -> ObjectShape:
        """Objects of about `object_bytes`, runs of about `run_tokens`, of whole objects."""
        pages = max(1, min(MOST_PAGES, object_bytes // page_bytes, max(1, run_tokens // page_tokens)))
        return cls(page_bytes, pages, max(1, run_tokens // page_tokens // pages) * pages)

    @property
    def stride(self) -> int:
        """Bytes of one object, in whole blocks."""
        return round_up(HEADER_BYTES + self.pages * self.page_bytes, BLOCK_BYTES)

    def last_of(self, depth: int) -> int:
        """The depth of the last page of the object that holds the page in this depth."""
        return round_up(depth, self.pages)

    def page(self, memory: np.ndarray, index: int) -> np.ndarray:
        """The bytes of a page in an object: uint8 [page bytes]."""
        start = HEADER_BYTES + index * self.page_bytes
        return memory[start : start + self.page_bytes]


class ObjectNames:
    """What namespaces, keys and objects are called outside of this server.

    With a secret nobody who lacks it can tell from a name which tokens a page is of: that would say whether somebody
    has asked this before. It is no encryption: the pages, and their checksums in the header, are what they are.
    """

    def __init__(self, shape: ObjectShape, scope: str = "", secret: bytes = b"") -> None:
        """`scope`: what else two servers have in common that share pages. `secret`: at most 64 bytes."""
        self._scope = f"{shape.page_bytes}/{shape.pages}/{shape.run}/{scope}".encode()
        self._secret = secret
        self._namespaces: dict[bytes, bytes] = {}

    def namespace(self, digest: bytes) -> bytes:
        """16 bytes for a namespace."""
        found = self._namespaces.get(digest)
        if found is None:
            if len(self._namespaces) >= MOST_NAMESPACES:
                self._namespaces.clear()  # each update of the weights begins a new one
            mixed = hashlib.blake2b(digest + self._scope, digest_size=NAMESPACE_BYTES, key=self._secret)
            found = self._namespaces[digest] = mixed.digest()
        return found

    def key(self, key: bytes) -> bytes:
        """32 bytes for a page's key."""
        return hashlib.blake2b(key, digest_size=KEY_BYTES, key=self._secret).digest() if self._secret else key

    def name(self, namespace: bytes, key: bytes) -> str:
        """Of the object whose last page has this key."""
        return f"st{VERSION}-{self.namespace(namespace).hex()}-{self.key(key).hex()}"


def probe_name(shape: ObjectShape) -> str:
    """Of the object that servers whose objects are of this shape have in common, to try reads by."""
    return f"st1-probe-{shape.page_bytes}-{shape.pages}"


def parse_name(name: str) -> tuple[bytes, bytes]:
    """The namespace and the last page's key that an object's name is made of, as they are called outside."""
    _, namespace, key = name.split("-")
    return bytes.fromhex(namespace), bytes.fromhex(key)


class ObjectHeader(NamedTuple):
    """What an object says it holds. Namespace and keys as outside of this server."""

    namespace: bytes
    depth: int  # of the last page
    page_bytes: int
    keys: tuple[bytes, ...]
    digests: tuple[bytes, ...]  # xxh3-128 of each page

    def pack(self) -> bytes:
        """Its bytes, fewer than `HEADER_BYTES`."""
        head = _HEAD.pack(MAGIC, VERSION, len(self.keys), self.depth, self.page_bytes, self.namespace)
        raw = head + b"".join(key + digest for key, digest in zip(self.keys, self.digests, strict=True))
        return raw + page_digest(raw)


def wrap(memory: np.ndarray, header: ObjectHeader) -> None:
    """Put the header before pages that are there already: uint8 [stride]."""
    raw = header.pack()
    memory[: len(raw)] = np.frombuffer(raw, np.uint8)
    memory[len(raw) : HEADER_BYTES] = 0


def blank(memory: np.ndarray) -> None:
    """What lies there is no object any more: nothing of before passes for what an engine was to write there."""
    memory[: _HEAD.size] = 0


def unwrap(memory: np.ndarray, shape: ObjectShape, namespace: bytes, key: bytes) -> ObjectHeader | ReadOutcome:
    """What the object there holds, if it is that of this namespace and last page, as they are called outside; else why
    it is not. The pages have still to be compared with their checksums."""
    raw = memory[:HEADER_BYTES].tobytes()  # once: another process can write there
    magic, version, pages, depth, page_bytes, space = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION:
        return ReadOutcome.MAGIC
    if pages != shape.pages or page_bytes != shape.page_bytes:
        return ReadOutcome.LENGTH
    end = _HEAD.size + pages * _ENTRY_BYTES
    if page_digest(raw[:end]) != raw[end : end + DIGEST_BYTES]:
        return ReadOutcome.CHECKSUM
    entries = [raw[start : start + _ENTRY_BYTES] for start in range(_HEAD.size, end, _ENTRY_BYTES)]
    keys = tuple(entry[:KEY_BYTES] for entry in entries)
    if space != namespace:
        return ReadOutcome.NAMESPACE
    if keys[-1] != key or depth % pages:
        return ReadOutcome.KEY
    return ObjectHeader(space, depth, page_bytes, keys, tuple(entry[KEY_BYTES:] for entry in entries))


def tails(depth: int, keys: Sequence[bytes], shape: ObjectShape) -> list[int]:
    """Which of `keys`, that follow `depth` pages, are the last ones of runs: their indices."""
    first = (depth // shape.run + 1) * shape.run - depth - 1
    return list(range(first, len(keys), shape.run))
