"""The tiers: what each of them is (`Tier`), and a folder for each that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .tier import Read, ReadOutcome, Tier, TierListener, Write, Written
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Read",
    "ReadOutcome",
    "Tier",
    "TierListener",
    "Write",
    "Written",
]
