"""A restart at scale: how long a rank takes to write its index of millions of pages, to serve, and to find them again.

The stripe set lies in sparse files, one stripe unit of 4 KiB a page, and is real in everything but the pages' bytes,
which nobody has written: what is known of them is made up, and entered as a start enters it. Then the stack is closed
as SGLang ends a rank, which it gives 8 s, and opened again as a server opens it, which finds its pages while it serves;
once more it is closed while it does.

Beside the reading a thread wakes up every millisecond, as a scheduler would: how late it was at most, and how much of
its time that took.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, Namespace, PageGeometry
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.files import open_array
from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier

from ...base.arguments import path_argument
from ...commands.bench.report import Figure, finish, parser
from ..torture.made_up import chains_of, make_known, stored_of
from .index import resident_bytes

DEVICES = 4
#: Fewer pages than these take what opening takes by itself.
LEAST_PAGES = 500_000
#: Bounds, seconds: what SGLang gives a rank to end, and what a start may take whatever the devices have; and
#: microseconds a page that finding them again may take.
CLOSING, SERVING, OPENING = 8.0, 1.0, 1.0
#: Seconds after which something hangs.
HANGS = 600.0
_GEOMETRY = PageGeometry(layers=1, planes=2, tokens=16, row_bytes=BLOCK_BYTES // 32)
_SPACE = Namespace(
    model="m", weights="w", dtype="float32", geometry=_GEOMETRY, first_layer=0, kv_heads=2, head_dim=32, rank="tp0/1"
)


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("restart", __doc__, rounds=1)
    asked.add_argument("--pages", type=int, default=1_000_000, help="pages that are known (%(default)s)")
    asked.add_argument("--folder", type=path_argument, help="where the files lie (default: a temporary folder)")
    options = asked.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-", dir=options.folder) as folder:
        paths = _files(Path(folder), options.pages)
        stack = _open(paths)
        _make_known(stack, options.pages)
        closing = _close(stack)
        with Waking() as waking:
            before, started = resident_bytes(), time.perf_counter()
            stack = _open(paths)
            serving = time.perf_counter() - started
            filling = stack.fillings["ssd"]
            while not filling.opened and not stack.filler.wait_idle(0.001):
                pass
            opening = time.perf_counter() - started
            stack.filler.wait_idle(HANGS)
            finding = time.perf_counter() - started
        found, grown = stack.table.pages, resident_bytes() - before
        again = _close(stack)
        stack = _open(paths)
        while not stack.table.pages and not stack.filler.wait_idle(0.001):
            pass
        middle = _close(stack)
        entered = stack.table.pages
        stack = _open(paths)
        stack.filler.wait_idle(HANGS)
        after = stack.table.pages
        _close(stack)
    each = 1e6 / options.pages
    print(f"{options.pages} pages on {DEVICES} devices")
    print(f"  closed, index written        {closing:8.2f} s")
    print(f"  opened: serves               {serving:8.2f} s")
    print(f"  ... the index is read        {opening:8.2f} s")
    print(f"  ... and every page entered   {finding:8.2f} s, of {found} pages; {grown / 2**20:.0f} MiB of memory")
    print(f"  ... others woke up late by   {1000 * waking.longest:8.1f} ms at most, {waking.share:.3f} of their time")
    print(f"  closed once more             {again:8.2f} s")
    print(f"  closed with {entered} entered {middle:8.2f} s; {after} found after that")
    figures = [
        Figure("closing", max(closing, again, middle), "s", at_most=CLOSING),
        Figure("serving", serving, "s", at_most=SERVING),
        Figure("finding_per_page", finding * each, "us", at_most=OPENING),
        Figure("lost", float(options.pages - min(found, after)), at_most=0),
    ]
    return finish(
        "restart",
        figures,
        {
            "pages": options.pages,
            "opening": opening,
            "memory": grown,
            "late": waking.longest,
            "late_share": waking.share,
        },
        options.json,
        smaller=options.pages < LEAST_PAGES,
    )


class Waking:
    """A thread that would wake up every millisecond."""

    def __init__(self) -> None:
        self.longest = self._late = 0.0
        self._began = self._ended = time.perf_counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waking")

    @property
    def share(self) -> float:
        """Of its time that it was late."""
        return self._late / (self._ended - self._began)

    def __enter__(self) -> Waking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            before = time.perf_counter()
            time.sleep(0.001)
            self._ended = time.perf_counter()
            late = self._ended - before - 0.001
            self.longest, self._late = max(self.longest, late), self._late + late


def _files(folder: Path, pages: int) -> list[str]:
    slots = -(-pages // DEVICES) + 1
    paths = [folder / f"device{number}" for number in range(DEVICES)]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(first_slot_offset(slots) + slots * 2 * BLOCK_BYTES)
    return [str(path) for path in paths]


def _open(paths: Sequence[str]) -> TierStack:
    """As a server does."""
    ssd = SsdTier(open_array(paths), paths, BLOCK_BYTES, behind=True)
    host = HostTier(_GEOMETRY, 64 * _GEOMETRY.stride_bytes)
    return TierStack(_SPACE, parse_config({}), host, [ssd], fill_behind=True)


def _make_known(stack: TierStack, pages: int) -> None:
    """The stack has so many pages on its devices from now on."""
    assert stack.filler.wait_idle(HANGS)
    ssd = stack.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    keys, depths = chains_of(pages)
    stored = stored_of(keys, depths, 1, _GEOMETRY.page_bytes, stack.digest)
    make_known(stack.table, ssd.places, stored)


def _close(stack: TierStack) -> float:
    started = time.perf_counter()
    stack.close(timeout=CLOSING)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
