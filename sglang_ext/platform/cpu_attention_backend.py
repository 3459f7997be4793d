"""Attention on the CPU over the new tokens only: SGLang's `torch_native` backend with its two inner loops replaced.

Softmax attention over a set of keys can be put together from attention over parts of the set, if each part also gives
the logarithm of its softmax denominator (LSE). So a request's new tokens attend in two parts, to the prefix (no mask)
and to themselves (causal, square), each with torch's flash kernel for CPUs, which knows no bottom-right mask. The
prefix part needs no order of keys; wherever slots of the pool follow one another they are read in place.

Shapes in this module: N new tokens, L keys, Hq query heads, Hk KV heads, G = Hq / Hk queries to a KV head, D head
dimension. Queries and results are `[Hk, G, N, D]`, LSEs `[Hk, G, N]`, keys and values `[L, Hk, D]` as in the pool.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import pad, scaled_dot_product_attention

# A run of consecutive slots shorter than this is cheaper to gather than to attend to on its own.
SHORTEST_RUN = 256
# ... and than this many times the new tokens: putting two parts together costs time for each query.
RUN_PER_QUERY = 8
# Query rows that the flash kernel gives to one task, at least.
TASK_ROWS = 32
# Keys for one task, at least, where there would be fewer tasks than threads.
SPLIT_KEYS = 512
# Decoding requests up to this length are padded to one batch, if there are at least so many of them.
SHORT_SEQUENCE = 128
SHORT_REQUESTS = 4
# New tokens masked together under a sliding window.
WINDOW_BLOCK = 256

Piece: TypeAlias = slice | torch.Tensor
Translate: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class ExtendPlan(NamedTuple):
    """Where one request's queries are in the batch, and where its keys are in the pool."""

    begin: int
    end: int
    slots: torch.Tensor  # int64 [L]: prefix, then new
    prefix: list[Piece]  # the first L - N of them
    new: list[Piece]  # the last N of them, in order, so at most one piece

    @property
    def length(self) -> int:
        return self.slots.shape[0]


class DecodePlan(NamedTuple):
    """One token for each request: short requests as one padded batch, the others one by one."""

    single: list[tuple[int, list[Piece]]]  # row of the batch, its keys
    rows: torch.Tensor | None  # int64 [B]: rows of the padded batch
    slots: torch.Tensor | None  # int64 [B, longest]
    mask: torch.Tensor | None  # bool [B, 1, 1, longest], true where a key is


def runs(slots: torch.Tensor, shortest: int) -> list[Piece]:
    """Cuts slots (int64 [L], L > 0) into pieces, not in order: slices for long runs, one tensor for all the rest.

    One run is one slice, however short.
    """
    length = slots.shape[0]
    first = int(slots[0])
    if int(slots[-1]) - first == length - 1 and bool((slots.diff() == 1).all()):
        return [slice(first, first + length)]
    if length < shortest:
        return [slots]
    cuts = [0, *((slots.diff() != 1).nonzero().flatten() + 1).tolist(), length]
    pieces: list[Piece] = []
    rest: list[torch.Tensor] = []
    gathered_from = 0
    for begin, end in itertools.pairwise(cuts):
        if end - begin >= shortest:
            if gathered_from < begin:
                rest.append(slots[gathered_from:begin])
            pieces.append(slice(int(slots[begin]), int(slots[begin]) + end - begin))
            gathered_from = end
    if gathered_from < length:
        rest.append(slots[gathered_from:])
    if rest:
        pieces.append(torch.cat(rest))
    return pieces


def key_ranges(seq_lens: torch.Tensor, encoder_lens: torch.Tensor | None, is_cross_attn: bool) -> list[tuple[int, int]]:
    """Columns of `req_to_token` that each request attends to.

    An encoder-decoder request has its encoder's slots first; `seq_lens` counts the decoder's only.
    """
    lengths = seq_lens.tolist()
    if encoder_lens is None:
        return [(0, length) for length in lengths]
    encoder = encoder_lens.tolist()
    if is_cross_attn:
        return [(0, length) for length in encoder]
    return [(start, start + length) for start, length in zip(encoder, lengths, strict=True)]


