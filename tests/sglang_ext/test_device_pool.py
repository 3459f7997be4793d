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
        ("MLATokenToKVPoolFP4", "remove the flag"),
        ("MHATokenToKVPoolFP4", "remove the flag"),
        ("MHATokenToKOnlyPool", "remove the flag"),
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


def sparse_pool(**changes: Any) -> Any:
    """Latent rows as of `latent_pool`, of pages of 64, and an index of three of its layers."""
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    known = {**latent_pool().__dict__, **changes}
    pool = DSATokenToKVPool.__new__(DSATokenToKVPool)
    pool.__dict__.update(known)
    rows = known["kv_buffer"][0].shape[0]
    draw = torch.Generator().manual_seed(9)
    pages = [rows // 64 if layer != 1 else 0 for layer in range(len(known["kv_buffer"]))]
    buffers = [torch.randint(0, 256, (count, 64 * 132), generator=draw).to(torch.uint8) for count in pages]
    pool.index_key_cache = SimpleNamespace(buffer=buffers)
    return pool


def rows_of(kvcache: Any, page: slice) -> list[torch.Tensor]:
    """Of a page of tokens, in each plane of each layer."""
    if hasattr(kvcache, "k_buffer"):
        planes = [pair for both in zip(kvcache.k_buffer, kvcache.v_buffer, strict=True) for pair in both]
    else:
        planes = kvcache.kv_buffer
    return [plane[page] for plane in planes]


def bytes_of(rows: list[torch.Tensor]) -> bytes:
    return b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in rows)


