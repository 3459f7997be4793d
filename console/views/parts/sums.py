"""Series of several ranks as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

#: What is called "now": the mean of so many seconds, so that one slow look does not jump.
NOW_SECONDS = 2.0


def added(series: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Look by look, the newest last. What was not said then is left out; None: nobody said anything."""
    several = [np.array(one, dtype=float) for one in series]  # None becomes NaN
    longest = max(map(len, several), default=0)
    aligned = np.full((len(several), longest), np.nan)
    for row, one in zip(aligned, several, strict=True):
        row[longest - len(one) :] = one
    sums, said = np.nansum(aligned, axis=0), ~np.isnan(aligned).all(axis=0)
    return [value if known else None for value, known in zip(sums.tolist(), said.tolist(), strict=True)]


def worst(values: Iterable[float | None]) -> float | None:
    """The largest that was said."""
    return max((value for value in values if value is not None), default=None)


def imbalance(values: Iterable[float | None]) -> float | None:
    """The largest by the mean: 1 is even. None of nothing, or of one alone."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    return max(known) / mean if len(known) > 1 and mean > 0 else None
