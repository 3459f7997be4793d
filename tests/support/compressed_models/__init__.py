"""A package of models for SGLang, as `SGLANG_EXTERNAL_MODEL_PACKAGE` names one; and what it needs on a CPU."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """What SGLang does with such a package, where it is imported already; to be called before the scheduler is made."""
    import torch
    import torch._dynamo
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.models.registry import ModelRegistry, import_model_classes

    torch._dynamo.config.disable = True  # there may be no compiler
    ModelRegistry.models.update(import_model_classes(__name__))
    # SGLang asks a platform of others for none of these pools. Nothing in them needs a GPU but kernels.
    kv_cache_configurator.reject_out_of_tree_path = lambda *_, **__: None

    class Nothing(AttentionBackend):
        """The model computes its attention itself."""

        def __init__(self, runner: Any) -> None:
            super().__init__()
            self.token_to_kv_pool, self.req_to_token_pool = runner.token_to_kv_pool, runner.req_to_token_pool

        def init_forward_metadata(self, *_: object, **__: object) -> None: ...

    ATTENTION_BACKENDS["dsv4"] = Nothing


def draft() -> None:
    """Before `register`: a layer more predicts further tokens."""
    from support import speculating_on_cpu

    speculating_on_cpu.install_beside_attention()
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    def backend(runner: Any, *_: int) -> Any:
        return ATTENTION_BACKENDS["dsv4"](runner)

    speculating_on_cpu.draft_with(backend, backend)
