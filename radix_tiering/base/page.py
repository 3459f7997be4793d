"""Pages: what is keyed, moved and stored.

A page is the KV of `page_size` consecutive tokens, all layers, K and V. Below the device it is kept block-major:
its bytes in one contiguous run `[layer][plane][token][kv_head][head_dim]`, so that one layer is a slice. What else a
model keeps of these tokens, in rows of other sizes, lies in front of the layers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

#: Bytes of a page key: the SHA-256 digest of SGLang's chained page hash.
#: Of a checksum.
DIGEST_BYTES = 16
KEY_BYTES = 32
#: Bytes of a namespace digest.
NAMESPACE_BYTES = 16
#: The parent of every first page of a sequence.
ROOT_KEY = bytes(KEY_BYTES)
#: Device files are read and written in whole blocks of this many bytes (O_DIRECT).
BLOCK_BYTES = 4096
#: Raised whenever the bytes of a stored page, or what identifies them, change their meaning.
FORMAT_VERSION = 1


def round_up(count: int, multiple: int) -> int:
    """`count` rounded up to a multiple of `multiple`."""
    return -(-count // multiple) * multiple


class PageGeometry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape of one page below the device; two pages of equal geometry have the same size and the same layout.

    What has a default is left out of a namespace's digest, which is that of older versions so.
    """

    layers: int
    planes: int  # tensors per layer: 2 for K and V, 1 where they share one latent tensor
    tokens: int  # page_size
    row_bytes: int  # of one row of one plane of one layer on the device: kv_heads * head_dim * dtype size
    codec: str = ""  # "fp8", "int8" or "int4", which lose something; empty: every byte is the device's
    coded_layer_bytes: int = 0  # of a layer in that codec
    front_bytes: int = 0  # in front of the layers, as they are on the device
    front_split: bool = False  # whether tensor-parallel ranks keep different parts of these
    state_bytes: int = 0  # of the state behind a prefix, which pages of its own have; 0: the model keeps none
    rows: int = 0  # that a page has of a plane; 0: one for each of its tokens

    @property
    def plane_rows(self) -> int:
        """That a page has of a plane."""
        return self.rows or self.tokens

    @property
    def layer_bytes(self) -> int:
        return self.coded_layer_bytes if self.codec else self.device_layer_bytes

    @property
    def page_bytes(self) -> int:
        return self.front_bytes + self.layers * self.layer_bytes

    @property
    def device_layer_bytes(self) -> int:
        """Of one layer of a page on the device."""
        return self.planes * self.plane_rows * self.row_bytes

    @property
    def device_page_bytes(self) -> int:
        """Of a page on the device."""
        return self.front_bytes + self.layers * self.device_layer_bytes

    @property
    def stride_bytes(self) -> int:
        """Distance between two pages in a slab: whole blocks, so that direct I/O can use the slab itself."""
        return round_up(self.page_bytes, BLOCK_BYTES)

    @property
    def is_whole(self) -> bool:
        """Whether each tensor-parallel rank has all of a page: a latent that K and V share, and a front alike."""
        return self.planes == 1 and not self.front_split and not self.state_bytes

    def span(self, layers: range) -> slice:
        """The bytes of neighbouring layers in a page; what lies in front comes with the first one."""
        begin, end = (self.front_bytes + layer * self.layer_bytes for layer in (layers.start, layers.stop))
        return slice(begin if layers.start else 0, end)


class Namespace(msgspec.Struct, frozen=True):
    """The identity of the bytes behind a page key, besides the tokens.

    Two servers share a page only if every byte would mean the same, so each field that changes a byte is here.
    Extra keys, cache salts and the identifiers of LoRA adapters are not: SGLang's chained page hash starts from them.
    """

    model: str  # digest of the model's configuration
    weights: str  # digest of the weights
    dtype: str  # of the KV cache
    geometry: PageGeometry
    first_layer: int
    kv_heads: int
    head_dim: int
    rank: str  # which part of the model this is: "tp0/2 pp0/1 dp0/1 cp0/1"
    quantization: str = ""
    loading: str = ""  # digest of how the weights are loaded, of KV scales, and of adapters
    software: str = ""  # that computes it, with versions
    format_version: int = FORMAT_VERSION

    def digest(self) -> bytes:
        """16 bytes that stand for this namespace in keys and on devices."""
        return xxhash.xxh3_128_digest(msgspec.json.encode(self, order="sorted"))


class PageRecord(NamedTuple):
    """Everything about a stored page but its bytes."""

    key: bytes  # KEY_BYTES
    parent: bytes  # key of the page before it in the sequence, ROOT_KEY for the first one
    namespace: bytes  # NAMESPACE_BYTES
    depth: int  # position in the sequence, in pages, from 1
    length: int  # payload bytes


#: Pages in one `HeldPages` where there may be millions: what is done with them takes some ten milliseconds.
HELD_TOGETHER = 1 << 14


class HeldPages(NamedTuple):
    """Many pages of one namespace that a durable tier has, in arrays."""

    namespace: bytes  # NAMESPACE_BYTES
    length: int  # payload bytes of each
    keys: np.ndarray  # int64 [pages, 8]: the key of each, and that of the page before it
    depths: np.ndarray  # int64 [pages]
    places: np.ndarray  # int64 [pages], as the tier numbers them
    order: np.ndarray  # int64 [pages]: those that were written later have higher numbers


def page_digest(data: np.ndarray | memoryview | bytes, unit_bytes: int | None = None) -> bytes:
    """The 16-byte xxh3-128 checksum of a page's bytes; with `unit_bytes` that of the checksums of its units of so many
    bytes. Releases the interpreter lock on large inputs."""
    if unit_bytes is None:
        return xxhash.xxh3_128_digest(data)  # type: ignore[arg-type]  # any contiguous buffer
    units = [data[start : start + unit_bytes] for start in range(0, len(data), unit_bytes)]
    return xxhash.xxh3_128_digest(b"".join(map(page_digest, units)))
