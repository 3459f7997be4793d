"""Samples of what the scheduler does: its requests, its device pool, its tree. Taken on its thread, at set times.

A turn of the scheduler's loop is a safe point: no batch is being built, and no result is half processed. What one
sampling may take is bounded: `MOST_REQUESTS`, `block_tables.MOST_PAGES`, `tree_shape.BUDGET_SECONDS`. What it did take
is in `seconds`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sglang.srt.observability.req_time_stats import convert_time_to_realtime

from swift_tiers.radix_tiering.figures.telemetry import (
    DevicePoolSample,
    EngineSample,
    RequestSample,
    RequestState,
    TreeSample,
)
from swift_tiers.radix_tiering.restore.storyteller import Storyteller

from ..pools.kept import attention_allocator
from .block_tables import TableRow, TablesOnTheWay, read_tables
from .errands import Errands
from .guard import never_raises
from .request_facts import RequestFacts, Runs, shown_rid
from .tree_shape import TreeSummer

#: Requests of one sample: those being computed, then those that wait, in their order. The counts are of all.
MOST_REQUESTS = 512
#: Ended requests that are kept until they are asked for.
MOST_ENDED = 1024
#: Tiers beneath the device that a request says its tokens of.
BELOW = ("peer", "host", "ssd", "remote")


class Captured(NamedTuple):
    """A sample without block tables, which are on their way from the device, and without stories."""

    sample: EngineSample
    rows: tuple[int, ...]  # which of the sample's requests have a table, in the order of the tables
    tables: TablesOnTheWay
    stories: tuple[Storyteller | None, ...]  # of each request, told when somebody wants to know


class EndedRequest(NamedTuple):
    """A request that has ended, without its story: the forward that gave its last token is still to be told there."""

    request: RequestSample
    story: Storyteller | None


class Sampler:
    """One for each scheduler, on its thread; `newest` and `ended` may be read by any."""

    def __init__(self, scheduler: Any, linker: Any, interval: float) -> None:
        self.stack = linker.stack
        self.newest: Captured | None = None
        self.ended: deque[EndedRequest] = deque(maxlen=MOST_ENDED)
        self.seconds = 0.0
        self.shape = TreeSummer(scheduler.tree_cache.tree_core)
        self.errands = Errands()
        self.scheduler = self._scheduler = scheduler
        self.linker = self._linker = linker
        self._cache = scheduler.tree_cache
        self._page_size: int = scheduler.tree_cache.page_size
        self._interval = interval
        self._next = 0.0
        self._prompt_tokens = 0
        self._reused_tokens = 0
        self._evicted_tokens = 0
        self._hits = 0
        self._misses = 0

    # ---- told by the tree ----

    def tick(self) -> None:
        """Once in each turn of the scheduler's loop."""
        self.errands.tick()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self._sample()

    @never_raises(lambda: None)
    def entered(self, req: Any) -> None:
        """A request's KV went into the tree: of its prompt, or of a part of it."""
        started = time.perf_counter()
        self._count(req)
        if (node := self._cache.node_of(req)) is not None:
            facts = RequestFacts.of(req)
            self.shape.note(node, facts.last_node)
            facts.last_node = node
        self.seconds += time.perf_counter() - started

    @never_raises(lambda: None)
    def leaving(self, node_id: int) -> None:
        """A leaf is about to be evicted."""
        started = time.perf_counter()
        self.shape.leaving(node_id)
        self.seconds += time.perf_counter() - started

    def evicted(self, tokens: int) -> None:
        """Tokens left the device."""
        self._evicted_tokens += tokens

    @never_raises(lambda: None)
    def request_ended(self, req: Any) -> None:
        """A request has its last answer, or will get none. Only the first time is told."""
        facts = RequestFacts.of(req)
        if facts.ended:
            return
        started = time.perf_counter()
        facts.ended = True
        self._count(req)
        reason = req.finished_reason
        aborted = reason is None or reason.to_json()["type"] == "abort"
        state = RequestState.ABORTED if aborted else RequestState.FINISHED
        self.ended.append(EndedRequest(self._request(req, state, ended=time.time()), facts.story))
        self.seconds += time.perf_counter() - started

    # ---- one sampling ----

    @never_raises(lambda: None)
    def _sample(self) -> None:
        started = time.perf_counter()
        running = self._running()
        waiting = self._waiting()
        requests: list[RequestSample] = []
        stories: list[Storyteller | None] = []
        rows: list[TableRow] = []
        with_table: list[int] = []
        for req in islice(running, MOST_REQUESTS):
            if req.kv.holds_kv:
                with_table.append(len(requests))
                rows.append(TableRow(req.kv.req_pool_idx, req.kv.kv_allocated_len))
            requests.append(self._request(req, RequestState.RUNNING))
            stories.append(RequestFacts.of(req).story)
        for req in islice(waiting, MOST_REQUESTS - len(requests)):
            facts = RequestFacts.of(req)
            requests.append(self._request(req, RequestState.RESTORING if facts.restoring else RequestState.WAITING))
            stories.append(facts.story)
        tables = read_tables(self._scheduler.req_to_token_pool.req_to_token, rows, self._page_size)
        device, tree = self._device(), self._tree()
        self.seconds += time.perf_counter() - started
        sample = EngineSample(
            time=time.time(),
            requests=tuple(requests),
            running_requests=len(running),
            waiting_requests=len(waiting),
            device=device,
            tree=tree,
            sample_seconds=self.seconds + self.errands.seconds,
        )
        self.newest = Captured(sample, tuple(with_table), tables, tuple(stories))

    def _running(self) -> list[Any]:
        """Requests that are being computed, each once: in batches, or between two chunks of their prompt."""
        scheduler = self._scheduler
        found: dict[Any, None] = {}
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None:
                found.update(dict.fromkeys(batch.reqs))
        if scheduler.chunked_req is not None:
            found[scheduler.chunked_req] = None
        return [req for req in found if not req.finished() and not RequestFacts.of(req).ended and not req.is_retracted]

    def present(self) -> list[Any]:
        """Requests that hold device pages, as far as batches know them; some may have ended just now."""
        return self._running()

    def _waiting(self) -> list[Any]:
        return [*self._scheduler.waiting_queue, *self._scheduler.grammar_manager.grammar_queue]

    def _request(self, req: Any, state: RequestState, *, ended: float | None = None) -> RequestSample:
        facts, stats = RequestFacts.of(req), req.time_stats
        arrived = stats.scheduler_recv_time
        if facts.arrived is None:
            # Once: SGLang measures its clocks anew at every new request, and two times would be two requests.
            facts.arrived = convert_time_to_realtime(arrived)
        prompt = len(req.origin_input_ids)
        admitted = stats.forward_entry_time > 0
        cached = min(req.cached_tokens, prompt) if admitted else 0
        peer, host, ssd, remote = (facts.pages(tier) * self._page_size if admitted else 0 for tier in BELOW)
        device = max(0, cached - facts.loaded_pages * self._page_size)
        outcome, waited = facts.restore(time.monotonic())
        return RequestSample(
            rid=shown_rid(req.rid),
            state=state,
            arrived=facts.arrived,
            prompt_tokens=prompt,
            output_tokens=len(req.output_ids),
            device_tokens=device,
            peer_tokens=peer,
            host_tokens=host,
            ssd_tokens=ssd,
            remote_tokens=remote,
            recomputed_tokens=prompt - cached if admitted else 0,
            restore=outcome,
            restore_seconds=waited,
            restore_story=None,
            queue_seconds=stats.forward_entry_time - arrived if admitted else None,
            first_token_seconds=stats.prefill_finished_time - arrived if stats.prefill_finished_time else None,
            ended=ended,
            tiers=tuple(self._runs(device, facts.runs, prompt - cached)) if admitted else (),
            last_page=facts.last_page,
            block_table=(),
        )

    def _runs(self, device_tokens: int, below: Runs, computed_tokens: int) -> Iterator[tuple[str, int]]:
        if device_tokens:
            yield "device", device_tokens // self._page_size
        yield from below
        if computed_tokens:
            yield "compute", -(-computed_tokens // self._page_size)

    def _count(self, req: Any) -> None:
        """Take the prompt into the sums, once it is known what of it was found."""
        facts = RequestFacts.of(req)
        if facts.counted or not req.time_stats.forward_entry_time:
            return
        facts.counted = True
        prompt = len(req.origin_input_ids)
        loaded = facts.loaded_pages * self._page_size
        reused = max(0, min(req.cached_tokens, prompt) - loaded)
        self._prompt_tokens += prompt
        self._reused_tokens += reused
        self._hits += reused // self._page_size
        self._misses += prompt // self._page_size - reused // self._page_size

    def _device(self) -> DevicePoolSample:
        """Pages that are being copied out are as pinned as those of requests."""
        allocator, page_size = attention_allocator(self._cache.token_to_kv_pool_allocator), self._page_size
        page_bytes = self._linker.pool.geometry.device_page_bytes
        pages = (allocator.size - allocator.available_size()) // page_size
        return DevicePoolSample(
            capacity_bytes=allocator.size // page_size * page_bytes,
            used_bytes=pages * page_bytes,
            pages=pages,
            pinned_pages=max(0, pages - self._cache.full_evictable_size() // page_size),
            hits=self._hits,
            misses=self._misses,
            bytes_read=self.stack.links["device-host"].bytes,
            bytes_written=self.stack.links["host-device"].bytes,
            evictions=self._evicted_tokens // page_size,
        )

    def _tree(self) -> TreeSample:
        shape = self.shape.sample()
        evictable, protected = self._cache.full_evictable_size(), self._cache.full_protected_size()
        return TreeSample(
            nodes=shape.nodes,
            leaves=shape.leaves,
            depth=shape.depth,
            deepest_tokens=shape.deepest_tokens,
            cached_tokens=evictable + protected,
            evictable_tokens=evictable,
            protected_tokens=protected,
            reused_tokens=self._reused_tokens,
            prompt_tokens=self._prompt_tokens,
            evicted_tokens=self._evicted_tokens,
            complete=shape.complete,
        )
