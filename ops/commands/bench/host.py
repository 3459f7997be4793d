"""The host tier against plain memcpy: the same bytes, in the same run, by turns, one thread.

Pages of SmolLM2-135M's shape (30 layers, float32, 16 tokens: 720 KiB) go from a pool in host memory to the tier and
back. Neighbouring pages are held against one memcpy of all bytes. Pages scattered over the pool lie in 12 KiB pieces,
one for each layer of K and of V, whatever copies them; they are held against the C library's memcpy of the same pieces.
Verifying pages (xxh3-128, done before a request is admitted) is reported apart.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .report import Figure, by_turns, finish, parser, ratio, spread

LAYERS, TOKENS, HEADS, HEAD_DIM = 30, 16, 3, 64
PAGES = 256
BOUND = 0.8


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("host", __doc__, rounds=9).parse_args(argv)
    import numpy as np
    import torch

    from swift_tiers.radix_tiering.base.memory import huge_array
    from swift_tiers.radix_tiering.base.page import page_digest
    from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
    from swift_tiers.sglang_ext.pools.device_pool import HostMemoryPool

    shape = ((PAGES + 1) * TOKENS, HEADS, HEAD_DIM)
    pool = HostMemoryPool([[torch.rand(shape), torch.rand(shape)] for _ in range(LAYERS)], TOKENS)
    page_bytes = pool.geometry.page_bytes
    host = HostTier(pool.geometry, PAGES * pool.geometry.stride_bytes)
    source, target = huge_array(PAGES * page_bytes), huge_array(PAGES * page_bytes)
    neighbours = np.arange(PAGES, dtype=np.int64)
    scattered = np.random.default_rng(0).permutation(PAGES).astype(np.int64)

    def ignore(layer: int, mark: object) -> None:
        pass

    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes, memcpy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None
    pieces = _pieces(pool, host, scattered.tolist())

    def in_pieces() -> None:
        for plane, slot, width in pieces:
            memcpy(plane, slot, width)

    cases = {
        "memcpy": lambda: np.copyto(target, source),
        "memcpy of the pieces": in_pieces,
        "out, neighbouring pages": lambda: pool.copy_out(neighbours, host.slab, neighbours),
        "out, scattered pages": lambda: pool.copy_out(scattered, host.slab, neighbours),
        "in, neighbouring pages": lambda: pool.copy_in(neighbours, host.slab, neighbours, ignore),
        "in, scattered pages": lambda: pool.copy_in(scattered, host.slab, neighbours, ignore),
        "verify": lambda: [page_digest(host.page(slot)) for slot in range(PAGES)],
    }
    seconds = by_turns(cases, options.rounds)
    gigabytes = PAGES * page_bytes / 1e9
    print(f"{PAGES} pages of {page_bytes} bytes, {options.rounds} rounds by turns")
    for name, values in seconds.items():
        print(spread(name, [gigabytes / value for value in values], "GB/s"))
    figures = [
        Figure(name, ratio(seconds[reference], seconds[case]), " of memcpy", at_least=BOUND)
        for name, case, reference in (
            ("out", "out, neighbouring pages", "memcpy"),
            ("in", "in, neighbouring pages", "memcpy"),
            ("out_scattered", "out, scattered pages", "memcpy of the pieces"),
            ("in_scattered", "in, scattered pages", "memcpy of the pieces"),
        )
    ]
    figures.append(Figure("verify", ratio(seconds["memcpy"], seconds["verify"]), " of memcpy"))
    return finish("host", figures, {"seconds": seconds, "bytes": PAGES * page_bytes}, options.json)


def _pieces(pool: Any, host: Any, pages: list[int]) -> list[tuple[int, int, int]]:
    """(address in the pool, address in the slab, bytes) of every piece of `pages`, in the order of the tier's copy."""
    result, offset = [], 0
    for plane in pool._flat:
        width = plane.shape[1]
        for slot, page in enumerate(pages):
            result.append(
                (plane.ctypes.data + page * width, host.slab.ctypes.data + slot * host.slab.strides[0] + offset, width)
            )
        offset += width
    return result


if __name__ == "__main__":
    raise SystemExit(main())
