"""Which of SGLang's KV pools a server may have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift_tiers.radix_tiering.errors import ConfigError
from swift_tiers.radix_tiering.page import PageGeometry


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

    from swift_tiers.sglang_ext.device_pool import open_device_pool

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
    from swift_tiers.sglang_ext.device_pool import open_device_pool, row_shape

    pool = latent_pool()
    assert open_device_pool(pool, 64).geometry == PageGeometry(layers=3, planes=1, tokens=64, row_bytes=1152)
    assert row_shape(pool) == (1, 576)


@pytest.mark.parametrize("change", [{"kv_scale_buffer": [torch.zeros(1)]}, {"layer_shard_enabled": True}])
def test_latent_rows_with_scales_or_on_some_ranks_only_are_refused(change: dict[str, Any]) -> None:
    from swift_tiers.sglang_ext.device_pool import open_device_pool

    with pytest.raises(
        ConfigError, match="the pool of latent KV is scaled, or its layers are spread over ranks; choose"
    ):
        open_device_pool(latent_pool(**change), 64)
