"""SGLang's flashinfer backend on the portable CPU platform. For tests of what it is made to plan.

The backend is SGLang's own. What it calls is not FlashInfer, whose kernels only a GPU runs, but stands in for it in
plain torch: the three wrappers, as far as that backend uses them, and the merging of two states. Like the real ones
they keep the lists of a plan without copying them, and read their lengths on the host when they plan; unlike those
they object where one is run whose lists another plan has overwritten.
"""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import torch

#: SGLang's Triton kernels make the lists.
ENVIRONMENT = {"TRITON_INTERPRET": "1"}
ARGUMENTS = ["--attention-backend", "flashinfer"]
#: Of the workspaces that wrappers were made with.
workspace_bytes: set[int] = set()


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    with mock.patch("sglang.srt.utils.is_flashinfer_available", return_value=True):
        backend: Any = importlib.import_module("sglang.srt.layers.attention.flashinfer_backend")
    assert hasattr(backend, "merge_state"), "it had been imported before"
    backend.BatchDecodeWithPagedKVCacheWrapper = Decode
    backend.BatchPrefillWithPagedKVCacheWrapper = PagedPrefill
    backend.BatchPrefillWithRaggedKVCacheWrapper = RaggedPrefill
    backend.merge_state = merged
    backend.torch = _TorchWithoutCuda()


class _TorchWithoutCuda:
    """torch, in which "cuda" is the CPU: the backend names that device itself in one place."""

    def __getattr__(self, name: str) -> Any:
        return self._empty if name == "empty" else getattr(torch, name)

    @staticmethod
    def _empty(*size: Any, device: Any = None, **more: Any) -> torch.Tensor:
        return torch.empty(*size, device="cpu" if device == "cuda" else device, **more)


class _Wrapper:
    is_cuda_graph_enabled = False

    def __init__(self, workspace: torch.Tensor, layout: str, **_: Any) -> None:
        assert layout == "NHD"
        workspace_bytes.add(len(workspace))
        self._lists: tuple[torch.Tensor, ...] = ()
        self._on_host: tuple[torch.Tensor, ...] = ()

    def _plan(self, *lists: torch.Tensor) -> None:
        """Lists of ends, and of slots."""
        self._lists = lists
        self._on_host = tuple(values.clone() for values in lists)

    def _planned(self) -> list[Any]:
        assert self._lists, "it is run without a plan"
        for now, then in zip(self._lists, self._on_host, strict=True):
            assert torch.equal(now, then), "a plan is run whose lists another one has overwritten"
        return [values.tolist() for values in self._on_host]


class PagedPrefill(_Wrapper):
    """Keys and values of places in a pool, in pages of one token."""

    def begin_forward(
        self, rows: Any, ends: Any, slots: Any, last_page: Any, heads: int, kv_heads: int, dim: int, page: int, **_: Any
    ) -> None:
        assert page == 1
        assert last_page.eq(1).all()
        assert rows.dtype == ends.dtype == slots.dtype == torch.int32
        # Beyond the last end, what there is is not read.
        self._plan(rows, ends, slots[: int(ends[-1])])

    def forward_return_lse(self, query: Any, cache: Any, *, causal: bool, sm_scale: float, **_: Any) -> Any:
        rows, ends, slots = self._planned()
        keys, values = (part[torch.tensor(slots, dtype=torch.int64)] for part in cache)
        return attended(query, rows, keys, values, ends, causal, sm_scale)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_return_lse(*args, **kwargs)[0]


class Decode(_Wrapper):
    """One row a request."""

    def begin_forward(
        self, ends: Any, slots: Any, last_page: Any, heads: int, kv_heads: int, dim: int, page: int, **_: Any
    ) -> None:
        assert page == 1
        assert last_page.eq(1).all()
        assert len(slots) == int(ends[-1])
        self._plan(ends, slots)

    def forward(self, query: Any, cache: Any, *, sm_scale: float, **_: Any) -> Any:
        ends, slots = self._planned()
        assert len(query) == len(ends) - 1, "it was planned for another number of requests"
        keys, values = (part[torch.tensor(slots, dtype=torch.int64)] for part in cache)
        return attended(query, list(range(len(ends))), keys, values, ends, False, sm_scale)[0]


class RaggedPrefill(_Wrapper):
    """Keys and values of the new tokens, as the layer has computed them."""

    def begin_forward(self, rows: Any, ends: Any, heads: int, kv_heads: int, dim: int, **_: Any) -> None:
        self._plan(rows, ends)

    def forward_return_lse(self, query: Any, key: Any, value: Any, *, causal: bool, sm_scale: float, **_: Any) -> Any:
        rows, ends = self._planned()
        return attended(query, rows, key, value, ends, causal, sm_scale)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_return_lse(*args, **kwargs)[0]


def attended(
    query: torch.Tensor, rows: list[int], keys: Any, values: Any, ends: list[int], causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each request's rows `[heads, dim]` read of its keys and values, and the base-2 logarithms of the weights."""
    assert len(query) == rows[-1], "it was planned for another number of rows"
    assert len(keys) >= ends[-1]
    result, sums = torch.zeros_like(query), query.new_full(query.shape[:2], float("-inf"))
    for request in range(len(rows) - 1):
        own, read = slice(*rows[request : request + 2]), slice(*ends[request : request + 2])
        asked, key, value = query[own], keys[read], values[read]
        if not len(key) or not len(asked):
            continue
        groups = asked.shape[1] // key.shape[1]
        key, value = (part.to(asked.dtype).repeat_interleave(groups, 1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", asked, key) * scale
        if causal:
            unseen = torch.ones(len(asked), len(key), dtype=torch.bool).triu(1 + len(key) - len(asked))
            scores = scores.masked_fill(unseen, float("-inf"))
        result[own] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
        sums[own] = scores.logsumexp(-1).T / torch.log(torch.tensor(2.0))
    return result, sums


def merged(one: Any, sums_of_one: Any, other: Any, sums_of_other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.logaddexp2(sums_of_one, sums_of_other)
    shares = [torch.exp2(sums - both)[..., None] for sums in (sums_of_one, sums_of_other)]
    return one * shares[0] + other * shares[1], both
