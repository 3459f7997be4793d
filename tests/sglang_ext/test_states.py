"""States of layers that keep one in place of KV, and KV of windows, as pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.sglang_ext.pools import opening
from swift_tiers.sglang_ext.pools.device_pool import HostMemoryPool
from swift_tiers.sglang_ext.pools.kept import model_layers, state_layers
from swift_tiers.sglang_ext.pools.states import StatePool

from support.deferred_accelerator import DeferredAccelerator
from support.examples import examples

SLOTS = 5


def random_states(draw: np.random.Generator, layers: int, widths: list[int]) -> list[list[torch.Tensor]]:
    return [
        [torch.from_numpy(draw.integers(0, 256, (SLOTS, 2, width), dtype=np.uint8)) for _ in range(layers)]
        for width in widths
    ]


def bytes_of(states: list[list[torch.Tensor]], slot: int) -> bytes:
    return b"".join(layer[slot].contiguous().numpy().tobytes() for kind in states for layer in kind)


@settings(max_examples=examples(60), deadline=None)
@given(
    layers=st.integers(1, 3),
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    page_bytes=st.integers(8, 100),
    late=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_state_goes_out_in_pages_and_comes_back(layers, widths, page_bytes, late, seed):
    """To any slot, and no other; what no state fills of a page is zero."""
    draw = np.random.default_rng(seed)
    states, came = random_states(draw, layers, widths), list[bytes]()
    accelerator = DeferredAccelerator(seed, locked=False) if late else None
    pool = StatePool.of_layers(states, page_bytes, accelerator)
    assert (pool.nbytes, pool.pages) == (2 * layers * sum(widths), -(-2 * layers * sum(widths) // page_bytes))
    slab = draw.integers(0, 256, (pool.pages + 3, page_bytes + 5), dtype=np.uint8)
    slots = draw.permutation(pool.pages + 3)[: pool.pages].astype(np.int64)
    source, target = draw.permutation(SLOTS)[:2].tolist()
    wanted = bytes_of(states, source)
    after: list[Any] = []
    if accelerator is not None:  # the forward still writes it when the copy is asked for
        final = [[layer[source].clone() for layer in kind] for kind in states]
        for kind, values in zip(states, final, strict=True):
            for layer, value in zip(kind, values, strict=True):
                layer[source] = 0
                accelerator.forward.do(lambda layer=layer, value=value: layer[source].copy_(value))
        after = [accelerator.forward.mark()]
    slab[slots, :page_bytes] = pool.copy_out(np.array([source]), after)
    there = slab[slots, :page_bytes].tobytes()
    assert there == wanted + bytes(len(there) - len(wanted))
    before = slab.copy()
    rest = [bytes_of(states, slot) for slot in range(SLOTS) if slot != target]
    after = []
    if accelerator is not None:  # who had the slot before still writes it when the copy is asked for
        for kind in states:
            for layer in kind:
                accelerator.forward.do(lambda layer=layer: layer[target].zero_())
        after = [accelerator.forward.mark()]
    mark = pool.copy_in(np.array([target]), slab, slots, after)
    assert np.array_equal(slab, before)
    slab[:] = 7  # its rows are others' now
    assert (mark is None) == (accelerator is None)
    if accelerator is not None:
        assert not after[0].reached, "nobody has waited for the forward"
        accelerator.forward.after(mark)
        accelerator.forward.do(lambda: came.append(bytes_of(states, target)))
        accelerator.forward.mark().synchronize()
        assert came == [wanted], "who goes on behind the mark finds it there"
    pool.settle()
    assert bytes_of(states, target) == wanted
    assert [bytes_of(states, slot) for slot in range(SLOTS) if slot != target] == rest


def test_a_slot_that_is_none_is_an_error():
    pool = StatePool.of_layers(random_states(np.random.default_rng(0), 1, [8]), 8)
    slab = np.zeros((4, 8), np.uint8)
    for slot in (-1, SLOTS):
        with pytest.raises(IndexError, match="none of 5"):
            pool.copy_out(np.array([slot]))
        with pytest.raises(IndexError, match="none of 5"):
            pool.copy_in(np.array([slot]), slab, np.array([0, 1]))
    for slots in ([], [1, 2]):
        with pytest.raises(IndexError, match="slots for the 1 of a state"):
            pool.copy_out(np.array(slots, np.int64))
    with pytest.raises(IndexError, match="1 pages of a state of 2"):
        pool.copy_in(np.array([0]), slab, np.array([0]))


def window_planes(draw: np.random.Generator, layers: int, pages: int, tokens: int) -> list[list[torch.Tensor]]:
    """K and V of each layer: rows of two heads of three values, a few beyond the last page."""
    rows = pages * tokens + tokens // 2
    return [
        [torch.from_numpy(draw.integers(0, 256, (rows, 2, 3), dtype=np.uint8)) for _ in "kv"] for _ in range(layers)
    ]


@settings(max_examples=examples(60), deadline=None)
@given(
    layers=st.integers(1, 3),
    beside=st.integers(0, 2),
    tokens=st.integers(1, 5),
    window=st.integers(1, 17),
    page_bytes=st.integers(8, 100),
    late=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_window_goes_out_and_its_last_parts_come_back(layers, beside, tokens, window, page_bytes, late, seed):
    """To whichever slots there are, and no others; what a short prefix lacks of a window is zero."""
    draw = np.random.default_rng(seed)
    planes = window_planes(draw, layers, 40, tokens)
    accelerator = DeferredAccelerator(seed, locked=False) if late else None
    # What else lies in a page: a row each.
    more = [[torch.from_numpy(draw.integers(0, 256, (41, 7), dtype=np.uint8))] for _ in range(beside)]
    groups = [PoolPlanes(planes, tokens), *([PoolPlanes(more, 1)] if beside else [])]
    pool = StatePool.of_windows(groups, window, tokens, page_bytes, accelerator)
    parts = -(-window // tokens)
    assert (pool.parts, pool.slots, pool.windows) == (parts, 40, True)
    assert pool.nbytes == parts * (2 * layers * tokens * 6 + 7 * beside)
    # Of a prefix, and of what the device lacks of it.
    there, wanted = sorted(draw.integers(1, parts + 1, 2).tolist(), reverse=True)
    places = draw.permutation(np.arange(1, 40))[: there + wanted]
    source, target = (
        pool.slots_of((numbers[:, None] * tokens + np.arange(tokens)).reshape(-1)).astype(np.int64)
        for numbers in (places[:there], places[there:])
    )
    slab = draw.integers(0, 256, (pool.pages + 3, page_bytes + 5), dtype=np.uint8)
    rows = draw.permutation(pool.pages + 3)[: pool.pages].astype(np.int64)
    slab[rows, :page_bytes] = pool.copy_out(source)
    lacks = (parts - there) * pool.part_bytes
    kept = slab[rows, :page_bytes].tobytes()
    assert kept[:lacks] == bytes(lacks)

    def of(slots: np.ndarray) -> bytes:
        return b"".join(
            plane[slot * size : (slot + 1) * size].numpy().tobytes()
            for slot in slots.tolist()
            for size, group in ((tokens, planes), (1, more))
            for layer in group
            for plane in layer
        )

    assert kept[lacks : pool.nbytes] == of(source)
    others = np.setdiff1d(np.arange(40), target)
    rest = of(others)
    pool.copy_in(target, slab, rows)
    pool.settle()
    assert of(target) == of(source[there - wanted :])
    assert of(others) == rest


def test_rows_of_a_window_are_whole_slots_or_none():
    planes = window_planes(np.random.default_rng(0), 1, 8, 4)
    pool = StatePool.of_windows([PoolPlanes(planes, 4)], 8, 4, 64)
    assert pool.slots_of(np.array([8, 9, 10, 11, 4, 5, 6, 7])).tolist() == [2, 1]
    assert pool.slots_of(np.array([8, 9, 10, 11, 0, 0, 0, 0])).tolist() == [], "SGLang has given a part of it up"
    with pytest.raises(ValueError, match="not whole slots"):
        pool.slots_of(np.array([9, 10, 11, 12]))
    assert pool.kinds == "1 layers of the last 8 tokens, uint8 (2, 3)"


def test_states_that_follow_each_other_pass_one_after_the_other():
    """Through the same memory, where the device is late."""
    for seed in range(20):
        draw, accelerator = np.random.default_rng(seed), DeferredAccelerator(seed, locked=False)
        states = random_states(draw, 2, [16])
        pool = StatePool.of_layers(states, 32, accelerator)
        slab = draw.integers(0, 256, (2 * pool.pages, 32), dtype=np.uint8)
        pages = np.arange(2 * pool.pages).reshape(2, -1)
        for target in range(2):
            pool.copy_in(np.array([target]), slab, pages[target])
        pool.settle()
        for target in range(2):
            assert bytes_of(states, target) == slab[pages[target]].tobytes()[: pool.nbytes]


def test_no_queue_of_states_is_the_forwards(monkeypatch):
    """Between its layers copies would run, not beside them."""
    made: list[str] = []

    class Recording(DeferredAccelerator):
        def queue(self):
            made.append("a queue")
            return super().queue()

        def keep_clear_of(self, stream):
            made.append(f"clear of {stream}")

    pool = HostMemoryPool([[torch.zeros(8, 1, 4) for _ in "kv"] for _ in range(2)], 4)
    pool.accelerator = Recording(0, locked=False)
    made.clear()
    params = init_params()
    params.page_size = 4
    monkeypatch.setattr(opening, "open_device_pool", lambda *_: pool)
    monkeypatch.setattr(opening, "window_pool", lambda params: None)
    monkeypatch.setattr(opening, "draft_pools", lambda params: [])
    opening.open_pool(params, "", "the forward")
    assert made[0] == "clear of the forward"
    assert "a queue" in made
    assert pool.states is not None


def test_keys_are_of_the_page_and_of_their_number():
    pool = StatePool.of_layers(random_states(np.random.default_rng(0), 2, [16]), 8)
    keys = [key for page in (b"a" * 32, b"b" * 32) for key in pool.keys(page)]
    assert len(set(keys)) == 2 * pool.pages
    assert {len(key) for key in keys} == {32}
    assert pool.keys(b"a" * 32) == keys[: pool.pages]


def test_layers_with_states_begin_with_the_kv_before_them():
    """What a forward waits for: of seven layers, the third and the sixth have KV."""
    pool = HostMemoryPool([[torch.zeros(8, 1, 4) for _ in "kv"] for _ in range(2)], 4)
    plain = pool.geometry
    assert (pool.model_layers, list(pool.releases), pool.begin_with) == (2, [range(0, 1), range(1, 2)], range(0))
    pool.keep_states(StatePool.of_layers(random_states(np.random.default_rng(0), 5, [8]), 64), [2, 5], 7)
    assert (pool.model_layers, list(pool.releases)) == (7, [range(2, 5), range(5, 7)])
    assert pool.begin_with == range(2)
    assert (plain.state_bytes, pool.geometry.state_bytes) == (0, 2 * 5 * 8)


def init_params(**changes: Any) -> Any:
    """SGLang's, of a model of which some layers keep states, without all that makes them."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    pool = MambaPool.__new__(MambaPool)
    kept = {
        "temporal": torch.zeros(2, SLOTS, 3, 4),
        "conv": [torch.zeros(2, SLOTS, 6, 3, dtype=torch.bfloat16)],
        "replayssm_d": None,
        "replayssm_rawv": None,
    }
    pool.mamba_cache = SimpleNamespace(**{name: changes.pop(name, value) for name, value in kept.items()})
    rest = {
        "mamba_pool": pool,
        "mamba_map": {4: 0, 6: 1},
        "mamba_ckpt_pool": None,
        "short_conv_pool": SimpleNamespace(enabled=False),
        "ngram_pool": SimpleNamespace(enabled=False),
    }
    kvcache = SimpleNamespace(full_attention_layer_id_mapping={5: 0, 7: 1}, start_layer=4)
    return SimpleNamespace(
        req_to_token_pool=SimpleNamespace(**rest | changes),
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: kvcache),
    )


def test_states_are_of_two_kinds():
    states = state_layers(init_params())
    assert [[tuple(layer.shape) for layer in kind] for kind in states] == [[(5, 3, 4)] * 2, [(5, 6, 3)] * 2]
    assert StatePool.of_layers(states, 100).kinds == "float32 (3, 4), bfloat16 (6, 3)"
    assert model_layers(init_params()) == ([1, 3], 4), "they count from the first layer of this rank"
    assert state_layers(SimpleNamespace(req_to_token_pool=object())) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mamba_ckpt_pool": object()}, "8-bit checkpoints"),
        ({"ngram_pool": SimpleNamespace(enabled=True)}, "with others beside them"),
        ({"replayssm_d": torch.zeros(1)}, "^--enable-linear-replayssm: a state is kept in parts"),
        ({"mamba_pool": SimpleNamespace()}, "states are in a SimpleNamespace"),
    ],
)
def test_states_that_mean_more_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        state_layers(init_params(**changes))
