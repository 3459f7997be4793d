"""What the engine counts and tells, each figure declared once: unit, kind and help stand beside its type (`declare`).

From it follow the Redis hashes, the readers' views, docs/bus.md, /metrics and `inspect --json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .counters import LinkCounters, StackSnapshot, TierCounters
    from .declare import Figures, Gap, Kind, Series, counter, each, fact, figures_of, gauge, several, text
    from .story import RestoreStory
    from .telemetry import Answerer, EngineSample, RequestSample, Telemetry
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Answerer",
    "EngineSample",
    "Figures",
    "Gap",
    "Kind",
    "LinkCounters",
    "RequestSample",
    "RestoreStory",
    "Series",
    "StackSnapshot",
    "Telemetry",
    "TierCounters",
    "counter",
    "each",
    "fact",
    "figures_of",
    "gauge",
    "several",
    "text",
]
