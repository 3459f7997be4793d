"""`swift_cpu` must equal `torch_native`, which recomputes everything, on any batch that SGLang can form."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType

from swift_tiers.sglang_ext.platform import cpu_attention
from swift_tiers.sglang_ext.platform import cpu_attention_backend as backend
from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend, runs

from support.examples import examples

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Pool:
    """The part of SGLang's KV pool that a backend touches; remembers in which order."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.key, self.value = key, value
        self.calls: list[str] = []

    def set_kv_buffer(self, layer: Any, location: Any, key: torch.Tensor, value: torch.Tensor) -> None:
        self.calls.append("set")
        slots = location.loc
        self.key[slots] = key.view(-1, *self.key.shape[1:]).to(self.key.dtype)
        self.value[slots] = value.view(-1, *self.value.shape[1:]).to(self.value.dtype)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        self.calls.append("key")
        return self.key

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        self.calls.append("value")
        return self.value


class Forward(NamedTuple):
    """One batch at one layer, ready to run."""

    runner: Any
    batch: Any
    layer: Any
    tensors: tuple[torch.Tensor | None, ...]  # query, key, value

    def run(self, attention: Any, decode: bool = False) -> torch.Tensor:
        forward = attention.forward_decode if decode else attention.forward_extend
        return forward(*self.tensors, self.layer, self.batch)


@dataclass
class Case:
    """One batch over a pool of random KV."""

    prefix: list[int]
    new: list[int]
    kv_heads: int = 2
    group: int = 2
    dim: int = 16
    value_dim: int | None = None
    page: int = 1
    shuffled: bool = True
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    window: int = -1
    encoder: list[int] | None = None
    cross: bool = False
    encoder_only: bool = False
    seed: int = 0

    def run(self, kind: type[TorchNativeAttnBackend], decode: bool = False) -> torch.Tensor:
        forward = self.build()
        attention = kind(forward.runner)
        attention.init_forward_metadata(forward.batch)
        result = forward.run(attention, decode)
        # The next layer goes through the plan that the first one made.
        assert torch.equal(result, forward.run(attention, decode))
        return result.view(sum(self.new), -1)

    def build(self) -> Forward:
        generator = torch.Generator().manual_seed(self.seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        totals = [a + b for a, b in zip(self.prefix, self.new, strict=True)]
        encoder = self.encoder or [0] * len(totals)
        pages = [-(-(total + extra) // self.page) for total, extra in zip(totals, encoder, strict=True)]
        count = sum(pages) + 2
        order = torch.randperm(count, generator=generator) if self.shuffled else torch.arange(count)
        table = torch.zeros(len(totals) + 3, max(pages) * self.page + 1, dtype=torch.int32)
        # Rows in the table are handed out in another order than the batch's.
        rows = torch.arange(len(totals)).flip(0) + 2
        taken = 0
        for row, number in zip(rows.tolist(), pages, strict=True):
            slots = order[taken : taken + number, None] * self.page + torch.arange(self.page)
            table[row, : number * self.page] = slots.flatten().int()
            taken += number
        value_dim = self.value_dim or self.dim
        size = count * self.page
        pool = Pool(
            random(size, self.kv_heads, self.dim).to(self.kv_dtype or self.dtype),
            random(size, self.kv_heads, value_dim).to(self.kv_dtype or self.dtype),
        )
        # Slots of nobody in this batch: reading one is a fault, even under a mask.
        used = torch.cat([table[row, : a + b] for row, a, b in zip(rows.tolist(), totals, encoder, strict=True)]).long()
        foreign = torch.ones(size, dtype=torch.bool)
        foreign[used] = False
        pool.key[foreign], pool.value[foreign] = float("nan"), float("nan")
        heads = self.kv_heads * self.group
        layer = SimpleNamespace(
            layer_id=0,
            tp_q_head_num=heads,
            tp_k_head_num=self.kv_heads,
            qk_head_dim=self.dim,
            v_head_dim=value_dim,
            scaling=self.dim**-0.5,
            is_cross_attention=self.cross,
            attn_type=AttentionType.ENCODER_ONLY if self.encoder_only else AttentionType.DECODER,
            sliding_window_size=self.window,
        )
        tokens = sum(self.new)
        location = torch.cat(
            [
                table[row, skip + a : skip + a + b]
                for row, a, b, skip in zip(rows.tolist(), self.prefix, self.new, encoder, strict=True)
            ]
        ).long()
        batch = SimpleNamespace(
            out_cache_loc=location,
            encoder_out_cache_loc=location,
            req_pool_indices=rows,
            seq_lens=torch.tensor(totals),
            extend_prefix_lens=torch.tensor(self.prefix),
            extend_seq_lens=torch.tensor(self.new),
            encoder_lens=None if self.encoder is None else torch.tensor(self.encoder),
        )
        runner = SimpleNamespace(
            device="cpu", token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=table)
        )
        query = random(tokens, heads * self.dim)
        key, value = random(tokens, self.kv_heads * self.dim), random(tokens, self.kv_heads * value_dim)
        # A cross attention layer's keys are the encoder's, already in the pool.
        return Forward(runner, batch, layer, (query, None, None) if self.cross else (query, key, value))


def assert_same(case: Case, decode: bool = False) -> None:
    expected = case.run(TorchNativeAttnBackend, decode)
    actual = case.run(CpuAttentionBackend, decode)
    assert expected.isfinite().all(), "the case itself is wrong"
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype])


