"""What SGLang's scheduler tells the bus and /metrics, and what it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .answers import RankAnswerer
    from .metrics import MetricsUpdater, TierMetrics
    from .orders import Orders
    from .request_facts import RequestFacts
    from .sampler import Sampler
    from .telemetry import SchedulerTelemetry
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "MetricsUpdater",
    "Orders",
    "RankAnswerer",
    "RequestFacts",
    "Sampler",
    "SchedulerTelemetry",
    "TierMetrics",
]
