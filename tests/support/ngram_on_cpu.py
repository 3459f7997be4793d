"""SGLang's NGRAM worker on the portable CPU platform, which has no kernels for it. For tests of what lies around it.

SGLang's Triton kernels, those that it has for Intel GPUs, run in Triton's interpreter (`ENVIRONMENT`). Only two things
are put in their place: the table of n-grams, which is C++ and would have to be compiled, and attention from drafts.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

ENVIRONMENT = {"TRITON_INTERPRET": "1"}
#: Of a server: a chain of one token and three drafts. Of trees and pages of several tokens, SGLang has but one backend.
ARGUMENTS = [
    "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4", "--speculative-ngram-max-bfs-breadth",
    "1", "--speculative-ngram-min-bfs-breadth", "1",
]  # fmt: skip

#: [drafts that were accepted, forwards that verified some]
accepted = [0, 0]


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    _take_triton_kernels()
    import sglang.srt.speculative.ngram_worker as worker

    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    worker.NgramCorpus = Corpus
    worker.move_accept_tokens_to_target_kvcache = _count(worker.move_accept_tokens_to_target_kvcache)
    forward = CpuAttentionBackend.forward_extend

    def forward_extend(self, q, k, v, layer, batch, save_kv_cache=True):
        return forward(self, q, k, v, layer, _as_extend(batch), save_kv_cache)

    CpuAttentionBackend.forward_extend = forward_extend


def _take_triton_kernels() -> None:
    for name in ("spec_tree", "cache_locs", "reconstruct_tree"):
        importlib.import_module("sglang.srt.utils")
        with mock.patch("sglang.srt.utils.is_xpu", return_value=True):
            module: Any = importlib.import_module(f"sglang.kernels.ops.speculative.{name}")
        assert module._is_xpu, f"{name} had been imported before"


def _count(move: Any) -> Any:
    def counted(batch: Any, accept_index: Any, correct: torch.Tensor, allocator: Any) -> None:
        accepted[0] += int(correct.sum())
        accepted[1] += 1
        move(batch, accept_index, correct, allocator)

    return counted


def _as_extend(batch: Any) -> Any:
    """Drafts of one chain see what is before them and each other as new tokens of a prompt do."""
    if not batch.forward_mode.is_target_verify():
        return batch
    known = getattr(batch, "chain", None)
    if known is None:
        known = batch.chain = copy.copy(batch)
        drafts = batch.spec_info.draft_token_num
        known.extend_prefix_lens = batch.seq_lens
        known.extend_seq_lens = torch.full_like(batch.seq_lens, drafts)
        known.seq_lens = batch.seq_lens + drafts
    return known


class Corpus:
    """What followed every pair of tokens the last time, in place of SGLang's trie."""

    def __init__(self, *, draft_token_num: int, **_: Any) -> None:
        self._drafts = draft_token_num
        self._next: dict[tuple[int, ...], int] = {}

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        for tokens in batch_tokens:
            for at in range(2, len(tokens)):
                self._next[tuple(tokens[at - 2 : at])] = tokens[at]

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        chains = []
        for tokens in batch_tokens:
            chain = list(tokens[-2:])
            while len(chain) <= self._drafts:
                chain.append(self._next.get(tuple(chain[-2:]), 0))
            chains.append(chain[1:])
        mask = np.tril(np.ones((self._drafts, self._drafts), dtype=bool))
        return np.array(chains, dtype=np.int64).flatten(), np.tile(mask.flatten(), len(chains))

    def synchronize(self) -> None: ...

    def erase_match_state(self, req_ids: Sequence[str]) -> None: ...

    def reset(self) -> None:
        self._next.clear()
