"""How often a rank has counted what troubles compare, in some time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..contract.views import RankView
from .figures import seconds

#: Counters of a rank of which a share of others is looked at.
COMPARED = (
    "restores_started", "restores_cut_short", "restores_expired", "restores_late", "remote_questions", "remote_late",
)  # fmt: skip


class Period(NamedTuple):
    """Since a rank's start, or the last minutes where somebody has watched it. A share of all since a start hides for
    long what is so now."""

    counts: Mapping[str, int]
    seconds: float | None = None  # None: since the start

    @classmethod
    def since_start(cls, rank: RankView) -> Period:
        return cls({name: getattr(rank, name) or 0 for name in COMPARED})

    @property
    def words(self) -> str:
        """` of the last 2 min`; empty since the start."""
        return "" if self.seconds is None else f" of the last {seconds(self.seconds)}"

    def counted(self, *counters: str) -> int:
        """For `Trouble.counted`: how often these happened since the start; 0 where this is of the last minutes."""
        return sum(self.counts[name] for name in counters) if self.seconds is None else 0
