"""What one scheduler tells the outside about its tiers, from its start to its end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from swift_tiers.sglang_ext.telemetry import SchedulerTelemetry, watch

if TYPE_CHECKING:
    from swift_tiers.sglang_ext.metrics import MetricsUpdater

logger = logging.getLogger(__name__)


class Reporting:
    """Made when the scheduler is complete, closed by the linker before it closes the tiers. Nothing here raises."""

    def __init__(self, scheduler: Any, linker: Any) -> None:
        self.telemetry: SchedulerTelemetry = watch(scheduler, linker)
        self._stack = linker.stack
        self._metrics = self._start_metrics(scheduler)

    def close(self) -> None:
        """Say the last, and end the threads. Idempotent."""
        if self._metrics is not None:
            self._metrics.close()

    def _start_metrics(self, scheduler: Any) -> MetricsUpdater | None:
        collector = scheduler.metrics_collector
        if collector is None:
            return None
        try:
            from swift_tiers.sglang_ext.metrics import MetricsUpdater, TierMetrics

            # SGLang's own labels, so that series can be joined; its priority is of requests, and we have none.
            labels = {name: value for name, value in collector.labels.items() if name != "priority"}
            updater = MetricsUpdater(TierMetrics(labels), self._stack.snapshot)
            updater.start()
        except Exception as error:
            logger.exception("swift-tiers: nothing of the tiers will be on /metrics")
            self._stack.events.emit("metrics.failed", error=repr(error))
            return None
        return updater
