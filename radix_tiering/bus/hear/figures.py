"""Figures as people read them. What is not known is a question mark."""

from __future__ import annotations

from ...base.units import format_size

UNKNOWN = "?"
NONE = "-"
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """`9999`, `12.3k`, `4.56M`."""
    if value is None:
        return UNKNOWN
    if abs(value) < 10_000:
        return f"{value:g}" if isinstance(value, int) else f"{value:.3g}"
    for factor, letter in _LARGE:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:g}"


def size(value: float | None) -> str:
    """`1.5GiB`."""
    return UNKNOWN if value is None else format_size(int(value))


def share(part: float | None, whole: float | None) -> str:
    """`45%`; of nothing: `-`."""
    if part is None or whole is None:
        return UNKNOWN
    return f"{part / whole:.0%}" if whole else NONE


def seconds(value: float | None) -> str:
    """`0.35 ms`, `12 ms`, `2.1 s`, `3 min 20 s`, `5 h`, `3 d 4 h`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    if value < 1:
        return f"{value * 1000:.2g} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    for large, name, small, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            more = whole % large // small
            return f"{whole // large} {name}" + (f" {more} {rest}" if more else "")
    return f"{value:.0f} s"


def ago(value: float | None) -> str:
    """`3 s ago`: in whole seconds, since fractions that change at each look say nothing."""
    if value is None:
        return UNKNOWN
    return "< 1 s ago" if value < 1 else f"{value:.0f} s ago" if value < 60 else f"{seconds(value)} ago"


def text(value: str) -> str:
    """For a terminal: what could move its cursor is spelled out. Ids of requests are whatever clients made up."""
    if value.isprintable():
        return value
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in value)


def epoch(value: int | None) -> str:
    """`3f09a1c2`: the beginning of a number that only tells lives of a server apart."""
    return UNKNOWN if value is None else f"{value:x}"[:8]


def runs(pairs: tuple[tuple[str, int], ...]) -> str:
    """`device 12, host 30`."""
    return ", ".join(f"{text(name)} {number}" for name, number in pairs) or UNKNOWN


def short(identifier: str, length: int = 12) -> str:
    """The beginning of a long id."""
    identifier = text(identifier)
    return identifier if len(identifier) <= length else f"{identifier[:length]}…"
