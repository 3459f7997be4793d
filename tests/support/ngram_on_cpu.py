"""SGLang's NGRAM worker on the portable CPU platform, which has no kernels for it. For tests of what lies around it.

Beside what `speculating_on_cpu` has for it, the table of n-grams is plain Python: it is C++ and would have to be
compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .speculating_on_cpu import attend_from_drafts, take_triton_kernels

#: Of a server: a chain of one token and three drafts. Of trees and pages of several tokens, SGLang has but one backend.
ARGUMENTS = [
    "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4", "--speculative-ngram-max-bfs-breadth",
    "1", "--speculative-ngram-min-bfs-breadth", "1",
]  # fmt: skip

#: [drafts that were accepted, forwards that verified some]
accepted = [0, 0]


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    take_triton_kernels()
    attend_from_drafts()
    import sglang.srt.speculative.ngram_worker as worker

    worker.NgramCorpus = Corpus
    worker.move_accept_tokens_to_target_kvcache = _count(worker.move_accept_tokens_to_target_kvcache)


def _count(move: Any) -> Any:
    def counted(batch: Any, accept_index: Any, correct: torch.Tensor, allocator: Any) -> None:
        accepted[0] += int(correct.sum())
        accepted[1] += 1
        move(batch, accept_index, correct, allocator)

    return counted


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
