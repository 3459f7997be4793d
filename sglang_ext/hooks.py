"""Every place where swift-tiers reaches into SGLang beyond the linker interface: one table, checked at start."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from swift_tiers.radix_tiering.base.errors import SwiftTiersError

from .hook_functions import (
    after_abort_output,
    after_add_one_req,
    after_add_request,
    after_batch_result,
    after_cached_tokens_details,
    after_internal_state,
    after_pool_allocator,
    after_prefill_adder_class,
    after_radix_namespace,
    after_requeue,
    after_scheduler_init,
    after_session_held_tokens,
    around_create_cache,
    around_forward,
    around_kv_pool_class,
    around_paged_allocator_class,
    around_prefetch,
    around_recapture,
    around_release_memory,
    around_send_chunk,
    around_weight_session,
    around_weight_session_begin,
    around_weights_check,
    around_weights_update,
    before_embedding,
    before_model_architecture,
    before_scheduler_init,
    before_session_closes,
)
from .overrides import Override, overrides

_SCHEDULER = "sglang.srt.managers.scheduler"
_COMPONENTS = "sglang.srt.managers.scheduler_components"
#: Why whatever changes weights is hooked.
_WEIGHTS = "pages of the weights before must never be found again"


class HookMismatchError(SwiftTiersError):
    """SGLang is not as this version of swift-tiers knows it."""


class Hook(NamedTuple):
    """One reach into SGLang."""

    target: str  # dotted path
    kind: HookType
    function: Callable[..., Any]
    parameters: tuple[str, ...]  # of the target, as they must be
    reason: str


def scheduler_hooks() -> tuple[Hook, ...]:
    """Every reach into the scheduler's process, as it is applied and as `swift-tiers doctor` checks it."""
    from .build.assembly import TREE_FACTORY
    from .build.page_hash import around_native_hash
    from .tell.orders import after_pull, after_split

    return (
        Hook(
            TREE_FACTORY,
            HookType.AROUND,
            around_create_cache,
            ("ctx", "cache_class"),
            "give the tree its tiers: a subclass, as SGLang does for LMCache, has no flag of its own",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler.__init__",
            HookType.BEFORE,
            before_scheduler_init,
            ("self", "server_args", "port_args"),
            "know what the model is loaded from before it is: files that change meanwhile have no name",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler.__init__",
            HookType.AFTER,
            after_scheduler_init,
            ("self", "server_args", "port_args"),
            "let requests wait for a slow tier without blocking others: offered only to SGLang's own storage tiers",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler._prefetch_kvcache",
            HookType.AROUND,
            around_prefetch,
            ("self", "req", "storage_hit_end"),
            "leave streaming sessions alone: SGLang has them with none of its own storage tiers",
        ),
        Hook(
            f"{_COMPONENTS}.request_receiver.SchedulerRequestReceiver._pull_raw_reqs",
            HookType.AFTER,
            after_pull,
            ("self",),
            "let operators' commands reach all ranks in the same step: only requests do, by this way",
        ),
        Hook(
            f"{_COMPONENTS}.request_receiver.SchedulerRequestReceiver._split_work_and_control_reqs",
            HookType.AFTER,
            after_split,
            ("self", "recv_reqs"),
            "let operators' commands reach the ranks of their group with data-parallel attention",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler.send_abort_output",
            HookType.AFTER,
            after_abort_output,
            ("self", "abort_req", "req"),
            "know the end of requests that have no KV to release",
        ),
        Hook(
            f"{_COMPONENTS}.output_streamer.SchedulerOutputStreamer.get_cached_tokens_details",
            HookType.AFTER,
            after_cached_tokens_details,
            ("self", "req"),
            "name the tier that served: SGLang knows device, host and storage",
        ),
        Hook(
            f"{_COMPONENTS}.internal_state.SchedulerInternalStateController.get_internal_state",
            HookType.AFTER,
            after_internal_state,
            ("self", "recv_req"),
            "show the tiers' counters in /server_info",
        ),
        Hook(
            "sglang.srt.mem_cache.cpp_utils.native_hash.get_native_hash",
            HookType.AROUND,
            around_native_hash,
            ("token_ids", "prior_digest", "page_size"),
            "hash pages where there is no compiler",
        ),
        *(
            Hook(
                f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager.{method}",
                HookType.AROUND,
                function,
                ("self", "recv_req"),
                reason,
            )
            for method, function, reason in (
                ("update_weights_from_disk", around_weights_update, _WEIGHTS),
                ("update_weights_from_ipc", around_weights_update, _WEIGHTS),
                ("begin_weight_update", around_weight_session_begin, _WEIGHTS),
                ("update_weights_from_distributed", around_weight_session, _WEIGHTS),
                ("update_weights_from_tensor", around_weight_session, _WEIGHTS),
                ("end_weight_update", around_weight_session, _WEIGHTS),
                ("check_weights", around_weights_check, _WEIGHTS),
                (
                    "release_memory_occupation",
                    around_release_memory,
                    f"let copies out of the pool end before its memory goes; {_WEIGHTS}",
                ),
            )
        ),
        Hook(
            "sglang.srt.managers.tp_worker.BaseTpWorker.forward_batch_embedding",
            HookType.BEFORE,
            before_embedding,
            ("self", "batch"),
            "have an embedding wait for the prefix that it is computed over, as SGLang has generation",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler._maybe_namespace_elastic_radix_cache",
            HookType.AFTER,
            after_radix_namespace,
            ("self", "req"),
            "keep keys that clients write apart from those of adapters and pictures: SGLang has said the last of a key",
        ),
        Hook(
            "sglang.srt.session.session_controller.SessionController._close",
            HookType.BEFORE,
            before_session_closes,
            ("self", "session_id"),
            "keep nothing of a request whose pictures are taken away while it waits or runs",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler.get_prefill_adder_class",
            HookType.AFTER,
            after_prefill_adder_class,
            ("self",),
            "cut chunks where pages have arrived: SGLang's own seam for another choice of what runs next",
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",
            HookType.AROUND,
            around_send_chunk,
            ("self", "req", "last_chunk", "end_idx"),
            "send nothing to a server that decodes before it has been copied to the device",
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.optimistic_release_and_requeue",
            HookType.AFTER,
            after_requeue,
            ("self", "req"),
            "look again for what the device may have lost by its next attempt: SGLang asks its own storage tiers then",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler.process_batch_result",
            HookType.AFTER,
            after_batch_result,
            ("self", "batch", "result"),
            "learn what recomputing costs here",
        ),
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner._recapture_elastic_cuda_graphs",
            HookType.AROUND,
            around_recapture,
            ("self",),
            "leave the device alone while graphs are captured anew for ranks that have joined",
        ),
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner._forward_raw",
            HookType.AROUND,
            around_forward,
            ("self", "forward_batch", "pp_proxy_tensors", "reinit_attn_backend", "split_forward_count"),
            "end a chunk's forward where its upper layers have been loaded: SGLang splits one for PD multiplexing only",
        ),
        Hook(
            "sglang.srt.model_loader.utils.get_model_architecture",
            HookType.BEFORE,
            before_model_architecture,
            ("model_config",),
            "make SwiftKV models known: SGLang's own variable for others' models has room for one package",
        ),
        *donor_hooks(),
    )