def plan_extend(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    ranges: list[tuple[int, int]],
    new_lens: list[int],
    causal: bool,
    windowed: bool = False,
    translate: Translate = lambda slots: slots,
) -> list[ExtendPlan]:
    """One plan a request that has new tokens. Not causal: all keys count as prefix. Windowed: slots only.

    :param translate: from the slots in `req_to_token` (int64) to the ones of the pool that is read.
    """
    plans = []
    begin = 0
    for row, (first, last), new in zip(req_pool_indices.tolist(), ranges, new_lens, strict=True):
        end = begin + new
        if new:
            slots = translate(req_to_token[row, first:last].long())
            split = slots.shape[0] - new if causal else slots.shape[0]
            prefix = runs(slots[:split], max(SHORTEST_RUN, RUN_PER_QUERY * new)) if split and not windowed else []
            tail = runs(slots[split:], new + 1) if causal and not windowed else []
            plans.append(ExtendPlan(begin, end, slots, prefix, tail))
        begin = end
    return plans


def plan_decode(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    ranges: list[tuple[int, int]],
    translate: Translate = lambda slots: slots,
) -> DecodePlan:
    """Requests without any key are in no part of the plan. `translate` as in `plan_extend`."""
    requests = req_pool_indices.tolist()
    short = [row for row, (first, last) in enumerate(ranges) if 0 < last - first <= SHORT_SEQUENCE]
    if len(short) < SHORT_REQUESTS:
        short = []
    batched = set(short)
    single = [
        (row, runs(translate(req_to_token[requests[row], first:last].long()), SHORTEST_RUN))
        for row, (first, last) in enumerate(ranges)
        if last > first and row not in batched
    ]
    if not short:
        return DecodePlan(single, None, None, None)
    longest = max(ranges[row][1] - ranges[row][0] for row in short)
    first_column = torch.tensor([ranges[row][0] for row in short])[:, None]
    lengths = torch.tensor([ranges[row][1] - ranges[row][0] for row in short])[:, None]
    columns = torch.arange(longest)[None, :]
    mask = columns < lengths
    # Padding repeats the request's own first key: a foreign slot may hold NaN, which no mask takes out of a sum.
    columns = first_column + torch.where(mask, columns, 0)
    rows = torch.tensor(short)
    slots = translate(req_to_token[req_pool_indices.long()[rows][:, None], columns].long())
    return DecodePlan(single, rows, slots, mask[:, None, None, :])


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its LSE for `[batch, heads, rows, D]`; `causal` only for as many rows as keys."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    return out, lse


