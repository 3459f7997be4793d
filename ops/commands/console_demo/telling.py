"""What a simulated server tells its publisher, and answers to questions: as `sglang_ext/tell` does of a scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.slot_map import TierMap
from swift_tiers.radix_tiering.figures.counters import StackSnapshot
from swift_tiers.radix_tiering.figures.telemetry import (
    DevicePoolSample,
    EngineSample,
    NoAnswer,
    PageAnswer,
    PrefixAnswer,
    RequestSample,
    RequestState,
    TreeNodes,
    TreeSample,
)
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.way.observing import prefix_places, tier_map, whole_key

from ...base.simulated.device import Device
from ...base.simulated.scheduler import ModelRequest, Scheduler

#: How often the tree is walked for its shape, seconds.
SHAPE_SECONDS = 2.0


class Teller:
    """The `Telemetry` and the `Answerer` of one life of a server. The publisher's thread."""

    def __init__(self, stack: TierStack, scheduler: Scheduler, runner: Runner) -> None:
        self._stack = stack
        self._scheduler = scheduler
        self._device: Device = scheduler.device
        self._runner = runner
        self._shape: TreeSample | None = None
        self._shaped = float("-inf")

    # ---- telemetry ----

    def stack(self) -> StackSnapshot:
        return self._stack.snapshot()

    def engine(self) -> EngineSample:
        scheduler = self._scheduler
        now = self._runner.monotonic()
        if self._shape is None or now - self._shaped >= SHAPE_SECONDS:
            self._shape, self._shaped = self._device.tree(scheduler.counts.__getitem__), now
        return EngineSample(
            time=self._runner.time(),
            requests=tuple(self._request(one, now) for one in (*scheduler.running, *scheduler.waiting)),
            running_requests=len(scheduler.running),
            waiting_requests=len(scheduler.waiting),
            sample_seconds=0.0,
            device=self._pool(),
            tree=self._shape,
        )

    def ended(self) -> list[RequestSample]:
        now, ended = self._runner.monotonic(), list(self._scheduler.ended)
        self._scheduler.ended.clear()
        return [self._request(one, now) for one in ended]

    def _pool(self) -> DevicePoolSample:
        device, counts, links = self._device, self._scheduler.counts, self._stack.links
        pool, page = device.pool, self._stack.namespace.geometry.page_bytes
        lent = pool.lent_slots
        return DevicePoolSample(
            capacity_bytes=(pool.slots - lent) * page,
            used_bytes=(pool.used_slots - lent) * page,
            pages=device.table.of[HOST].pages,
            pinned_pages=device.table.pinned_pages,
            hits=counts["hits"],
            misses=counts["misses"],
            bytes_read=links["device-host"].bytes,
            bytes_written=links["host-device"].bytes,
            evictions=device.evictions,
        )

    def _request(self, one: ModelRequest, now: float) -> RequestSample:
        facts, admitted = one.facts, one.admitted is not None
        loaded = {tier: facts.pages(tier) * one.page_tokens for tier in ("peer", "host", "ssd", "remote")}
        device = one.on_device * one.page_tokens if admitted else 0
        computed = one.prompt_tokens - device - sum(loaded.values()) if admitted else 0
        outcome, waited = facts.restore(now)
        since = self._runner.time() - now
        return RequestSample(
            rid=one.rid,
            state=_state(one),
            arrived=since + one.arrived,
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens(now),
            device_tokens=device,
            peer_tokens=loaded["peer"],
            host_tokens=loaded["host"],
            ssd_tokens=loaded["ssd"],
            remote_tokens=loaded["remote"],
            recomputed_tokens=computed,
            restore=outcome,
            restore_seconds=waited,
            restore_story=facts.story.told() if facts.story is not None else None,
            queue_seconds=None if one.admitted is None else one.admitted - one.arrived,
            first_token_seconds=None if one.first_token is None else one.first_token - one.arrived,
            ended=None if one.ended is None else since + one.ended,
            tiers=tuple(_runs(one, computed)) if admitted else (),
            last_page=facts.last_page,
            block_table=one.seat.block_table if admitted and one.ended is None else (),
        )

    # ---- answers ----

    def page(self, key: bytes) -> PageAnswer:
        whole = whole_key(self._stack, key)
        if whole is None:
            return PageAnswer(None)
        return PageAnswer(self._stack.page_facts(whole), self._device.slot_of(whole), whole)

    def prefix(self, key: bytes, most: int) -> PrefixAnswer:
        chain = prefix_places(self._stack, key)
        listed = [one._replace(device_slot=self._device.slot_of(bytes.fromhex(one.key))) for one in chain[-most:]]
        return PrefixAnswer(len(chain), listed)

    def map(self, tier: str) -> TierMap:
        now = self._runner.time()
        if tier == "device":
            slot_bytes = self._stack.namespace.geometry.page_bytes
            return TierMap(time=now, slot_bytes=slot_bytes, states=self._device.table.host_states(), first_slot=1)
        found = tier_map(self._stack, tier, time=now)
        if found is None:
            raise NoAnswer(f"there is no {tier} tier")
        return found

    def nodes(self, count: int) -> TreeNodes:
        nodes, table = self._device.largest_subtrees(count)
        return TreeNodes(time=self._runner.time(), nodes=nodes, complete=True, table=tuple(table))


def _state(one: ModelRequest) -> RequestState:
    if one.ended is not None:
        return RequestState.FINISHED
    if one.admitted is not None:
        return RequestState.RUNNING
    return RequestState.RESTORING if one.facts.restoring else RequestState.WAITING


def _runs(one: ModelRequest, computed_tokens: int) -> Iterator[tuple[str, int]]:
    if one.on_device:
        yield "device", one.on_device
    yield from one.facts.runs
    if computed_tokens:
        yield "compute", -(-computed_tokens // one.page_tokens)
