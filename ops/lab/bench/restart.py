"""A restart at scale: how long a rank takes to write its index of millions of pages, and to find them again.

The stripe set lies in sparse files, one stripe unit of 4 KiB a page, and is real in everything but the pages' bytes,
which nobody has written: what is known of them is made up, and entered as a start enters it. Then the stack is closed
as SGLang ends a rank, which it gives 8 s, and opened again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from swift_tiers.radix_tiering.base.config import parse_config
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, Namespace, PageGeometry
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.files import open_array
from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.way import sweeps

from ...commands.bench.report import Figure, finish, parser
from .index import chains_of, stored_of
from .pages import resident_bytes

DEVICES = 4
#: Fewer pages than these take what opening takes by itself.
LEAST_PAGES = 500_000
#: Bounds: seconds that SGLang gives a rank to end, and microseconds a page that finding them again may take.
CLOSING, OPENING = 8.0, 1.0
_GEOMETRY = PageGeometry(layers=1, planes=2, tokens=16, row_bytes=BLOCK_BYTES // 32)
_SPACE = Namespace(
    model="m", weights="w", dtype="float32", geometry=_GEOMETRY, first_layer=0, kv_heads=2, head_dim=32, rank="tp0/1"
)


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("restart", __doc__, rounds=1)
    asked.add_argument("--pages", type=int, default=1_000_000, help="pages that are known (%(default)s)")
    asked.add_argument("--folder", type=Path, help="where the files lie (default: a temporary folder)")
    options = asked.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-", dir=options.folder) as folder:
        paths = _files(Path(folder), options.pages)
        stack = _open(paths)
        _make_known(stack, options.pages)
        closing = _close(stack)
        before, started = resident_bytes(), time.perf_counter()
        ssd = SsdTier(open_array(paths), paths, BLOCK_BYTES)
        opening = time.perf_counter() - started
        stack = _stack(ssd)
        finding = time.perf_counter() - started
        found, grown = stack.table.pages, resident_bytes() - before
        again = _close(stack)
    each = 1e6 / options.pages
    print(f"{options.pages} pages on {DEVICES} devices")
    print(f"  closed, index written        {closing:8.2f} s")
    print(f"  opened, index read           {opening:8.2f} s")
    print(f"  ... and every page entered   {finding:8.2f} s, of {found} pages; {grown / 2**20:.0f} MiB of memory")
    print(f"  closed once more             {again:8.2f} s")
    figures = [
        Figure("closing", max(closing, again), "s", at_most=CLOSING),
        Figure("finding_per_page", finding * each, "us", at_most=OPENING),
        Figure("lost", float(options.pages - found), at_most=0),
    ]
    return finish(
        "restart",
        figures,
        {"pages": options.pages, "opening": opening, "memory": grown},
        options.json,
        smaller=options.pages < LEAST_PAGES,
    )


def _files(folder: Path, pages: int) -> list[str]:
    slots = -(-pages // DEVICES) + 1
    paths = [folder / f"device{number}" for number in range(DEVICES)]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(first_slot_offset(slots) + slots * 2 * BLOCK_BYTES)
    return [str(path) for path in paths]


def _open(paths: Sequence[str]) -> TierStack:
    return _stack(SsdTier(open_array(paths), paths, BLOCK_BYTES))


def _stack(ssd: SsdTier) -> TierStack:
    return TierStack(_SPACE, parse_config({}), HostTier(_GEOMETRY, 64 * _GEOMETRY.stride_bytes), [ssd])


def _make_known(stack: TierStack, pages: int) -> None:
    """The stack has so many pages on its devices from now on."""
    ssd = stack.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    keys, depths = chains_of(pages)
    stored = stored_of(keys, depths, 1, _GEOMETRY.page_bytes, stack.digest)
    for held in stored.held(ssd.places.found(stored)):
        lost = sweeps.run(sweeps.recover(stack.table, HOST + 1, held, int(held.order.max())))
        assert not lost, "all of them hang together"


def _close(stack: TierStack) -> float:
    started = time.perf_counter()
    stack.close(timeout=CLOSING)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