@pytest.mark.parametrize(
    "drafts",
    [
        pytest.param(lambda: [grouped_pool(1), grouped_pool(2)], id="rows alike"),
        pytest.param(lambda: [grouped_pool(1, heads=4)], id="wider rows"),
        pytest.param(lambda: [grouped_pool(1, dtype=torch.float16)], id="other values"),
        pytest.param(lambda: [grouped_pool(2, rows=5 * 16)], id="more slots"),
        pytest.param(lambda: [latent_pool()], id="another kind of attention"),
    ],
)
@pytest.mark.parametrize("codec", ["", "fp8"])
def test_a_page_has_what_its_drafts_keep_in_front_of_the_layers(drafts: Any, codec: str) -> None:
    """As it is, also where the layers are coded; and it comes back with the first of these."""
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    model, drafts = grouped_pool(3, dtype=torch.bfloat16), drafts()
    pool, page = open_device_pool(model, 16, codec, drafts=drafts), slice(32, 48)
    assert (pool.geometry.layers, pool.drafts) == (3, True)
    slab = np.zeros((1, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([2]), slab, np.array([0]))
    front = bytes_of([rows for draft in drafts for rows in rows_of(draft, page)])
    assert slab[0, : pool.geometry.front_bytes].tobytes() == front
    if not codec:
        assert slab[0, len(front) : pool.geometry.page_bytes].tobytes() == bytes_of(rows_of(model, page))
    for rows in (rows for draft in drafts for rows in rows_of(draft, page)):
        rows.zero_()
    pool.copy_layer(np.array([2]), slab, np.array([0]), 1)
    assert not any(bytes_of(rows_of(draft, page)).strip(b"\0") for draft in drafts), "copied with another layer"
    pool.copy_in(np.array([2]), slab, np.array([0]), lambda layer, mark: None)
    assert bytes_of([rows for draft in drafts for rows in rows_of(draft, page)]) == front


def test_a_page_has_the_index_of_sparse_attention_in_front_of_the_layers() -> None:
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    model, draft = sparse_pool(), sparse_pool()
    pool, page = open_device_pool(model, 64, drafts=[draft]), slice(64, 128)
    slab = np.zeros((1, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([1]), slab, np.array([0]))
    index = [[buffer[1] for buffer in kvcache.index_k_with_scale_buffer if len(buffer)] for kvcache in (draft, model)]
    expected = [rows_of(draft, page), index[0], index[1], rows_of(model, page)]
    assert slab[0, : pool.geometry.page_bytes].tobytes() == b"".join(map(bytes_of, expected))
    assert pool.geometry.front_bytes == sum(len(bytes_of(rows)) for rows in expected[:3])


def test_a_page_has_the_index_that_picks_blocks_in_front_of_the_layers() -> None:
    """Of some layers with keys alone, of others with values, too: each a row of a page's tokens."""
    from sglang.srt.mem_cache.memory_pool import MiniMaxSparseKVPool

    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    model, page, draw = grouped_pool(3), slice(32, 48), torch.Generator().manual_seed(3)
    rows = [torch.randn((len(model.k_buffer[0]), 1, 8), generator=draw) for _ in range(4)]
    kvcache = MiniMaxSparseKVPool.__new__(MiniMaxSparseKVPool)
    kvcache.main_pool, kvcache.page_size, kvcache.layer_transfer_counter = model, 16, None
    kvcache.index_kv_pool = SimpleNamespace(k_buffer=rows[:1], v_buffer=rows[1:2])
    kvcache.index_k_pool = SimpleNamespace(k_buffer=rows[2:])
    pool = open_device_pool(kvcache, 16)
    slab = np.zeros((1, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([2]), slab, np.array([0]))
    expected = bytes_of([plane[page] for plane in rows]) + bytes_of(rows_of(model, page))
    assert slab[0, : pool.geometry.page_bytes].tobytes() == expected
    assert pool.geometry.front_bytes == 4 * 16 * 8 * 4


def compressed_pool(**changes: Any) -> Any:
    """SGLang's pool of KV of which a row stands for several tokens, without all that makes one: as far as it is looked
    at before anything is taken from it."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    pool = DeepSeekV4TokenToKVPool.__new__(DeepSeekV4TokenToKVPool)
    pool.__dict__ |= {
        "present_ratios": (4, 128),
        "request_window": None,
        "swa_kv_pool": SimpleNamespace(page_size=256),
        "c4_kv_pool": None,
        "c4_indexer_kv_pool": SimpleNamespace(index_k_with_scale_buffer=[]),
        **changes,
    }
    return pool


def rows_in_host_memory() -> Any:
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import HiSparseC4DevicePool

    return HiSparseC4DevicePool.__new__(HiSparseC4DevicePool)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: {"present_ratios": (1, 4, 128)}, "of other numbers of tokens than 4 and 128"),
        (lambda: {"present_ratios": (4,)}, "of other numbers of tokens than 4 and 128"),
        (lambda: {"swa_kv_pool": None}, "of the last tokens with each request"),
        (lambda: {"request_window": object()}, "of the last tokens with each request"),
        (lambda: {"swa_kv_pool": SimpleNamespace(page_size=64)}, "of the last tokens in pages of another size"),
        (lambda: {"c4_kv_pool": rows_in_host_memory()}, "in part in host memory"),
        (
            lambda: {"c4_indexer_kv_pool": SimpleNamespace(index_k_with_scale_buffer=None)},
            "of its index in two parts",
        ),
        (lambda: {"present_ratios": (128,), "c4_indexer_kv_pool": None}, "of other numbers of tokens than 4 and 128"),
    ],
)
def test_compressed_kv_that_is_kept_otherwise_is_refused(change: Any, what: str) -> None:
    from swift_tiers.sglang_ext.pools.kept import check_compressed

    with pytest.raises(ConfigError, match=f"SGLang keeps rows {what}, which is not supported .* remove [Sta-]"):
        check_compressed(compressed_pool(**change()), 256)


def test_breakable_graphs_of_prompts_are_refused_with_compressed_kv(monkeypatch: Any) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.model_executor.cuda_graph_config import Backend

    from swift_tiers.sglang_ext.pools import opening

    prefill = SimpleNamespace(backend=Backend.BREAKABLE)
    served = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(prefill=prefill)))
    monkeypatch.setattr(runtime_context, "get_exec", lambda: served)
    with pytest.raises(ConfigError, match=r"--cuda-graph-backend-prefill: .* remove it"):
        opening._check_graphs()
    prefill.backend = Backend.DISABLED
    opening._check_graphs()


def test_ranks_have_a_page_alike_only_if_what_lies_in_front_is_alike() -> None:
    """Latent rows and their index are; keys and values of a draft are split by heads."""
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    found = [
        open_device_pool(pool, 64, drafts=drafts).geometry.is_whole
        for pool, drafts in (
            (latent_pool(), []),
            (sparse_pool(), []),
            (sparse_pool(), [sparse_pool()]),
            (latent_pool(), [grouped_pool(1, rows=256)]),
            (grouped_pool(3, rows=256), []),
        )
    ]
    assert found == [True, True, True, False, False]


def test_a_draft_with_a_pool_of_another_kind_is_told_from_the_model() -> None:
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    with pytest.raises(ConfigError, match=r"the draft's KV pool is a SWAKVPool; .*: use a draft of plain"):
        open_device_pool(grouped_pool(3), 16, drafts=[SWAKVPool.__new__(SWAKVPool)])


def test_a_draft_whose_memory_is_not_told_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of SGLang's unified memory, or of an algorithm that it resolves to another one."""
    from sglang.srt import runtime_context

    from swift_tiers.sglang_ext.pools.opening import draft_pools

    spec = SimpleNamespace(speculative_algorithm="FROZEN_KV_MTP")
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)
    params = SimpleNamespace(mtp_draft_device_pools=(), sidecar_draft_device_pools=(), mtp_draft_mamba_pools=())
    with pytest.raises(ConfigError, match="FROZEN_KV_MTP keeps the KV of its draft where the tiers cannot reach it"):
        draft_pools(params)
    for algorithm in (None, "NGRAM"):
        spec.speculative_algorithm = algorithm
        assert draft_pools(params) == ()
    spec.speculative_algorithm = "EAGLE"
    params.sidecar_draft_device_pools = ("a draft's",)
    assert draft_pools(params) == ("a draft's",)


def test_a_draft_that_has_no_states_may_be_in_a_pool_that_could_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SGLang keeps the layer of Qwen3-Next that predicts further tokens; another model's states are not kept."""
    from sglang.srt import runtime_context
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    from swift_tiers.sglang_ext.pools.opening import draft_pools, open_device_pool

    monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(speculative_algorithm="EAGLE"))
    hybrid = HybridLinearKVPool.__new__(HybridLinearKVPool)
    hybrid.full_kv_pool = grouped_pool(1)
    params = SimpleNamespace(mtp_draft_device_pools=(hybrid,), sidecar_draft_device_pools=(), mtp_draft_mamba_pools=())
    assert draft_pools(params) == (hybrid.full_kv_pool,)
    params.mtp_draft_mamba_pools = ("of its own",)
    with pytest.raises(ConfigError, match="the draft of EAGLE keeps states of its own, which is not supported; use a"):
        draft_pools(params)
    with pytest.raises(ConfigError, match="the draft's KV pool is a HybridLinearKVPool"):
        open_device_pool(grouped_pool(3), 16, drafts=[hybrid])


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
