"""The benches that operators run on their own machines, and what every bench shares: how it is timed and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .report import Figure, by_turns, finish, parser, ratio, spread, take_turns
else:
    __getattr__ = lazily(__name__)

__all__ = ["Figure", "by_turns", "finish", "parser", "ratio", "spread", "take_turns"]
