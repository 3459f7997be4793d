"""What swift-tiers does at the places of SGLang that `hooks` names."""

from __future__ import annotations

import gc
import logging
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
from sglang.srt.runtime_context import get_memory

logger = logging.getLogger(__name__)

#: At the end of an `extra_key` with no adapter's id behind it.
_NO_ADAPTER = "\0"
#: ... of a prompt with numbers in it that no token has.
_NO_TOKENS = "\0beyond the vocabulary"


def around_create_cache(original: Any, ctx: Any, *, cache_class: Any = None) -> Any:
    if not get_memory().enable_swift_tiers:
        return original(ctx, cache_class=cache_class)
    from .build.page_hash import prepare_page_hash
    from .way.cache import SwiftRadixCache

    prepare_page_hash()
    return original(ctx, cache_class=SwiftRadixCache)


def before_scheduler_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Before the model is loaded."""
    if get_memory().enable_swift_tiers:
        from swift_tiers.radix_tiering.base.read_config import parse_config, read_source

        from .build.identity import begin_loading

        server_args = args[0] if args else kwargs["server_args"]
        begin_loading(server_args, parse_config(read_source(get_memory().swift_tiers_config)).identity.weights)


def after_scheduler_init(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    linker = swift_linker(self)
    if linker is not None:
        from .build.least import check_machines
        from .build.reporting import Reporting
        from .way.layer_wise import LayerWise
        from .way.request import why_all_whole

        check_machines(self.server_args.nnodes, linker.stack, self.tree_cache._all_reduce_attn_groups)
        # Not a flag but the scheduler's own attribute: it opens the arrival match and `check_prefetch_progress`.
        self.enable_lmcache = True
        runner = self.tp_worker.model_runner
        linker.reporting = Reporting(self, linker)
        self.tree_cache.linker.whole = why_all_whole(self, linker.pool)
        self.tree_cache.linker.images_whole = hasattr(runner.model, "prepare_attn_masks")
        self.tree_cache.linker.asked_each_round = not self.prefill_decode_interval
        self.tree_cache.chunk_taken = lambda: self.chunked_req is not None
        self.tree_cache.linker.admission.queue = lambda: self.waiting_queue
        self.tree_cache.room_made = lambda: _admit_again(self)
        self.tree_cache.group_ended = self.beam_coordinator.retire_group
        runner.swift_layer_wise = self.tree_cache.linker.layer_wise = LayerWise(self, runner, linker)
        _leave_to_itself_what_is_there()


def _leave_to_itself_what_is_there() -> None:
    """The garbage collector looks through all objects now and then, a million of imports and the model, which takes
    most of a second and stops every thread: the more requests keep, the more often. What is there now stays there."""
    gc.collect()
    gc.freeze()


def _admit_again(scheduler: Any) -> None:
    """SGLang admits nobody to a batch that it once found full before one of its requests has ended: without tiers there
    is no room before."""
    scheduler.running_batch.batch_is_full = False


def around_prefetch(original: Any, self: Any, req: Any, storage_hit_end: Any = None) -> Any:
    """The next turn of a streaming session stands on KV that the session keeps to itself: none of the tree, on which
    the tiers could build. To match it is to borrow that KV, and only who is admitted may do so."""
    session = getattr(self.tree_cache, "session", None)
    if session is not None and session.will_lend_record(req):
        return None
    return original(self, req, storage_hit_end)


def after_abort_output(result: Any, self: Any, abort_req: Any, req: Any) -> None:
    """SGLang ends a request outside of its batches: waiting, refused, or given up at a retraction."""
    sampler = getattr(self.tree_cache, "sampler", None)
    if sampler is not None:
        sampler.request_ended(req)


def after_cached_tokens_details(details: Any, self: Any, req: Any) -> Any:
    """Our tiers by name. SGLang's own word for what lies below host memory stays: its metrics and its OpenAI
    endpoint read that."""
    if details is None or not get_memory().enable_swift_tiers:
        return details
    from .tell.request_facts import RequestFacts

    facts = RequestFacts.of(req)
    tiers = self.tree_cache.linker.cache_linker.stack.table.of
    below = {tier.name: facts.pages(tier.name) * self.tree_cache.page_size for tier in tiers}
    device = max(0, req.cached_tokens - sum(below.values()))
    stored = sum(below[tier.name] for tier in tiers if tier.durable)
    return {"device": device, **below, "storage": stored, "storage_backend": "swift-tiers"}


def after_internal_state(result: Any, self: Any, recv_req: Any) -> Any:
    linker = swift_linker(self.scheduler)
    if linker is not None:
        from swift_tiers.radix_tiering.restore.profiles import ModelIdentity

        from .build.assembly import current_rank
        from .build.hardware import hardware_name

        # Replicas answer in any order: each says which it is, as on the bus.
        snapshot = msgspec.to_builtins(linker.stack.snapshot())
        result.internal_state["swift_tiers"] = {"rank": current_rank().name, **snapshot}
        result.internal_state["swift_tiers_profile"] = {
            "model": msgspec.to_builtins(ModelIdentity.of(linker.stack.namespace)),
            "hardware": hardware_name(),
            "vocabulary": self.scheduler.model_config.vocab_size,
            "context": self.scheduler.model_config.context_len,
        }
    return result


def before_embedding(self: Any, batch: Any) -> None:
    """SGLang has a forward wait for what is loaded for its batch where it generates, but not where it embeds."""
    if get_memory().enable_swift_tiers:
        self.set_hicache_consumer(batch.hicache_consumer_index)


def around_weights_update(original: Any, self: Any, recv_req: Any) -> Any:
    """Whatever the update's outcome: some tensors may have changed even if it failed."""
    linker = swift_linker(self.scheduler)
    if linker is None:
        return original(self, recv_req)
    linker.wait_copies()
    try:
        with linker.still() if getattr(recv_req, "recapture_cuda_graph", False) else nullcontext():
            return original(self, recv_req)
    finally:
        linker.weights_changed(device_emptied=_device_is_empty(self.scheduler))


