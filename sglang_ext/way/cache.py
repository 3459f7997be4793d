"""SGLang's unified radix tree with a tier stack beneath it: what the linker interface alone does not offer.

What is added, all on the scheduler's thread: requests whose pages come up from below wait without blocking others,
which SGLang offers to its own storage tiers only (`check_prefetch_progress`); courses of those that are computed
meanwhile (`agree`, `jump`, `jump_ahead`); which page precedes an offload (`_offload_node`), and which pages a request
uses that the device already has (`_arrive`); ends that SGLang tells of in several ways (`end`); room
(`evict_for_alloc`); and the search for restorable lengths, which SGLang repeats for a waiting request in every
scheduling round, is made cheap (`_tail`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.beam_search.fork import free_member_rows
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult, MatchPrefixParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import LinkerTransferPhase
from sglang.srt.session.streaming_session import is_virtual_node

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.restore.flight import Step

from ..build.least import least, least_and_most
from ..pools.kept import attention_allocator
from ..pools.states import StatePool
from ..tell.kv_events import KvEvents
from ..tell.request_facts import RequestFacts
from ..tell.sampler import Sampler
from .admission import Admission
from .keeping_cache import KeepingRadixCache
from .layer_wise import LayerWise
from .linker import NodeTransfer, SwiftLinker, kv_transfer
from .request import TieredRequest, TieringStage, images_of, why_whole
from .tree_states import StatefulLinkerWrapper

#: How often a waiting request may begin anew because the device evicted pages that it had counted on.
MAX_RESTARTS = 3
#: Parts of a prefix that ranks compare, each with a state behind it on one of them at least, until all have one.
_ENDS_COMPARED = 8


class SwiftLinkerWrapper(StatefulLinkerWrapper):
    """SGLang's tree-side driver of a linker, with one object for each request that it serves."""

    cache_linker: SwiftLinker

    def __init__(self, cache: SwiftRadixCache, cache_linker: SwiftLinker) -> None:
        super().__init__(cache, cache_linker)
        cache_linker.offloader.room = self._room
        self.admission = Admission(cache_linker.requests, cache._all_reduce_attn_groups)
        #: Why every request needs its prefix whole before it is computed; empty: pages may come up between two chunks.
        self.whole = "the scheduler is not complete"
        self.layer_wise: LayerWise | None = None  # None: until the scheduler is complete
        #: Whether tokens of an image see those behind them, in a forward that computes all of the image.
        self.images_whole = False
        #: Whether SGLang asks for a chunked request in each round; else its pages would be asked for too late.
        self.asked_each_round = True
        self._matching: TieredRequest | None = None  # the request that match() is working on
        #: Those that came before the one that SGLang computes in chunks, and waited for their pages when it began.
        self._overtaken: list[TieredRequest] = []

    def of(self, req: Any) -> TieredRequest | None:
        """What is kept for SGLang's `Req`; None for one that is unknown, or is another one of the same id.

        Clients choose ids, and SGLang refuses one that is in use in each tokenizer process alone: with several of them
        two requests of one id may live at once. All of SGLang's linker interface goes by the id, so only the first of
        them is served from below the device; the other one is computed.
        """
        request = self.cache_linker.requests.get(req.rid)
        return request if request is not None and request.req is req else None

    def of_handle(self, handle: Any) -> TieredRequest | None:
        """Likewise, by SGLang's `CacheRequestHandle`, which belongs to one request."""
        request = self.cache_linker.requests.get(handle.rid)
        return request if request is not None and request.req.cache_request_handle is handle else None

    def match(self, key: Any, req: Any, result: Any) -> Any:
        request = self.of(req)
        if request is None:
            if req.rid in self.cache_linker.requests:
                return result
            facts = RequestFacts.of(req)
            facts.whole = self.whole or why_whole(req)
            if self.layer_wise is not None:
                facts.no_layers = self.layer_wise.why_not(req)
            request = self._arrive(req, key, facts, result)
        else:
            self.admission.look()  # SGLang may order its queue by what requests find
        # A marker of an earlier round must not outlive a round that finds nothing.
        self.hit_markers.pop(req.rid, None)
        if not request.pages or not (request.agreed or request.computes):
            return result  # nothing can be promised on any rank: it would cost them a collective to say so
        self._matching = request
        return super().match(key, req, result)

    def load_back(self, req: Any) -> Any:
        request = self.of(req)
        if request is None:
            return 0, req.last_node
        loaded = super().load_back(req)
        runs = request.take_runs()
        if not req.retracted_stain:  # SGLang's own count of cached tokens stays as it was, too
            request.facts.runs = runs
        return loaded

    def _arrive(
        self, req: Any, key: Any, facts: RequestFacts, result: Any, restarts: int = 0, number: int = 0
    ) -> TieredRequest:
        """`number`: of one that begins anew."""
        self._arrived += not number
        bigram, _ = key.maybe_to_bigram_view(self.cache.tree_core.is_eagle)
        device_length, node = result.device_prefix_len, result.last_device_node
        request = TieredRequest(
            req.rid,
            self.cache_linker.stack,
            self.cache_linker.requests,
            facts,
            req=req,
            key=key,
            device_pages=device_length // self.cache.page_size,
            device_node=node,
            evictions=self.cache.device_evictions,
            restarts=restarts,
            number=number or self._arrived,
        )
        if self.images_whole:
            request.images = images_of(req)
        # At least one token is computed. SGLang's match leaves that out, but for those by which it orders requests.
        reusable = req._compute_max_prefix_len(len(req.origin_input_ids) + len(req.output_ids)) - device_length
        most = max(0, reusable) // self.cache.page_size
        tail = self._tail(request, bigram, result, device_length)[:most]
        prefix: list[str] = []
        if device_length:
            prefix = [*self.cache.get_prefix_hash_values(node), *self.cache.tree_core.get_hash_values(node)]
        if tail or prefix:
            facts.last_page = facts.last_page or (tail or prefix)[-1]  # one that is retracted comes with its output
            states = self.cache_linker.pool.states
            held = tail if states is None else tail[: self._held_on_all_ranks(request, tail, states)]
            request.begin(held, prefix, states, len(tail))
        if self._has_windows:
            if prefix and not restarts:
                self._meet_window(node, prefix[-1])
        elif request.state_pages and not restarts and self._device_is_to_have(request.tail):
            request.give_up()
        return request

    def _held_on_all_ranks(self, request: TieredRequest, tail: Sequence[str], states: StatePool) -> int:
        """How many pages of `tail` every rank holds with a state behind them: the longest part that all of them have,
        though one may have lost the state behind a longer one."""
        low = len(tail)
        for _ in range(_ENDS_COMPARED):
            mine = request.held_with_state(tail[:low], states)
            ((low, high),) = least_and_most([mine], self.cache._all_reduce_attn_groups)
            if low in (0, high):
                return low
        return 0

    def restart(self, request: TieredRequest) -> bool:
        """Begin anew if the device has lost pages that the request counted on; True if so.

        The tree is the same on every rank, so every rank decides alike.
        """
        if request.evictions == self.cache.device_evictions or request.restarts >= MAX_RESTARTS:
            return False
        request.evictions = self.cache.device_evictions
        # Without a request: only the tree is walked.
        result = self.cache._match_tree(MatchPrefixParams(key=request.key))
        if result.device_prefix_len // self.cache.page_size >= request.device_pages:
            return False
        self._arrive(request.req, request.key, request.facts, result, request.restarts + 1, request.number)
        return True

    # ---- requests that are computed while their pages come up ----

    def may_take_course(self, req: Any) -> TieredRequest | None:
        """A request that is about to be admitted, if it is to be computed while its pages come up."""
        request = self.of(req)
        return request if request is not None and (request.computes or request.by_layers) else None

    def copied_first(self, request: TieredRequest, pages: int) -> bool:
        """Whether so many pages of a request that is about to be admitted, all that it lacks on the device, are copied
        there before a forward that needs them is launched, for the sake of those who decode: on every rank, and where
        nobody else could be admitted meanwhile."""
        others = (one for one in self.cache_linker.requests.values() if one is not request)
        if (
            not self.asked_each_round
            or request.facts.whole
            or any(one.stage is TieringStage.WAITING and (one.agreed or one.computes) for one in others)
        ):
            return False
        ((wanted,),) = least([[request.wants_copying_first(pages)]], self.cache._all_reduce_attn_groups)
        return bool(wanted)

    def overtakes(self, request: TieredRequest) -> None:
        """SGLang has begun to compute this one in chunks. Whoever came before it, and waits for pages, would wait for
        all of its chunks as well."""
        self._overtaken = [
            other
            for other in self.cache_linker.requests.values()
            if other.stage is TieringStage.WAITING
            and other.number < request.number
            and getattr(other.req, "priority", None) == getattr(request.req, "priority", None)
        ]

    def room_for_overtaken(self, most: int) -> int:
        """Tokens, of `most`, that the next chunk is to leave to those that it has overtaken and that may be admitted
        now; each of them is left room once. The same on every rank."""
        room = 0
        if self._overtaken:
            self.admission.look()
        for request in list(self._overtaken):
            if request.stage is TieringStage.WAITING and not request.agreed:
                continue  # its pages have not come
            self._overtaken.remove(request)
            tokens = -(-request.tokens_to_compute // self.cache.page_size) * self.cache.page_size
            if request.stage is TieringStage.WAITING and room + tokens <= most:
                room += tokens
        return room

    def on_course(self, req: Any) -> TieredRequest | None:
        """An admitted request that is being computed while its pages come up."""
        request = self.of(req)
        return request if request is not None and request.stage is TieringStage.ON_COURSE else None

    def agree(self, request: TieredRequest, front: int) -> Step:
        """The next step that every rank can take, of which the device has the first `front` pages."""
        ((jump, end),) = least([request.next_step(front)], self.cache._all_reduce_attn_groups)
        jump, end = min(jump, request.pages), min(end, request.pages)
        return Step(jump, max(jump, end))

    def unpromise(self, req: Any) -> None:
        """Nothing is copied to the device at its admission: all that it lacks is computed."""
        self.hit_markers.pop(req.rid, None)
        req.host_hit_length = 0

    def admit_by_layers(self, request: TieredRequest, front: int) -> None:
        """It was admitted, to be computed layer by layer: all of its pages behind the `front` that the device has, in
        the forward that follows."""
        assert self.layer_wise is not None
        request.admit()
        # On every rank, whatever goes wrong on this one: the forward agrees with the others before each layer.
        self.layer_wise.expect(request, request.req.prefix_len, front)
        request.take_layers(front)

    def jump(self, request: TieredRequest, front: int, end: int) -> bool:
        """Give the request the pages `[front, end)` of its restore, which have arrived; they are copied in while its
        next chunk is computed. False where the device has no room for them."""
        return end <= front or self._jump(request, front, end)

    def _jump(self, request: TieredRequest, front: int, end: int) -> bool:
        hashes, req = request.tail[front:end], request.req
        assert req.prefix_len % self.cache.page_size == 0, "pages follow whole pages"
        transfer = self._components[0].build_external_linker_transfer(LinkerTransferPhase.LOAD, None, hashes)
        if transfer is None:
            return False
        self.cache_linker.load(request.rid, [transfer])
        reached = req.prefix_len + len(transfer.device_indices)
        row = self.cache.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        row[req.prefix_len : reached] = transfer.device_indices.to(row.dtype)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = req.prefix_len = reached
        self.inflight_load_rids.append(request.rid)
        request.facts.runs += request.take_runs()
        return True

    def jump_ahead(self, request: TieredRequest, front: int, end: int) -> bool:
        """As `jump`, of pages `[front, end)`, where no chunk of it is computed yet: they leave landing memory as soon
        as they have been copied, so that others land. False where the device has no room for them."""
        if end <= front or not self._jump(request, front, end):
            return False
        self.inflight_load_rids.pop()  # no batch waits for it
        request.ahead = True
        request.take_ahead(end)  # before its copy begins: what has been copied by then may go
        self.cache_linker.load_ahead(request)
        return True

    def came_ahead(self, request: TieredRequest) -> bool:
        """Whether nothing of it is being copied to the device on any rank but what its next chunk may wait for."""
        if not request.ahead:
            return True
        ((over,),) = least([[self.cache_linker.finish_ahead(request, wait=False)]], self.cache._all_reduce_attn_groups)
        return bool(over)

    def is_copied_ahead(self, req: Any) -> bool:
        """Whether pages of it may still be on their way to the device, ahead of its next batch. The same on every
        rank."""
        request = self.on_course(req)
        return request is not None and request.ahead

    def join(self, request: TieredRequest) -> None:
        """A batch is about to run with it: SGLang is told after that whether what was loaded ahead has come."""
        if not request.ahead:
            return
        request.ahead = False
        if request.rid not in self.inflight_load_rids:
            self.inflight_load_rids.append(request.rid)
        if request.lost_ahead:
            self.cache_linker.fail_with_batch(request)

    def settle(self, request: TieredRequest | None) -> None:
        """Its slots on the device are about to be taken back: nothing is copied there any more when this returns."""
        if request is not None and request.loads_ahead:
            self.cache_linker.finish_ahead(request, wait=True)

    # ---- the rest of SGLang's ----

    def end(self, request: TieredRequest | None) -> None:
        """The request, if the tiers serve it, was admitted with all that it waits for, or has ended."""
        if request is not None:
            self.settle(request)
            request.end()

    def _tail_hashes(self, key: Any, result: Any, device_hit_len: int) -> Sequence[str]:
        assert self._matching is not None  # only match() calls this
        return self._tail(self._matching, key, result, device_hit_len)

    def _tail(self, request: TieredRequest, key: Any, result: Any, device_length: int) -> Sequence[str]:
        """The page hashes behind the device's prefix. A request's tokens are only ever appended to, and each hash is
        over all before it: they are computed once, and again where it has got longer, or the device has lost pages."""
        first = device_length // self.cache.page_size
        pages = (len(key) - device_length) // self.cache.page_size
        begins, known = request.hashes
        if not begins <= first <= first + pages <= begins + len(known):
            known = super()._tail_hashes(key, result, device_length)
            if len(known) != pages:
                return known  # nothing can be said of what is behind this prefix
        else:
            known = known[first - begins :] if first > begins else known
        request.hashes = (first, known)
        return known if len(known) == pages else known[:pages]

    def _sync_restorable_prefix(self, restorable: list[int], *, num_pages: int, device_hit_pages: int) -> int:
        """The longest length that every rank can restore.

        The tiers restore any length up to their longest, so the intersection over the ranks is a minimum; but where
        there are states.
        """
        if self.cache_linker.pool.states is not None:
            return int(
                super()._sync_restorable_prefix(restorable, num_pages=num_pages, device_hit_pages=device_hit_pages)
            )
        ((pages,),) = least([[restorable[-1] if restorable else 0]], self.cache._all_reduce_attn_groups)
        return pages if pages > device_hit_pages else 0

    def _offload_node(self, node_id: Any, transfers: Any) -> None:
        node, (pages, parent) = kv_transfer(transfers), self._before(node_id)
        # Asked in this order: what is on its way is held before it is so no longer.
        if parent is not None and not (self.cache_linker.brings(parent) or self.cache_linker.holds(parent)):
            # The tiers have lost what the tree believes to be stored, and SGLang itself never offers a node twice. The
            # path is on the device, and locked with the node: it is offered along.
            before = self.cache.get_prefix_hash_values(node_id)
            path = self.cache.path_device_indices(node_id)[: len(before) * self.cache.page_size]
            offered = NodeTransfer(
                name=node.name,
                keys=[*before, *node.keys],
                device_indices=torch.cat([path, node.device_indices]),
                path=len(before),
            )
        else:
            offered = NodeTransfer(
                name=node.name,
                keys=node.keys,
                device_indices=node.device_indices,
                parent=parent,
                depth=pages + 1,
            )
        self._offload_with_state(node_id, offered, [one for one in transfers if one.name != node.name])

    def _room(self) -> int:
        allocator = attention_allocator(self.cache.token_to_kv_pool_allocator)
        return int(allocator.available_size() + self.cache.full_evictable_size()) // int(self.cache.page_size)

    def commit_completed_offloads(self, successes: Sequence[bool]) -> None:
        super().commit_completed_offloads(successes)
        if successes:
            self.cache.room_made()

    def release_request(self, rid: str) -> None:
        super().release_request(rid)
        self.end(self.cache_linker.requests.get(rid))


class SwiftRadixCache(KeepingRadixCache):
    """The tree SGLang is given when swift-tiers is on."""

    def __init__(self, params: Any) -> None:
        """Raises ConfigError where SGLang has switched its tree off, before any tier is opened."""
        if params.disable:
            raise ConfigError(
                "--enable-swift-tiers: SGLang switches the radix cache off for this model, beneath which the tiers "
                "lie, as it does for multimodal ones on the Transformers backend: set --model-impl sglang, or remove it"
            )
        self.device_evictions = 0
        self.sampler: Sampler | None = None
        self.beneath: KvEvents | None = None  # where this process tells routers of KV events
        #: Whether SGLang is computing some request in chunks already; it can follow one only.
        self.chunk_taken: Callable[[], bool] = lambda: True
        #: Told that there is room on the device that there was not: pages may be evicted, or lent ones are back.
        self.room_made: Callable[[], None] = lambda: None
        #: Told that a request that is a beam search has ended, but for its rows, which are free by then.
        self.group_ended: Callable[[Any], None] = lambda req: None
        self._not_locked: tuple[ComponentType, ...] = ()
        super().__init__(params)

    def init_cache_linker(self, cache_linker: Any) -> None:
        self.linker = SwiftLinkerWrapper(self, cache_linker)
        if self.tree_core.kv_events.enabled:
            self.beneath = KvEvents(self.tree_core, cache_linker.stack, lambda: cache_linker.offered_namespace)

    @contextlib.contextmanager
    def locking_without(self, component: ComponentType) -> Iterator[None]:
        """What is locked within may lose this part of it."""
        self._not_locked = (component,)
        try:
            yield
        finally:
            self._not_locked = ()

    def inc_lock_ref(self, node_id: Any, skip_lock_components: Sequence[ComponentType] = ()) -> Any:
        return super().inc_lock_ref(node_id, (*skip_lock_components, *self._not_locked))

    def insert(self, params: Any) -> Any:
        """SGLang offers a node once. One that has been stored may get a state later: at a branch of what was one node,
        or where the device had given its state up."""
        result = super().insert(params)
        if params.mamba_value is not None and not result.mamba_exist and self.linker is not None:
            self.linker.offload_state(result.last_device_node, params.mamba_value)
        return result

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
        waiting = self.linker.of_handle(request)
        if waiting is None:
            return True
        return self.linker.admission.may_enter(waiting, self.chunk_taken) and not self.linker.restart(waiting)

    def pop_prefetch_loaded_span(self, request: Any) -> tuple[int, int | None]:
        """Tokens that came up for this request from storage, from durable tiers, and where they begin, for SGLang's own
        accounting."""
        waiting = self.linker.of_handle(request)
        if waiting is None or waiting.restore is None:
            return 0, None
        durable = [copies.number for copies in waiting.stack.table.of if copies.durable]
        if not durable:
            return 0, None
        sources = waiting.restore.sources[: min(waiting.restore.pages, len(waiting.tail))]
        first = min((sources.index(tier) for tier in durable if tier in sources), default=None)
        if first is None:
            return 0, None
        pages = sum(sources.count(tier) for tier in durable)
        return pages * self.page_size, (waiting.device_pages + first) * self.page_size

    def has_pending_cache_operations(self) -> bool:
        """SGLang asks this before it calls itself idle; copies under way here need no step of its loop."""
        return False

    # ---- ends ----

    def finish_external_linker_loads(self, reqs: list[Any]) -> list[Any]:
        """The loads of a batch are over. SGLang tells the tree of no other end of the prefill of those who never enter
        it, and forgets the rows that it has given to a beam search where its load has failed."""
        failed: list[Any] = super().finish_external_linker_loads(reqs)
        if self.linker is None:
            return failed
        for req in failed:
            if req.beam_group is not None:
                free_member_rows(req.beam_group, self.req_to_token_pool, self.token_to_kv_pool_allocator)
                self.group_ended(req)
        for req in reqs:
            if req.skip_radix_cache_insert and self.linker.on_course(req) is None:
                self.linker.end(self.linker.of(req))
        return failed

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        if self.linker is not None and self.linker.is_copied_ahead(req):
            # SGLang's loop of servers that compute prompts for others asks in each round, whether or not a batch has
            # run: pages that are still copied to the device are nobody's prefix.
            return
        super().checkpoint(req, up_to=up_to, **kwargs)
        if self.linker is not None and self.linker.on_course(req) is None:
            self.linker.end(self.linker.of(req))
        if self.sampler is not None:
            self.sampler.entered(req)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.linker is not None:
            # Requests whose load failed are released without a checkpoint.
            self.linker.end(self.linker.of(req))
        self._tell_end(req)

    def claim_kv_row(self, req: Any) -> bool:
        """A session that keeps the row of its request: then there is no `on_release`."""
        if self.linker is not None:
            self.linker.settle(self.linker.of(req))  # SGLang asks this before it gives anything back
        slot = self.session.borrowed_slot(req)
        if slot is not None and not slot.publishes_prompt:
            # An aborted turn leaves its session's whole row to the tree, under its own adapter and salt: those of the
            # turns before may have been others, and so is what they have computed.
            req.skip_radix_cache_insert = True
        claimed: bool = super().claim_kv_row(req)
        if claimed:
            if self.linker is not None:
                self.linker.end(self.linker.of(req))
            self._tell_end(req)
        return claimed

    def _tell_end(self, req: Any) -> None:
        # A retracted request is released, too, and comes back.
        if self.sampler is not None and req.finished():
            self.sampler.request_ended(req)

    def release_aborted_request(self, request: Any) -> None:
        """SGLang ends by its id what a linker keeps for a request: of two that live at once, nothing of the one that
        the tiers serve ends with the other."""
        is_known = self.linker is not None and request.rid in self.linker.cache_linker.requests
        if not is_known or self.linker.of_handle(request) is not None:
            super().release_aborted_request(request)

    def finish(self, handle: Any, outcome: Any) -> None:
        super().finish(handle, outcome)
        if self.linker is not None:
            self.linker.end(self.linker.of_handle(handle))

    def clear_storage_backend(self) -> bool:
        """SGLang's /clear_hicache_storage_backend: every tier of this server is emptied."""
        self.linker.cache_linker.stack.flush_soon("all")
        return True

    def reset(self) -> None:
        """SGLang resets the tree with requests in its queue, too: what the tiers keep is looked for anew for these."""
        known = () if self.linker is None else self.linker.cache_linker.requests.values()
        waiting = [request.req for request in known if request.stage is TieringStage.WAITING]
        super().reset()
        if self.linker is not None:
            self.linker.came_back.clear()
            self.linker.windows_met.clear()
        if self.beneath is not None:
            self.beneath.cleared()
        if self.sampler is not None:
            self.sampler.shape.clear()
        for req in waiting:
            req.init_next_round_input(self, cow_mamba=False)

    # ---- room ----

    def _evict(self, *args: Any, **kwargs: Any) -> Any:
        """Without the state, or the window, behind it a prefix is of no use, though it stays."""
        result = super()._evict(*args, **kwargs)
        self.device_evictions += bool(result.swa_num_tokens_evicted or result.mamba_num_evicted)
        return result

    def evict_for_alloc(self, params: Any, **how: Any) -> Any:
        """SGLang retracts requests, or ends them, where the device has no room for what they decode, and none that it
        may evict. What waits to be copied out is a part of that. The same on every rank."""
        available, windows = self._available()
        wanted, wanted_of_windows = available + params.num_tokens, windows + params.swa_num_tokens
        result = super().evict_for_alloc(params, **how)
        available, windows = self._available()
        lacks, lacks_of_windows = max(0, wanted - available), max(0, wanted_of_windows - windows)
        if not (lacks or lacks_of_windows) or self.linker is None or not self.linker.pending_offloads:
            return result
        self.linker.cache_linker.make_room()
        super().check_hicache_events()  # the answers
        more = super().evict_for_alloc(EvictParams(num_tokens=lacks, swa_num_tokens=lacks_of_windows))
        return EvictResult(
            num_tokens_evicted=result.num_tokens_evicted + more.num_tokens_evicted,
            swa_num_tokens_evicted=result.swa_num_tokens_evicted + more.swa_num_tokens_evicted,
            mamba_num_evicted=result.mamba_num_evicted + more.mamba_num_evicted,
        )

    def _available(self) -> tuple[int, int]:
        """Tokens for whose KV there is room; and for their KV in layers with a window, where these have a pool of their
        own."""
        allocator = self.token_to_kv_pool_allocator
        whole = attention_allocator(allocator)
        return whole.available_size(), 0 if whole is allocator else allocator.swa_available_size()

    # ---- what others are told ----

    def take_events(self) -> list[Any]:
        events: list[Any] = super().take_events()
        return events if self.beneath is None else self.beneath.complete(events)

    def node_of(self, req: Any) -> int | None:
        """The last node of the tree that a request holds; None for none. SGLang puts a node of no tree in its place for
        turns of streaming sessions."""
        slot = self.session.borrowed_slot(req)
        if slot is not None:
            return None if slot.lock is None else slot.lock.node
        return None if is_virtual_node(req.last_node) else req.last_node

    def evict_leaf(self, node_id: Any, tracker: Any) -> Any:
        self.device_evictions += 1
        if self.beneath is not None:
            self.beneath.leaving(node_id)
        if self.sampler is None:
            return super().evict_leaf(node_id, tracker)
        self.sampler.leaving(node_id)
        before = tracker.get(ComponentType.FULL, 0)
        result = super().evict_leaf(node_id, tracker)
        self.sampler.evicted(tracker.get(ComponentType.FULL, 0) - before)
        return result
