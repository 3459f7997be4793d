"""What is done to every stripe unit, compiled: a batch in one call.

A page has several units, and a server writes thousands of pages a second: what Python does for each of them, SGLang's
scheduler waits for, in the same process. So units are rows of arrays (`units.Units`), and their headers, their
checksums and what is counted of them are made here.

Kernels that look at whole pages run without the interpreter lock. The others are shorter than winning it back can take,
5 ms beside a busy thread, and some of them are called with the stripe set's lock in hand: they keep it.

All of this is one file, because the compiled code is kept on disk beside it and compared with this file alone.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from collections.abc import Callable

import numba  # type: ignore[import-untyped]
import numpy as np
from numba import types
from numba.extending import intrinsic  # type: ignore[import-untyped]

from ...base.checksum import address_of, bytes_at, checksum
from ...base.compiled import Kernel, compiled
from ...base.page import BLOCK_BYTES
from .layout import CHECKSUM_OFFSET, IDENTITY_BYTES, PAYLOAD_DIGEST_OFFSET

# ---- a unit that is under way: 64-bit words, whose row is the tag of its request ----

TRANSFER, INDEX, DEVICE, SLOT = 0, 1, 2, 3  # rows of the others; which unit of the page; where it lies
OFFSET, ADDRESS, NBYTES, LENGTH = 4, 5, 6, 7  # on the device; of the payload in memory; with padding; without
UNIT_WORDS = 8

# ---- a page that is written or read ----

DATA, BYTES, UNITS, WRITING = 0, 1, 2, 3  # where its bytes are, how many, in how many units
STARTED = 4  # a unit of it has been submitted
OVER = 5  # no unit of it is begun any more: it FAILED, or has ENDED
FLYING, TODO, WAITING = 6, 7, 8  # units submitted and not back; not back and verified; in a device's queue
DIGESTS, PLACES = 9, 10  # addresses: of the checksums of its units, and of their (device, slot)
CODED = 11  # its checksum is not that of these units, and known
TRANSFER_WORDS = 12
FAILED, ENDED = 1, 2

# ---- a device ----

NUMBER, FIRST, STRIDE = 0, 1, 2  # in the stripe set; where its slots begin, and how far apart they are
HEAD, TAIL = 3, 5  # of the queue of reads, and behind it that of writes
IN_FLIGHT = 7
READS, WRITES, BYTES_READ, BYTES_WRITTEN = 8, 9, 10, 11
READ_ERRORS, WRITE_ERRORS, CORRUPT, ERRORS_IN_A_ROW = 12, 13, 14, 15
WRITES_FLYING = 16  # of those in flight
DEVICE_WORDS = 17
#: A read is begun at once, and then waits for what the device has begun. So as long as writes take longer than this,
#: seconds, fewer of them are in flight; most devices never come to that with all they may have.
WRITE_SECONDS = 0.1
#: So many writes keep any device busy: one that is under way, and one to be next.
FEWEST_WRITES = 2
#: A write that took no longer allows for so many more of them, and one that did for as many fewer than there are.
ALLOWED_STEP = 0.5
#: An entry of a queue: the row of a page, and which unit of it.
QUEUE_SHIFT, _MASK = 20, (1 << 20) - 1


# ---- of all ----

FREE_ROWS, ALL_FLYING = 0, 1
#: How many of each the last `complete` has found.
ENDING, UNVERIFIED, FAULTY, LATE = 2, 3, 4, 5
META_WORDS = 8

#: Where a header says of its unit what differs from the others of its page.
_INDEX_AT, _DEVICE_AT, _PAYLOAD_AT, _SLOT_AT = 116, 124, 136, 152
PAGE_DIGEST_AT = IDENTITY_BYTES - 16
_DIGEST = 16

#: How a unit was verified.
RIGHT, FOREIGN, CORRUPTED = 0, 1, 2

_WORDS, _LINE, _REALS = "int64[:,::1]", "int64[::1]", "float64[::1]"
_BYTES = "uint8[:,::1]"


def _entry(answer: str, *arguments: str, nogil: bool = False) -> Callable[[Kernel], Kernel]:
    return compiled(f"{answer}({', '.join(arguments)})", nogil=nogil)


@intrinsic
def _places_at(typingctx, address):
    """The 32-bit words at an address."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(types.int64), code


@numba.njit
def _put(block, at, value, nbytes):
    """Write a little-endian number."""
    for byte in range(nbytes):
        block[at + byte] = (value >> (8 * byte)) & 255


