"""What commands share: their errors, progress and terminal, models to run with, and models of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .errors import FAILURE, FOUND, INTERRUPTED, USAGE, CommandError
    from .interruptible import terminable
    from .model import ModelError, demo_model, tiny_model
    from .progress import note
    from .terminal import Terminal
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "FAILURE",
    "FOUND",
    "INTERRUPTED",
    "USAGE",
    "CommandError",
    "ModelError",
    "Terminal",
    "demo_model",
    "note",
    "terminable",
    "tiny_model",
]
