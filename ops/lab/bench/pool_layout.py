"""How a donor's pool lies in memory: SGLang's own pool, the same in shared memory, and block-major, by turns.

All layers of SmolLM2-135M (30 layers, 9 query heads, 3 KV heads, 64 wide, float32), on random KV: writing the new rows
and attention, as a forward does them, and copying pages out to host memory and back, as the tiers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...commands.bench.report import Figure, by_turns, finish, parser, ratio, spread

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
PAGE, TOKENS = 16, 8192
COPIED_PAGES = 128
LAYOUTS = ("own", "layer-major", "block-major")
#: Lying in shared memory must cost a donor nothing to speak of.
SHARED_AT_MOST = 1.10


class Work(NamedTuple):
    """Requests of these lengths; the last `new` tokens of each are computed. One: they decode."""

    name: str
    lengths: tuple[int, ...]
    new: int
    scattered: bool = False


WORKS = (
    Work("prefill_512_after_4000", (4512,), 512),
    Work("decode_1x4000", (4000,), 1),
    Work("decode_8x500", (500,) * 8, 1),
    Work("decode_8x500_scattered", (500,) * 8, 1, scattered=True),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("pool_layout", __doc__, rounds=15)
    arguments.add_argument("--layers", type=int, default=LAYERS, help="of the pool (%(default)s)")
    options = arguments.parse_args(argv)
    import sglang.srt.managers.scheduler  # noqa: F401 - before its parts, which import each other

    pools = {layout: _pool(layout, options.layers) for layout in LAYOUTS}
    figures, milliseconds = [], {}
    for name, make in {
        **{work.name: partial(_forward, work) for work in WORKS},
        "copy_out": partial(_copy, inward=False),
        "copy_in": partial(_copy, inward=True),
    }.items():
        cases: dict[str, Callable[[], object]] = {layout: make(pools[layout]) for layout in LAYOUTS}
        rounds = by_turns(cases, options.rounds)
        print(name)
        for layout in LAYOUTS:
            print(spread(layout, [1e3 * one for one in rounds[layout]], "ms"))
        milliseconds[name] = {layout: [1e3 * one for one in rounds[layout]] for layout in LAYOUTS}
        figures += [
            Figure(f"{name}_shared", ratio(rounds["layer-major"], rounds["own"]), at_most=SHARED_AT_MOST),
            Figure(f"{name}_block_major", ratio(rounds["block-major"], rounds["layer-major"])),
        ]
    return finish("pool_layout", figures, {"milliseconds": milliseconds}, options.json, smaller=options.layers < LAYERS)


def _pool(layout: str, layers: int) -> Any:
    """SGLang's pool of a kind, full of random rows."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from swift_tiers.sglang_ext.pools.shared_pool import BlockMajorKVPool, SharedKVPool

    kind = {"own": MHATokenToKVPool, "layer-major": SharedKVPool, "block-major": BlockMajorKVPool}[layout]
    pool = kind(
        TOKENS,
        page_size=PAGE,
        dtype=torch.float32,
        head_num=KV_HEADS,
        head_dim=DIM,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
    )
    generator = torch.Generator().manual_seed(0)
    for buffer in [*pool.k_buffer, *pool.v_buffer]:
        buffer.normal_(generator=generator)
    return pool


def _forward(work: Work, pool: Any) -> Callable[[], None]:
    """Writing and attending to all layers of one batch."""
    import torch

    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    generator = torch.Generator().manual_seed(1)
    count = TOKENS // PAGE
    pages = torch.randperm(count, generator=generator) if work.scattered else torch.arange(count)
    slots = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten() + PAGE
    table = torch.zeros(len(work.lengths), max(work.lengths), dtype=torch.int32)
    new_slots, taken = [], 0
    for row, length in enumerate(work.lengths):
        table[row, :length] = slots[taken : taken + length].int()
        new_slots.append(slots[taken + length - work.new : taken + length])
        taken += -(-length // PAGE) * PAGE
    runner = SimpleNamespace(
        device="cpu", token_to_kv_pool=SimpleNamespace(), req_to_token_pool=SimpleNamespace(req_to_token=table)
    )
    backend = CpuAttentionBackend(runner)
    rows, lengths, written = torch.arange(len(work.lengths)), torch.tensor(work.lengths), torch.cat(new_slots)
    query = torch.randn(len(written), HEADS, DIM, generator=generator)
    key = torch.randn(len(written), KV_HEADS, DIM, generator=generator)
    output = torch.empty_like(query)
    new = torch.full((len(work.lengths),), work.new)

    def forward() -> None:
        batch = SimpleNamespace(out_cache_loc=None)
        backend.init_forward_metadata(batch)
        for layer in range(pool.layer_num):
            backend.enter(SimpleNamespace(tp_k_head_num=KV_HEADS, layer_id=layer), batch)
            pool._store_kv_layer(layer, written, key, key)
            buffers = pool.get_key_buffer(layer), pool.get_value_buffer(layer)
            if work.new == 1:
                backend._run_sdpa_forward_decode(
                    query, output, *buffers, table, rows, lengths, scaling=DIM**-0.5, enable_gqa=True
                )
            else:
                backend._run_sdpa_forward_extend(
                    query,
                    output,
                    *buffers,
                    table,
                    rows,
                    lengths,
                    lengths - new,
                    new,
                    scaling=DIM**-0.5,
                    enable_gqa=True,
                    causal=True,
                )

    return forward


def _copy(pool: Any, *, inward: bool) -> Callable[[], None]:
    """Scattered pages between the pool and host memory."""
    import numpy as np

    from swift_tiers.radix_tiering.base.memory import huge_array
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    device = open_device_pool(pool, PAGE)
    stride = device.geometry.stride_bytes
    slab = huge_array(COPIED_PAGES * stride).reshape(COPIED_PAGES, stride)
    pages = np.random.default_rng(2).permutation(TOKENS // PAGE)[:COPIED_PAGES]
    slots = np.arange(COPIED_PAGES)
    if inward:
        device.copy_out(pages, slab, slots)
        return lambda: device.copy_in(pages, slab, slots, lambda layer, mark: None)
    return lambda: device.copy_out(pages, slab, slots)


if __name__ == "__main__":
    raise SystemExit(main())
