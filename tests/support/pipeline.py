"""A real model split into pipeline stages, each with tier stacks of its own for its KV and for its boundary pages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from swift_tiers.radix_tiering.base.config import parse_config
from swift_tiers.radix_tiering.base.page import ROOT_KEY, Namespace, PageGeometry
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier

LAYERS, HIDDEN, KV_HEADS, HEAD_DIM, VOCABULARY = 6, 64, 2, 16, 128
PAGE_TOKENS = 8
#: Pages of a chunk.
CHUNK = 4
#: Whole pages of the prompt, and the tokens behind them.
PAGES, TAIL = 24, 3
#: KV comes up so slowly that the device computes some of it meanwhile, on a busy machine too: bytes a second.
RATE = 150_000.0
FAST = 1e12
DEVICES, DEVICE_BYTES, UNIT = 2, 2 * 2**20, 4096
HOST_PAGES = 64
#: A guard against hanging, not a measure.
PATIENCE = 60.0


def make_model() -> LlamaForCausalLM:
    """The same weights in every process, large enough for each page to matter."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def make_prompt() -> torch.Tensor:
    """int64 [1, tokens]."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, PAGES * PAGE_TOKENS + TAIL)
    return torch.from_numpy(tokens)[None]


def page_keys(prompt: torch.Tensor) -> list[bytes]:
    """Of its whole pages: each depends on all before it."""
    keys, previous = [], b""
    for page in prompt[0, : PAGES * PAGE_TOKENS].reshape(PAGES, PAGE_TOKENS).numpy():
        previous = hashlib.sha256(previous + page.tobytes()).digest()
        keys.append(previous)
    return keys


class StageModel:
    """Some layers of the model, and the KV that this stage's device has."""

    def __init__(self, number: int, stages: int) -> None:
        whole = make_model()
        self.first, self.last = number == 0, number == stages - 1
        each = LAYERS // stages
        self._model: Any = whole.model
        self._embed, self._head = whole.model.embed_tokens, whole.lm_head
        self._model.layers = whole.model.layers[number * each : (number + 1) * each]
        for index, layer in enumerate(self._model.layers):
            layer.self_attn.layer_idx = index
        if not self.last:
            self._model.norm = torch.nn.Identity()
        self.layers = each
        self.cache = DynamicCache()

    @property
    def tokens(self) -> int:
        """That the device has the KV of."""
        return int(self.cache.get_seq_length())

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._embed(tokens)

    @torch.inference_mode()
    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Activations [1, n, hidden] of the next n tokens, through this stage's layers."""
        return self._model(inputs_embeds=inputs, past_key_values=self.cache, use_cache=True).last_hidden_state

    @torch.inference_mode()
    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Of the last token: [vocabulary]."""
        return self._head(outputs[0, -1])

    def kv(self) -> np.ndarray:
        """float32 [layer][k|v][token][kv_head][head_dim]."""
        planes = [[layer.keys[0], layer.values[0]] for layer in self.cache.layers]
        return np.stack([[plane.transpose(0, 1).numpy() for plane in both] for both in planes])

    def append(self, pages: np.ndarray) -> None:
        """KV of the next tokens, as `kv` gives it."""
        for index, (keys, values) in enumerate(torch.from_numpy(pages)):
            self.cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], index)

    def keep(self, tokens: int) -> None:
        """Forget what is behind the first `tokens`."""
        if self.tokens > tokens:
            self.cache.crop(tokens)


def kv_namespace(number: int, stages: int) -> Namespace:
    each = LAYERS // stages
    return Namespace(
        model="tiny",
        weights="seed 0",
        dtype="float32",
        geometry=PageGeometry(layers=each, planes=2, tokens=PAGE_TOKENS, row_bytes=KV_HEADS * HEAD_DIM * 4),
        first_layer=number * each,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rank=f"tp0/1 pp{number}/{stages}",
    )


def boundary_namespace(number: int, stages: int) -> Namespace:
    return kv_namespace(number, stages).of_boundary(HIDDEN, "float32", 4)


def device_files(directory: Path, number: int, kind: str) -> list[Path]:
    """Of a stage, `kind` being "kv" or "boundary"."""
    return [directory / f"stage{number}-{kind}-{device}.stripe" for device in range(DEVICES)]


def open_stack(space: Namespace, paths: list[Path]) -> TierStack:
    """Host memory, and beneath it files that are made if need be."""
    for path in paths:
        if not path.exists():
            create_device_file(path, DEVICE_BYTES)
    ssd = SsdTier(ThrottledArray(open_array(paths), FAST), [path.name for path in paths], UNIT)
    # What comes late, by estimates from the first loads, is waited for: nothing here is given up as lost in time.
    restore = {"strategy": "token-wise", "chunk": CHUNK * PAGE_TOKENS, "behind": 1000}
    config = parse_config({"restore": restore, "policy": {"restore_deadline": f"{PATIENCE:g}s"}})
    return TierStack(space, config, HostTier(space.geometry, HOST_PAGES * space.geometry.stride_bytes), [ssd])


def store(stack: TierStack, keys: list[bytes], pages: list[np.ndarray]) -> None:
    """Put a chain of pages into a stack, all of which must be taken in."""
    put = stack.intake.begin(keys, ROOT_KEY, 1)
    assert put.indices == list(range(len(keys)))
    for page, slot in zip(pages, put.slots, strict=True):
        stack.host.page(slot)[:] = np.ascontiguousarray(page).reshape(-1).view(np.uint8)
    stack.intake.commit(put)
