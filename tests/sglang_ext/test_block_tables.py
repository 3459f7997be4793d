"""Tables of pages as runs, against the obvious way to find them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from swift_tiers.sglang_ext.tell import block_tables
from swift_tiers.sglang_ext.tell.block_tables import TableRow, read_tables


def pages_of(table: tuple[int, ...]) -> list[int]:
    """A table's pages, one by one."""
    pairs = zip(table[::2], table[1::2], strict=True)
    return [page for first, last in pairs for page in range(first, last + 1)]


@pytest.mark.parametrize("page_size", [1, 16])
def test_tables_are_what_the_rows_hold(page_size):
    generator = random.Random(page_size)
    rows, expected = [], []
    req_to_token = torch.zeros((40, 64 * page_size), dtype=torch.int32)
    for number in generator.sample(range(1, 40), 30):
        pages = []
        while len(pages) < generator.choice([0, 1, 5, 40]):
            start = generator.randrange(1, 1000)
            pages += range(start, start + generator.choice([1, 1, 3, 9]))
        slots = [page * page_size + token for page in pages for token in range(page_size)]
        tokens = max(0, len(slots) - generator.randrange(page_size))
        req_to_token[number, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        rows.append(TableRow(number, tokens))
        expected.append(pages)
    read = read_tables(req_to_token, rows, page_size)
    assert read.ready()
    # What happens to the rows later is not seen.
    req_to_token.zero_()
    tables = read.tables()
    assert [pages_of(table) for table in tables] == expected
    # As few runs as there can be.
    for table, pages in zip(tables, expected, strict=True):
        breaks = sum(after != before + 1 for before, after in pairwise(pages))
        assert len(table) == (2 * (breaks + 1) if pages else 0)


def test_no_rows_give_no_tables():
    assert read_tables(torch.zeros((2, 16), dtype=torch.int32), [], 16).tables() == []


def test_what_is_read_at_one_time_is_bounded(monkeypatch):
    monkeypatch.setattr(block_tables, "MOST_PAGES", 10)
    req_to_token = torch.arange(4 * 64, dtype=torch.int32).reshape(4, 64)
    tables = read_tables(req_to_token, [TableRow(1, 96 // 16 * 8), TableRow(2, 64), TableRow(3, 16)], 8).tables()
    assert [len(pages_of(table)) for table in tables] == [6, 0, 2]
