"""How long a context fits where only one layer of it has to be in local memory (SwiftCache, section 3.2, Eq. 1-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Blocks(NamedTuple):
    """What a master can hold, in blocks."""

    streamed: int  # N_LSC: one layer at a time here, the others lent by workers
    regular: int  # N_RC: all layers here

    @property
    def total(self) -> int:
        return self.streamed + self.regular


def block_bytes(block_tokens: int, kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Of one block in one layer (Eq. 1)."""
    return 2 * block_tokens * kv_heads * head_dim * element_bytes


def blocks(master_bytes: float, worker_bytes: Sequence[float], layer_block_bytes: int, layers: int) -> Blocks:
    """By the KV memory of the master and of each worker (Eq. 2-5)."""
    lent = sum(int(one // (layer_block_bytes * layers)) for one in worker_bytes)
    local = int(master_bytes // layer_block_bytes)
    return from_counts(local, lent, layers)


def from_counts(local: int, lent: int, layers: int) -> Blocks:
    """`local`: single-layer blocks that fit the master; `lent`: whole ones that fit the workers (Eq. 4 and 5)."""
    streamed = min(lent, local)
    return Blocks(streamed, (local - streamed) // layers)
