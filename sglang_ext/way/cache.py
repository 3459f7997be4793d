"""SGLang's unified radix tree with a tier stack beneath it: what the linker interface alone does not offer.

Three things are added, all on the scheduler's thread. Requests whose pages come up from below wait without blocking
others (SGLang offers that to its own storage tiers only: `check_prefetch_progress`). The linker is told which page
precedes an offload, and which pages a request uses that the device already has. And the search for restorable
lengths, which SGLang repeats for a waiting request in every scheduling round, is made cheap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import LinkerTransferPhase
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper

from swift_tiers.radix_tiering.restore.flight import Step

from ..tell.request_facts import RequestFacts
from ..tell.sampler import Sampler
from .admission import Admission, Arrival
from .keeping_cache import KeepingRadixCache
from .layer_wise import LayerWise
from .linker import SwiftLinker
from .restoring import Course, why_not

logger = logging.getLogger(__name__)

#: How often a waiting request may begin anew because the device evicted pages that it had counted on.
MAX_RESTARTS = 3


class SwiftLinkerWrapper(UnifiedCacheLinkerWrapper):
    """SGLang's tree-side driver of a linker, with arrivals."""

    cache_linker: SwiftLinker

    def __init__(self, cache: SwiftRadixCache, cache_linker: SwiftLinker) -> None:
        super().__init__(cache, cache_linker)
        self.arrivals: dict[str, Arrival] = {}
        self.admission = Admission(self, cache_linker)
        self.courses: dict[str, Course] = {}
        self.computes = False  # SGLang computes prompts in chunks, so that pages may come up between two of them
        self.layer_wise: LayerWise | None = None  # None: until the scheduler is complete
        self._matching: Arrival | None = None  # the request that match() is working on

    def owns(self, req: Any) -> bool:
        """Whether what is kept under the request's id is the request's own.

        Clients choose ids, and SGLang refuses one that is in use in each tokenizer process alone: with several of them
        two requests of one id may live at once. All of SGLang's linker interface goes by the id, so only the first of
        them is served from below the device; the other one is computed.
        """
        arrival = self.arrivals.get(req.rid)
        return arrival is not None and arrival.req is req

    def arrival_of(self, handle: Any) -> Arrival | None:
        """The waiting request of SGLang's `CacheRequestHandle`, which belongs to one request; None if it is unknown."""
        arrival = self.arrivals.get(handle.rid)
        return arrival if arrival is not None and arrival.req.cache_request_handle is handle else None

    def match(self, key: Any, req: Any, result: Any) -> Any:
        if req.rid in self.arrivals and not self.owns(req):
            return result
        if req.rid not in self.arrivals:
            facts = RequestFacts.of(req)
            facts.whole = why_not(req) if self.computes else "SGLang computes prompts in one piece"
            if self.layer_wise is not None:
                facts.no_layers = self.layer_wise.why_not(req)
            self._arrive(req, key, facts, result)
        # A marker of an earlier round must not outlive a round that finds nothing.
        self.hit_markers.pop(req.rid, None)
        self._matching = self.arrivals[req.rid]
        return super().match(key, req, result)

    def load_back(self, req: Any) -> Any:
        if not self.owns(req):
            return 0, req.last_node
        loaded = super().load_back(req)
        runs = self.cache_linker.served.pop(req.rid, ())
        if not req.retracted_stain:  # SGLang's own count of cached tokens stays as it was, too
            RequestFacts.of(req).runs = runs
        return loaded

    def _arrive(self, req: Any, key: Any, facts: RequestFacts, result: Any) -> None:
        bigram, _ = key.maybe_to_bigram_view(self.cache.tree_core.is_eagle)
        device_length = result.device_prefix_len
        page = self.cache.page_size
        arrival = Arrival(
            req, key, facts, device_length // page, result.last_device_node, self.cache.device_evictions,
            not facts.whole,
        )  # fmt: skip
        rid = req.rid
        self.arrivals[rid] = arrival
        arrival.tail = tail = self._tail(arrival, bigram, result, device_length)
        prefix: list[str] = []
        if device_length:
            node = result.last_device_node
            prefix = [*self.cache.get_prefix_hash_values(node), *self.cache.tree_core.get_hash_values(node)]
        if tail or prefix:
            facts.last_page = facts.last_page or (tail or prefix)[-1]  # one that is retracted comes with its output
            self.cache_linker.arrive(rid, tail, prefix, can_compute=arrival.can_compute, no_layers=facts.no_layers)
            if (claim := self.cache_linker.claims.get(rid)) is not None:
                claim.restore.story.whole = facts.whole
                facts.follow(claim.restore)

    def restart(self, arrival: Arrival) -> bool:
        """Begin anew if the device has lost pages that the request counted on; True if so.

        The tree is the same on every rank, so every rank decides alike.
        """
        if arrival.evictions == self.cache.device_evictions or arrival.restarts >= MAX_RESTARTS:
            return False
        arrival.evictions = self.cache.device_evictions
        # Without a request: only the tree is walked.
        result = self.cache._match_tree(MatchPrefixParams(key=arrival.key))
        if result.device_prefix_len // self.cache.page_size >= arrival.device_pages:
            return False
        self._arrive(arrival.req, arrival.key, arrival.facts, result)
        self.arrivals[arrival.req.rid].restarts = arrival.restarts + 1
        return True

    # ---- requests that are computed while their pages come up ----

    def course_of(self, req: Any) -> Course | None:
        """The course that a request which is about to be admitted would take; None if it needs none."""
        if not self.owns(req):
            return None
        arrival = self.arrivals[req.rid]
        if not (arrival.computes or arrival.layer_wise):
            return None
        claim = self.cache_linker.claims.get(req.rid)
        return Course(
            req.rid, None if claim is None else claim.restore, arrival.device_pages, arrival.pages,
            computes=arrival.computes, by_layers=arrival.layer_wise,
        )  # fmt: skip

    def course_under_way(self, req: Any) -> Course | None:
        """The course that an admitted request is on, if any."""
        return self.courses.get(req.rid) if self.owns(req) else None

    def agree(self, course: Course, front: int) -> Step:
        """The next step that every rank can take, of which the device has the first `front` pages."""
        try:
            if course.restore is None:
                mine = Step(front, course.pages)
            else:
                mine = self.cache_linker.stack.restorer.step(course.restore, front)
        except Exception as error:  # noqa: BLE001 - must not end the server
            self._went_wrong(course, error)
            mine = Step(front, course.pages)  # what is computed is right, whatever came up
        least = torch.tensor(mine, dtype=torch.int)
        self.cache._all_reduce_attn_groups(least, torch.distributed.ReduceOp.MIN)
        jump, end = (min(page, course.pages) for page in least.tolist())
        return Step(jump, max(jump, end))

    def began(self, course: Course, step: Step) -> None:
        """The request was admitted: its first chunk is `step`."""
        self.courses[course.rid] = course
        self.cache_linker.begin_course(course.rid)
        self.advanced(course, step)

    def not_by_layers(self, course: Course, why: str) -> None:
        """It is restored in another way, since it cannot be computed layer by layer now."""
        if course.restore is None:
            return
        try:
            self.cache_linker.stack.restorer.layers.refuse(course.restore, why)
        except Exception as error:  # noqa: BLE001 - must not end the server
            self._went_wrong(course, error)

    def unpromise(self, req: Any) -> None:
        """Nothing is copied to the device at its admission: all that it lacks is computed."""
        self.hit_markers.pop(req.rid, None)
        req.host_hit_length = 0

    def began_by_layers(self, course: Course, req: Any, front: int) -> None:
        """The request was admitted, to be computed layer by layer: all pages of its course behind the `front` that the
        device has, in the forward that follows."""
        assert self.layer_wise is not None
        self.courses[course.rid] = course
        self.cache_linker.begin_course(course.rid)
        # On every rank, whatever goes wrong on this one: the forward agrees with the others before each layer.
        self.layer_wise.expect(course, req.prefix_len, front)
        try:
            if course.restore is not None:
                self.cache_linker.stack.restorer.layers.take(course.restore, front, course.pages)
        except Exception as error:  # noqa: BLE001 - must not end the server
            self._went_wrong(course, error)

    def advanced(self, course: Course, step: Step) -> None:
        """The device takes `step`."""
        try:
            if course.restore is not None:
                self.cache_linker.stack.restorer.take(course.restore, step)
        except Exception as error:  # noqa: BLE001 - must not end the server
            self._went_wrong(course, error)
        if step.end == course.pages:
            del self.courses[course.rid]
            self.cache_linker.end_course(course.rid, whole=True)

    def jump(self, course: Course, req: Any, front: int, end: int) -> bool:
        """Give the request the pages `[front, end)` of its restore, which have arrived; they are copied in while its
        next chunk is computed. False where the device has no room for them."""
        if end <= front:
            return True
        hashes = self.arrivals[req.rid].tail[front:end]
        transfer = self._components[0].build_external_linker_transfer(LinkerTransferPhase.LOAD, None, hashes)
        if transfer is None:
            return False
        self.cache_linker.load(req.rid, [transfer])
        reached = req.prefix_len + len(transfer.device_indices)
        row = self.cache.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        row[req.prefix_len : reached] = transfer.device_indices.to(row.dtype)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = req.prefix_len = reached
        self.inflight_load_rids.append(req.rid)
        RequestFacts.of(req).runs += self.cache_linker.served.pop(req.rid, ())
        return True

    def _went_wrong(self, course: Course, error: Exception) -> None:
        """An error of ours must not end the server. What the device has stays right: it has computed it, or copied what
        was verified."""
        logger.exception("swift-tiers: the restore of request %s went wrong; the rest is recomputed", course.rid)
        self.cache_linker.stack.events.emit("linker.error", where="course", error=repr(error))

    # ---- ends ----

    def forget_own(self, req: Any) -> None:
        """The request was admitted or has ended; what is kept under its id for another one stays."""
        if self.owns(req):
            self.forget(req.rid)

    def forget(self, rid: str) -> None:
        """A request of this id was admitted or has ended."""
        if self.courses.pop(rid, None) is not None:
            self.cache_linker.end_course(rid, whole=False)
        arrival = self.arrivals.pop(rid, None)
        if arrival is not None:
            self.cache_linker.depart(rid)
            arrival.facts.let_go()

    def _tail_hashes(self, key: Any, result: Any, device_hit_len: int) -> Sequence[str]:
        assert self._matching is not None  # only match() calls this
        return self._tail(self._matching, key, result, device_hit_len)

    def _tail(self, arrival: Arrival, key: Any, result: Any, device_length: int) -> Sequence[str]:
        """The page hashes behind the device's prefix. A request's tokens are only ever appended to, so they are
        computed once for each length."""
        name = (device_length, len(key))
        if name not in arrival.tails:
            arrival.tails[name] = super()._tail_hashes(key, result, device_length)
        return arrival.tails[name]

    def _sync_restorable_prefix(self, restorable: list[int], *, num_pages: int, device_hit_pages: int) -> int:
        """The longest length that every rank can restore.

        The tiers restore any length up to their longest, so the intersection over the ranks is a minimum.
        """
        longest = torch.tensor([restorable[-1] if restorable else 0], dtype=torch.int)
        self.cache._all_reduce_attn_groups(longest, torch.distributed.ReduceOp.MIN)
        pages = int(longest.item())
        return pages if pages > device_hit_pages else 0

    def _offload_node(self, node_id: Any, transfers: Any) -> None:
        before = self.cache.get_prefix_hash_values(node_id)
        if before and not self.cache_linker.holds(before[-1]):
            # The tiers have lost what the tree believes to be stored. The path is on the device, and locked with the
            # node.
            rows = self.cache.path_device_indices(node_id)[: len(before) * self.cache.page_size]
            self.cache_linker.expect_offload(before[-1], len(before) + 1, before, rows)
        else:
            self.cache_linker.expect_offload(before[-1] if before else None, len(before) + 1)
        super()._offload_node(node_id, transfers)

    def release_request(self, rid: str) -> None:
        super().release_request(rid)
        self.forget(rid)

    def reset(self) -> None:
        super().reset()
        self.arrivals.clear()
        self.courses.clear()