def donor_hooks() -> tuple[Hook, ...]:
    """Those of `scheduler_hooks` without which nothing could be lent."""
    return (
        Hook(
            f"{_COMPONENTS}.pool_stats_observer.SchedulerPoolStatsObserver.session_held_tokens",
            HookType.AFTER,
            after_session_held_tokens,
            ("self",),
            "let SGLang's own leak checks pass: what is lent is neither free nor in its tree",
        ),
        Hook(
            f"{_SCHEDULER}.Scheduler._add_request_to_queue",
            HookType.AFTER,
            after_add_request,
            ("self", "req", "is_retracted"),
            "take memory back when a request arrives: SGLang would let one that does not fit wait for ever",
        ),
        Hook(
            "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
            HookType.AFTER,
            after_add_one_req,
            ("self", "req", "has_chunked_req", "truncation_align_size"),
            "take memory back when SGLang finds no room for a request, whatever we have reckoned",
        ),
        Hook(
            "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._resolve_kv_pool_class",
            HookType.AROUND,
            around_kv_pool_class,
            ("self", "kind", "default"),
            "lend memory of a GPU: a platform may choose the pool, but one of ours for CUDA would replace SGLang's own",
        ),
        Hook(
            "sglang.srt.platforms.interface.SRTPlatform.get_paged_allocator_cls",
            HookType.AROUND,
            around_paged_allocator_class,
            ("self",),
            "lend memory of a GPU: SGLang's own platform for CUDA has no allocator to offer",
        ),
        Hook(
            "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_token_to_kv_pool_allocator",
            HookType.AFTER,
            after_pool_allocator,
            ("self", "sizes", "token_to_kv_pool", "is_dsv4_model", "req_to_token_pool", "token_to_kv_pool_allocator"),
            "lend pages of one token: SGLang asks no platform for their allocator",
        ),
    )


def check_hook(hook: Hook | Override) -> None:
    """Raise HookMismatchError if the target is not there or takes other parameters than expected."""
    try:
        target = pkgutil.resolve_name(hook.target)
        if hook.parameters is None:
            return
        parameters = tuple(inspect.signature(target).parameters)
    except (AttributeError, ImportError, ValueError) as error:
        raise HookMismatchError(_mismatch(hook, f"is missing ({error})")) from None
    if parameters != hook.parameters:
        raise HookMismatchError(
            _mismatch(hook, f"takes ({', '.join(parameters)}), expected ({', '.join(hook.parameters)})")
        )


def install_scheduler_hooks() -> None:
    """Check every hook, then register and apply all. Only in a process that has loaded the scheduler."""
    if _SCHEDULER in sys.modules:
        hooks = scheduler_hooks()
        targets: list[Hook | Override] = [*hooks, *overrides()]
        for target in targets:
            check_hook(target)
        apply_hooks(hooks)


def apply_hooks(hooks: Iterable[Hook]) -> None:
    hooks = tuple(hooks)
    for hook in hooks:
        HookRegistry.register(hook.target, hook.function, hook.kind)
    HookRegistry.apply_hooks()
    # SGLang only logs a hook that it could not apply.
    failed = [hook for hook in hooks if hook.target not in HookRegistry._patched]
    if failed:
        raise HookMismatchError(_mismatch(failed[0], "cannot be hooked"))


def _mismatch(hook: Hook | Override, problem: str) -> str:
    from importlib.metadata import version

    return (
        f"{hook.target} {problem}: SGLang {version('sglang')} is not the release that this version of swift-tiers "
        "supports; install the pinned one, or start without --enable-swift-tiers"
    )