LENGTHS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70)), min_size=1, max_size=4)
SHAPE = {
    "kv_heads": st.sampled_from([1, 2, 3]),
    "group": st.sampled_from([1, 2, 3, 8]),
    "dim": st.sampled_from([8, 16, 64, 80]),
    "page": st.sampled_from([1, 16, 64]),
    "shuffled": st.booleans(),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
    "seed": st.integers(0, 2**16),
}


@settings(max_examples=examples(120), deadline=None)
@given(lengths=LENGTHS, shape=st.fixed_dictionaries(SHAPE), window=st.sampled_from([-1, -1, 0, 1, 7, 64]))
def test_extend_equals_torch_native(lengths: list[tuple[int, int]], shape: dict[str, Any], window: int) -> None:
    prefix, new = zip(*lengths, strict=True)
    assert_same(Case(list(prefix), list(new), window=window, **shape))


@settings(max_examples=examples(120), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=9),
    shape=st.fixed_dictionaries(SHAPE),
    window=st.sampled_from([-1, -1, 0, 1, 7, 64]),
)
def test_decode_equals_torch_native(lengths: list[int], shape: dict[str, Any], window: int) -> None:
    assert_same(Case(lengths, [1] * len(lengths), window=window, **shape), decode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("page", [1, 64])
def test_long_sequences_with_split_keys_and_window_blocks(dtype: torch.dtype, shuffled: bool, page: int) -> None:
    shape: dict[str, Any] = {"dtype": dtype, "shuffled": shuffled, "page": page, "kv_heads": 1, "group": 3}
    assert_same(Case([2100, 0, 700], [5, 600, 300], **shape))
    assert_same(Case([2100, 0, 700], [5, 600, 300], window=100, **shape))
    assert_same(Case([2049, 3, 1300], [1, 1, 1], **shape), decode=True)


def test_a_prefix_of_long_and_short_runs() -> None:
    """What a shared prefix, a private prompt and tokens decoded beside another request's look like in the pool."""
    slots = torch.cat([torch.arange(500, 1100), torch.arange(0, 300), torch.arange(2000, 2100, 2), torch.arange(7, 9)])
    pieces = runs(slots, 256)
    assert pieces[:2] == [slice(500, 1100), slice(0, 300)]
    assert isinstance(pieces[2], torch.Tensor)
    assert pieces[2].tolist() == slots[900:].tolist()
    assert runs(torch.arange(5, 8), 256) == [slice(5, 8)]
    ends_match_but_middle_does_not = torch.tensor([5, 7, 6, 8])
    (piece,) = runs(ends_match_but_middle_does_not, 256)
    assert isinstance(piece, torch.Tensor)


@pytest.mark.parametrize("decode", [False, True])
def test_value_head_dim_of_its_own(decode: bool) -> None:
    for dim, value_dim in ((24, 16), (16, 24)):
        new = [1, 1, 1, 1, 1] if decode else [3, 40, 1, 9, 2]
        assert_same(Case([20, 0, 300, 8, 5], new, dim=dim, value_dim=value_dim), decode)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_encoder_decoder(decode: bool, cross: bool) -> None:
    new = [1, 1, 1] if decode else [4, 9, 1]
    assert_same(Case([3, 0, 30], new, encoder=[50, 17, 300], cross=cross), decode)


def test_encoder_only_sees_later_tokens() -> None:
    case = Case([0, 0], [40, 7], encoder_only=True)
    assert_same(case)
    causal = Case([0, 0], [40, 7])
    assert not torch.allclose(case.run(CpuAttentionBackend), causal.run(CpuAttentionBackend))


def test_kv_cache_of_another_dtype() -> None:
    assert_same(Case([40, 3], [7, 30], kv_dtype=torch.bfloat16))
    assert_same(Case([40, 3, 300], [1, 1, 1], kv_dtype=torch.bfloat16), decode=True)


@pytest.mark.parametrize("decode", [False, True])
def test_the_pool_is_written_then_read_once_a_layer(decode: bool) -> None:
    """A KV loader makes the forward wait in `get_key_buffer`: it must come after the write and for every layer."""
    forward = Case([40, 3], [1, 1]).build()
    attention = CpuAttentionBackend(forward.runner)
    forward.run(attention, decode)
    forward.run(attention, decode)
    assert forward.runner.token_to_kv_pool.calls == ["set", "key", "value"] * 2


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("announced", [False, True])
def test_a_plan_lives_for_one_forward(decode: bool, announced: bool) -> None:
    """Neither another batch nor the same batch object with other content may run on an old plan."""
    first, second = Case([40, 9], [1, 1], seed=1), Case([9, 30], [1, 1], seed=2)
    expected = second.build().run(TorchNativeAttnBackend(second.build().runner), decode)
    old, new = first.build(), second.build()
    attention = CpuAttentionBackend(new.runner)
    attention.req_to_token_pool, attention.token_to_kv_pool = old.runner.req_to_token_pool, old.runner.token_to_kv_pool
    old.run(attention, decode)
    attention.req_to_token_pool, attention.token_to_kv_pool = new.runner.req_to_token_pool, new.runner.token_to_kv_pool
    if announced:
        vars(old.batch).update(vars(new.batch))
        attention.init_forward_metadata(old.batch)
        new = new._replace(batch=old.batch)
    torch.testing.assert_close(new.run(attention, decode), second.run(CpuAttentionBackend, decode).view_as(expected))


def test_layers_of_a_forward_share_a_plan() -> None:
    forward = Case([40], [8]).build()
    made: list[Any] = []
    original = backend.plan_extend

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "plan_extend", counted)
        attention = CpuAttentionBackend(forward.runner)
        for _ in range(3):
            forward.run(attention)
    assert len(made) == 1


