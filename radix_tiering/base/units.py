"""Sizes and durations as people write them: `"8GiB"`, `"250ms"`."""

from __future__ import annotations

import re
from decimal import Decimal

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
#: What kernels and tensors count bytes with ends before.
_TOO_MANY_BYTES = 2**63
#: For which a thread can wait, which counts nanoseconds likewise.
_LONGEST_SECONDS = 2**63 // 10**9


class Size(int):
    """A number of bytes. Parsed from an integer or from text such as `"8GiB"`, `"512 MiB"`, `"2TB"`."""

    @classmethod
    def parse(cls, value: object) -> Size:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
        factor = _SIZES.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f'{value!r} is not a size: write it as "512MiB", "8GiB" or "2TiB"')
        number, about = match[1], float(match[1]) * factor
        if about <= _TOO_MANY_BYTES:
            count = cls(about if "." in number else int(number) * factor)
            if count < _TOO_MANY_BYTES:
                return count
        raise ValueError(f"{str(value)[:20]!r}... is more bytes than there are anywhere")

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
        seconds = float(match[1]) * factor
        if seconds > _LONGEST_SECONDS:
            raise ValueError(f"{str(value)[:20]!r}... is longer than anything can be waited for")
        return cls(seconds)

    def __str__(self) -> str:
        """What `parse` reads back as the same number: the ranks of a server get durations as text."""
        seconds = float(self)
        for unit, factor in reversed(_SECONDS.items()):
            # At most six digits, which are not all that every number has, and large ones with an exponent.
            text = f"{seconds / factor:g}"
            if (seconds >= factor or unit == "us") and _NUMBER.fullmatch(text) and float(text) * factor == seconds:
                return f"{text}{unit}"
        return f"{Decimal(repr(seconds)):f}s"


def format_size(count: int) -> str:
    """`count` bytes in the largest binary unit that keeps the number above one: 8GiB, 1.5MiB, 12B."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.4g}{unit}"
    return f"{int(count)}B"  # a `Size` has a unit by itself
