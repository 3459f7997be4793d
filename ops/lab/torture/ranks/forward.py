"""What stands in for the model: it computes KV from which anybody can tell which tokens it is of.

The KV of a token is a number that follows from all tokens up to it. So each forward knows what has to lie in the device
pool under the prefix of each of its requests, whoever has written it there: SGLang's tree, or a copy from the tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult

#: What is multiplied by for each token; odd, so that it has an inverse.
_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)
#: Tokens that are answered with: none that ends an answer.
_FIRST, _TOKENS = 5, 240
#: What a forward takes, virtual seconds: each, and for each token.
FORWARD_SECONDS, TOKEN_SECONDS = 2e-4, 2e-5


def prefix_numbers(tokens: Sequence[int]) -> np.ndarray:
    """A number for each token, which follows from all tokens up to it: uint64 [tokens]."""
    count = len(tokens)
    powers = np.full(count, _FACTOR, np.uint64).cumprod(dtype=np.uint64)
    inverse = np.full(count, _INVERSE, np.uint64).cumprod(dtype=np.uint64)
    sums = ((np.asarray(tokens, np.uint64) + np.uint64(1)) * inverse).cumsum(dtype=np.uint64)
    numbers: np.ndarray = sums * powers
    return numbers


def next_token(tokens: Sequence[int]) -> int:
    """What the model says behind these."""
    return _FIRST + int(prefix_numbers(tokens)[-1] >> np.uint64(40)) % _TOKENS


def answer(prompt: Sequence[int], tokens: int) -> list[int]:
    """Its whole answer."""
    said = list(prompt)
    for _ in range(tokens):
        said.append(next_token(said))
    return said[len(prompt) :]


class _Share(NamedTuple):
    """One request's in a forward."""

    req: Any
    start: int  # tokens that it has before it
    rows: np.ndarray  # int64 [tokens], of the device pool
    numbers: np.ndarray  # uint64 [tokens]
    tokens: list[int]


class NumberedForward:
    """Takes the place of a worker's `forward_batch_generation`. Raises AssertionError where KV is not what it has to
    be.

    What is computed behind pages that could not be copied to the device is poison: SGLang computes it all the same, and
    has to tell it from what is right.
    """

    def __init__(self, scheduler: Any, sleep: Callable[[float], None]) -> None:
        self._worker = scheduler.tp_worker
        self._cache = scheduler.tree_cache
        self._sleep = sleep
        runner = self._worker.model_runner
        self._pool = runner.token_to_kv_pool
        self._planes = [
            [as_numbers(plane[layer]) for plane in (self._pool.k_buffer, self._pool.v_buffer)]
            for layer in range(len(self._pool.k_buffer))
        ]
        self._rows = runner.req_to_token_pool.req_to_token
        self.tokens = 0  # computed so far
        self.compared = 0  # tokens of prefixes that were compared

    def __call__(self, batch: Any, **_: Any) -> Any:
        self._worker.set_hicache_consumer(batch.hicache_consumer_index)
        lengths = batch.seq_lens.tolist()
        before = batch.prefix_lens if batch.forward_mode.is_extend() else [length - 1 for length in lengths]
        shares = [self._share(*one) for one in zip(batch.reqs, before, lengths, strict=True)]
        self._sleep(FORWARD_SECONDS + TOKEN_SECONDS * (sum(lengths) - sum(before)))
        counter, lost = self._pool.layer_transfer_counter, False
        for layer, planes in enumerate(self._planes):
            if counter is not None:
                counter.wait_until(layer)
                lost = lost or _has_failed(counter, layer)
            for share in shares:
                poison = lost and share.req.rid in self._cache.linker.inflight_load_rids
                for plane, buffer in enumerate(planes):
                    self._compute(share, buffer, np.uint64((layer * 2 + plane) << 8), layer, poison=poison)
        said = torch.tensor([next_token(share.tokens) for share in shares], dtype=torch.int64)
        return GenerationBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None), next_token_ids=said)

    def _share(self, req: Any, start: int, end: int) -> _Share:
        tokens = [*req.origin_input_ids, *req.output_ids][:end]
        assert len(tokens) == end, f"{req.rid}: {end} tokens are to be known, {len(tokens)} are"
        rows = self._rows[req.kv.req_pool_idx, :end].numpy().astype(np.int64)
        assert len(np.unique(rows)) == end, f"{req.rid}: two of its tokens lie in one row"
        self.tokens += end - start
        self.compared += start
        return _Share(req, start, rows, prefix_numbers(tokens), tokens)

    def _compute(self, share: _Share, buffer: np.ndarray, salt: np.uint64, layer: int, *, poison: bool) -> None:
        """Compare what lies under the prefix of one request, and write what follows it."""
        start, rows = share.start, share.rows
        wanted = share.numbers[:, None] ^ (np.arange(buffer.shape[1], dtype=np.uint64) + salt)
        if poison:
            buffer[rows[start:]] = ~wanted[start:]
            return
        differing = (buffer[rows[:start]] != wanted[:start]).any(axis=1)
        assert not differing.any(), (
            f"wrong KV: token {int(differing.argmax())} of {start} that {share.req.rid} has before it, layer {layer}"
        )
        buffer[rows[start:]] = wanted[start:]


def as_numbers(rows: torch.Tensor) -> np.ndarray:
    """The same memory: uint64 [rows, numbers in each]."""
    numbers: np.ndarray = rows.view(rows.shape[0], -1).view(torch.int64).numpy().view(np.uint64)
    return numbers


def _has_failed(counter: Any, layer: int) -> bool:
    futures = counter.futures.get(counter.consumer_index)
    return futures is not None and futures[layer].exception() is not None
