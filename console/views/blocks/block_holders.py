"""Which running requests use which slots of the device, from their block tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swift_tiers.radix_tiering.bus.contract.views import RequestView

from ..parts.settled import Remembered


class Holding(NamedTuple):
    """A request, and which of its pages lies in the slot, from 1."""

    request: RequestView
    page: int


class HeldCells(NamedTuple):
    """The cells that requests hold, in order; and for each column that tells of them what it tells, as numbers: cells
    of the same number say the same."""

    cells: NDArray[np.int64]
    alike: dict[str, NDArray[np.int64]]


def no_one() -> HeldCells:
    """Of a tier whose slots no request is known to hold."""
    return HeldCells(np.zeros(0, np.int64), {})


class Holders:
    """The block tables of one rank's requests."""

    def __init__(self, requests: Sequence[RequestView]) -> None:
        runs = [
            (first, last, number)
            for number, request in enumerate(requests)
            for first, last in request.block_table
        ]  # fmt: skip
        self._requests = requests
        self._runs = np.array(runs, np.int64).reshape(-1, 3)
        self._firsts, self._lasts = self._runs[:, 0].copy(), self._runs[:, 1].copy()
        lengths = self._lasts - self._firsts + 1
        before = np.cumsum(lengths) - lengths
        # Pages are counted within each request.
        first_run = np.searchsorted(self._runs[:, 2], self._runs[:, 2], "left")
        self._pages_before = before - before[first_run] if len(runs) else before
        self._lengths = lengths

    def of(self, slot: int) -> list[Holding]:
        """In the order of the requests' arrival."""
        found = ((self._firsts <= slot) & (slot <= self._lasts)).nonzero()[0]
        return [
            Holding(self._requests[self._runs[run, 2]], int(self._pages_before[run] + slot - self._runs[run, 0]) + 1)
            for run in found.tolist()
        ]

    @cached_property
    def held(self) -> HeldCells:
        """All of them, with their slots as cells."""
        begins = np.cumsum(self._lengths) - self._lengths
        within = np.arange(int(self._lengths.sum())) - np.repeat(begins, self._lengths)
        slots = np.repeat(self._firsts, self._lengths) + within
        # Runs are in the order of arrival: the first holder of a slot comes first.
        cells, first, count = np.unique(slots, return_index=True, return_counts=True)
        pages = np.repeat(self._pages_before, self._lengths) + within + 1
        requests = np.repeat(self._runs[:, 2], self._lengths)
        return HeldCells(cells, {"request": requests[first], "its page": pages[first], "others": count - 1})


_HOLDERS: Remembered[tuple[RequestView, ...], Holders] = Remembered(Holders)


def holders(requests: tuple[RequestView, ...]) -> Holders:
    """The app's thread only."""
    return _HOLDERS.of(requests)
