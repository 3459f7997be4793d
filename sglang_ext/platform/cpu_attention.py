"""Makes the attention backend `swift_cpu` known to SGLang. Light: its module is imported when one is built.

SGLang's `torch_native` backend computes attention for the whole sequence even when a single token is new, so on a CPU
a cached prefix saves little time, and a prompt in chunks costs as much as many prompts. `swift_cpu` computes the new
tokens only.
"""

import sys
from typing import Any

NAME = "swift_cpu"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"


def register(import_registry: bool = False) -> None:
    """Adds the backend to the choices of `--attention-backend` and to SGLang's registry. May be called again.

    :param import_registry: import SGLang's registry (it draws in half of the server) where it is not loaded yet.
        Without it, a process that never builds a model, such as the HTTP server or the detokenizer, pays nothing.
    """
    from sglang.srt.arg_groups import choices

    if NAME not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([NAME])
    if import_registry or _REGISTRY in sys.modules:
        from sglang.srt.layers.attention.attention_registry import register_attention_backend

        register_attention_backend(NAME)(_create)


def _create(model_runner: Any) -> Any:
    """The backend for one model runner.

    :raises ValueError: on a device other than the CPU.
    """
    if str(model_runner.device) != "cpu":
        raise ValueError(f"--attention-backend {NAME} is for --device cpu, not {model_runner.device}")
    from .cpu_attention_backend import CpuAttentionBackend

    if model_runner.use_mla_backend:
        _attend_to_latent_rows()
    return CpuAttentionBackend(model_runner)


def _attend_to_latent_rows() -> None:
    """Multi-head latent attention (MLA): every forward attends to the latent rows, which the pool holds.

    SGLang's models choose for each backend how they compute. For one that they do not know they take Triton's way, in
    which a prompt without a prefix hands keys and values of all heads to the backend.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    AttentionBackendRegistry.register(NAME, lambda attention, forward_batch: AttnForwardMethod.MLA)