class SwiftRadixCache(KeepingRadixCache):
    """The tree SGLang is given when swift-tiers is on."""

    def __init__(self, params: Any) -> None:
        self.device_evictions = 0
        self.sampler: Sampler | None = None
        #: Whether SGLang is computing some request in chunks already; it can follow one only.
        self.chunk_taken: Callable[[], bool] = lambda: True
        super().__init__(params)

    def init_cache_linker(self, cache_linker: Any) -> None:
        self.linker = SwiftLinkerWrapper(self, cache_linker)

    # ---- waiting requests ----

    def check_hicache_events(self) -> None:
        """SGLang calls this once at the beginning of each scheduling round."""
        super().check_hicache_events()
        if self.linker is not None:
            self.linker.cache_linker.begin_round()
            self.linker.admission.begin_round()
        if self.sampler is not None:
            self.sampler.tick()

    def prefetch_from_storage(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the match that SGLang makes right before this call has begun the restore."""

    def check_prefetch_progress(self, request: Any) -> bool:
        """Whether the request may be admitted now; False lets others pass."""
        arrival = self.linker.arrival_of(request)
        if arrival is None:
            return True
        return self.linker.admission.may_enter(arrival, self.chunk_taken) and not self.linker.restart(arrival)

    def pop_prefetch_loaded_span(self, request: Any) -> tuple[int, int | None]:
        """Tokens that came up for this request from storage, from durable tiers, and where they begin, for SGLang's own
        accounting."""
        arrival = self.linker.arrival_of(request)
        claim = self.linker.cache_linker.claims.get(request.rid)
        if claim is None or arrival is None:
            return 0, None
        tiers = self.linker.cache_linker.stack.table.of
        stored = [tiers[tier].durable for tier in claim.restore.sources[: claim.restore.pages]]
        if not any(stored):
            return 0, None
        return sum(stored) * self.page_size, (arrival.device_pages + stored.index(True)) * self.page_size

    def has_pending_cache_operations(self) -> bool:
        return False

    # ---- ends ----

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint(req, up_to=up_to, **kwargs)
        if self.linker is not None and self.linker.course_under_way(req) is None:
            self.linker.forget_own(req)
        if self.sampler is not None:
            self.sampler.entered(req)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.linker is not None:
            # Requests whose load failed are released without a checkpoint.
            self.linker.forget_own(req)
        self._tell_end(req)

    def claim_kv_row(self, req: Any) -> bool:
        """A session that keeps the row of its request: then there is no `on_release`."""
        claimed: bool = super().claim_kv_row(req)
        if claimed:
            self._tell_end(req)
        return claimed

    def _tell_end(self, req: Any) -> None:
        # A retracted request is released, too, and comes back.
        if self.sampler is not None and req.finished():
            self.sampler.request_ended(req)

    def finish(self, handle: Any, outcome: Any) -> None:
        super().finish(handle, outcome)
        if self.linker is not None and self.linker.arrival_of(handle) is not None:
            self.linker.forget(handle.rid)

    def clear_storage_backend(self) -> bool:
        """SGLang's /clear_hicache_storage_backend: every tier of this server is emptied."""
        self.linker.cache_linker.stack.flush_soon(memory=True, durable=True)
        return True

    def reset(self) -> None:
        super().reset()
        if self.sampler is not None:
            self.sampler.shape.clear()

    # ---- telemetry of the device ----

    def evict_leaf(self, node_id: Any, tracker: Any) -> Any:
        self.device_evictions += 1
        if self.sampler is None:
            return super().evict_leaf(node_id, tracker)
        self.sampler.leaving(node_id)
        before = tracker.get(ComponentType.FULL, 0)
        result = super().evict_leaf(node_id, tracker)
        self.sampler.evicted(tracker.get(ComponentType.FULL, 0) - before)
        return result
