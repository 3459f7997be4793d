"""Writing behind, over a stripe set that answers when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS, ThreadRunner
from swift_tiers.radix_tiering.figures.counters import LinkCounters, TierCounters
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import AdmitAlways, LeastRecentlyUsed
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd import Placement, StoredPage, StripeSet
from swift_tiers.radix_tiering.way.write_behind import WriteBehind

from support.engine import GEOMETRY, chain

SPACE = b"n" * 32


class HeldStripes:
    """Takes every page, and answers none by itself."""

    capacity_units = 1000

    def __init__(self) -> None:
        self.asked: dict[bytes, tuple[StoredPage, Callable[[StoredPage | None, str], None]]] = {}
        self.released: list[Placement] = []

    def units(self, length: int) -> int:
        return 1

    def reserve(self, length: int) -> Placement:
        return ((0, len(self.asked)),)

    def release(self, placement: Placement) -> None:
        self.released.append(placement)

    def write(self, record: PageRecord, placement: Placement, data: np.ndarray, done: Any) -> None:
        self.asked[record.key] = StoredPage(record, len(self.asked) + 1, b"d" * 16, placement), done

    def answer(self, key: bytes, *, written: bool) -> StoredPage:
        stored, done = self.asked[key]
        done(stored if written else None, "" if written else "a device went out of service")
        return stored


def rig() -> tuple[PageTable, WriteBehind, HeldStripes]:
    stripes = HeldStripes()
    host = HostTier(GEOMETRY, 8 * GEOMETRY.stride_bytes)
    table = PageTable(
        host,
        LeastRecentlyUsed(),
        runner=THREADS,
        host_counters=TierCounters(),
        ssd_counters=TierCounters(),
        release_stored=lambda stored: stripes.release(stored.placement),
    )
    writer = WriteBehind(
        table, host, cast(StripeSet, stripes), AdmitAlways(), TierCounters(), EventLog(lambda: 0.0),
        host_counters=TierCounters(), link=LinkCounters(), runner=ThreadRunner(lambda: 0.0), verify=False,
    )  # fmt: skip
    return table, writer, stripes


def entered(table: PageTable, keys: list[bytes]) -> list[Page]:
    """Pages of a sequence, in host memory."""
    pages = []
    with table.lock:
        for at, key in enumerate(keys):
            slot = table.take_slot(None)
            assert slot is not None
            page = table.enter(PageRecord(key, keys[at - 1] if at else ROOT_KEY, SPACE, at + 1, 4096), 1)
            assert page is not None
            table.begin_fill(page, slot)
            table.end_fill(page, complete=True)
            pages.append(page)
    return pages


def test_a_page_whose_prefix_was_not_written_is_not_kept_on_ssd() -> None:
    """Both are under way when the first one fails and cannot be written again: a restart would not find the other."""
    table, writer, stripes = rig()
    first, second = entered(table, chain("a", "b"))
    with table.lock:
        writer.enqueue(second)
        assert first.writing
        assert second.writing
        writer.enabled = False
    stripes.answer(first.key, written=False)
    stored = stripes.answer(second.key, written=True)
    assert second.stored is None
    assert stripes.released == [stored.placement]
    with table.lock:
        table.check()


def test_pages_are_kept_in_whatever_order_they_are_written() -> None:
    table, writer, stripes = rig()
    first, second = entered(table, chain("a", "b"))
    with table.lock:
        writer.enqueue(second)
    stripes.answer(second.key, written=True)
    stripes.answer(first.key, written=True)
    assert first.stored is not None
    assert second.stored is not None
    assert stripes.released == []
    with table.lock:
        table.check()
