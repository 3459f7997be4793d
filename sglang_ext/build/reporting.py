"""What one scheduler tells the outside about its tiers, and hears from there, from its start to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.srt.runtime_context import get_parallel

from swift_tiers.radix_tiering.gpus.sampler import GpuSampler

from ..tell.answers import RankAnswerer
from ..tell.gpu_sampling import gpu_sampler
from ..tell.hang_watch import HangWatch
from ..tell.orders import Orders, expect, install
from ..tell.sampler import Sampler
from ..tell.telemetry import SchedulerTelemetry
from .least import least

if TYPE_CHECKING:
    from ..tell.metrics import MetricsUpdater
    from .bus import RankPublisher

logger = logging.getLogger(__name__)

Part = TypeVar("Part")


class Reporting:
    """Made when the scheduler is complete, closed by the linker. A part that cannot be started is left out, with one
    log entry and an event: serving does without."""

    def __init__(self, scheduler: Any, linker: Any) -> None:
        self._scheduler = scheduler
        self._linker = linker
        self._stack = linker.stack
        self.watch: HangWatch | None = self._try(self._watch_threads)
        sampler = self._try(self._sample)
        self.telemetry = SchedulerTelemetry(self._stack, sampler)
        self.answers = RankAnswerer(self._stack, sampler)
        self.gpu: GpuSampler | None = self._try(self._look_at_gpu)
        self.metrics: MetricsUpdater | None = self._try(self._update_metrics)
        self.orders: Orders | None = self._try(self._take_orders)
        self._try(self._lend)
        self.publisher: RankPublisher | None = self._try(self._publish)

    def stop_orders(self) -> None:
        """Nothing is commanded any more: the tiers are about to be closed."""
        if self.orders is not None:
            self.orders.close()
        if self.watch is not None:
            self.watch.close()  # an end may wait for long

    def close(self) -> None:
        """Say the last, and end the threads. Idempotent."""
        self.stop_orders()
        for teller in (self.metrics, self.publisher, self.gpu):
            if teller is not None:
                teller.close()

    def _try(self, start: Callable[[], Part | None]) -> Part | None:
        try:
            return start()
        except Exception as error:
            logger.exception("swift-tiers: going on without: %s", start.__doc__)
            self._stack.events.emit("reporting.failed", part=start.__doc__, error=repr(error))
            return None

    def _watch_threads(self) -> HangWatch:
        """a watch over threads that hang"""
        watch = HangWatch(self._stack)
        watch.start()
        return watch

    def _sample(self) -> Sampler | None:
        """samples of requests and tree"""
        bus = self._stack.config.bus
        if not (bus.enabled and bus.requests_interval):
            return None
        sampler = Sampler(self._scheduler, self._linker, float(bus.requests_interval))
        self._scheduler.tree_cache.sampler = sampler
        return sampler

    def _look_at_gpu(self) -> GpuSampler | None:
        """figures of the GPU"""
        if not self._stack.config.bus.enabled and self._scheduler.metrics_collector is None:
            return None
        sampler = gpu_sampler()
        if sampler is not None:
            sampler.start()
        return sampler

    def _update_metrics(self) -> MetricsUpdater | None:
        """the tiers' series on /metrics"""
        collector = self._scheduler.metrics_collector
        if collector is None:
            return None
        from ..tell.metrics import MetricsUpdater, TierMetrics

        # SGLang's own labels, so that series can be joined; its priority is of requests, and we have none.
        labels = {name: value for name, value in collector.labels.items() if name != "priority"}
        hand = self._stack.lease_hand
        updater = MetricsUpdater(
            TierMetrics(labels),
            self._stack.snapshot,
            hand.snapshot if hand else None,
            self.gpu.newest if self.gpu else None,
        )
        updater.start()
        return updater

    def _lend(self) -> None:
        """lending memory"""
        side, tree = self._linker.peer_side, self._scheduler.tree_cache
        donation = None
        try:
            donation = side.donation_of(self._scheduler, self._stack) if side is not None else None
        finally:
            # Ranks that lend wait for each other in each round: all of them do, or none. So each says what it does, one
            # that lends nothing, too: what it was told may differ from machine to machine.
            all_lend = least([[int(donation is not None)]], tree._all_reduce_attn_groups)[0][0]
        if donation is None:
            return
        if all_lend:
            side.donation = donation
        else:
            tree.kept = None
            logger.error("swift-tiers: another rank cannot lend: none does")

    def _take_orders(self) -> Orders | None:
        """commands of operators"""
        # Those that other ranks have heard, too, of which this one may not be told to hear any.
        expect(self._scheduler)
        parallel = get_parallel()
        orders = Orders(self._stack, leads=parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)
        install(self._scheduler, orders)
        return orders

    def _publish(self) -> RankPublisher | None:
        """state and events on the bus"""
        if not self._stack.config.bus.enabled:
            return None
        from .bus import RankPublisher  # brings redis along

        publisher = RankPublisher(
            self._scheduler.server_args,
            self._stack,
            self.telemetry,
            self.answers,
            self.orders,
            self.gpu.newest if self.gpu else None,
        )
        publisher.start()
        return publisher
