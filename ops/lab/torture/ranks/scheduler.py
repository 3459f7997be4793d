"""SGLang's real `Scheduler` in one process, driven step by step, with its strict memory checks on.

No HTTP, no tokenizer, no detokenizer: requests are put into the scheduler's queue and their token ids read back. One
scheduler per process: SGLang publishes its configuration once.
"""

from __future__ import annotations

import os
import time
import uuid
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

os.environ.setdefault("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "1")
os.environ.setdefault("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE", "1")
os.environ.setdefault("SGLANG_CHECK_KV_PAGE_INVARIANTS", "1")

#: A guard against hanging, not a measure: of what threads have to do, and of all that requests have to do.
PATIENCE, RUN_SECONDS = 60.0, 270.0


class StepScheduler:
    """One scheduler, one step at a time; of several ranks, which take the same steps, one."""

    def __init__(self, arguments: list[str], rank: int = 0, resolved: Callable[[], object] = lambda: None) -> None:
        """`resolved`: called when its arguments are, and nothing is opened yet: a server resolves them once for all
        of its ranks, and finds devices that nobody holds."""
        import sglang.srt.managers.scheduler as module
        from sglang.srt.plugins import load_plugins

        load_plugins()  # after the scheduler's module: our scheduler hooks go only where it is loaded
        from sglang.srt.server_args import PortArgs, prepare_server_args

        server_args = prepare_server_args(
            ["--device", "cpu", "--log-level", "error", "--skip-server-warmup", *arguments]
        )
        server_args.resolve_once()
        resolved()
        ports = PortArgs.init_new(server_args)
        ranks = module.SpawnRanks(
            world_rank=module.spawn_world_rank(server_args, tp_rank=rank, pp_rank=0), dp_rank=None, gpu_id=rank
        )
        module.publish(server_args, role="scheduler", ranks=ranks)
        self.scheduler = module.Scheduler(server_args, ports)
        self.scheduler.result_queue = deque()
        self.scheduler.enable_skip_finishing_decode = True  # as its own event loops set it
        self.scheduler.maybe_sleep_on_idle = lambda: None

    @property
    def linker(self) -> Any:
        return self.scheduler.tree_cache.linker.cache_linker

    @property
    def cache(self) -> Any:
        return self.scheduler.tree_cache

    def add(
        self,
        token_ids: list[int],
        max_new_tokens: int = 4,
        rid: str | None = None,
        beam_width: int | None = None,
        **fields: Any,
    ) -> Any:
        """Queue a request; returns SGLang's `Req`."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(temperature=0, max_new_tokens=max_new_tokens, ignore_eos=True, beam_width=beam_width)
        sampling.normalize(None)
        rid = rid or uuid.uuid4().hex
        request = TokenizedGenerateReqInput(
            rid=rid,
            input_text=None,
            input_ids=array("q", token_ids),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            **{
                "return_logprob": False,
                "logprob_start_len": -1,
                "top_logprobs_num": 0,
                "token_ids_logprob": None,
                "stream": False,
                **fields,
            },
        )
        request.time_stats = APIServerReqTimeStats()
        self.scheduler.process_input_requests([request])
        return next((req for req in self.scheduler.waiting_queue if req.rid == rid), None)

    def step(self) -> Any:
        """One turn of the scheduler's loop; the batch it ran, or None."""
        import torch

        scheduler = self.scheduler
        with torch.no_grad():
            plan = scheduler.get_next_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch = plan.running_batch
            batch = plan.batch_to_run
            scheduler.cur_batch_for_debug = batch
            if batch:
                result = scheduler.run_batch(batch)
                scheduler.process_batch_result(batch, result)
            else:
                scheduler.on_idle()
            scheduler.last_batch = batch
            scheduler.invariant_checker.self_check_during_busy()
        return batch

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until every request is done (or `until` holds)."""
        limit = time.monotonic() + RUN_SECONDS  # not so many steps: how many pass while pages come up says nothing
        while time.monotonic() < limit:
            batch = self.step()
            scheduler = self.scheduler
            if until is not None and until():
                return
            if until is None and batch is None and not scheduler.waiting_queue and scheduler.chunked_req is None:
                return
        raise AssertionError(f"not done after {RUN_SECONDS:g} s")

    def generate(self, token_ids: list[int], max_new_tokens: int = 4, **fields: Any) -> list[int]:
        """The output token ids of one request."""
        req = self.add(token_ids, max_new_tokens, **fields)
        self.run()
        return list(req.output_ids)

    def settle(self) -> None:
        """Wait until nothing moves that requests have left behind: their pages are in host memory and on ssd, and hold
        no room there by being copied or by having been restored."""
        assert self.linker.wait_offloads(PATIENCE)
        assert self.linker.stack.wait_written(PATIENCE)
        self.linker.stack.restorer.wait_idle()

    def await_restores(self) -> None:
        """Wait, without a step, until no page is on its way up to a request that waits any more."""
        limit = time.monotonic() + PATIENCE
        while any(one.restore is not None and one.restore.ended is None for one in self.linker.requests.values()):
            assert time.monotonic() < limit, "restores do not end"
            time.sleep(0.001)

    def empty_memory(self) -> None:
        """From now on pages are on ssd alone, where `policy.flush_cache` is "host"."""
        self.run()
        self.settle()
        assert self.scheduler.flush_cache()
        self.linker.stack.restorer.wait_idle()
        assert self.linker.stack.errands.wait_idle(PATIENCE)

    def empty_device(self) -> None:
        """From now on pages are below the device alone. No request may be there."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.settle()
        self.step()  # SGLang hears of it, and unlocks what it has locked for being copied out
        self.cache.evict(EvictParams(num_tokens=self.scheduler.max_total_num_tokens))

    def on_device(self, token_ids: list[int]) -> int:
        """Tokens from the start that the device has now, without looking any further."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return int(self.cache._match_tree(MatchPrefixParams(key=RadixKey(array("q", token_ids)))).device_prefix_len)

    def details(self, req: Any) -> dict[str, int]:
        """`cached_tokens_details` as in the response, without SGLang's own words for the same."""
        details = dict(self.scheduler.output_streamer.get_cached_tokens_details(req) or {})
        if details:
            assert details.pop("storage") == details.get("ssd", 0)
            assert details.pop("storage_backend") == "swift-tiers"
        return details
