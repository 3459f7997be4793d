"""What lending and taking back one unit costs a donor, for pools of 10^3 to 10^6 blocks.

Measured is all that the scheduler's thread does for it: deciding, taking blocks out of SGLang's allocator, handing them
to the lease protocol, and the same way back. A block's neighbours are found when a borrower arrives, not when memory
changes hands, so the cost does not depend on how many blocks there are. Beside it: a cache whose layers follow one
another in one allocation, where a resize moves every layer but the first (SwiftCache, section 3.4).
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from ...commands.bench.report import Figure, finish, parser, take_turns

BLOCKS = (1_000, 10_000, 100_000, 1_000_000)
BLOCK_TOKENS = 16
#: Blocks of one unit, as if the borrower's blocks were three quarters of the donor's.
UNIT = 4
#: Resizes to and fro in one measurement.
REPEATS = 100
#: K and V of two layers, each its own plane.
PLANES = 4
#: Bytes of a block in one plane. No memory of the donor's is touched: a unit makes extents of 2 MiB.
PLANE_BYTES = 512 * 2**10
#: The same of the cache that copies. Few, since it is all copied: 256 MB of a million blocks.
COPIED_PLANE_BYTES = 64
FLAT_AT_MOST = 2.0


class _Lending:
    """A donor's lease machine without a network: what it tells is put away as in a server."""

    def __init__(self, donor: Any, effects: deque[Any]) -> None:
        self._donor = donor
        self._effects = effects
        self.bytes_in = donor.bytes_in

    def stock(self, run: int, extents: Collection[Any]) -> None:
        self._effects += self._donor.stock(run, extents)

    def fenced(self, run: int) -> None:
        self._effects += self._donor.fenced(run)

    def withdraw(self, wanted_bytes: int) -> None:
        self._effects += self._donor.withdraw(wanted_bytes, 0.0)

    def set_limit(self, limit_bytes: int | None) -> None:
        self._effects += self._donor.set_limit(limit_bytes, 0.0)

    def withdraw_unused(self) -> None:
        self._effects += self._donor.withdraw_unused()

    def wanted_bytes(self, run_bytes: int) -> int:
        """A borrower that would always like one unit."""
        return UNIT * PLANES * PLANE_BYTES


class _Pool:
    """SGLang's allocator, half of it in use, as the lender sees it."""

    def __init__(self, blocks: int) -> None:
        import torch

        from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator

        self.allocator = PagedLendingAllocator(
            blocks * BLOCK_TOKENS, BLOCK_TOKENS, torch.float32, "cpu", kvcache=None, need_sort=False
        )
        self.pages = blocks
        self.arrange, self.take, self.put_back = (
            self.allocator.arrange,
            self.allocator.take,
            self.allocator.put_back,
        )
        assert self.allocator.alloc(blocks // 2 * BLOCK_TOKENS) is not None

    @property
    def free_pages(self) -> int:
        return int(self.allocator.available_size()) // BLOCK_TOKENS

    def evict(self, pages: int, *, kept: bool = False) -> None:
        raise AssertionError("half of the pool is free")


class Donor:
    """Lends one unit and takes it back, again and again."""

    def __init__(self, blocks: int) -> None:
        from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout
        from swift_tiers.radix_tiering.lending.donation.lender import Lender
        from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
        from swift_tiers.radix_tiering.lending.leases import Donor as Machine
        from swift_tiers.radix_tiering.lending.leases import Party
        from swift_tiers.radix_tiering.lending.leases.effects import BorrowerJoined

        self._total = blocks * BLOCK_TOKENS
        self._needed = 0
        self._now = 0.0
        block_bytes = PLANES * PLANE_BYTES
        layout = PoolLayout(tuple(plane * blocks * PLANE_BYTES for plane in range(PLANES)), PLANE_BYTES)
        effects: deque[Any] = deque([BorrowerJoined(Party("borrower", 1), UNIT * block_bytes)])
        self._sizer = ElasticSizer(blocks, BLOCK_TOKENS, window_seconds=1.0, most_lent=UNIT)
        self._lender = Lender(
            _Pool(blocks),
            self._sizer,
            layout,
            _Lending(Machine("donor", block_bytes, Random(1)), effects),
            effects,
            demand=lambda: self._needed,
            fence=lambda: lambda: True,
            copying=frozenset,
        )
        self._lender.tick(self._now)  # cuts the pool for the borrower
        self.resize()

    def resize(self) -> float:
        """Seconds of lending one unit and taking it back."""
        self._now += 10.0
        self._needed = 0
        began = time.perf_counter()
        self._lender.tick(self._now)
        lent = time.perf_counter() - began
        assert self._sizer.lent == UNIT
        self._needed = self._total
        self._lender.arrived()
        began = time.perf_counter()
        self._lender.tick(self._now)
        back = time.perf_counter() - began
        assert self._sizer.lent == 0
        return lent + back

    def resizes(self) -> float:
        """Seconds of one, the median of many."""
        return statistics.median(self.resize() for _ in range(REPEATS))


class CopyingCache:
    """A cache of `[plane][block]` in one allocation: to stay contiguous, its planes move when their length changes."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._memory = np.ones(PLANES * blocks * COPIED_PLANE_BYTES, np.uint8)

    def resizes(self) -> float:
        """Seconds of giving one unit away and taking it back."""
        fewer = self._blocks - UNIT
        began = time.perf_counter()
        for plane in range(1, PLANES):
            self._move(plane, self._blocks, fewer, fewer)
        for plane in reversed(range(1, PLANES)):
            self._move(plane, fewer, self._blocks, fewer)
        return time.perf_counter() - began

    def _move(self, plane: int, before: int, after: int, blocks: int) -> None:
        start, end, length = (COPIED_PLANE_BYTES * count for count in (plane * before, plane * after, blocks))
        self._memory[end : end + length] = self._memory[start : start + length]


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("resize", __doc__, rounds=11).parse_args(argv)
    import sglang.srt.managers.scheduler  # noqa: F401 - before its parts, which import each other

    cases: dict[tuple[str, int], Callable[[], float]] = {}
    for blocks in BLOCKS:
        cases["lend", blocks] = partial(Donor.resizes, Donor(blocks))
        cases["copy", blocks] = partial(CopyingCache.resizes, CopyingCache(blocks))
    rounds = take_turns(cases, options.rounds)
    medians = {case: statistics.median(values) for case, values in rounds.items()}
    print(f"a unit of {UNIT} blocks lent and taken back, median of {options.rounds} rounds of {REPEATS}")
    print(f"  {'blocks':>10} {'free spans':>14} {'contiguous':>14}")
    for blocks in BLOCKS:
        print(f"  {blocks:>10} {1e6 * medians['lend', blocks]:>11.1f} us {1e6 * medians['copy', blocks]:>11.1f} us")
    figures = [
        Figure("flat", _spread("lend", medians), at_most=FLAT_AT_MOST),
        Figure("contiguous", _spread("copy", medians)),
        Figure("resize", 1e6 * max(medians["lend", blocks] for blocks in BLOCKS), "us"),
    ]
    details = {
        "microseconds": {f"{way}_{blocks}": [1e6 * one for one in rounds[way, blocks]] for way, blocks in rounds}
    }
    return finish("resize", figures, details, options.json)


def _spread(way: str, medians: dict[tuple[str, int], float]) -> float:
    """The slowest size over the fastest."""
    found = [medians[way, blocks] for blocks in BLOCKS]
    return max(found) / max(min(found), math.ulp(1.0))


if __name__ == "__main__":
    raise SystemExit(main())
