"""Restores of a model split into pipeline stages, each stage alone, from boundary pages (CacheFlow, section 3.2)."""

from .stage_restore import Move, StageRestore, StageState

__all__ = ["Move", "StageRestore", "StageState"]
