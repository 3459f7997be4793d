"""The page table at scale: millions of pages that the SSD tier has, entered, claimed, dropped.

Conversations behind one system prompt, and one sequence of 2,048 pages. Nothing is written to a device: what a start
reads from them is made up, and entered as `TierStack` does it. Measured on one thread, but the wait for the lock, which
a second one asks for as often as it can while all pages but those of the sequence are dropped in steps. Give --units as
your pages have: page bytes by `ssd.stripe_unit`, rounded up.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.errand_thread import ErrandThread
from swift_tiers.radix_tiering.base.page import HeldPages, PageGeometry
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import LEAST_RECENTLY_USED
from swift_tiers.radix_tiering.table.tier_copies import Keeper
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.places import StripePlaces
from swift_tiers.radix_tiering.way import sweeps

from ...base.errors import CommandError
from ...commands.bench.report import MISSED, Figure, finish, parser, spread
from ..torture.made_up import CHAIN, chains_of, entering, stored_of

NAMESPACE = bytes(16)
#: Bounds: bytes and microseconds a page of one stripe unit, milliseconds.
MEMORY, ENTERING, CLAIM, WAIT, COLLECTING = 150, 1.0, 2.0, 1.0, 1.2
#: Bytes of each further stripe unit; and those that there are however many pages there are: compiled code for one.
UNIT, ONCE = 5, 6e6
#: Of `--table`: whose pages, of how many tokens, and how many bytes they have on each rank.
KINDS = (
    ("Qwen3-8B", 16, 16 * 147_456),
    ("Qwen3-8B", 64, 64 * 147_456),
    ("Llama 3.1 8B", 16, 16 * 131_072),
    ("Llama 3.1 70B on 8 ranks", 16, 16 * 40_960),
    ("Llama 3.1 70B on 8 ranks", 64, 64 * 40_960),
    ("DeepSeek V3", 64, 64 * 70_272),
)
#: Bytes of a stripe unit, as `ssd.stripe_unit` is by default, and of the header of each.
UNIT_BYTES, HEADER_BYTES = 256 << 10, 4 << 10


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("index", __doc__, rounds=21)
    asked.add_argument("--pages", type=int, default=1_000_000, help="pages that are known")
    asked.add_argument("--units", type=int, default=1, help="stripe units of a page")
    asked.add_argument("--table", action="store_true", help="memory for 1 TB of SSD by kind of page, as Markdown")
    options = asked.parse_args(argv)
    return _table(options.pages) if options.table else _measure(options)


def _measure(options: argparse.Namespace) -> int:
    geometry = PageGeometry(layers=1, planes=1, tokens=1, row_bytes=options.units << 18)
    kept = Kept()
    kept.capacity_bytes = options.pages * geometry.page_bytes
    table = PageTable(
        HostTier(geometry, geometry.stride_bytes), LEAST_RECENTLY_USED, [kept], runner=THREADS, clean=lambda: None
    )
    places = StripePlaces(THREADS)
    keys, depths = chains_of(options.pages)
    stored = stored_of(keys, depths, options.units, geometry.page_bytes, NAMESPACE)
    collected, before = _collecting(), resident_bytes()
    entering, step = _enter(table, stored.held(places.found(stored, 1 << 18)))
    grown = resident_bytes() - before
    collecting = _collecting()
    chain = [key.tobytes() for key in keys[-CHAIN:, :4]]
    claims, releases = _claims(table, chain, options.rounds + 1)
    first = table.find(NAMESPACE, keys[0, :4].tobytes())
    assert first is not None
    started = time.process_time()
    waits, steps, dropped = _drop(table, sweeps.drop(table, first))
    dropping = time.process_time() - started
    assert dropped == options.pages - CHAIN
    print(f"{options.pages} pages of {options.units} stripe units")
    print(spread(f"a chain of {CHAIN} claimed", [1e3 * one for one in claims], "ms"))
    print(spread("and let go", [1e3 * one for one in releases], "ms"))
    print(f"longest step of entering them {1e3 * step:.2f} ms")
    print(spread(f"wait for the lock while {dropped} pages leave", [1e3 * one for one in waits], "ms"))
    print(f"longest step of that {1e3 * max(steps):.2f} ms")
    most = MEMORY + UNIT * (options.units - 1) + ONCE / options.pages
    each, ordered = 1e6 / options.pages, sorted(waits)
    figures = [
        Figure("memory_per_page", grown / options.pages, "bytes", at_most=most),
        Figure("entering_per_page", entering * each, "us", at_most=ENTERING),
        Figure("claim", 1e3 * statistics.median(claims), "ms", at_most=CLAIM),
        Figure("release", 1e3 * statistics.median(releases), "ms"),
        Figure("dropping_per_page", dropping * each, "us"),
        Figure("wait_99", 1e3 * ordered[len(ordered) * 99 // 100], "ms", at_most=WAIT),
        Figure("dropping_step", 1e3 * max(steps), "ms", at_most=WAIT),
        Figure("collection", collecting / collected, " of that before", at_most=COLLECTING),
    ]
    return finish(
        "index", figures, {"pages": options.pages, "claims": claims, "longest_wait": max(waits)}, options.json
    )


def _table(pages: int) -> int:
    print("| | tokens a page | page | stripe units | pages on 1 TB | memory of a rank | entered at a start in |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    measured: dict[int, dict[str, float]] = {}
    for name, tokens, nbytes in KINDS:
        units = -(-nbytes // UNIT_BYTES)
        if units not in measured:
            measured[units] = _measured(pages, units)
        figures = measured[units]
        fit = 10**12 // (units * (UNIT_BYTES + HEADER_BYTES))
        memory, seconds = fit * figures["memory_per_page"], fit * figures["entering_per_page"] / 1e6
        print(
            f"| {name} | {tokens} | {nbytes / 2**20:.2f} MiB | {units} | {fit:,} | {memory / 2**20:,.0f} MiB "
            f"| {seconds:.1f} s |"
        )
    return 0


def _measured(pages: int, units: int) -> dict[str, float]:
    """The figures of one kind of page, from a process of its own: memory that was given back stays with a process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        words = ["--pages", str(pages), "--units", str(units), "--rounds", "1", "--json", str(file)]
        done = subprocess.run([sys.executable, "-m", __name__, *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, MISSED):
            raise CommandError(f"bench index --units {units} ended with exit code {done.returncode}")
        return {figure["name"]: figure["value"] for figure in json.loads(file.read_text())["figures"]}


class Kept(Keeper):
    """As much of a durable tier as the page table asks of it."""

    name = "ssd"
    durable = True
    numbered = True
    capacity_bytes = 0

    def release(self, places: Sequence[Any]) -> None:
        """Nothing leaves here."""


def _enter(table: PageTable, held: Sequence[HeldPages]) -> tuple[float, float]:
    """Seconds of CPU for all of them, and of the longest step but the first, before which they are sorted."""
    started, longest = time.process_time(), 0.0
    for one in held:
        steps = entering(table, one)
        next(steps)
        last = time.process_time()
        for _ in steps:
            longest, last = max(longest, time.process_time() - last), time.process_time()
    return time.process_time() - started, longest


def _claims(table: PageTable, chain: Sequence[bytes], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds that it takes to find, pin and use a chain, and to let it go, in each round but the first; what lies in
    caches is overwritten between them."""
    claims, releases, noise = [], [], np.zeros(8 << 20, np.int64)
    for _ in range(rounds):
        noise += 1
        with table.lock:
            started = time.perf_counter()
            pages = table.settled_chain(NAMESPACE, chain)
            table.pin_all(pages)
            table.use_all(pages, table.tick(), len(chain))
            claimed = time.perf_counter()
            table.unpin_all(pages)
            releases.append(time.perf_counter() - claimed)
        claims.append(claimed - started)
        assert len(pages) == len(chain)
    return claims[1:], releases[1:]


def _drop(table: PageTable, steps: sweeps.Sweep) -> tuple[list[float], list[float], int]:
    """Carry out a sweep as a server does, and ask for the lock all the while: seconds of each wait, and of CPU of each
    step, during which the lock is held; the pages."""
    errands, waits, before = ErrandThread(THREADS), [], table.pages
    took: list[float] = []
    ended = threading.Event()

    def dropping() -> sweeps.Sweep:
        started = time.thread_time()
        for _ in steps:
            took.append(time.thread_time() - started)
            yield
            started = time.thread_time()
        ended.set()
        return 0

    errands.start(dropping())
    while not ended.is_set():
        started = time.perf_counter()
        with table.lock:
            waits.append(time.perf_counter() - started)
        time.sleep(0.001)
    errands.close(1.0)
    return waits, took, before - table.pages


def resident_bytes() -> int:
    """What is kept, and not what the allocator has back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _collecting() -> float:
    """Seconds of CPU that a full collection takes, at best."""
    took = []
    for _ in range(5):
        started = time.process_time()
        gc.collect()
        took.append(time.process_time() - started)
    return min(took)


if __name__ == "__main__":
    raise SystemExit(main())
