"""What a page that the SSD tier knows costs: this process's memory, time at a start, garbage collection.

A page is known by its key, where its stripe units lie, and its place among others. Measured is all of that, in this
process, for conversations behind one system prompt; nothing is written to a device. Give --units as your pages have:
page bytes by `ssd.stripe_unit`, rounded up.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageGeometry, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import LEAST_RECENTLY_USED
from swift_tiers.radix_tiering.table.tier_copies import Keeper
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd import StoredPage
from swift_tiers.radix_tiering.tiers.ssd.places import StripePlaces
from swift_tiers.radix_tiering.tiers.ssd.stored_pages import StoredPages

from ...base.arguments import path_argument
from ...base.errors import CommandError
from ...base.new_file import check_new_file
from ...commands.bench.report import MISSED, Figure, finish
from ..torture.made_up import CONVERSATION, PROMPT, make_known

#: What docs/operations.md reckons with, bytes a page.
BOUND_BYTES = 250
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
    asked = argparse.ArgumentParser(prog="./swift bench pages", description=__doc__)
    asked.add_argument("--json", metavar="FILE", type=path_argument, help="write the figures as JSON")
    asked.add_argument("--pages", type=int, default=100_000, help="pages that are known")
    asked.add_argument("--units", type=int, default=9, help="stripe units of a page")
    asked.add_argument("--table", action="store_true", help="memory for 1 TB of SSD by kind of page, as Markdown")
    options = asked.parse_args(argv)
    check_new_file("--json", options.json)
    if options.table:
        return _table(options.pages)
    geometry = PageGeometry(layers=1, planes=1, tokens=1, row_bytes=options.units << 18)
    host = HostTier(geometry, geometry.stride_bytes)
    places = StripePlaces(THREADS)
    kept = Kept()
    kept.capacity_bytes = options.pages * geometry.page_bytes
    table = PageTable(host, LEAST_RECENTLY_USED, [kept], runner=THREADS)
    stored = StoredPages.of(_recovered(options.pages, options.units, geometry.page_bytes))
    before, collecting = resident_bytes(), _collect()
    started = time.process_time()
    make_known(table, places, stored)
    took = time.process_time() - started
    grown = resident_bytes() - before
    collecting = _collect() - collecting
    each = grown / options.pages
    print(f"{options.pages} pages of {options.units} stripe units")
    print(f"{each:.0f} bytes of memory a page; entered at a start in {1e6 * took / options.pages:.1f} us each")
    print(f"a full garbage collection: {1e6 * collecting / options.pages:.2f} us a page")
    figures = [
        Figure("memory_per_page", each, "bytes", at_most=BOUND_BYTES),
        Figure("entering_per_page", 1e6 * took / options.pages, "us"),
        Figure("collecting_per_page", 1e6 * collecting / options.pages, "us"),
    ]
    return finish("pages", figures, {"pages": options.pages, "known": table.pages}, options.json)


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
        words = ["--pages", str(pages), "--units", str(units), "--json", str(file)]
        done = subprocess.run([sys.executable, "-m", __name__, *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, MISSED):
            raise CommandError(f"bench pages --units {units} ended with exit code {done.returncode}")
        return {figure["name"]: figure["value"] for figure in json.loads(file.read_text())["figures"]}


class Kept(Keeper):
    """As much of a durable tier as the page table asks of it."""

    name = "ssd"
    durable = True
    numbered = True
    capacity_bytes = 0

    def release(self, places: Sequence[Any]) -> None:
        """Nothing leaves here."""


def _recovered(pages: int, units: int, length: int) -> Iterator[StoredPage]:
    """Pages as a start finds them, parents first."""
    namespace, generation, trunk = hashlib.sha256(b"bench").digest(), 0, ROOT_KEY
    previous = ROOT_KEY
    while generation < pages:
        number, at = divmod(generation, CONVERSATION)
        if not at and number:
            previous = trunk
        depth = at + 1 if not number else PROMPT + at + 1
        key = hashlib.sha256(b"%d" % generation).digest()
        generation += 1
        placement = tuple((unit % 4, generation * units + unit) for unit in range(units))
        yield StoredPage(PageRecord(key, previous, namespace, depth, length), generation, os.urandom(16), placement)
        previous = key
        trunk = key if generation == PROMPT else trunk


def _collect() -> float:
    """Seconds of CPU that one full collection takes."""
    gc.collect()
    started = time.process_time()
    gc.collect()
    return time.process_time() - started


def resident_bytes() -> int:
    """What is kept, and not what the allocator has back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    raise SystemExit(main())
