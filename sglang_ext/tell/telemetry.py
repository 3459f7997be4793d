"""What a publisher of the bus gets to know of one scheduler: the tiers' snapshot, and the samples of its thread."""

from __future__ import annotations

import time

import msgspec

from swift_tiers.radix_tiering.bus.speak.request_board import REQUESTS_IN_A_ROW
from swift_tiers.radix_tiering.figures.counters import StackSnapshot
from swift_tiers.radix_tiering.figures.telemetry import EngineSample, RequestSample
from swift_tiers.radix_tiering.stack import TierStack

from .sampler import Captured, Sampler


class SchedulerTelemetry:
    """The engine's `Telemetry`, for one publisher's thread. Waits for nothing."""

    def __init__(self, stack: TierStack, sampler: Sampler | None) -> None:
        """`sampler` is None where sampling is off."""
        self._stack = stack
        self._sampler = sampler
        self._seen: Captured | None = None
        self._sample: EngineSample | None = None

    def stack(self) -> StackSnapshot:
        return self._stack.snapshot()

    def engine(self) -> EngineSample | None:
        """The newest sample whose block tables have come."""
        newest = self._sampler.newest if self._sampler is not None else None
        if newest is not None and newest is not self._seen and newest.tables.ready():
            self._seen = newest
            self._sample = _completed(newest)
        return self._sample

    def ended(self) -> list[RequestSample]:
        ended: list[RequestSample] = []
        if self._sampler is not None:
            # Not more than there are now: the scheduler may go on adding.
            for _ in range(len(self._sampler.ended)):
                request, story = self._sampler.ended.popleft()
                ended.append(msgspec.structs.replace(request, restore_story=story.told() if story else None))
        return ended


def _completed(captured: Captured) -> EngineSample:
    """With block tables and stories."""
    requests, stories = captured.sample.requests, captured.stories
    tables = dict(zip(captured.rows, captured.tables.tables(), strict=True))
    completed = []
    for index, (request, story) in enumerate(zip(requests, stories, strict=True)):
        told = story.told() if story is not None else None
        completed.append(msgspec.structs.replace(request, block_table=tables.get(index, ()), restore_story=told))
        if index % REQUESTS_IN_A_ROW == 0:
            time.sleep(0)
    return msgspec.structs.replace(captured.sample, requests=tuple(completed))
