"""Tiny models of other kinds than `ops.model.tiny_model`: random weights that make greedy answers depend on all KV."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift_tiers.ops.base.model import byte_tokenizer, save_tokenizer, write_random_model

CONTEXT, VOCABULARY, HIDDEN = 8192, 512, 64
#: What most of their configurations say.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
#: Tokens that a window layer of `tiny_gemma` looks back.
WINDOW = 128


def tiny_mla(directory: Path, *, seed: int = 0) -> Path:
    """A DeepSeek-V2 of four dense layers: one latent row a token, 32 values and 16 rotary ones."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    def build(**special_ids: int) -> Any:
        config = DeepseekV2Config(
            **SIZES,
            moe_intermediate_size=32,
            first_k_dense_replace=4,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            topk_method="greedy",
            num_key_value_heads=4,
            q_lora_rank=24,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            head_dim=16,
            **special_ids,
        )
        return DeepseekV2ForCausalLM(config)

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    # SGLang's CPU code knows these models with YaRN only, as DeepSeek publishes them. A factor of 1 changes no angle.
    yarn = {
        "type": "yarn", "rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": CONTEXT,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    return _configure(directory, moe_layer_freq=1, rope_parameters=None, rope_theta=10000.0, rope_scaling=yarn)


def tiny_sparse(directory: Path, *, seed: int = 0) -> Path:
    """A DeepSeek-V3.2 of four dense layers, as `tiny_mla`: each token attends to 64 that its layer's index picks. One
    layer takes what the one before it has picked, and has no index."""
    import torch
    from safetensors.torch import load_file

    tiny_mla(directory, seed=seed)
    weights, draw = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(seed + 1)
    heads, width = 2, 128
    for layer in (0, 1, 3):
        index = f"model.layers.{layer}.self_attn.indexer"
        for name, shape in (
            ("wq_b", (heads * width, 24)), ("wk", (width, HIDDEN)), ("weights_proj", (heads, HIDDEN)),
        ):  # fmt: skip
            weights[f"{index}.{name}.weight"] = 0.2 * torch.randn(shape, generator=draw)
        weights[f"{index}.k_norm.weight"], weights[f"{index}.k_norm.bias"] = torch.ones(width), torch.zeros(width)
    _save(weights, directory)
    return _configure(
        directory,
        architectures=["DeepseekV32ForCausalLM"],
        index_topk=64,
        index_n_heads=heads,
        index_head_dim=width,
        index_topk_pattern="FFSF",
    )


def tiny_latent_mtp(directory: Path, *, sparse: bool = False, seed: int = 0) -> Path:
    """A DeepSeek-V3, or V3.2, of four dense layers, as `tiny_mla` and `tiny_sparse`, and of one more of experts that
    predicts the token after the next one."""
    import torch
    from safetensors.torch import load_file

    (tiny_sparse if sparse else tiny_mla)(directory, seed=seed)
    own = "model.layers.4"
    norms = {f"{own}.{name}": torch.ones(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")}
    _add_layer(directory, "model.layers.0", own, norms, f"{own}.eh_proj", seed=seed)
    weights, draw = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(seed + 2)
    for name in [name for name in weights if name.startswith(f"{own}.mlp.")]:
        del weights[name]
    inner = 32
    for experts in ("shared_experts", *(f"experts.{number}" for number in range(4))):
        for name, shape in (
            ("gate_proj", (inner, HIDDEN)), ("up_proj", (inner, HIDDEN)), ("down_proj", (HIDDEN, inner)),
        ):  # fmt: skip
            weights[f"{own}.mlp.{experts}.{name}.weight"] = 0.2 * torch.randn(shape, generator=draw)
    weights[f"{own}.mlp.gate.weight"] = 0.2 * torch.randn((4, HIDDEN), generator=draw)
    _save(weights, directory)
    more = {} if sparse else {"architectures": ["DeepseekV3ForCausalLM"]}
    return _configure(directory, num_nextn_predict_layers=1, n_group=1, topk_group=1, scoring_func="softmax", **more)


def tiny_hybrid(directory: Path, *, seed: int = 0) -> Path:
    """A Falcon-H1 of four layers, each of attention and of a state (Mamba 2) side by side."""
    from transformers import FalconH1Config, FalconH1ForCausalLM

    def build(**special_ids: int) -> Any:
        config = FalconH1Config(
            **SIZES,
            num_key_value_heads=2,
            head_dim=16,
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_head=16,
            mamba_n_groups=1,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_chunk_size=64,
            **special_ids,
        )
        return _forgets_slowly(FalconH1ForCausalLM(config))

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    return directory


def tiny_delta(directory: Path, *, seed: int = 0) -> Path:
    """A Qwen3.5 of four dense layers, every second of which attends, and keeps a gated delta net's state otherwise; and
    of one more that predicts the token after the next one, and attends."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    def build(**special_ids: int) -> Any:
        config = Qwen3_5TextConfig(
            **SIZES,
            layer_types=["linear_attention", "full_attention"] * 2,
            num_key_value_heads=2,
            head_dim=32,
            # Three heads of values for one of keys: SGLang's model has no kernel of its own for these.
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            **special_ids,
        )
        return _forgets_slowly(Qwen3_5ForCausalLM(config))

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    norms = {f"mtp.{name}": torch.zeros(HIDDEN) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    _add_layer(directory, "model.layers.1", "mtp.layers.0", norms, "mtp.fc", seed=seed)  # norms are added to 1
    return _configure(directory, full_attention_interval=2)


def tiny_kimi(directory: Path, *, seed: int = 0) -> Path:
    """A Kimi-Linear of four dense layers: every second one has latent attention, and a delta net's state otherwise."""
    from safetensors.torch import load_file
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    heads, dim = 4, 16

    def build(**special_ids: int) -> Any:
        config = KimiLinearConfig(
            **SIZES,
            layer_types=["linear_attention", "full_attention"] * 2,
            mlp_layer_types=["dense"] * 4,
            num_key_value_heads=4,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            linear_num_heads=heads,
            linear_head_dim=dim,
            **special_ids,
        )
        return _forgets_slowly(KimiLinearForCausalLM(config))

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    weights = load_file(directory / "model.safetensors")
    _save({name.replace("block_sparse_moe", "mlp"): weight for name, weight in weights.items()}, directory)
    linear = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": heads, "head_dim": dim}
    return _configure(
        directory, num_experts=None, mla_use_nope=True, linear_attn_config={**linear, "short_conv_kernel_size": 4}
    )


def tiny_minimax(directory: Path, *, seed: int = 0) -> Path:
    """A MiniMax M3 of four dense layers, two of which attend to blocks of 16 tokens that an index picks: in the one it
    has keys, in the other values, too."""
    import torch
    from safetensors.torch import load_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    index_heads, dim = 2, 16

    def build(**special_ids: int) -> Any:
        config = Qwen3Config(
            **SIZES,
            num_key_value_heads=2,
            head_dim=dim,
            **special_ids,
        )
        return Qwen3ForCausalLM(config)

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    weights, draw = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(seed + 1)
    for layer, names in ((1, "qk"), (2, "qkv")):
        index = f"model.layers.{layer}.self_attn.index"
        for name in names:
            rows = index_heads * dim if name == "q" else dim
            weights[f"{index}_{name}_proj.weight"] = 0.2 * torch.randn((rows, HIDDEN), generator=draw)
        weights |= {f"{index}_{name}_norm.weight": torch.ones(dim) for name in "qk"}
        if "v" in names:
            weights[f"{index}_o_proj.weight"] = 0.2 * torch.randn((HIDDEN, index_heads * dim), generator=draw)
    _save(weights, directory)
    return _configure(
        directory,
        architectures=["MiniMaxM3SparseForCausalLM"],
        model_type="minimax_m2",
        dense_intermediate_size=2 * HIDDEN,
        moe_layer_freq=[0, 0, 0, 0],
        num_local_experts=4,
        num_experts_per_tok=2,
        use_qk_norm=True,
        qk_norm_type="per_head",
        rotary_dim=dim,
        sparse_attention_config={
            "sparse_attention_freq": [0, 1, 1, 0],
            "sparse_disable_index_value": [0, 1, 0, 0],
            "sparse_num_index_heads": index_heads,
            "sparse_index_dim": dim,
            "sparse_block_size": 16,
            "sparse_topk_blocks": 4,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
        },
    )


def reference_answer(directory: Path, token_ids: list[int], tokens: int) -> list[int]:
    """The greedy answer of a model by transformers, computed without any KV cache: it shares no code with SGLang."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    sequence = list(token_ids)
    with torch.no_grad():
        for _ in range(tokens):
            logits = model(torch.tensor([sequence]), use_cache=False).logits
            sequence.append(int(logits[0, -1].argmax()))
    return sequence[len(token_ids) :]


def tiny_gemma(directory: Path, *, own_pool: bool = False, seed: int = 0) -> Path:
    """A Gemma 3 of four layers, two of which look back `WINDOW` tokens.

    :param own_pool: under an architecture for which SGLang keeps those two layers' KV in a pool of their own.
    """
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    def build(**special_ids: int) -> Any:
        config = Gemma3TextConfig(
            **{**SIZES, "initializer_range": 0.3, "tie_word_embeddings": True},
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=WINDOW,
            sliding_window_pattern=2,
            query_pre_attn_scalar=16,
            **special_ids,
        )
        model = Gemma3ForCausalLM(config)
        with torch.no_grad():
            # The residual stream must not drown what attention adds to it.
            model.model.embed_tokens.weight.mul_(0.05)
            for name, parameter in model.named_parameters():
                if "post_attention_layernorm" in name:
                    parameter.add_(3.0)
                elif "post_feedforward" in name:
                    parameter.add_(-0.7)
                if "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    if own_pool:
        _configure(
            directory, architectures=["TinyWindowedForCausalLM"], is_hybrid_swa=True, hybrid_layer_pattern=[1, 0, 1, 0]
        )
    return directory


def tiny_eagle(directory: Path, target: Path, *, seed: int = 1) -> Path:
    """A model that drafts for `tiny_model`'s, one layer as EAGLE has it: the target's embeddings, head and last hidden
    states; and twice as many KV heads."""
    import torch

    known = json.loads((target / "config.json").read_text())
    heads, kv_heads, dim = known["num_attention_heads"], 2 * known["num_key_value_heads"], known["head_dim"]
    hidden, inner = known["hidden_size"], known["intermediate_size"]
    shapes = {
        "embed_tokens.weight": (known["vocab_size"], hidden),
        "fc.weight": (hidden, 2 * hidden),
        "fc.bias": (hidden,),
        "layers.0.self_attn.q_proj.weight": (heads * dim, hidden),
        "layers.0.self_attn.k_proj.weight": (kv_heads * dim, hidden),
        "layers.0.self_attn.v_proj.weight": (kv_heads * dim, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, heads * dim),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    draw = torch.Generator().manual_seed(seed)
    weights = {name: 0.2 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    directory.mkdir(parents=True, exist_ok=True)
    _save(weights, directory)
    return _configure_draft(directory, known, "LlamaForCausalLMEagle", kv_heads)


def tiny_eagle3(directory: Path, target: Path, *, seed: int = 1) -> Path:
    """A model that drafts for `tiny_model`'s, one layer as EAGLE3 has it: hidden states of three of the target's
    layers; and words of its own, half as many."""
    import torch

    known = json.loads((target / "config.json").read_text())
    heads, kv_heads, dim = known["num_attention_heads"], known["num_key_value_heads"], known["head_dim"]
    hidden, inner, words = known["hidden_size"], known["intermediate_size"], known["vocab_size"] // 2
    shapes = {
        "embed_tokens.weight": (known["vocab_size"], hidden),
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * dim),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (words, hidden),
    }
    draw = torch.Generator().manual_seed(seed)
    weights = {name: 0.2 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    weights |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    weights["d2t"] = torch.arange(words)  # every second of the target's words
    directory.mkdir(parents=True, exist_ok=True)
    _save(weights, directory)
    return _configure_draft(
        directory,
        known,
        "LlamaForCausalLMEagle3",
        kv_heads,
        draft_vocab_size=words,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    )


def tiny_mtp(directory: Path, *, seed: int = 0) -> Path:
    """A MiMo of four layers, and of one more that predicts the token after the next one."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def build(**special_ids: int) -> Any:
        config = Qwen2Config(
            **SIZES,
            num_key_value_heads=2,
            **special_ids,
        )
        return Qwen2ForCausalLM(config)

    write_random_model(directory, build, context=CONTEXT, seed=seed)
    more = "model.mtp_layers.0"
    norms = {f"{more}.{name}_layernorm": torch.ones(HIDDEN) for name in ("token", "hidden", "final")}
    _add_layer(directory, "model.layers.0", more, norms, f"{more}.input_proj", seed=seed)
    return _configure(directory, architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)


#: Of `tiny_vl`: what stands for a picture in a prompt.
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


def tiny_vl(directory: Path, *, seed: int = 0) -> Path:
    """A Qwen3-VL of four layers, with its processor: 64 tokens for a picture of 256 x 256 pixels."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    tokenizer = byte_tokenizer(CONTEXT)
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(names))
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.2,
            # Three positions a token: in time, height and width.
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
            },
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": HIDDEN,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 64,
            "initializer_range": 0.2,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3VLForConditionalGeneration(config).float().save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    pictures = Qwen2VLImageProcessor(
        patch_size=16, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 1024, "longest_edge": 65536}
    )
    Qwen3VLProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    ).save_pretrained(directory)
    return directory


def _forgets_slowly(model: Any) -> Any:
    """A model that keeps states: none would depend on what was more than a few tokens before."""
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            weight.data -= math.log(50)
    return model


def _add_layer(directory: Path, like: str, name: str, norms: dict[str, Any], projection: str, *, seed: int) -> None:
    """Give a model one layer more, `name`, that predicts the token after the next one: its weights are drawn, in the
    shapes of the layer `like`, whose norms it has; before it are `norms`, and what joins a token and a hidden state."""
    import torch
    from safetensors.torch import load_file

    weights, draw = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(seed + 1)
    for known, weight in list(weights.items()):
        if known.startswith(f"{like}."):
            random = 0.2 * torch.randn(weight.shape, generator=draw)
            weights[known.replace(like, name)] = weight.clone() if "norm" in known else random
    weights |= {f"{norm}.weight": weight for norm, weight in norms.items()}
    weights[f"{projection}.weight"] = 0.2 * torch.randn(HIDDEN, 2 * HIDDEN, generator=draw)
    _save(weights, directory)


def _save(weights: dict[str, Any], directory: Path) -> None:
    from safetensors.torch import save_file

    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _configure_draft(directory: Path, known: dict[str, Any], architecture: str, kv_heads: int, **more: Any) -> Path:
    """Write the `config.json` of a layer that drafts for the model whose own is `known`."""
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim",
        "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id",
    )  # fmt: skip
    config = {name: known[name] for name in names} | {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **more,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory


def _configure(directory: Path, **changes: Any) -> Path:
    """Change entries of a model's `config.json`; None takes one out."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}, indent=1))
    return directory


#: Of `tiny_compressed`: of each layer, of how many tokens a row beside those of the last ones is.
RATIOS = [128, 4, 0, 4]


def tiny_compressed(directory: Path, *, ratios: Sequence[int] = RATIOS, seed: int = 0) -> Path:
    """What SGLang keeps the KV of a DeepSeek V4 of four layers for (`support.compressed_models`), and of one more that
    predicts the token after the next one."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(CONTEXT)
    save_tokenizer(tokenizer, directory)
    draw, weights = torch.Generator().manual_seed(seed), {}
    shapes = {"embed.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    for own in (*(f"layers.{layer}" for layer in range(len(RATIOS))), "draft.layer"):
        for name in ("query", "key", "index_query", "index_key"):
            shapes[f"{own}.attention.{name}.weight"] = (32, HIDDEN)
        shapes |= {
            f"{own}.attention.out.weight": (HIDDEN, 32),
            f"{own}.up.weight": (2 * HIDDEN, HIDDEN),
            f"{own}.down.weight": (HIDDEN, 2 * HIDDEN),
        }
        weights |= {f"{own}.{name}.weight": torch.ones(HIDDEN) for name in ("before", "between")}
    shapes["draft.join.weight"] = (HIDDEN, 2 * HIDDEN)
    weights |= {name: 0.2 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    for name in shapes:
        if "attention" in name:  # answers depend on what was before, more than on their own tokens
            weights[name] *= 3
    _save({**weights, "norm.weight": torch.ones(HIDDEN)}, directory)
    config = {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "dtype": "float32",
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": len(RATIOS), "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 512,
        "qk_rope_head_dim": 64, "index_head_dim": 128, "sliding_window": WINDOW, "compress_ratios": [*ratios, 0],
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "kv_source_layer_ids": [], "rope_scaling": None, "tie_word_embeddings": False, "hc_mult": 1,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory
