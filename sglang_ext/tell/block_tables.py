"""Which device pages running requests use, read off SGLang's `req_to_token` without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from swift_tiers.kernels.pool_planes import uploaded

from .on_the_way import OnTheWay

#: Pages that are read in one sampling, of all requests together; those of further requests are left out.
MOST_PAGES = 131_072

#: First and last page of each run, one after the other: (17, 40, 3, 3, 90, 95).
Table = tuple[int, ...]


class TableRow(NamedTuple):
    """One request's row of `req_to_token`."""

    number: int
    tokens: int  # that have a slot


class TablesOnTheWay:
    """Tables of several requests, as they were when the read was queued. Any thread."""

    def __init__(self, slots: OnTheWay, counts: np.ndarray, page_size: int) -> None:
        self._slots = slots
        self._counts = counts
        self._page_size = page_size
        self.ready = slots.ready  # whether the device has copied them by now

    def tables(self) -> list[Table]:
        """One for each row that was asked for, in order; only once they are `ready`."""
        pages = self._slots.numpy() // self._page_size
        if not len(pages):
            return [()] * len(self._counts)
        ends = np.cumsum(self._counts)
        starts = ends - self._counts
        first = np.empty(len(pages), dtype=bool)  # whether a page begins a run
        first[0] = True
        np.not_equal(pages[1:], pages[:-1] + 1, out=first[1:])
        first[starts[self._counts > 0]] = True
        begins = np.flatnonzero(first)
        lasts = np.append(begins[1:], len(pages)) - 1
        runs = np.stack([pages[begins], pages[lasts]], axis=1).reshape(-1).tolist()
        cuts = np.searchsorted(begins, np.append(starts, len(pages))) * 2
        return [tuple(runs[cut:next_cut]) for cut, next_cut in pairwise(cuts)]


def read_tables(req_to_token: torch.Tensor, rows: Sequence[TableRow], page_size: int) -> TablesOnTheWay:
    """Queue a read of `rows`, those in front first. One that `MOST_PAGES` have no room for gets an empty table.

    Scheduler's thread, on its stream: what it has queued before is seen, what it queues afterwards is not. On an
    accelerator nothing is waited for.
    """
    counts = np.zeros(len(rows), dtype=np.int64)
    room = MOST_PAGES
    for number, row in enumerate(rows):
        pages = -(-row.tokens // page_size)
        if pages <= room:
            counts[number] = pages
            room -= pages
    starts = np.cumsum(counts) - counts
    numbers = np.fromiter([row.number for row in rows], dtype=np.int64, count=len(rows))
    # Of every page the place of its first token in the flattened array.
    places = np.arange(int(counts.sum()), dtype=np.int64) * page_size
    places += np.repeat(numbers * req_to_token.shape[1] - starts * page_size, counts)
    slots = req_to_token.view(-1).index_select(0, uploaded(torch.from_numpy(places), req_to_token.device))
    return TablesOnTheWay(OnTheWay(slots), counts, page_size)
