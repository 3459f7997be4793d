"""Which of SGLang's KV pools a server may have."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.errors import ConfigError


@pytest.mark.parametrize("kind", ["MLATokenToKVPool", "SWAKVPool", "HybridLinearKVPool"])
def test_pools_that_mean_more_than_k_and_v_rows_are_refused_in_one_line(kind: str) -> None:
    """Latent attention, sliding windows, Mamba: a prefix of these is more than the KV of its tokens."""
    from sglang.srt.mem_cache import memory_pool, swa_memory_pool

    from swift_tiers.sglang_ext.device_pool import open_device_pool

    pool = getattr(memory_pool, kind, None) or getattr(swa_memory_pool, kind)
    with pytest.raises(ConfigError, match=rf"KV pool is a {kind}; only plain .*: remove the flag") as refused:
        open_device_pool(pool.__new__(pool), 16)
    assert "\n" not in str(refused.value)
