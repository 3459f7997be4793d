"""Opening and closing a stripe set of many pages and devices: devices are read together, an end keeps its time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.tiers.ssd import StoredPage, scan, stripe_set
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Request
from swift_tiers.radix_tiering.tiers.ssd.checkpoint import build_checkpoints
from swift_tiers.radix_tiering.tiers.ssd.namespaces import NamespaceEntry
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.ssd.stored_pages import StoredPages, in_batches
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray


def test_the_headers_of_all_devices_are_read_together(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    array = rig.memory(devices=3, slots=16)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number) for number in range(4)]
    stripes.close(None)
    rounds: list[list[Request]] = []
    execute = scan.execute

    def watched(array, requests, patience):
        rounds.append(list(requests))
        return execute(array, requests, patience)

    monkeypatch.setattr(scan, "execute", watched)
    monkeypatch.setattr(scan, "HEADERS_PER_ROUND", 8)
    again = rig.open(array)
    assert again.scanned == (0, 1, 2)
    assert sorted(page.record.key for page in again.recovered) == sorted(page.record.key for page in pages)
    again.close(None)
    assert [{request.device for request in one} for one in rounds] == [{0, 1, 2}, {0, 1, 2}]
    assert [len(one) for one in rounds] == [24, 24]


def test_a_new_stripe_set_is_not_searched_for_pages(rig) -> None:
    """A device of 4 TB has 16 million slots: looking at them takes minutes."""
    array = rig.memory(devices=2, slots=16)
    stripes = rig.open(array)
    assert stripes.scanned == ()
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    stripes.close(None)
    again = rig.open(array)
    assert again.scanned == (0, 1), "something may have been written since"
    assert [one.record for one in again.recovered] == [page.record]
    again.close(None)


def test_an_index_that_would_be_late_is_not_made() -> None:
    space = b"n" * 16
    page = StoredPage(PageRecord(b"k" * 32, ROOT_KEY, space, 1, 4096), 1, b"d" * 16, ((0, 0),))
    namespaces = {space: NamespaceEntry(1, space, 1, "one")}
    made = 0

    def pages():
        nonlocal made
        while made < 10:
            made += 1
            yield StoredPages.of([page])

    asked = itertools.count()
    assert build_checkpoints(pages(), namespaces, {0: 10}, lambda: next(asked) == 2) is None
    assert made == 3, "the rest is not looked at"
    assert build_checkpoints([StoredPages.of([page])], namespaces, {0: 1}) is not None


def test_an_index_that_there_was_no_time_for_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    array, names = MemoryArray([2**20] * 2, seed=1), ["/ssd0/a", "/ssd1/b"]
    monkeypatch.setattr(stripe_set, "build_checkpoints", lambda *_: None)
    SsdTier(array, names, 4096).close([])
    assert "the index of /ssd0/a, /ssd1/b was not written before the end" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    SsdTier(MemoryArray.from_images(array.images), names, 4096).close([])
    assert not caplog.text


def page(number: int, units: int, devices: int = 3) -> StoredPage:
    record = PageRecord(number.to_bytes(32, "little"), ROOT_KEY, b"n" * 16 if number % 3 else b"m" * 16, 1, 100 * units)
    placement = tuple(((number + unit) % devices, 1000 * number + unit) for unit in range(units))
    return StoredPage(record, number + (number << 32), bytes([number % 256]) * 16, placement)


@given(st.lists(st.integers(1, 12), max_size=12), st.integers(1, 5))
def test_many_pages_are_those_that_they_are_made_of(units: list[int], most: int) -> None:
    pages = [page(number, count) for number, count in enumerate(units)]
    many = StoredPages.of(pages)
    assert many == pages
    assert list(many) == pages
    assert many[::2] == pages[::2]
    assert many.take(many.counts > 3) == [one for one, count in zip(pages, units, strict=True) if count > 3]
    mixed = [pages[0], many[1:], *pages[:1]] if pages else []
    batches = list(in_batches(mixed, most))
    assert all(0 < len(batch) <= most for batch in batches)
    assert sorted(one for batch in batches for one in batch) == sorted(pages + pages[:1])
