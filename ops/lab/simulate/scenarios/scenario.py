"""What a scenario is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..tables import Table


class Scenario(NamedTuple):
    """Deterministic: it says the same every time."""

    summary: str
    run: Callable[[], Sequence[Table]]
