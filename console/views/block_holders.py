"""Which running requests use which slots of the device, from their block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from swift_tiers.console.views.remembered import Remembered
from swift_tiers.radix_tiering.bus.views import RequestView


class Holding(NamedTuple):
    """A request, and which of its pages lies in the slot, from 1."""

    request: RequestView
    page: int


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

    def of(self, slot: int) -> list[Holding]:
        """In the order of the requests' arrival."""
        found = ((self._firsts <= slot) & (slot <= self._lasts)).nonzero()[0]
        return [
            Holding(self._requests[self._runs[run, 2]], int(self._pages_before[run] + slot - self._runs[run, 0]) + 1)
            for run in found.tolist()
        ]


_HOLDERS: Remembered[tuple[RequestView, ...], Holders] = Remembered(Holders)


def holders(requests: tuple[RequestView, ...]) -> Holders:
    """The app's thread only."""
    return _HOLDERS.of(requests)