def around_weight_session(original: Any, self: Any, recv_req: Any) -> Any:
    """An update in several calls, the first of which takes weights apart that are packed. SGLang refuses the others
    outside of a session, and touches nothing then."""
    if self._session is None:
        return original(self, recv_req)
    return around_weights_update(original, self, recv_req)


def around_weight_session_begin(original: Any, self: Any, recv_req: Any) -> Any:
    if self._session is not None:
        return original(self, recv_req)
    return around_weights_update(original, self, recv_req)


def around_weights_check(original: Any, self: Any, recv_req: Any) -> Any:
    """Tests of weight updates have the weights replaced by random ones first."""
    if recv_req.action != "reset_tensors":
        return original(self, recv_req)
    return around_weights_update(original, self, recv_req)


def around_release_memory(original: Any, self: Any, recv_req: Any) -> Any:
    """SGLang unmaps the pool before it empties its tree: no copy may be reading it then. Weights without a copy in host
    memory do not come back by themselves: whatever is computed until they are updated is theirs no more."""
    from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE, GPU_MEMORY_TYPE_WEIGHTS
    from sglang.srt.runtime_context import get_exec

    linker = swift_linker(self.scheduler)
    if linker is None:
        return original(self, recv_req)
    if _loses(GPU_MEMORY_TYPE_KV_CACHE, recv_req.tags):
        linker.stop_offloads()
    if _loses(GPU_MEMORY_TYPE_WEIGHTS, recv_req.tags) and not get_exec().features.enable_weights_cpu_backup:
        return around_weights_update(original, self, recv_req)
    linker.wait_copies()
    return original(self, recv_req)


def _loses(kind: str, tags: Any) -> bool:
    """Whether releasing memory of these tags, or all of it if there are none, takes that of this kind."""
    from sglang.srt.runtime_context import get_exec

    return (not tags or kind in tags) and bool(get_exec().features.enable_memory_saver)


