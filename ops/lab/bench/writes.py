"""What writing pages to SSD takes of a processor core, on the thread "ssd-io": of it, checksums, and all the rest.

A tier stack writes new pages through to a device file, in bursts, as a prompt's are written; nobody reads or computes
meanwhile. Checksums of the same bytes are computed before, by the function that the thread uses. What is left is the
kernel's part of direct I/O, which is the bytes' share too, and Python, of which a server's scheduler has less. By turns
with that, as few pages are begun in a round as while somebody reads.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from swift_tiers.radix_tiering.base.page import ROOT_KEY, Namespace, PageGeometry
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd import io_thread
from swift_tiers.sglang_ext.build.assembly import Rank, open_stack

from ...base.errors import CommandError
from ...commands.bench.report import Figure, finish, parser, ratio, spread, take_turns, thread_seconds

#: Geometries by name: 16 tokens of SmolLM2-135M in 32 bits, and of Qwen3-8B.
SMALL = "720 KiB"
PAGES = {
    SMALL: PageGeometry(layers=30, planes=2, tokens=16, row_bytes=768),
    "2.25 MiB": PageGeometry(layers=36, planes=2, tokens=16, row_bytes=2048),
}
#: Bytes of one burst, and of the device file: pages that were written before leave it for new ones.
BURST_BYTES, DEVICE_BYTES = 48 << 20, 512 << 20
#: What a page may take of what it takes where few are begun in a round: for small ones.
BOUND = 0.95
PATIENCE_SECONDS = 120.0


class BurstCost(NamedTuple):
    """Microseconds of a core for a page."""

    all: float  # of the thread
    checksums: float  # of it
    rest: float


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("writes", __doc__, rounds=7)
    arguments.add_argument("--directory", help="where to measure (default: a temporary directory)")
    options = arguments.parse_args(argv)
    figures, details = [], {}
    for name, geometry in PAGES.items():
        with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-", dir=options.directory) as folder:
            many, few = _measured(Path(folder).absolute(), geometry, options.rounds)
        details[name] = {"many": [one._asdict() for one in many], "few": [one._asdict() for one in few]}
        print(f"pages of {name}, {BURST_BYTES // geometry.page_bytes} at once, {options.rounds} rounds")
        for what in BurstCost._fields:
            print(spread(what, [getattr(one, what) for one in many], "us"))
        few_each = [one.all for one in few]
        print(spread("all, few in a round", few_each, "us"))
        short = name.replace(" ", "")
        figures.append(Figure(f"each_{short}", float(np.median([one.all for one in many])), "us"))
        over = ratio([one.all for one in many], few_each)
        figures.append(Figure(f"over_few_{short}", over, at_most=BOUND if name == SMALL else None))
    return finish("writes", figures, details, options.json)


def _measured(folder: Path, geometry: PageGeometry, rounds: int) -> tuple[list[BurstCost], list[BurstCost]]:
    """As it is, and with few pages in a round."""
    config = parse_config(
        {
            "host": {"size": 4 * BURST_BYTES},
            "ssd": {"directories": [str(folder)], "size_per_device": DEVICE_BYTES},
            "policy": {"write": "through"},
        }
    )
    space = Namespace(
        model="bench", weights="none", dtype="bfloat16", geometry=geometry, first_layer=0, kv_heads=1, head_dim=1,
        rank="tp0/1",
    )  # fmt: skip
    stack = open_stack(space, config, Rank(0, 1, 0, 1))
    try:
        bursts = itertools.count()
        results = take_turns(
            {
                most: partial(_burst, stack, bursts, most)
                for most in (io_thread.HASHED_ALONE, io_thread.HASHED_TOGETHER)
            },
            rounds,
        )
        return results[io_thread.HASHED_ALONE], results[io_thread.HASHED_TOGETHER]
    finally:
        stack.close()


def _burst(stack: TierStack, bursts: Iterator[int], most: int) -> BurstCost:
    """Write one; `most`: bytes of the pages that are begun in a round."""
    with patch.object(io_thread, "HASHED_ALONE", most):
        return _written(stack, next(bursts))


def _written(stack: TierStack, number: int) -> BurstCost:
    geometry = stack.host.geometry
    count = BURST_BYTES // geometry.page_bytes
    keys = [hashlib.sha256(b"%d %d" % (number, page)).digest() for page in range(count)]
    put = stack.intake.begin(keys, ROOT_KEY, 1)
    if len(put.slots) < count:
        raise CommandError("host memory has no room for a burst")
    for slot in put.slots:
        stack.host.slab[slot, : geometry.page_bytes] = np.random.default_rng(slot).integers(
            0, 256, geometry.page_bytes, np.uint8
        )
    began = time.thread_time()
    stack.host.checksums(put.slots, stack.tiers["ssd"].checksum_unit)
    checksums = 1e6 * (time.thread_time() - began) / count
    before = thread_seconds("ssd-io")
    stack.intake.commit(put)
    if not stack.wait_written(PATIENCE_SECONDS):
        raise CommandError(f"a burst is not written within {PATIENCE_SECONDS:g} s")
    total = 1e6 * (thread_seconds("ssd-io") - before) / count
    return BurstCost(total, checksums, total - checksums)


if __name__ == "__main__":
    raise SystemExit(main())
