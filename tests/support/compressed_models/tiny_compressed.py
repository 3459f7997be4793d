"""Attention to the last tokens, to every fourth one and to every 128th, as DeepSeek V4 has it, in plain torch.

SGLang's own pool keeps what it needs, each in its place: rows of the last tokens, in pages that go when they are older;
rows of four tokens and of 128; index keys, by which some of the former are chosen; and what is not yet a row: sums are
taken of rows in its pools of states, the last eight tokens of a page, or a ring of each request. What SGLang's kernels
pack into a row of theirs are plain numbers here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_executor.forward_context import get_req_to_token_pool, get_token_to_kv_pool
from torch import nn

from support.sparse_on_cpu import requests_of

DRAFT = "draft."  # begins the names of what predicts further tokens
WIDTH = 32  # of a key, float32
CHOSEN, LATE = 4, 16  # rows of four tokens: so many of all, and so many of the latest


class Rows:
    """Rows of a pool of pages `[pages, bytes]`, by number: `WIDTH` numbers at the beginning of each."""

    def __init__(self, buffer: torch.Tensor, page_size: int, row_bytes: int) -> None:
        self._pages, self._size, self._row_bytes = buffer.view(torch.uint8), page_size, row_bytes

    def _at(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        begins = rows % self._size * self._row_bytes
        return (rows // self._size)[:, None], begins[:, None] + torch.arange(4 * WIDTH)

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        self._pages[self._at(rows)] = values.float().contiguous().view(torch.uint8)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        return self._pages[self._at(rows)].contiguous().view(torch.float32)


def _best(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return rows[scores.topk(min(CHOSEN, len(scores))).indices]


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int, ratio: int) -> None:
        super().__init__()
        self.layer, self.ratio, self.window = layer, ratio, config.sliding_window
        for name in ("query", "key", "index_query", "index_key"):
            setattr(self, name, nn.Linear(config.hidden_size, WIDTH, bias=False))
        self.out = nn.Linear(WIDTH, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        pool, slots_of = get_token_to_kv_pool(), get_req_to_token_pool().req_to_token
        pool.wait_layer_transfer(self.layer)
        out = torch.empty(len(hidden), WIDTH)
        for token, (request, at) in enumerate(zip(requests_of(batch), positions.tolist(), strict=True)):
            slots = slots_of[request, : at + 1].long()
            out[token] = self._attend(hidden[token : token + 1].float(), at, slots, request, pool)
        return self.out(out.to(hidden.dtype))

    def _attend(self, x: torch.Tensor, at: int, slots: torch.Tensor, request: int, pool: Any) -> torch.Tensor:
        query, key = self.query(x), self.key(x)
        window = Rows(pool.swa_kv_pool.kv_buffer[self.layer], 256, 584)
        last = pool.translate_loc_from_full_to_swa(slots[max(0, at + 1 - self.window) :]).long()
        assert last.all(), "a row of the window has gone"
        window.write(last[-1:], key)
        keys = [window.read(last)]
        if self.ratio == 4:
            keys += self._every_fourth(x, key, at, slots, pool)
        elif self.ratio == 128:
            keys.append(self._every_128th(key, at, slots, request, pool))
        return sum((query @ seen.T / WIDTH).softmax(-1)[0] @ seen for seen in keys if len(seen))

    def _every_fourth(
        self, x: torch.Tensor, key: torch.Tensor, at: int, slots: torch.Tensor, pool: Any
    ) -> list[torch.Tensor]:
        number = pool.layer_mapping[self.layer].compress_layer_id
        rows = Rows(pool.c4_kv_pool.kv_buffer[number], 64, 584)
        index = Rows(pool.c4_indexer_kv_pool.index_k_with_scale_buffer[number], 64, 132)
        ending = slots[3::4] // 4
        for states, target, value in (
            (pool.compress_state_pools[self.layer], rows, key),
            (pool.indexer_compress_state_pools[self.layer], index, self.index_key(x)),
        ):
            kept = states.kv_score_buffer.kv_score
            last = pool.translate_loc_from_full_to_swa(slots[max(0, at - 7) :])
            places = states.translate_from_swa_loc_to_state_loc(last.long())
            kept[places[-1:], :WIDTH] = value
            if at % 4 == 3:
                target.write(ending[-1:], kept[places, :WIDTH].mean(0, keepdim=True))
        scores = (self.index_query(x) @ index.read(ending).T)[0]
        few = (_best(scores, ending), _best(scores[-LATE:], ending[-LATE:]), ending[-1:])
        return [rows.read(some) for some in few]

    def _every_128th(self, key: torch.Tensor, at: int, slots: torch.Tensor, request: int, pool: Any) -> torch.Tensor:
        number = pool.layer_mapping[self.layer].compress_layer_id
        rows = Rows(pool.c128_kv_pool.kv_buffer[number], 2, 584)
        states = pool.compress_state_pools[self.layer]
        kept, ring = states.kv_score_buffer.kv_score, states.ring_size
        kept[request * ring + at % ring, :WIDTH] = key[0]
        ending = slots[127::128] // 128
        if at % 128 == 127:
            places = request * ring + torch.arange(at - 127, at + 1) % ring
            rows.write(ending[-1:], kept[places, :WIDTH].mean(0, keepdim=True))
        return rows.read(ending)


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int, ratio: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer, ratio)
        self.before = nn.LayerNorm(config.hidden_size, bias=False)
        self.between = nn.LayerNorm(config.hidden_size, bias=False)
        self.up = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.down = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        hidden = hidden + self.attention(self.before(hidden), positions, batch)
        return hidden + self.down(nn.functional.silu(self.up(self.between(hidden))))


class DeepseekV4ForCausalLM(nn.Module):
    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embed = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        ratios = config.compress_ratios[: config.num_hidden_layers]
        self.layers = nn.ModuleList([Layer(config, number, ratio) for number, ratio in enumerate(ratios)])
        self.norm = nn.LayerNorm(config.hidden_size, bias=False)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any) -> Any:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, positions, forward_batch)
        return self.logits_processor(input_ids, self.norm(hidden), self.lm_head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        _load(self, {name: weight for name, weight in weights if not name.startswith(DRAFT)})

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.embed.weight, self.lm_head.weight


class DeepseekV4ForCausalLMNextN(nn.Module):
    """One layer more, that predicts the token after the next one, and keeps rows of the last tokens alone."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embed = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = Layer(config, 0, 0)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any) -> Any:
        joined = torch.cat([self.embed(input_ids), forward_batch.spec_info.hidden_states], -1)
        hidden = self.layer(self.join(joined), positions, forward_batch)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        _load(self, {name.removeprefix(DRAFT): weight for name, weight in weights if name.startswith(DRAFT)})

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        self.embed.weight, self.lm_head.weight = embed, head


def _load(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    known = dict(module.named_parameters())
    for name, weight in weights.items():
        load = getattr(known[name], "weight_loader", lambda to, given: to.data.copy_(given))
        load(known[name], weight)


EntryClass = [DeepseekV4ForCausalLM, DeepseekV4ForCausalLMNextN]
