"""Checksums of many pages in one call, without the interpreter.

xxh3-128 is the package `xxhash`'s. Its extension module shows the C function that it is built on, which is called here
by its address, `FUNCTION`. Where that is not there, or does not do what the package does, the package is asked.

What is compiled here becomes part of kernels in other files, whose kept code does not notice when this file changes:
give a function another name when it does something else.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import ctypes

import numba  # type: ignore[import-untyped]
import numpy as np
import xxhash
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic  # type: ignore[import-untyped]

from .compiled import compiled
from .page import DIGEST_BYTES, page_digest


def _function() -> int:
    """Where the xxh3-128 of a buffer begins that the package `xxhash` is built on; 0 where it does not show it."""
    try:
        library = ctypes.CDLL(xxhash._xxhash.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return 0
    for name in ("XXH3_128bits_dispatch", "XXH3_128bits"):  # the first chooses the instructions of this machine
        found = getattr(library, name, None)
        if found is not None:
            return ctypes.cast(found, ctypes.c_void_p).value or 0
    return 0


@intrinsic
def _call(typingctx, function, address, length):
    """Call the C function there; its answer, two 64-bit words, comes back as a pair on every 64-bit ABI of Linux."""

    def code(context, builder, signature, arguments):
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.LiteralStructType([word, word]), [word, word])
        pair = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        both = [builder.extract_value(pair, at) for at in (0, 1)]
        return context.make_tuple(builder, signature.return_type, both)

    return types.UniTuple(types.uint64, 2)(types.int64, types.int64, types.int64), code


@intrinsic
def bytes_at(typingctx, address):
    """The bytes at an address."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint8)(types.int64), code


@intrinsic
def address_of(typingctx, array):
    """Where an array's bytes begin."""

    def code(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(made.data, ir.IntType(64))

    return types.int64(array), code


@numba.njit
def checksum(function, address, length, into):
    """Write the checksum of these bytes, in its canonical order, to `into`: uint8 [16]."""
    if function:
        low, high = _call(function, address, length)
        for at in range(8):
            into[at] = (high >> np.uint64(56 - 8 * at)) & np.uint64(255)
            into[8 + at] = (low >> np.uint64(56 - 8 * at)) & np.uint64(255)
    else:
        data = numba.carray(bytes_at(address), (length,))
        with numba.objmode(found="uint8[::1]"):
            found = _by_package(data)
        into[:] = found


def _by_package(data: np.ndarray) -> np.ndarray:
    return np.frombuffer(page_digest(data), np.uint8).copy()


@compiled("void(int64[::1], int64, int64, uint8[:,::1], int64)", nogil=True)
def _digests(addresses, length, unit_bytes, found, function):
    """Of pages at these addresses; of several units, that of the units' checksums."""
    units = -(-length // unit_bytes)
    parts = np.empty((units, DIGEST_BYTES), np.uint8)
    for at in range(len(addresses)):
        for unit in range(units):
            start = unit * unit_bytes
            checksum(function, addresses[at] + start, min(unit_bytes, length - start), parts[unit])
        checksum(function, address_of(parts), units * DIGEST_BYTES, found[at])


@compiled("void(int64[::1], int64, uint8[:,::1], int64)", nogil=True)
def _whole_digests(addresses, length, found, function):
    for at in range(len(addresses)):
        checksum(function, addresses[at], length, found[at])


def digests_at(addresses: np.ndarray, length: int, unit_bytes: int | None = None) -> list[bytes]:
    """The checksums of pages of `length` bytes at these addresses, int64; with `unit_bytes` each is that of the
    checksums of its units. Any thread, without the interpreter lock; whoever calls keeps the memory."""
    found = np.empty((len(addresses), DIGEST_BYTES), np.uint8)
    if unit_bytes is None:
        _whole_digests(addresses, length, found, FUNCTION)
    else:
        _digests(addresses, length, unit_bytes, found, FUNCTION)
    raw = found.tobytes()
    return [raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)]


def _checked(function: int) -> int:
    """That address, if what is there is the function: 0 unless it agrees with the package on short and long buffers."""
    data = np.arange(3000, dtype=np.uint32).view(np.uint8)[:-3].copy()
    found = np.empty((1, DIGEST_BYTES), np.uint8)
    for length in (1, 9, 100, 200, 600, len(data)) if function else ():
        _whole_digests(np.array([data.ctypes.data]), length, found, function)
        if found.tobytes() != page_digest(data[:length]):
            return 0
    return function


#: What kernels are given as `function`.
FUNCTION = _checked(_function())
