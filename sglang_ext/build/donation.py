"""A scheduler as a donor: what its requests need, which of its pages can go, and when it is asked.

Everything here runs on the scheduler's thread, at the beginning of a round, before requests are admitted.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from swift_tiers.radix_tiering.base.bounds import DonationBounds
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout, Span
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.donation.rank_lender import RankLender
from swift_tiers.radix_tiering.lending.donation.rank_runs import RankRuns
from swift_tiers.radix_tiering.lending.donation.serving_time import ServingTime
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect
from swift_tiers.radix_tiering.lending.leases.service import LeaseService

from ..pools.lending_allocator import LendingAllocator
from ..tell.guard import never_raises
from .kept_prefixes import KeptPrefixes
from .least import least

logger = logging.getLogger(__name__)

#: Tokens for which a request that runs has memory at least; more where it generates them sooner than memory is back
#: from a borrower that says nothing, after a lease's term, ...
AHEAD_TOKENS = 512
#: ... and so many times what it generates until then, by the fastest request of late: for the round in which memory is
#: asked for, and the batches that are waited for before it is the pool's again.
AHEAD_TIMES = 1.5
#: Seconds over which tokens are counted for that. Where they come slower, a faster rate is forgotten by this part.
COUNTED_SECONDS, FORGOTTEN = 0.25, 0.01
#: How long lending rests after an error of ours, seconds: there may be thousands of rounds in that.
FAULT_SECONDS = 1.0
#: A copy of some pages that has taken so long, seconds, is told of, as often as it is longer.
HUNG_SECONDS = 5.0


class SchedulerPool:
    """The scheduler's allocator and tree as the lender's `PagePool`."""

    def __init__(self, scheduler: Any, allocator: LendingAllocator) -> None:
        self._scheduler = scheduler
        self._allocator = allocator
        self.pages: int = allocator.size // allocator.page_size
        self.arrange = allocator.arrange
        self.take = allocator.take

    @property
    def free_pages(self) -> int:
        return self._allocator.available_size() // self._allocator.page_size

    def put_back(self, spans: Collection[Span]) -> None:
        self._allocator.put_back(spans)
        self._scheduler.tree_cache.room_made()

    def evict(self, pages: int, *, kept: bool = False) -> None:
        tree, tokens = self._scheduler.tree_cache, pages * self._allocator.page_size
        # SGLang's list of free pages is copied whole wherever it grows: once here, and not once for each leaf.
        self._allocator.free_group_begin()
        try:
            if kept:
                tree.evict(EvictParams(num_tokens=tokens))
            else:
                tree.evict_for_others(tokens)
        finally:
            self._allocator.free_group_end()


class GenerationRate:
    """Tokens a second of the request that generates fastest, of late. Speculation and small models differ from others
    by an order of magnitude, and where few run, each is faster."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        self._counted: dict[str, int] = {}
        self._at = time.monotonic()

    def look_at(self, reqs: Collection[Any]) -> None:
        """At those that run now."""
        now = time.monotonic()
        seconds = now - self._at
        if seconds < COUNTED_SECONDS:
            return
        counts = {req.rid: len(req.output_ids) for req in reqs}
        most = max((count - self._counted.get(rid, count) for rid, count in counts.items()), default=0)
        self._counted, self._at = counts, now
        if counts:
            self.tokens_per_second = max(most / seconds, self.tokens_per_second * (1 - FORGOTTEN))


