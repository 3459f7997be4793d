"""Entries of an io_uring for a whole batch of requests, compiled.

Apart from the ring, which those who only look whether there is one import, without anything compiled.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from ....base.compiled import compiled
from .uring import READV, WRITEV

_LINE, _WORDS = "int64[::1]", "int64[:,::1]"
_PARAMETERS = (_WORDS, "int64", "int64", "uint64[:,::1]", "int64", *[_LINE] * 9, _WORDS, _WORDS)


@compiled(f"void({', '.join(_PARAMETERS)})")
def push(
    entries, mask, tail, iovecs, iovecs_at, left, tags_of, devices_of,
    slots, fds, tags, writing, numbers, offsets, addresses, lengths,
):  # fmt: skip
    """Put requests of two buffers each, a header and a payload, into a submission queue, behind `tail`."""
    width = len(iovecs) // len(left)
    for at in range(len(slots)):
        slot = slots[at]
        first = slot * width
        for part in range(2):
            iovecs[first + part, 0] = addresses[at, part]
            iovecs[first + part, 1] = lengths[at, part]
        left[slot] = lengths[at, 0] + lengths[at, 1]
        tags_of[slot] = tags[at]
        devices_of[slot] = numbers[at]
        entry = entries[(tail + at) & mask]
        entry[:] = 0
        entry[0] = (WRITEV if writing[at] else READV) | fds[numbers[at]] << 32
        entry[1] = offsets[at]
        entry[2] = iovecs_at + first * 16
        entry[3] = 2
        entry[4] = slot
