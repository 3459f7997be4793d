"""The bus as a rank speaks on it: its state and events, its answers, and the commands that it obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .publisher import BusPublisher
    from .steering import carry_out
else:
    __getattr__ = lazily(__name__)

__all__ = ["BusPublisher", "carry_out"]
