"""SGLang's speculative decoding on the portable CPU platform, which has no kernels for it, so that tests see what lies
around it.

SGLang's Triton kernels, those that it has for Intel GPUs, run in Triton's interpreter (`ENVIRONMENT`); attention of
several drafts is what stands in for the kernels of GPUs.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

ENVIRONMENT = {"TRITON_INTERPRET": "1"}


def take_triton_kernels() -> None:
    """To be called before SGLang's speculative workers are imported."""
    for name in ("spec_tree", "cache_locs", "reconstruct_tree"):
        importlib.import_module("sglang.srt.utils")
        with mock.patch("sglang.srt.utils.is_xpu", return_value=True):
            module: Any = importlib.import_module(f"sglang.kernels.ops.speculative.{name}")
        assert module._is_xpu, f"{name} had been imported before"


def attend_from_drafts() -> None:
    """Drafts of one chain see what is before them and each other as new tokens of a prompt do."""
    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    forward = CpuAttentionBackend.forward_extend

    def forward_extend(self, q, k, v, layer, batch, save_kv_cache=True):
        return forward(self, q, k, v, layer, _as_extend(batch), save_kv_cache)

    CpuAttentionBackend.forward_extend = forward_extend


def _as_extend(batch: Any) -> Any:
    if not batch.forward_mode.is_target_verify():
        return batch

    def make() -> Any:
        chain, drafts = copy.copy(batch), batch.spec_info.draft_token_num
        chain.extend_prefix_lens = batch.seq_lens
        chain.extend_seq_lens = torch.full_like(batch.seq_lens, drafts)
        chain.seq_lens = batch.seq_lens + drafts
        return chain

    return _once(batch, "chain", make)


def _once(batch: Any, name: str, make: Callable[[], Any]) -> Any:
    """What is made of a batch for all of its layers."""
    if getattr(batch, name, None) is None:
        setattr(batch, name, make())
    return getattr(batch, name)


# ---- drafts by a model ----

#: What has been drafted, of each batch and request: the tokens.
drafted: list[list[int]] = []
STEPS = 3
#: Of a server: chains of so many drafts.
ARGUMENTS = [
    "--speculative-num-steps", str(STEPS), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens",
    str(STEPS + 1),
]  # fmt: skip


def draft_for(s: Any, question: list[int], tokens: int) -> tuple[list[int], list[list[int]], dict[str, int]]:
    """In the scheduler's process: the first `tokens` of the answer, what was drafted for it, and where its prefix came
    from."""
    drafted.clear()
    req = s.add(question, tokens)
    s.run()
    return list(req.output_ids)[:tokens], list(drafted), s.details(req)


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    install_beside_attention()
    attend_from_drafts()
    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    class DraftingBackend(CpuAttentionBackend):
        """Of one step: a request's draft attends to as many drafts before it."""

        def __init__(self, runner: Any, before: int) -> None:
            super().__init__(runner)
            self._before = before

        def forward_decode(self, q, k, v, layer, batch, save_kv_cache=True, **more):
            def make() -> Any:
                step = copy.copy(batch)
                step.seq_lens = batch.seq_lens + self._before + 1
                return step

            step = _once(batch, f"step_{self._before}", make)
            return super().forward_decode(q, k, v, layer, step, save_kv_cache, **more)

    draft_with(DraftingBackend, CpuAttentionBackend)


def draft_with(step: Callable[[Any, int], Any], extend: Callable[[Any], Any]) -> None:
    """Backends of models that draft. `step`: of the runner, and of one of the steps after the first one, which is a
    part of the forward before; `extend`: of the runner, of rows for what has been verified."""
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    class DraftingBackends:
        def __init__(self, runner: Any, steps: int) -> None:
            self.attn_backends = [step(runner, before) for before in range(steps - 1)]

        def init_forward_metadata(self, batch: Any) -> None:
            for backend in self.attn_backends:
                backend.init_forward_metadata(batch)

    DraftBackendFactory.create_decode_backend = lambda self: DraftingBackends(
        self.draft_model_runner, self.speculative_num_steps
    )
    DraftBackendFactory.create_draft_extend_backend = lambda self: extend(self.draft_model_runner)


def install_beside_attention() -> None:
    """... with an attention backend of SGLang's own, whose kernels are interpreted, too: it knows trees of drafts."""
    import torch._dynamo

    torch._dynamo.config.disable = True  # there may be no compiler
    torch.cuda.synchronize = lambda device=None: None  # DeepSeek's models ask, whatever they are on
    take_triton_kernels()
    import sglang.srt.speculative.eagle_worker_v2 as worker

    from swift_tiers.sglang_ext.platform.cpu_platform import PortableCpuPlatform

    build = worker.build_eagle_verify_input

    def recorded(batch, draft_input, parents, scores, draft_tokens, *more, **named):
        if draft_tokens is not None:  # there are none of a batch without requests, beside others
            drafted.extend(draft_tokens.tolist())
        return build(batch, draft_input, parents, scores, draft_tokens, *more, **named)

    worker.build_eagle_verify_input = recorded
    PortableCpuPlatform.supports_speculative_algorithm = lambda self, algorithm: True  # type: ignore[method-assign]
