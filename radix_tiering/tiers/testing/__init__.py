"""Models that take the place of devices, and a tier of a model: what a new tier needs, and nothing else knows of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .memory_array import MemoryArray
    from .model_array import ModelArray
    from .model_tier import ModelTier
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "MemoryArray",
    "ModelArray",
    "ModelTier",
]
