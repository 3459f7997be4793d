"""Series of several ranks as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swift_tiers.console.views.measures import sum_of

#: What is called "now": the mean of so many seconds, so that one slow look does not jump.
NOW_SECONDS = 2.0


def added(series: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Look by look, the newest last. What was not said then is left out; None: nobody said anything."""
    several = [list(one) for one in series]
    longest = max(map(len, several), default=0)
    unknown: list[float | None] = [None]
    aligned = [unknown * (longest - len(one)) + one for one in several]
    return [sum_of(values) for values in zip(*aligned, strict=True)] if longest else []


def highest(series: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Likewise, the largest one said."""
    several = [list(one) for one in series]
    longest = max(map(len, several), default=0)
    unknown: list[float | None] = [None]
    aligned = [unknown * (longest - len(one)) + one for one in several]
    columns = ([value for value in values if value is not None] for values in zip(*aligned, strict=True))
    return [max(values, default=None) for values in columns] if longest else []


def worst(values: Iterable[float | None]) -> float | None:
    """The largest that was said."""
    return max((value for value in values if value is not None), default=None)


def imbalance(values: Iterable[float | None]) -> float | None:
    """The largest by the mean: 1 is even. None of nothing, or of one alone."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    return max(known) / mean if len(known) > 1 and mean > 0 else None