def _device_is_empty(scheduler: Any) -> bool:
    """Whether no KV is on the device: of no prefix in the tree, of no request, of no session."""
    from .pools.kept import attention_allocator

    allocator = attention_allocator(scheduler.token_to_kv_pool_allocator)
    lent = getattr(allocator, "lent_tokens", 0)
    return bool(allocator.available_size() + lent == scheduler.max_total_num_tokens)


def after_session_held_tokens(held: int, self: Any) -> int:
    """What is lent is held by somebody outside of the tree and of all requests, as what sessions hold."""
    lent: int = getattr(self.token_to_kv_pool_allocator, "lent_tokens", 0)
    return held + lent


def after_add_request(result: Any, self: Any, req: Any, is_retracted: bool = False) -> None:
    """SGLang has put a request into its queue, a new one or one that it took out of its batch."""
    linker = swift_linker(self)
    if linker is not None and linker.peer_side is not None:
        linker.peer_side.request_arrived()


def after_add_one_req(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang has tried to admit a request."""
    allocator = self.token_to_kv_pool_allocator
    if getattr(allocator, "lent_tokens", 0):
        from sglang.srt.managers.schedule_policy import AddReqResult

        allocator.refused |= result is AddReqResult.NO_TOKEN


def after_radix_namespace(result: Any, self: Any, req: Any) -> None:
    """Here SGLang has said the last of a request's key. What clients can write into it must not be the key of others'
    KV, whose pages would be taken for theirs for as long as SSDs last.

    SGLang puts numbers beyond the vocabulary in the place of a picture's tokens, by the picture's content, and takes
    any number in `input_ids`: those who send such numbers themselves have keys of their own. So has the turn of a
    session that has the numbers of a former turn's picture, and not the picture: SGLang takes that away with the turn
    which it came with, and computes what there is.

    SGLang appends the id of a request's adapter to its `extra_key`, which is another one each time that the adapter is
    loaded: its content takes the place of that. With an end mark, which no content ends in, no key without an adapter
    is one with.
    """
    linker = swift_linker(self)
    if linker is None:
        return
    if self.enable_lora and req.lora_id is not None:
        loaded, all_reduce = self.tp_worker.model_runner.lora_manager, self.tree_cache._all_reduce_attn_groups
        content = linker.adapters.content(loaded, req.lora_id, all_reduce)
        if content is not None:  # else nobody else will have its id
            before, _, behind = req.extra_key.rpartition(req.lora_id)
            req.extra_key = before + content + behind
    least = self.model_config.vocab_size
    if np.max(np.asarray(req.origin_input_ids_unpadded), initial=0) >= least or _lacks_a_picture(req, least):
        req.extra_key = (req.extra_key or "") + _NO_TOKENS
    if self.enable_lora and req.lora_id is None and req.extra_key is not None:
        req.extra_key += _NO_ADAPTER


def _lacks_a_picture(req: Any, least: int) -> bool:
    """Whether numbers from `least` on stand in its prompt for something that does not come with it."""
    ids = np.asarray(req.origin_input_ids)
    there = ids[ids >= least]
    if not len(there):
        return False
    items = req.multimodal_inputs.mm_items if req.multimodal_inputs is not None else ()
    known = [number for item in items for number in item.padding_values() if number is not None]
    return not np.isin(there, known).all()


def before_session_closes(self: Any, session_id: str) -> None:
    """SGLang takes the pictures of all its requests away, also of those that wait, or are computed: what comes of these
    is not what their keys say."""
    session = self.sessions[session_id]
    if not get_memory().enable_swift_tiers or session.streaming:  # which it closes when they have ended
        return
    for node in session.req_nodes.values():
        if not node.req.finished() and node.req.multimodal_inputs is not None:
            node.req.skip_radix_cache_insert = True


def after_prefill_adder_class(adder: Any, self: Any) -> Any:
    if swift_linker(self) is None:
        return adder
    from sglang.srt.managers.schedule_policy import PrefillAdder

    from .way.restoring import PatientAdder, RestoringAdder

    if adder is not PrefillAdder:  # another plugin's
        return adder
    return PatientAdder if self.chunked_prefill_size is None else RestoringAdder


def around_kv_pool_class(original: Any, self: Any, *, kind: str, default: type) -> Any:
    """On a GPU whose memory is lent, a pool that others can map. (On the CPU it is the platform that says so.)"""
    chosen = original(self, kind=kind, default=default)
    if kind != "mha" or chosen is not default or not _lends_gpu():
        return chosen
    from .pools.shared_pool import device_pool_class

    return device_pool_class(default)


def around_paged_allocator_class(original: Any, self: Any) -> Any:
    """With that pool, an allocator that can lend."""
    chosen = original(self)
    if chosen is not None or not _lends_gpu():
        return chosen
    from .pools.lending_allocator import PagedLendingAllocator

    return PagedLendingAllocator


def after_pool_allocator(allocator: Any, self: Any, **_: Any) -> Any:
    """The same for pages of one token, on every device: no platform is asked for their allocator."""
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    from .platform.cpu_platform import donor_config

    if type(allocator) is not TokenToKVPoolAllocator or donor_config() is None:
        return allocator
    from .pools.lending_allocator import TokenLendingAllocator

    return TokenLendingAllocator(
        allocator.size, allocator.dtype, allocator.device, allocator.get_kvcache(), allocator.need_sort
    )


def _lends_gpu() -> bool:
    from sglang.srt.platforms import current_platform

    from .platform.cpu_platform import donor_config

    return current_platform.is_cuda() and donor_config() is not None


def around_forward(original: Any, self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """One forward: of a restore that is computed layer by layer as far as it has to be, of all others as ever."""
    layer_wise = getattr(self, "swift_layer_wise", None)
    if layer_wise is None or not layer_wise.expects(forward_batch):
        return original(self, forward_batch, *args, **kwargs)
    return layer_wise.forward(original, forward_batch)


def around_recapture(original: Any, self: Any) -> Any:
    """SGLang captures its CUDA graphs anew, as its ranks have become others."""
    layer_wise = getattr(self, "swift_layer_wise", None)
    if layer_wise is None:
        return original(self)
    layer_wise.linker.wait_copies()
    with layer_wise.linker.still():
        return original(self)


def before_model_architecture(model_config: Any) -> None:
    """SGLang looks for the class of a model. Ours are made known only when one is wanted: that imports SGLang's own."""
    from .models import is_swiftkv

    if is_swiftkv(model_config.hf_config):
        from sglang.srt.models.registry import ModelRegistry

        ModelRegistry.register("swift_tiers.sglang_ext.models.served", overwrite=True, strict=True)


def around_send_chunk(original: Any, self: Any, req: Any, last_chunk: bool = False, end_idx: Any = None) -> Any:
    """SGLang sends what a chunk is said to have, in each round in which none is computed, too: while pages of it are
    copied to the device they are not sent. The next one takes them along."""
    if not last_chunk and swift_linker(self) is not None and self.tree_cache.linker.is_copied_ahead(req):
        return None
    return original(self, req, last_chunk=last_chunk, end_idx=end_idx)


def after_requeue(result: Any, self: Any, req: Any) -> None:
    """A prompt was computed before it was known for which server that decodes, and is to be once more: it waits again,
    and its prefix is anybody's to evict."""
    if swift_linker(self) is not None:
        self._prefetch_kvcache(req)


def after_batch_result(result: Any, self: Any, batch: Any, *args: Any) -> None:
    """SGLang has a batch's result: what a forward takes is known from those with one prompt."""
    linker = swift_linker(self)
    if linker is not None:
        linker.forward_ended(batch)


def swift_linker(scheduler: Any) -> Any:
    """The `SwiftLinker` of a scheduler, or None."""
    wrapper = getattr(scheduler.tree_cache, "linker", None)
    linker = getattr(wrapper, "cache_linker", None)
    return linker if hasattr(linker, "stack") else None
