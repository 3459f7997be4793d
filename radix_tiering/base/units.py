"""Sizes and durations as people write them: `"8GiB"`, `"250ms"`."""

from __future__ import annotations

import re

_SIZES = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


class Size(int):
    """A number of bytes. Parsed from an integer or from text such as `"8GiB"`, `"512 MiB"`, `"2TB"`."""

    @classmethod
    def parse(cls, value: object) -> Size:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
        factor = _SIZES.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f'{value!r} is not a size: write it as "512MiB", "8GiB" or "2TiB"')
        try:
            return cls(float(match[1]) * factor)
        except OverflowError:
            raise ValueError(f"{str(value)[:20]!r}... is more bytes than there are anywhere") from None

    def __str__(self) -> str:
        return format_size(int(self))


class Duration(float):
    """A number of seconds. Parsed from text such as `"250ms"`, `"2s"`, `"5min"`."""

    @classmethod
    def parse(cls, value: object) -> Duration:
        match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
        factor = _SECONDS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f'{value!r} is not a duration: write it as "250ms", "2s" or "5min"')
        return cls(float(match[1]) * factor)

    def __str__(self) -> str:
        for unit, factor in reversed(_SECONDS.items()):
            if self >= factor:
                return f"{float(self) / factor:g}{unit}"
        return f"{float(self) / 1e-6:g}us"


def format_size(count: int) -> str:
    """`count` bytes in the largest binary unit that keeps the number above one: 8GiB, 1.5MiB, 12B."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.4g}{unit}"
    return f"{int(count)}B"  # a `Size` has a unit by itself
