"""Which of SGLang's KV pools a server may have, and what a page of one looks like below it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.sglang_ext.pools.device_pool import BlockMajorPool, DevicePool, HostMemoryPool


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("SWAKVPool", r"add --disable-hybrid-swa-memory .*, or remove the flag"),
        ("HybridLinearKVPool", "remove the flag"),
        ("DSATokenToKVPool", "remove the flag"),
        ("MLATokenToKVPoolFP4", "remove the flag"),
        ("MHATokenToKVPoolFP4", "remove the flag"),
    ],
)
def test_pools_that_mean_more_than_kv_rows_are_refused_in_one_line(kind: str, remedy: str) -> None:
    """Sliding windows, Mamba, sparse attention, scales: a prefix of these is more than the KV rows of its tokens."""
    from sglang.srt.mem_cache import memory_pool, swa_memory_pool

    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    pool = getattr(memory_pool, kind, None) or getattr(swa_memory_pool, kind)
    with pytest.raises(ConfigError, match=rf"KV pool is a {kind}; only .* are supported: {remedy}$") as refused:
        open_device_pool(pool.__new__(pool), 16)
    assert "\n" not in str(refused.value)


def latent_pool(**changes: Any) -> Any:
    """SGLang's pool of three layers of latent rows, 512 values and 64 rotary ones, without all that makes one."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    pool = MLATokenToKVPool.__new__(MLATokenToKVPool)
    pool.kv_buffer = [torch.zeros(4 * 64 + 64, 1, 576, dtype=torch.bfloat16) for _ in range(3)]
    pool.kv_scale_buffer, pool.kv_cache_dim = None, 576
    vars(pool).update(changes)
    return pool


def test_latent_rows_are_pages_of_one_plane() -> None:
    from swift_tiers.sglang_ext.pools.kept import row_shape
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    pool = latent_pool()
    assert open_device_pool(pool, 64).geometry == PageGeometry(layers=3, planes=1, tokens=64, row_bytes=1152)
    assert row_shape(pool) == (1, 576)


@pytest.mark.parametrize("change", [{"kv_scale_buffer": [torch.zeros(1)]}, {"layer_shard_enabled": True}])
def test_latent_rows_with_scales_or_on_some_ranks_only_are_refused(change: dict[str, Any]) -> None:
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    with pytest.raises(
        ConfigError, match="the pool of latent KV is scaled, or its layers are spread over ranks; choose"
    ):
        open_device_pool(latent_pool(**change), 64)


def grouped_pool(layers: int, *, rows: int = 4 * 16, heads: int = 2, dtype: Any = torch.float32) -> Any:
    """SGLang's pool of K and V, without all that makes one; every row of another number."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool.__new__(MHATokenToKVPool)
    planes = torch.randn(2 * layers, rows, heads, 8, generator=torch.Generator().manual_seed(layers)).to(dtype)
    pool.k_buffer, pool.v_buffer = list(planes[:layers]), list(planes[layers:])
    pool.kv_cache_layout, pool.layer_num = "nhd", layers
    return pool


def test_a_page_has_the_layers_of_its_drafts_before_the_models() -> None:
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    model, drafts = grouped_pool(3), [grouped_pool(1), grouped_pool(2)]
    pool = open_device_pool(model, 16, drafts=drafts)
    assert (pool.geometry.layers, pool.draft_layers, pool.model_layers) == (6, 3, 3)
    slab = np.zeros((1, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([2]), slab, np.array([0]))
    layers = [pair for kvcache in (*drafts, model) for pair in zip(kvcache.k_buffer, kvcache.v_buffer, strict=True)]
    expected = b"".join(plane[32:48].numpy().tobytes() for pair in layers for plane in pair)
    assert slab[0, : pool.geometry.page_bytes].tobytes() == expected


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(lambda: grouped_pool(1, heads=4), id="wider rows"),
        pytest.param(lambda: grouped_pool(1, dtype=torch.int32), id="other values of the same width"),
        pytest.param(lambda: grouped_pool(1, rows=5 * 16), id="other slots"),
        pytest.param(latent_pool, id="another kind of attention"),
    ],
)
def test_a_draft_whose_rows_fit_no_page_is_refused(draft: Any) -> None:
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    with pytest.raises(
        ConfigError, match=r"^--speculative-algorithm: the draft keeps .*; (use a draft whose|choose --)"
    ):
        open_device_pool(grouped_pool(3), 16, drafts=[draft()])


def test_a_draft_with_a_pool_of_another_kind_is_told_from_the_model() -> None:
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    with pytest.raises(ConfigError, match=r"the draft's KV pool is a SWAKVPool; .*: use a draft whose"):
        open_device_pool(grouped_pool(3), 16, drafts=[SWAKVPool.__new__(SWAKVPool)])


def test_a_draft_whose_memory_is_not_told_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of SGLang's unified memory, or of an algorithm that it resolves to another one."""
    from sglang.srt import runtime_context

    from swift_tiers.sglang_ext.pools.opening import draft_pools

    spec = SimpleNamespace(speculative_algorithm="FROZEN_KV_MTP")
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)
    params = SimpleNamespace(mtp_draft_device_pools=(), sidecar_draft_device_pools=())
    with pytest.raises(ConfigError, match="FROZEN_KV_MTP keeps the KV of its draft where the tiers cannot reach it"):
        draft_pools(params)
    for algorithm in (None, "NGRAM"):
        spec.speculative_algorithm = algorithm
        assert draft_pools(params) == ()
    spec.speculative_algorithm = "EAGLE"
    params.sidecar_draft_device_pools = ("a draft's",)
    assert draft_pools(params) == ("a draft's",)