@numba.njit
def _identify(block, identity, unit, devices, unit_bytes, length):
    """Write what the header of a unit has to say of it."""
    block[:IDENTITY_BYTES] = identity
    index = unit[INDEX]
    _put(block, _INDEX_AT, index, 4)
    _put(block, _DEVICE_AT, devices[unit[DEVICE], NUMBER], 4)
    _put(block, _PAYLOAD_AT, min(unit_bytes, length - index * unit_bytes), 8)
    _put(block, _SLOT_AT, unit[SLOT], 8)


@_entry("void", _WORDS, _BYTES, _LINE, "int64", "int64", nogil=True)
def digest_pages(transfers, identities, rows, unit_bytes, function):
    """Compute the checksums of the units of these pages, and of each that is not coded that of them, which goes to its
    identity."""
    for row in rows:
        page = transfers[row]
        digests = numba.carray(bytes_at(page[DIGESTS]), (page[UNITS], _DIGEST))
        for index in range(page[UNITS]):
            start = index * unit_bytes
            checksum(function, page[DATA] + start, min(unit_bytes, page[BYTES] - start), digests[index])
        if not page[CODED]:
            checksum(function, page[DIGESTS], page[UNITS] * _DIGEST, identities[row, PAGE_DIGEST_AT:])


@_entry("boolean", _WORDS, _WORDS, "int64[:,:,::1]", _LINE)
def queue(transfers, devices, queues, rows):
    """Put the units of pages into the queues of their devices; False, and nothing done, where one is too small."""
    room, units = queues.shape[2], 0
    for row in rows:
        units += transfers[row, UNITS]
    for device in devices:
        for kind in range(2):
            if device[TAIL + kind] - device[HEAD + kind] + units > room:
                return False
    for row in rows:
        page = transfers[row]
        places = numba.carray(_places_at(page[PLACES]), (page[UNITS], 2))
        kind = page[WRITING]
        for index in range(page[UNITS]):
            device = devices[places[index, 0]]
            queues[places[index, 0], kind, device[TAIL + kind] % room] = row << QUEUE_SHIFT | index
            device[TAIL + kind] += 1
        page[WAITING] += page[UNITS]
    return True


@_entry("int64", _WORDS, _REALS, _BYTES, _WORDS, _BYTES, _WORDS, _REALS, "int64[:,:,::1]", _LINE, _LINE,
        _LINE, "float64", "int64", "int64", "int64")  # fmt: skip
