"""How fast bytes go over each link just now."""

from __future__ import annotations

from collections.abc import Callable


class LinkRates:
    """One thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, link: str, nbytes: int) -> int | None:
        """Bytes per second since it was asked for this link before; None the first time. `nbytes` only grows."""
        now = self._monotonic()
        before = self._before.get(link)
        self._before[link] = now, nbytes
        if before is None or now <= before[0]:
            return None
        return round(max(0, nbytes - before[1]) / (now - before[0]))