def pool_of(kind: str) -> tuple[DevicePool, list[list[torch.Tensor]]]:
    """A pool of 3 pages of 4 tokens, 2 layers, K and V, in which every byte differs from its neighbours."""
    generator = np.random.default_rng(7)
    pages, tokens, layers, planes, row_bytes = 3, 4, 2, 2, 64
    table = torch.from_numpy(generator.integers(0, 256, (pages, tokens, layers * planes, row_bytes), np.uint8))
    if kind == "block-major":
        rows = table.view(pages * tokens, layers * planes, row_bytes)
        views = [[rows[:, layer * planes + plane] for plane in range(planes)] for layer in range(layers)]
        return BlockMajorPool(views, tokens, table), views
    tensors = [
        [table[:, :, layer * planes + plane].reshape(pages * tokens, row_bytes).clone() for plane in range(planes)]
        for layer in range(layers)
    ]
    return HostMemoryPool(tensors, tokens), tensors


def in_order(layers: list[list[torch.Tensor]], page: int) -> bytes:
    """A page as docs and devices have it: `[layer][k|v][token]`, by the definition and not by any code of ours."""
    rows = slice(4 * page, 4 * page + 4)
    return b"".join(plane[rows].numpy().tobytes() for planes in layers for plane in planes)


@pytest.mark.parametrize("kind", ["layer-major", "block-major"])
def test_a_page_has_its_layers_in_order_and_keys_before_values(kind: str) -> None:
    """The order is what every server, and every later one, takes the bytes of a page for."""
    pool, layers = pool_of(kind)
    slab = np.zeros((5, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([2, 0]), slab, np.array([1, 4]))
    for page, slot in ((2, 1), (0, 4)):
        assert slab[slot, : pool.geometry.page_bytes].tobytes() == in_order(layers, page)


@pytest.mark.parametrize("by_layers", [False, True])
@pytest.mark.parametrize("kind", ["layer-major", "block-major"])
def test_a_page_comes_back_to_the_rows_it_is_for(kind: str, by_layers: bool) -> None:
    pool, layers = pool_of(kind)
    wanted = [in_order(layers, page) for page in range(3)]
    slab = np.zeros((2, pool.geometry.stride_bytes), np.uint8)
    slab[1, : pool.geometry.page_bytes] = np.frombuffer(wanted[2], np.uint8)
    if by_layers:
        for layer in (1, 0):
            pool.copy_layer(np.array([0]), slab, np.array([1]), layer)
    else:
        pool.copy_in(np.array([0]), slab, np.array([1]), lambda layer, event: None)
    assert [in_order(layers, page) for page in range(3)] == [wanted[2], wanted[1], wanted[2]]