def _expand(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Keys or values `[L, Hk, D]` as `[Hk, G, L, D]`, each KV head seen by G queries, without a copy."""
    length, heads, dim = rows.shape
    return rows.movedim(0, 1)[:, None].expand(heads, groups, length, dim)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every query to every key. Returns result `[Hk, G, N, D]` and LSE `[Hk, G, N]`."""
    heads, groups, new, dim = query.shape
    # The G queries of a KV head become rows of one block: a key is read once for them all, and the kernel's blocks,
    # which grow with the number of rows, are larger.
    folded = query.reshape(1, heads, groups * new, dim)
    length = key.shape[0]
    tasks = heads * math.ceil(groups * new / TASK_ROWS)
    parts = min(length // SPLIT_KEYS, math.ceil(2 * torch.get_num_threads() / tasks))
    if parts < 2:
        out, lse = _flash(folded, key.movedim(0, 1)[None], value.movedim(0, 1)[None], scale, causal=False)
        return out.view(heads, groups, new, -1), lse.view(heads, groups, new)
    # Few heads are few tasks; cutting the keys gives every thread some.
    each = length // parts
    head = parts * each
    out, lse = _flash(
        folded.expand(parts, -1, -1, -1),
        key[:head].unflatten(0, (parts, each)).transpose(1, 2),
        value[:head].unflatten(0, (parts, each)).transpose(1, 2),
        scale,
        causal=False,
    )
    weight = lse.softmax(0).unsqueeze(-1)
    whole = (out * weight).sum(0).to(query.dtype), lse.logsumexp(0)
    out, lse = whole[0].view(heads, groups, new, -1), whole[1].view(heads, groups, new)
    if head == length:
        return out, lse
    rest_out, rest_lse = _flash(
        folded, key[head:].movedim(0, 1)[None], value[head:].movedim(0, 1)[None], scale, causal=False
    )
    return _merge(out, lse, rest_out.view_as(out), rest_lse.view_as(lse))


def _merge(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two disjoint sets of keys, from attention to each. May overwrite `out`."""
    weight = torch.sigmoid(other_lse - lse).unsqueeze(-1)
    # In place, where LSEs (float32) and results are of one dtype; `to` copies only where they are not.
    merged = out.to(weight.dtype).lerp_(other.to(weight.dtype), weight).to(out.dtype)
    return merged, torch.logaddexp(lse, other_lse)


def _widen(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Zeros behind the head dimension. The flash kernel wants one for keys and values; some models have two."""
    return rows if rows.shape[-1] == dim else pad(rows, (0, dim - rows.shape[-1]))


def _read(cache: torch.Tensor, piece: Piece, like: torch.Tensor) -> torch.Tensor:
    """Keys or values `[L, Hk, D]` of the query's dtype and head dimension; in place if nothing has to change."""
    rows = cache[piece] if isinstance(piece, slice) else cache.index_select(0, piece)
    return _widen(rows.to(like.dtype), like.shape[-1])


def _attend_pieces(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, pieces: list[Piece], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] | None = None
    for piece in pieces:
        key, value = _read(k_cache, piece, query), _read(v_cache, piece, query)
        part = _attend(query, key, value, scale)
        result = part if result is None else _merge(*result, *part)
    assert result is not None, "a plan without keys"
    return result


def _grouped(rows: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """`[N, Hq, D]` seen as `[Hk, G, N, D]`."""
    return rows.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)


def _prepare(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, float]:
    """The query at the head dimension that everything is computed at, and the scale of its own one."""
    own = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _widen(query, max(k_cache.shape[-1], v_cache.shape[-1])), own


def extend(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plans: list[ExtendPlan],
    scale: float | None,
) -> None:
    """Attention of the new tokens to all of their request's keys, causal among themselves if the plan has `new`.

    query: `[tokens, Hq, D]`, float32, bfloat16 or float16; output: `[tokens, Hq, Dv]`, written in place.
    k_cache, v_cache: `[slots, Hk, D]`, `[slots, Hk, Dv]`, of any dtype that converts to the query's.
    scale: default 1 / sqrt(D).
    """
    query, scale = _prepare(query, k_cache, v_cache, scale)
    kv_heads = k_cache.shape[1]
    for plan in plans:
        new = _grouped(query[plan.begin : plan.end], kv_heads)
        target = _grouped(output[plan.begin : plan.end], kv_heads)
        if not plan.length:
            target.zero_()
            continue
        result = _attend_pieces(new, k_cache, v_cache, plan.prefix, scale) if plan.prefix else None
        for piece in plan.new:
            key = _expand(_read(k_cache, piece, query), new.shape[1])
            value = _expand(_read(v_cache, piece, query), new.shape[1])
            own = _flash(new, key, value, scale, causal=True)
            result = own if result is None else _merge(*result, *own)
        assert result is not None, "a plan without keys"
        target.copy_(result[0][..., : target.shape[-1]])


def extend_window(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plans: list[ExtendPlan],
    scale: float | None,
    window: int,
) -> None:
    """As `extend`, causal, each token to itself and the `window` tokens before it. Keys out of reach are not read."""
    query, scale = _prepare(query, k_cache, v_cache, scale)
    kv_heads = k_cache.shape[1]
    for plan in plans:
        prefix = plan.length - (plan.end - plan.begin)
        for begin in range(plan.begin, plan.end, WINDOW_BLOCK):
            end = min(begin + WINDOW_BLOCK, plan.end)
            position = prefix + begin - plan.begin  # of the block's first token in its sequence
            first, last = max(0, position - window), position + end - begin
            (piece,) = runs(plan.slots[first:last], last - first + 1)
            at = torch.arange(position, last)[:, None]
            keys = torch.arange(first, last)[None, :]
            mask = (keys <= at) & (keys >= at - window)
            new = _grouped(query[begin:end], kv_heads)
            key = _expand(_read(k_cache, piece, query), new.shape[1])
            value = _expand(_read(v_cache, piece, query), new.shape[1])
            result = scaled_dot_product_attention(new, key, value, attn_mask=mask, scale=scale)
            _grouped(output[begin:end], kv_heads).copy_(result[..., : output.shape[-1]])


def decode(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: DecodePlan,
    scale: float | None,
) -> None:
    """Attention of one token a request (row of `query`) to all of its keys. Shapes and dtypes as in `extend`."""
    query, scale = _prepare(query, k_cache, v_cache, scale)
    kv_heads = k_cache.shape[1]
    if len(plan.single) + (0 if plan.rows is None else plan.rows.shape[0]) < query.shape[0]:
        output.zero_()
    for row, pieces in plan.single:
        result, _ = _attend_pieces(_grouped(query[row : row + 1], kv_heads), k_cache, v_cache, pieces, scale)
        _grouped(output[row : row + 1], kv_heads).copy_(result[..., : output.shape[-1]])
    if plan.rows is None or plan.slots is None:
        return
    batch, longest = plan.slots.shape
    flat = plan.slots.flatten()
    key = _read(k_cache, flat, query).unflatten(0, (batch, longest)).transpose(1, 2)
    value = _read(v_cache, flat, query).unflatten(0, (batch, longest)).transpose(1, 2)
    short = query[plan.rows].unflatten(1, (kv_heads, -1))
    result = scaled_dot_product_attention(short, key, value, attn_mask=plan.mask, scale=scale)
    output[plan.rows] = result.flatten(1, 2)[..., : output.shape[-1]]


class CpuAttentionBackend(TorchNativeAttnBackend):
    """`torch_native` without the repeated work. Writing the pool, reading it layer by layer (where a KV loader makes
    the forward wait) and choosing between kinds of attention stay SGLang's.

    What depends on the batch and not on the layer is planned once a forward.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._plans: dict[Any, Any] = {}
        self._planned_for: Any = None
        self._layer_in_window_pool = False
        self._kv_heads = 0  # of the layer that is computed

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        self._plans.clear()
        self._planned_for = forward_batch

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        self.enter(layer, forward_batch)
        return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        self.enter(layer, forward_batch)
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)

    def enter(self, layer: Any, forward_batch: Any) -> None:
        """What follows computes `layer`, in that batch."""
        self._kv_heads = layer.tp_k_head_num
        if self._planned_for is not forward_batch:
            self._plans.clear()
            self._planned_for = forward_batch
        # `torch_native` writes a sliding-window layer's own pool at translated slots but reads it at untranslated ones.
        self._layer_in_window_pool = (
            self.use_sliding_window_kv_pool and self.token_to_kv_pool.layers_mapping[layer.layer_id][1]
        )

    def _check_pool(
        self, query: torch.Tensor, output: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> None:
        """Raises ValueError where the pool does not hold the keys and values that these queries are for.

        SGLang has ways of computing attention in which a layer hands its keys and values to the backend and keeps
        something else in the pool. This backend reads the pool; what is narrower it would pad with zeros, and answer.
        """
        wanted = self._kv_heads, query.shape[-1], output.shape[-1]
        held = k_cache.shape[1], k_cache.shape[-1], v_cache.shape[-1]
        if wanted != held:
            raise ValueError(
                f"swift_cpu reads KV from the pool, which holds heads x key x value dimensions {held}; this layer "
                f"computes with {wanted}, which that backend cannot do: choose another --attention-backend or model"
            )

    def _translate(self, slots: torch.Tensor) -> torch.Tensor:
        if not self._layer_in_window_pool:
            return slots
        return self.token_to_kv_pool.translate_loc_from_full_to_swa(slots).long()

    def _run_sdpa_forward_extend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        """Shapes as in SGLang's; `extend_prefix_lens` follows from the other lengths and is not read."""
        self._check_pool(query, output, k_cache, v_cache)
        window = sliding_window_size if sliding_window_size is not None and sliding_window_size > -1 else None
        causal = causal or window is not None
        kind = ("extend", is_cross_attn, causal, window is not None, self._layer_in_window_pool)
        plans = self._plans.get(kind)
        if plans is None:
            ranges = key_ranges(seq_lens, encoder_lens, is_cross_attn)
            plans = plan_extend(
                req_to_token,
                req_pool_indices,
                ranges,
                extend_seq_lens.tolist(),
                causal,
                window is not None,
                self._translate,
            )
            self._plans[kind] = plans
        if window is None:
            extend(query, output, k_cache, v_cache, plans, scaling)
        else:
            extend_window(query, output, k_cache, v_cache, plans, scaling, window)
        return output

    def _run_sdpa_forward_decode(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        """Shapes as in SGLang's. A decoding token is its sequence's last, so a window only shortens the keys."""
        self._check_pool(query, output, k_cache, v_cache)
        window = sliding_window_size if sliding_window_size is not None and sliding_window_size > -1 else None
        kind = ("decode", is_cross_attn, window, self._layer_in_window_pool)
        plan = self._plans.get(kind)
        if plan is None:
            ranges = key_ranges(seq_lens, encoder_lens, is_cross_attn)
            if window is not None:
                ranges = [(max(first, last - 1 - window), last) for first, last in ranges]
            plan = plan_decode(req_to_token, req_pool_indices, ranges, self._translate)
            self._plans[kind] = plan
        decode(query, output, k_cache, v_cache, plan, scaling)
        return output
