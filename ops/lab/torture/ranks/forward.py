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


def next_token(tokens: Sequence[int], *, wrong: bool = False) -> int:
    """What the model says behind these, or, from `wrong` KV, something else."""
    return _FIRST + (int(prefix_numbers(tokens)[-1] >> np.uint64(40)) + wrong) % _TOKENS


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
    window_rows: np.ndarray  # the same of the pool of windows, 0 where a token has none; empty without such a pool
    numbers: np.ndarray  # uint64 [tokens]
    tokens: list[int]

    def wanted(self, numbers: int, salt: np.uint64) -> np.ndarray:
        """The KV of its tokens in one plane: uint64 [tokens, numbers]."""
        return self.numbers[:, None] ^ (np.arange(numbers, dtype=np.uint64) + salt)

    def wrong(self, buffer: np.ndarray, wanted: np.ndarray, window: int | None) -> str:
        """Which token of its prefix has other KV in this plane, which is of a layer that looks back so far; empty: none
        has."""
        first = 0 if window is None else max(0, self.start - window)
        rows = (self.rows if window is None else self.window_rows)[first : self.start]
        differing = (buffer[rows] != wanted[first : self.start]).any(axis=1)
        if not differing.any():
            return ""
        return f"token {first + int(differing.argmax())} of {self.start} that {self.req.rid} has before it"


class _Layer(NamedTuple):
    """What one layer of the model keeps."""

    planes: list[np.ndarray]  # uint64 [rows, numbers], of K and V
    window: int | None  # so many tokens it looks back; None: to the first


class NumberedForward:
    """Takes the place of a worker's `forward_batch_generation`. Raises AssertionError where KV is not what it has to
    be.

    What is computed behind pages that could not be copied to the device is poison, and so is what is answered from it:
    SGLang computes it all the same, and has to tell it from what is right. So are damaged pages, where they are
    verified beside their copy only: the load that brings them is to fail after this forward.
    """

    def __init__(self, scheduler: Any, sleep: Callable[[float], None], *, damage_comes: bool) -> None:
        """`damage_comes`: pages that are verified beside their copy may turn out to be damaged."""
        self._damage_comes = damage_comes
        self._worker = scheduler.tp_worker
        self._cache = scheduler.tree_cache
        self._sleep = sleep
        runner = self._worker.model_runner
        self._pool = runner.token_to_kv_pool
        self._layers = layers_of(self._pool, runner.sliding_window_size)
        self._to_windows = getattr(self._pool, "full_to_swa_index_mapping", None)
        self._rows = runner.req_to_token_pool.req_to_token
        self.tokens = 0  # computed so far
        self.compared = 0  # tokens of prefixes that were compared

    def __call__(self, batch: Any, **_: Any) -> Any:
        self._worker.set_hicache_consumer(batch.hicache_consumer_index)
        lengths = batch.seq_lens.tolist()
        before = batch.prefix_lens if batch.forward_mode.is_extend() else [length - 1 for length in lengths]
        shares = [self._share(*one) for one in zip(batch.reqs, before, lengths, strict=True)]
        self._sleep(FORWARD_SECONDS + TOKEN_SECONDS * (sum(lengths) - sum(before)))
        counter, lost, poisoned = self._pool.layer_transfer_counter, False, set[str]()
        for layer, (planes, window) in enumerate(self._layers):
            if counter is not None:
                counter.wait_until(layer)
                lost = lost or _has_failed(counter, layer)
            for share in shares:
                rid = share.req.rid
                loads = rid in self._cache.linker.inflight_load_rids
                for plane, buffer in enumerate(planes):
                    wanted = share.wanted(buffer.shape[1], np.uint64((layer * 2 + plane) << 8))
                    if lost and loads:
                        poisoned.add(rid)
                    elif rid not in poisoned and (wrong := share.wrong(buffer, wanted, window)):
                        found = self._damage_comes and loads
                        assert found, f"wrong KV: {wrong}, layer {layer}"
                        poisoned.add(rid)
                    rows = (share.rows if window is None else share.window_rows)[share.start :]
                    buffer[rows] = (~wanted if rid in poisoned else wanted)[share.start :]
        said = [next_token(share.tokens, wrong=share.req.rid in poisoned) for share in shares]
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=torch.tensor(said, dtype=torch.int64),
        )

    def _share(self, req: Any, start: int, end: int) -> _Share:
        tokens = [*req.origin_input_ids, *req.output_ids][:end]
        assert len(tokens) == end, f"{req.rid}: {end} tokens are to be known, {len(tokens)} are"
        rows = self._rows[req.kv.req_pool_idx, :end].numpy().astype(np.int64)
        assert len(np.unique(rows)) == end, f"{req.rid}: two of its tokens lie in one row"
        windows = np.zeros(0, np.int64)
        if self._to_windows is not None:
            windows = self._to_windows.numpy()[rows]
            assert windows[start:].all(), f"{req.rid}: a token that is computed has no row of windows"
            there = windows[windows != 0]
            assert len(np.unique(there)) == len(there), f"{req.rid}: two of its tokens lie in one row of windows"
        self.tokens += end - start
        self.compared += start
        return _Share(req, start, rows, windows, prefix_numbers(tokens), tokens)


def layers_of(pool: Any, window: int | None) -> list[_Layer]:
    """Of SGLang's pool, in the model's order. `window`: of the layers whose KV is in a pool of their own."""
    mapping = getattr(pool, "layers_mapping", None)
    places: list[tuple[Any, int, int | None]]
    if mapping is None:
        places = [(pool, layer, None) for layer in range(len(pool.k_buffer))]
    else:
        places = [
            (pool.swa_kv_pool, number, window) if has_window else (pool.full_kv_pool, number, None)
            for number, has_window in (mapping[layer] for layer in range(len(mapping)))
        ]
    return [
        _Layer([as_numbers(one.k_buffer[layer]), as_numbers(one.v_buffer[layer])], looks_back)
        for one, layer, looks_back in places
    ]


def as_numbers(rows: torch.Tensor) -> np.ndarray:
    """The same memory: uint64 [rows, numbers in each]."""
    numbers: np.ndarray = rows.view(rows.shape[0], -1).view(torch.int64).numpy().view(np.uint64)
    return numbers


def _has_failed(counter: Any, layer: int) -> bool:
    futures = counter.futures.get(counter.consumer_index)
    return futures is not None and futures[layer].exception() is not None
