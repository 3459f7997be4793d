"""Opening and closing a stripe set of many pages and devices: devices are read together, an end keeps its time."""

from __future__ import annotations

import itertools

import pytest

from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.tiers.ssd import StoredPage, scan
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Request
from swift_tiers.radix_tiering.tiers.ssd.checkpoint import PAGES_AT_A_TIME, build_checkpoints


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


def test_an_index_that_would_be_late_is_not_made() -> None:
    page = StoredPage(PageRecord(b"k" * 32, ROOT_KEY, b"n" * 32, 1, 4096), 1, b"d" * 16, ((0, 0),))
    made = 0

    def pages():
        nonlocal made
        while made < 10 * PAGES_AT_A_TIME:
            made += 1
            yield page

    asked = itertools.count()
    assert build_checkpoints(pages(), {b"n" * 32: 1}, [0], lambda: next(asked) == 2) is None
    assert made == 2 * PAGES_AT_A_TIME + 1, "the rest is not looked at"
    assert build_checkpoints([page], {b"n" * 32: 1}, [0]) is not None