def fill(
    units, since, headers, transfers, identities, devices, allowed, queues, free, meta, begun, now, unit_bytes, depth,
    function,
):  # fmt: skip
    """Begin as many units as the devices have room for, the reads of each first: their rows go to `begun`; how many."""
    count, room = 0, queues.shape[2]
    for number in range(len(devices)):
        device = devices[number]
        for kind in range(2):
            while device[HEAD + kind] < device[TAIL + kind] and device[IN_FLIGHT] < depth and meta[FREE_ROWS] > 0:
                if kind and device[WRITES_FLYING] >= allowed[number]:
                    break
                entry = queues[number, kind, device[HEAD + kind] % room]
                device[HEAD + kind] += 1
                page = transfers[entry >> QUEUE_SHIFT]
                page[WAITING] -= 1
                if page[OVER]:
                    continue
                page[STARTED] = 1
                page[FLYING] += 1
                meta[FREE_ROWS] -= 1
                row, index = free[meta[FREE_ROWS]], entry & _MASK
                slot = numba.carray(_places_at(page[PLACES]), (page[UNITS], 2))[index, 1]
                start = index * unit_bytes
                unit = units[row]
                unit[TRANSFER], unit[INDEX], unit[DEVICE], unit[SLOT] = entry >> QUEUE_SHIFT, index, number, slot
                unit[OFFSET] = device[FIRST] + slot * device[STRIDE]
                unit[ADDRESS] = page[DATA] + start
                unit[LENGTH] = min(unit_bytes, page[BYTES] - start)
                unit[NBYTES] = -(-unit[LENGTH] // BLOCK_BYTES) * BLOCK_BYTES
                since[row] = now
                device[IN_FLIGHT] += 1
                device[WRITES_FLYING] += kind
                meta[ALL_FLYING] += 1
                if kind:
                    block = headers[row]
                    _identify(block, identities[entry >> QUEUE_SHIFT], unit, devices, unit_bytes, page[BYTES])
                    digests = numba.carray(bytes_at(page[DIGESTS]), (page[UNITS], _DIGEST))
                    block[PAYLOAD_DIGEST_OFFSET : PAYLOAD_DIGEST_OFFSET + _DIGEST] = digests[index]
                    block[PAYLOAD_DIGEST_OFFSET + _DIGEST : CHECKSUM_OFFSET] = 0
                    checksum(function, address_of(block), CHECKSUM_OFFSET, block[CHECKSUM_OFFSET:])
                begun[count] = row
                count += 1
    return count


@numba.njit
def _back(units, transfers, free, meta, row, ending, count):
    """A unit is done with; its page goes to `ending` where that was the last of it. How many are there."""
    transfer = units[row, TRANSFER]
    page = transfers[transfer]
    page[FLYING] -= 1
    page[TODO] -= 1
    free[meta[FREE_ROWS]] = row
    meta[FREE_ROWS] += 1
    if page[FLYING] == 0 and (page[TODO] == 0 or page[OVER]):
        ending[count] = transfer
        count += 1
    return count


@_entry("void", _WORDS, _REALS, _WORDS, _WORDS, _REALS, _WORDS, _REALS, _LINE, _LINE, _LINE, _LINE, _REALS,
        "float64", "int64", "int64[:,::1]")  # fmt: skip
def complete(
    units, since, transfers, devices, allowed, latency, latency_sum, free, meta, tags, errors, bounds, now, depth, found
):
    """Account for completions. To the rows of `found`: pages that have ended with them; units that are to be verified;
    which completions are errors, of which nothing but the time is counted, and that are under way until somebody has
    looked at each; places of pages that had ended before."""
    ending = unverified = faulty = late = 0
    for at in range(len(tags)):
        row = tags[at]
        unit = units[row]
        device, page = devices[unit[DEVICE]], transfers[unit[TRANSFER]]
        device[IN_FLIGHT] -= 1
        meta[ALL_FLYING] -= 1
        seconds = now - since[row]
        latency[unit[DEVICE], np.searchsorted(bounds, seconds)] += 1
        latency_sum[unit[DEVICE]] += seconds
        if page[WRITING]:
            if seconds <= WRITE_SECONDS:
                allowed[unit[DEVICE]] = min(float(depth), allowed[unit[DEVICE]] + ALLOWED_STEP)
            else:
                fewer = min(allowed[unit[DEVICE]], device[WRITES_FLYING]) - ALLOWED_STEP
                allowed[unit[DEVICE]] = max(float(min(depth, FEWEST_WRITES)), fewer)
            device[WRITES_FLYING] -= 1
        if errors[at]:
            found[2, faulty] = at
            faulty += 1
            continue
        since[row] = np.inf
        if page[WRITING]:
            device[WRITES] += 1
            device[BYTES_WRITTEN] += unit[LENGTH]
        else:
            device[READS] += 1
            device[BYTES_READ] += unit[LENGTH]
            device[ERRORS_IN_A_ROW] = 0
        if page[OVER] == ENDED:
            found[3, late] = unit[DEVICE]
            found[4, late] = unit[SLOT]
            late += 1
        elif not page[OVER] and not page[WRITING]:
            found[1, unverified] = row
            unverified += 1
            continue
        ending = _back(units, transfers, free, meta, row, found[0], ending)
    meta[ENDING], meta[UNVERIFIED], meta[FAULTY], meta[LATE] = ending, unverified, faulty, late


@_entry("int64", _WORDS, _WORDS, _LINE, _LINE, _LINE, _LINE)
def back(units, transfers, free, meta, rows, ending):
    """These units are done with: verified, or failed. Pages that have ended with them go to `ending`; how many."""
    count = 0
    for row in rows:
        count = _back(units, transfers, free, meta, row, ending, count)
    return count


@_entry("int64", _WORDS, _BYTES, _WORDS, _BYTES, _WORDS, _LINE, _LINE, "int64", "int64", nogil=True)
def verify(units, headers, transfers, identities, devices, rows, outcomes, unit_bytes, function):
    """Whether each of these units, read, is what was asked for: RIGHT, or FOREIGN, or CORRUPTED; how many are not."""
    expected, digest = np.empty(IDENTITY_BYTES, np.uint8), np.empty(_DIGEST, np.uint8)
    wrong = 0
    for at in range(len(rows)):
        unit, block = units[rows[at]], headers[rows[at]]
        page = transfers[unit[TRANSFER]]
        _identify(expected, identities[unit[TRANSFER]], unit, devices, unit_bytes, page[BYTES])
        outcomes[at] = RIGHT
        if not np.array_equal(expected, block[:IDENTITY_BYTES]):
            outcomes[at] = FOREIGN
        else:
            checksum(function, address_of(block), CHECKSUM_OFFSET, digest)
            if not np.array_equal(digest, block[CHECKSUM_OFFSET:]):
                outcomes[at] = CORRUPTED
            else:
                checksum(function, unit[ADDRESS], unit[LENGTH], digest)
                stored = block[PAYLOAD_DIGEST_OFFSET : PAYLOAD_DIGEST_OFFSET + _DIGEST]
                if not np.array_equal(digest, stored):
                    outcomes[at] = CORRUPTED
        if outcomes[at] != RIGHT:
            wrong += 1
    return wrong
