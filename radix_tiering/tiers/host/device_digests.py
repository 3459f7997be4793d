"""What the device has said of pages in host memory: the digests that they had when it had them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class DeviceDigests:
    """By slot. Whoever holds a slot learns and asks; whoever allocates it has it forgotten first."""

    def __init__(self, slots: int) -> None:
        self._digests = np.zeros((slots, 2), dtype=np.int64)  # `kernels.page_digest`
        self._known = np.zeros(slots, dtype=bool)

    def forget(self, slot: int) -> None:
        """Another page comes there."""
        self._known[slot] = False

    def learn(self, slots: Sequence[int] | np.ndarray, digests: np.ndarray) -> None:
        """`digests`: int64 [slots, 2]. The bytes in these slots are those of the pages that have them."""
        rows = np.asarray(slots, dtype=np.int64)  # a tuple would be one index of many axes
        self._digests[rows] = digests
        self._known[rows] = True

    def known(self, slots: Sequence[int] | np.ndarray) -> np.ndarray:
        """Of which slots: bool [slots]."""
        return self._known[np.asarray(slots, dtype=np.int64)]

    def of(self, slots: Sequence[int] | np.ndarray) -> np.ndarray:
        """Those of slots, all of which are known, a copy: int64 [slots, 2]."""
        digests: np.ndarray = self._digests[np.asarray(slots, dtype=np.int64)]
        return digests
