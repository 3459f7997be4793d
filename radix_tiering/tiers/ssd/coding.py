"""Pages in fewer bytes, every bit of which comes back: what lies in the slots of a page that is coded.

KV of 16-bit floats is noise but for its exponents. So each word is rotated by one bit, which brings the exponent of a
bfloat16 into one byte of it, and sign and fraction into the other; the bytes with the exponents are a zstd frame, the
others lie there as they are. docs/ssd-format.md says it to the byte.

A page that is coded takes fewer stripe units than it has, which tells it from others; one that would take as many is
written as it is. What comes back has the checksum of the page, or is none.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import struct

import numba  # type: ignore[import-untyped]
import numpy as np
import zstandard

from ...base.checksum import bytes_at
from ...base.compiled import compiled
from .layout import CODE_HEADER_BYTES, unit_count

CODE_MAGIC = b"SWFTCODE"
#: How a page is coded: words of 16 bits whose exponents are a zstd frame.
EXPONENTS = 1
#: Magic, how it is coded, zeros, bytes of the page, bytes of the frame.
_HEADER = struct.Struct("<8sIIQQ")
assert _HEADER.size == CODE_HEADER_BYTES
#: Exponents repeat as runs of one model's channels do, or not at all: long matches, found fast. Level 1 comes to the
#: same bytes at a seventh of the pace.
_PARAMETERS = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    write_content_size=False,
    write_checksum=False,
)


@compiled("void(int64, int64, int64, int64)", nogil=True)
def _split(words, count, rest, exponents):
    """Write the exponents of so many words to one place, and the rest of them to another; all are addresses."""
    both = numba.carray(bytes_at(words), (2 * count,))
    low, high = numba.carray(bytes_at(rest), (count,)), numba.carray(bytes_at(exponents), (count,))
    for at in range(count):
        word = np.uint32(both[2 * at]) | np.uint32(both[2 * at + 1]) << np.uint32(8)
        turned = word << np.uint32(1) | word >> np.uint32(15)
        low[at] = turned & np.uint32(255)
        high[at] = turned >> np.uint32(8) & np.uint32(255)


@compiled("void(int64, int64, int64, int64)", nogil=True)
def _join(rest, exponents, count, words):
    """What `_split` has split."""
    both = numba.carray(bytes_at(words), (2 * count,))
    low, high = numba.carray(bytes_at(rest), (count,)), numba.carray(bytes_at(exponents), (count,))
    for at in range(count):
        turned = np.uint32(low[at]) | np.uint32(high[at]) << np.uint32(8)
        word = turned >> np.uint32(1) | turned << np.uint32(15)
        both[2 * at] = word & np.uint32(255)
        both[2 * at + 1] = word >> np.uint32(8) & np.uint32(255)


class Coder:
    """For one thread: it keeps what it needs from page to page."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self._decompressor = zstandard.ZstdDecompressor()
        self._scratch = np.empty(0, np.uint8)

    def encode(self, page: np.ndarray, into: np.ndarray, unit_bytes: int) -> int:
        """Write a page, uint8 [page bytes], to `into` in whole stripe units, zeros behind it; how many these are. 0
        where they are not fewer than the page itself takes, and what is in `into` then means nothing."""
        length, words = len(page), len(page) // 2
        most = (unit_count(length, unit_bytes) - 1) * unit_bytes
        begin = _HEADER.size + words
        if length % 2 or begin >= most:
            return 0
        exponents = self._room(words)
        _split(page.ctypes.data, words, into.ctypes.data + _HEADER.size, exponents.ctypes.data)
        frame = np.frombuffer(self._compressor.compress(exponents.data), np.uint8)
        end = begin + len(frame)
        if end > most:
            return 0
        into[: _HEADER.size] = np.frombuffer(_HEADER.pack(CODE_MAGIC, EXPONENTS, 0, length, len(frame)), np.uint8)
        into[begin:end] = frame
        units = unit_count(end, unit_bytes)
        into[end : units * unit_bytes] = 0
        return units

    def decode(self, page: np.ndarray, coded: int, length: int) -> bool:
        """Make a page, the first `length` bytes of `page`, of the `coded` bytes there, uint8; False where these are no
        page's."""
        words = length // 2
        begin = _HEADER.size + words
        if coded < begin:
            return False
        magic, method, _, of_page, of_frame = _HEADER.unpack_from(page.data)
        if (magic, method, of_page) != (CODE_MAGIC, EXPONENTS, length) or not 0 < of_frame <= coded - begin:
            return False
        rest = self._room(words)
        rest[:] = page[_HEADER.size : begin]
        frame = page[begin : begin + of_frame].data
        try:
            # A frame may say how much it is, and so much would be made of it.
            if zstandard.frame_content_size(frame) not in (-1, words):
                return False
            exponents = self._decompressor.decompress(frame, max_output_size=words)
        except zstandard.ZstdError as error:
            if "not enough memory" in str(error):
                raise MemoryError from error
            return False
        if len(exponents) != words:
            return False
        _join(rest.ctypes.data, np.frombuffer(exponents, np.uint8).ctypes.data, words, page.ctypes.data)
        return True

    def _room(self, nbytes: int) -> np.ndarray:
        """So many bytes, until the next call."""
        if len(self._scratch) < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch[:nbytes]
