"""Tiny SwiftKV models with random weights, in the names of the published checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swift_tiers.ops.base.model import write_random_model

CONTEXT, VOCABULARY, HIDDEN, HEAD_DIM, LAYERS = 8192, 512, 64, 16, 8
FAMILIES = ("llama", "qwen2", "qwen3")


def tiny_swiftkv(
    directory: Path,
    family: str = "llama",
    *,
    first: int = 4,
    group: int = 1,
    base: bool = False,
    seed: int = 0,
    exits: float | None = None,
) -> Path:
    """A model of eight layers of which `first` have KV of their own, `group` later ones sharing one; `base`: the same
    one, not rewired; `exits`: how sure it has to be for an early exit."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]

    def build(**special_ids: int) -> Any:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=HEAD_DIM,
            max_position_embeddings=CONTEXT,
            initializer_range=0.2,
            tie_word_embeddings=family == "qwen2",
            **special_ids,
        )
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "norm" in key or key.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    if base:
        return directory
    place = directory / "model.safetensors"
    weights = load_file(place)
    generator = torch.Generator().manual_seed(seed + 1)

    def near(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 0.1 * torch.randn(tensor.shape, generator=generator)

    weights["model.norm_swiftkv.weight"] = near(torch.ones(HIDDEN))
    for layer in range(first, LAYERS):
        parts = "qkv" if (layer - first) % group == 0 else "q"
        for part in parts:
            for kind in (f"{part}_proj.weight", f"{part}_proj.bias", f"{part}_norm.weight"):
                old = f"model.layers.{layer}.self_attn.{kind}"
                if old in weights:
                    new = old.replace("_proj.", "_proj_swiftkv.").replace("_norm.", "_norm_swiftkv.")
                    weights[new] = near(weights[old])
    if exits is not None:
        weights["exit_head_swiftkv.weight"] = 0.7 * torch.randn(VOCABULARY, HIDDEN, generator=generator)
    save_file(weights, place, metadata={"format": "pt"})
    configuration = json.loads((directory / "config.json").read_text())
    configuration |= {
        "architectures": [f"{name}SwiftKVForCausalLM"],
        "model_type": f"{family}_swiftkv",
        "swiftkv": True,
        "num_key_value_layers": first,
        "key_value_group_size": group,
        "swiftkv_exit_head": exits is not None,
        "swiftkv_exit_threshold": exits,
    }
    (directory / "config.json").write_text(json.dumps(configuration, indent=1))
    return directory


def taught_to_read(directory: Path, steps: int) -> Path:
    """A Llama of four layers that has been trained on windows of Python's manual, but not on what `swiftkv eval` keeps.

    Its weights begin large, so that soon every layer's keys and values have a say in what it answers."""
    import argparse

    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    from swift_tiers.ops.commands.swiftkv.text import windows_of

    def build(**special_ids: int) -> Any:
        config = LlamaConfig(
            vocab_size=260,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=HEAD_DIM,
            initializer_range=0.2,
            **special_ids,
        )
        return LlamaForCausalLM(config)

    write_random_model(directory, build)
    windows = windows_of(argparse.Namespace(text=None, length=64), directory).read
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        batch = windows[torch.randint(len(windows), (8,), generator=generator)]
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    return directory


#: Of Llama 3.1, as its published configurations have it.
ROPE_SCALING = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip


def as_published(directory: Path) -> Path:
    """A Llama as `Snowflake/Llama-3.1-SwiftKV-8B-Instruct` is: fields of its configuration in the form of that time,
    weights in several files with an index, and of the later layers no projections but those of SwiftKV."""
    from safetensors.torch import load_file, save_file

    place = directory / "config.json"
    config = json.loads(place.read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    dtype = config.pop("dtype", "float32")
    for ours in ("swiftkv_exit_head", "swiftkv_exit_threshold"):
        config.pop(ours)
    place.write_text(
        json.dumps({**config, "rope_theta": theta, "rope_scaling": ROPE_SCALING, "torch_dtype": dtype}, indent=1)
    )
    first, whole = config["num_key_value_layers"], directory / "model.safetensors"
    old = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(first, LAYERS) for part in "qkv"]
    weights = {name: tensor for name, tensor in load_file(whole).items() if name not in old}
    whole.unlink()
    names, places = sorted(weights), {}
    for number in range(3):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        part = names[number * len(names) // 3 : (number + 1) * len(names) // 3]
        save_file({name: weights[name] for name in part}, directory / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


class Reference:
    """A SwiftKV model in plain torch, float32, without any cache: every token goes through every layer, and shares no
    code with what is served, distilled or converted."""

    def __init__(self, directory: Path, *, stored_as: Any = None) -> None:
        """`stored_as`: the dtype that keys and values are rounded to, as a pool of 8 bits without scales does."""
        from safetensors.torch import load_file

        self._stored_as = stored_as
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = {
            name: tensor.float()
            for file in sorted(directory.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }

    def logits(self, token_ids: list[int], *, exits: bool = True) -> Any:
        """`[tokens, vocabulary]`. Not `exits`: no token leaves early, as within a prompt."""
        import torch

        config, weights = self.config, self.weights
        first, group = (
            config.get("num_key_value_layers", config["num_hidden_layers"]),
            config.get("key_value_group_size"),
        )
        hidden = weights["model.embed_tokens.weight"][torch.tensor(token_ids)]
        shared: dict[int, Any] = {}
        for layer in range(config["num_hidden_layers"]):
            if layer == first:
                stopped = self._norm(hidden, "model.norm_swiftkv")
                for later in range(first, config["num_hidden_layers"]):
                    if (later - first) % group == 0:
                        shared[later] = (
                            self._key(stopped, later, "_swiftkv"),
                            self._heads(stopped, later, "v", "_swiftkv"),
                        )
                    else:
                        shared[later] = shared[later - 1]
            place = f"model.layers.{layer}"
            read = self._norm(hidden, f"{place}.input_layernorm")
            suffix = "_swiftkv" if layer >= first else ""
            query = self._rotate(self._head_norm(self._heads(read, layer, "q", suffix), layer, "q", suffix))
            key, value = shared[layer] if suffix else (self._key(read, layer, ""), self._heads(read, layer, "v", ""))
            seen = self._attend(query, self._stored(key), self._stored(value))
            hidden = hidden + seen @ weights[f"{place}.self_attn.o_proj.weight"].T
            read = self._norm(hidden, f"{place}.post_attention_layernorm")
            gate = torch.nn.functional.silu(read @ weights[f"{place}.mlp.gate_proj.weight"].T)
            up = read @ weights[f"{place}.mlp.up_proj.weight"].T
            hidden = hidden + (gate * up) @ weights[f"{place}.mlp.down_proj.weight"].T
        head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
        logits = self._norm(hidden, "model.norm") @ weights[f"{head}.weight"].T
        if config.get("swiftkv_exit_threshold") is None or not exits:
            return logits
        early = stopped @ weights["exit_head_swiftkv.weight"].T
        sure = early.softmax(-1).amax(-1, keepdim=True) > config["swiftkv_exit_threshold"]
        return torch.where(sure, early, logits)

    def logprobs(self, token_ids: list[int], *, exits: bool = True) -> Any:
        return self.logits(token_ids, exits=exits).log_softmax(-1)

    def _key(self, read: Any, layer: int, suffix: str) -> Any:
        return self._rotate(self._head_norm(self._heads(read, layer, "k", suffix), layer, "k", suffix))

    def _stored(self, heads: Any) -> Any:
        return heads if self._stored_as is None else heads.to(self._stored_as).float()

    def _heads(self, read: Any, layer: int, part: str, suffix: str) -> Any:
        name = f"model.layers.{layer}.self_attn.{part}_proj{suffix}"
        found = read @ self.weights[f"{name}.weight"].T
        if f"{name}.bias" in self.weights:
            found = found + self.weights[f"{name}.bias"]
        return found.view(len(read), -1, HEAD_DIM)

    def _head_norm(self, heads: Any, layer: int, part: str, suffix: str) -> Any:
        name = f"model.layers.{layer}.self_attn.{part}_norm{suffix}"
        return self._norm(heads, name) if f"{name}.weight" in self.weights else heads

    def _norm(self, rows: Any, name: str) -> Any:
        import torch

        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return rows * scale * self.weights[f"{name}.weight"]

    def _rotate(self, heads: Any) -> Any:
        import torch

        half = heads.shape[-1] // 2
        rope = self.config.get("rope_parameters") or self.config
        turns = rope["rope_theta"] ** (-torch.arange(half).float() / half)
        if scaling := self.config.get("rope_scaling"):
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            waves = scaling["original_max_position_embeddings"] * turns / (2 * torch.pi)
            kept = ((waves - low) / (high - low)).clamp(0, 1)
            turns = kept * turns + (1 - kept) * turns / scaling["factor"]
        angles = torch.outer(torch.arange(len(heads)).float(), turns)
        cos, sin, low, high = angles.cos()[:, None], angles.sin()[:, None], heads[..., :half], heads[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    @staticmethod
    def _attend(query: Any, key: Any, value: Any) -> Any:
        import torch

        groups, length = query.shape[1] // key.shape[1], len(query)
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(length, -1)
