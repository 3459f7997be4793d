"""LoRA adapters, and SGLang's serving of them where there is no CUDA. For tests of what lies around them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig


def without_pinning() -> None:
    """What adapters need is asked for in pinned memory, which PyTorch gives where there is CUDA only. To be called in
    each of a server's processes."""

    def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(make)
        def made(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            return make(*arguments, **options)

        return made

    for name in ("tensor", "empty", "zeros", "arange"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor: tensor  # type: ignore[method-assign]


#: What each process of a server with adapters calls first.
WITHOUT_CUDA = f"{__name__}.without_pinning"
#: Of a server that serves adapters, with tiers or without.
WITH_ADAPTERS = {"--lora-backend": "torch_native", "--max-loras-per-batch": "3"}


def write_adapter(directory: Path, model: Path, *, seed: int, rank: int = 8) -> Path:
    """Writes a LoRA of a model's q, k and v as PEFT does, one that changes every answer. Returns its directory."""
    config = AutoConfig.from_pretrained(model)
    draw = torch.Generator().manual_seed(seed)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    heads["v_proj"] = heads["k_proj"]
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, of_heads in heads.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = 0.2 * torch.randn(rank, config.hidden_size, generator=draw)
            weights[f"{place}.lora_B.weight"] = 0.2 * torch.randn(of_heads * config.head_dim, rank, generator=draw)
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "target_modules": list(heads), "base_model_name_or_path": str(model),
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(described))
    return directory


def named(adapters: Sequence[Path]) -> list[str]:
    """SGLang's arguments for them, each under the name of its directory."""
    return ["--lora-paths", *(f"{path.name}={path}" for path in adapters)] if adapters else []