@pytest.mark.parametrize("decode", [False, True])
def test_a_window_layer_reads_its_own_pool_at_translated_slots(decode: bool) -> None:
    """Hybrid models keep some layers in a smaller pool with slots of its own; both kinds are in one forward."""
    case = Case([50, 3], [1, 1] if decode else [20, 40], window=10, seed=3)
    expected = case.run(CpuAttentionBackend, decode)
    forward = case.build()
    pool = forward.runner.token_to_kv_pool
    own = Pool(torch.empty_like(pool.key), torch.empty_like(pool.value))
    mapping = torch.randperm(pool.key.shape[0], generator=torch.Generator().manual_seed(9))
    own.key[mapping], own.value[mapping] = pool.key, pool.value

    class TwoPools:
        layers_mapping: ClassVar = {0: (0, False), 1: (0, True)}

        def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
            return mapping[slots]

        def set_kv_buffer(self, layer: Any, location: Any, *tensors: torch.Tensor) -> None:
            slots = location.swa_loc if layer.layer_id == 1 else location.loc
            (pool, own)[layer.layer_id].set_kv_buffer(layer, SimpleNamespace(loc=slots), *tensors)

        def get_key_buffer(self, layer_id: int) -> torch.Tensor:
            return (pool, own)[layer_id].key

        def get_value_buffer(self, layer_id: int) -> torch.Tensor:
            return (pool, own)[layer_id].value

    forward.runner.token_to_kv_pool = TwoPools()
    attention = CpuAttentionBackend(forward.runner)
    attention.use_sliding_window_kv_pool = True
    attention.init_forward_metadata(forward.batch)
    for layer_id in (0, 1, 0):
        forward.layer.layer_id = layer_id
        torch.testing.assert_close(forward.run(attention, decode).view_as(expected), expected)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ({"kv_heads": 1, "dim": 48, "value_dim": 32}, {"qk_head_dim": 32, "v_head_dim": 16}),
        ({"dim": 16}, {"qk_head_dim": 8, "v_head_dim": 8}),
        ({"dim": 16}, {"v_head_dim": 8}),
        ({"kv_heads": 1, "group": 4, "dim": 16}, {"tp_k_head_num": 4}),
        ({"kv_heads": 3, "dim": 16}, {"tp_k_head_num": 1}),
    ],
    ids=["keys and values of all heads over latent rows", "narrower", "narrower values", "more heads", "fewer heads"],
)
def test_a_pool_of_something_else_is_refused(decode: bool, held: dict[str, int], asked: dict[str, int]) -> None:
    """SGLang has layers that hand their keys and values over and keep something else in the pool: what would fit if it
    were padded is no answer."""
    forward = Case([20, 3], [1, 1] if decode else [4, 9], **held).build()
    vars(forward.layer).update(asked)
    forward.runner.token_to_kv_pool.set_kv_buffer = lambda *_: None
    query = torch.zeros(len(forward.tensors[0]), forward.layer.tp_q_head_num * forward.layer.qk_head_dim)
    with pytest.raises(ValueError, match=r"swift_cpu reads KV from the pool, .*: choose another") as refused:
        forward._replace(tensors=(query, *forward.tensors[1:])).run(CpuAttentionBackend(forward.runner), decode)
    assert "\n" not in str(refused.value)


def test_every_override_is_among_the_checked_reaches_into_sglang() -> None:
    from swift_tiers.sglang_ext.hooks import check_hook
    from swift_tiers.sglang_ext.overrides import cpu_overrides

    base = f"{TorchNativeAttnBackend.__module__}.{TorchNativeAttnBackend.__name__}"
    ours = {
        f"{base}.{name}"
        for name, value in vars(CpuAttentionBackend).items()
        if callable(value) and name != "__init__" and hasattr(TorchNativeAttnBackend, name)
    }
    table = {override.target: override for override in cpu_overrides()}
    assert ours == {target for target in table if target.startswith(base)}
    for override in table.values():
        check_hook(override)


def test_registered_as_a_choice_and_in_the_registry() -> None:
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    cpu_attention.register(import_registry=True)
    cpu_attention.register(import_registry=True)
    assert choices.ATTENTION_BACKEND_CHOICES.count(cpu_attention.NAME) == 1
    with pytest.raises(ValueError, match="--device cpu"):
        ATTENTION_BACKENDS[cpu_attention.NAME](SimpleNamespace(device="cuda"))
