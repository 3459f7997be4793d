"""What a counter of the hardware has grown by, though it wraps around, and begins anew when a GPU is reset."""

from __future__ import annotations

#: Bytes at which NVML's counters, which are in KiB, may wrap around: those of 32 bits, and of 64.
_WRAPS = (1 << 42, 1 << 74)


def growth(before: int, now: int) -> int:
    """From one look to the next, bytes. One that shrank has wrapped around if it was in the last quarter of its range
    and is in the first one; else it began anew, and has grown by what it shows."""
    if now >= before:
        return now - before
    for wrap in _WRAPS:
        if wrap - wrap // 4 <= before < wrap and now < wrap // 4:
            return wrap - before + now
    return now


class Growth:
    """The sum over several counters since the first look at each. One thread."""

    def __init__(self) -> None:
        self._last: dict[object, int] = {}
        self._sum = 0

    def add(self, counters: dict[object, int | None]) -> int | None:
        """One more look; bytes in all, None if no counter was said. One that is not said now goes on later."""
        known = {name: value for name, value in counters.items() if value is not None}
        for name, value in known.items():
            self._sum += growth(self._last.get(name, value), value)
            self._last[name] = value
        return self._sum if known else None