class Demand:
    """The tokens that a scheduler's running and waiting requests need together.

    Counted as SGLang counts when it admits them: a request that waits with all that it may generate, up to SGLang's own
    limit for such estimates; one that has begun with the part of it that SGLang expects (`new_token_ratio`), unless it
    may not end early. But never with less than `AHEAD_TOKENS`, nor than it generates until memory is back: SGLang
    retracts requests when it has expected too little, and ends the last of them with an error, and memory that is lent
    must not be the reason for that.

    Where cached prefixes are kept, those of waiting requests count there, and not here again.
    """

    def __init__(self, scheduler: Any, allocator: LendingAllocator, away_seconds: float) -> None:
        """`away_seconds`: after which memory is back, whatever borrowers do."""
        self._scheduler = scheduler
        self._allocator = allocator
        self._away_seconds = away_seconds
        self._rate = GenerationRate()

    def __call__(self) -> int:
        """Now. Cached prefixes that no request uses are not counted. At most the whole pool."""
        scheduler, allocator = self._scheduler, self._allocator
        free = allocator.available_size() + scheduler.tree_cache.evictable_size()
        total: int = allocator.size
        tokens = total - free - allocator.lent_tokens
        begun = self._begun()
        self._rate.look_at(begun)
        expected: float = scheduler.new_token_ratio_tracker.current
        counted = [(req, expected) for req in begun]
        # What all ranks of a server count alike, and no more: how many that wait are looked at goes by it, since what
        # those come back to is taken for used now, which decides what is evicted.
        alike = tokens + sum(self._growth(req, part, AHEAD_TOKENS) for req, part in counted)
        room = max(1, scheduler.max_running_requests - len(begun))
        for req in scheduler.waiting_queue[:room]:
            if alike >= total:
                break
            kept = self._kept_for(req)
            tokens -= kept
            alike += self._growth(req, 1.0, AHEAD_TOKENS) - kept
            counted.append((req, 1.0))
        ahead = self.ahead
        if ahead == AHEAD_TOKENS:
            return min(alike, total)
        return min(tokens + sum(self._growth(req, part, ahead) for req, part in counted), total)

    @property
    def ahead(self) -> int:
        """Tokens for which each request has memory in any case, as it generates until memory is back."""
        return max(AHEAD_TOKENS, int(AHEAD_TIMES * self._away_seconds * self._rate.tokens_per_second))

    def _kept_for(self, req: Any) -> int:
        """The tokens of a waiting request's prefix that are kept, or in use, already."""
        tree = self._scheduler.tree_cache
        waiting = tree.linker.of(req) if tree.kept is not None else None
        return tree.kept.wait_for(waiting.device_node) if waiting is not None else 0

    @property
    def is_any(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._scheduler.waiting_queue) or any(
            not req.finished() for batch in self._batches() for req in batch
        )

    def _begun(self) -> list[Any]:
        """Requests that have begun and not ended."""
        reqs = {id(req): req for batch in self._batches() for req in batch}
        return [req for req in reqs.values() if not req.finished()]

    def _batches(self) -> list[list[Any]]:
        """A batch that was prefilled last is not among the running ones yet."""
        scheduler = self._scheduler
        batches = [scheduler.running_batch.reqs]
        if scheduler.last_batch is not None and scheduler.last_batch is not scheduler.running_batch:
            batches.append(scheduler.last_batch.reqs)
        if scheduler.chunked_req is not None:
            batches.append([scheduler.chunked_req])
        return batches

    def _growth(self, req: Any, expected: float, ahead: int) -> int:
        """Tokens that a request may still come to need, in whole pages, and a page for what SGLang keeps on top, if it
        generates no more than the `expected` part of what it may; with those for so many tokens `ahead` at least."""
        page = self._allocator.page_size
        done = len(req.output_ids)
        may = max(req.sampling_params.max_new_tokens - done, 0)
        left = min(may, CLIP_MAX_NEW_TOKENS)
        if not req.sampling_params.ignore_eos:
            left = int(left * expected)
        left = max(left, min(may, ahead))
        length = len(req.origin_input_ids) + done + left
        beams = req.beam_group.beam_width if req.beam_group is not None else 1
        return (max(0, -(-length // page) * page - req.kv.kv_allocated_len) + 2 * page) * beams


class Donation:
    """One for each scheduler that lends."""

    def __init__(
        self,
        scheduler: Any,
        stack: Any,
        layout: PoolLayout,
        bounds: DonationBounds,
        window_seconds: float,
        keep_seconds: float,
        away_seconds: float,
        service: LeaseService,
        effects: deque[DonorEffect],
        server: ArenaServer,
        *,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """`effects`: where the service puts what it tells. `stack`: whose events say what was taken back, and what
        went wrong. `keep_seconds`: how long cached prefixes are kept after their last use; 0: none are.
        `away_seconds`: see `Demand`. `rank` of so many `ranks`, which run the same requests in lockstep, and lend
        together."""
        self.stack = stack
        self._tick_at = self._told_at = self._copies_seen_at = 0.0
        self._time = ServingTime(time.monotonic)
        self._scheduler = scheduler
        self._server = server
        self._allocator: LendingAllocator = scheduler.token_to_kv_pool_allocator
        self._demand = Demand(scheduler, self._allocator, away_seconds)
        self._kept: KeptPrefixes | None = None
        pages = self._allocator.size // self._allocator.page_size
        sizer = ElasticSizer(
            pages,
            self._allocator.page_size,
            least_lent=int(pages * bounds.least),
            most_lent=int(pages * bounds.most),
            window_seconds=window_seconds,
        )
        pool, events = SchedulerPool(scheduler, self._allocator), stack.events
        tells: Any = {
            "kept": lambda: self._kept.tokens() if self._kept is not None else 0,
            "taken_back": lambda pages, seconds: events.emit(
                "lending.taken_back", pages=pages, seconds=round(seconds, 4)
            ),
            "sized": lambda sized: events.emit("lending.sized", **sized._asdict()),
        }
        waits: Any = {"fence": self._fence, "copying": server.copying}
        self.lender: Lender | RankLender
        if ranks == 1:
            self.lender = Lender(pool, sizer, layout, service, effects, demand=self._demand, **waits, **tells)
            if keep_seconds:
                self._kept = KeptPrefixes(scheduler.tree_cache, keep_seconds, stack, clock=self._time.look)
        else:
            all_reduce = scheduler.tree_cache._all_reduce_attn_groups
            self.lender = together = RankLender(
                rank,
                ranks,
                RankRuns(pool, layout, service, effects, **waits),
                sizer,
                lambda values: least([values], all_reduce)[0],
                clock=self._time.look,
                demand=self._demand,
                forget=self._forget,
                failed=self._failed,
                **tells,
            )
            if keep_seconds:
                # By the time that was agreed on: what is kept decides what is evicted.
                self._kept = KeptPrefixes(
                    scheduler.tree_cache, keep_seconds, stack, clock=lambda: together.now, failed=together.stumbled
                )
        scheduler.tree_cache.kept = self._kept

    def tick(self) -> None:
        """To be called at the beginning of each round. With several ranks it raises what their collectives raise, as
        SGLang's own do."""
        served = self._time.look()
        if isinstance(self.lender, Lender):
            self._tick(self.lender, served)
        else:
            if self._allocator.refused:
                self._allocator.refused = False
                self.lender.refused()
            self._pace()
            self.lender.step(computed=self._scheduler.last_batch is not None)

    @never_raises(lambda: None)
    def _tick(self, lender: Lender, served: float) -> None:
        now = time.monotonic()
        if now < self._tick_at:
            return
        self._tick_at = now + FAULT_SECONDS
        if self._allocator.refused:
            self._allocator.refused = False
            lender.refused()
        self._mind_server(now)
        try:
            lender.tick(served)
        except Exception:
            lender.retreat(served)
            raise
        self._tick_at = now

    def _pace(self) -> None:
        """Hold borrowers back while there are requests. On this rank alone: nothing of its pool depends on that."""
        now = time.monotonic()
        if now < self._tick_at:
            return
        try:
            self._mind_server(now)
        except Exception as error:  # noqa: BLE001 - the other ranks wait
            self._tick_at = now + FAULT_SECONDS
            self._failed("pace", error)

    def _mind_server(self, now: float) -> None:
        """Tell it whether there are requests; and tell of a copy of its that does not end, once in a while."""
        self._server.computing(self._demand.is_any)
        if now < self._copies_seen_at:
            return
        self._copies_seen_at = now + HUNG_SECONDS
        seconds = self._server.copying_seconds
        if seconds >= HUNG_SECONDS:
            logger.error(
                "swift-tiers: a borrower's page has been on its way into lent memory for %.0f s: the device does not "
                "answer, and the memory that is written stays out of this server's pool",
                seconds,
            )
            self.stack.events.emit("lending.hung", seconds=round(seconds, 1))

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.cleared()

    def _failed(self, where: str, error: Exception) -> None:
        """Something of ours has failed on this rank; told once in a while."""
        now = time.monotonic()
        if now < self._told_at:
            return
        self._told_at = now + FAULT_SECONDS
        logger.error("swift-tiers: lending failed at %r; everything is taken back", where, exc_info=error)
        self.stack.events.emit("linker.error", where=f"lending: {where}", error=repr(error))

    def _fence(self) -> Callable[[], bool]:
        """Whether the batches under way now have ended.

        A batch that the scheduler has launched is in its `result_queue` until its result is processed, which waits for
        the end of its forward. Without overlap that happens within the round: between rounds no forward runs.
        """
        running = self._scheduler.result_queue
        begun = list(running)
        return lambda: not any(batch is other for batch in begun for other in running)
