"""What no schedule can beat, to measure ours against."""

from __future__ import annotations

from collections.abc import Sequence

from swift_tiers.radix_tiering.restore.cost import ComputeCost


def batch_bound(
    prefixes: Sequence[int], cost: ComputeCost, chunk_tokens: int, token_seconds: float, latency_seconds: float = 0.0
) -> float:
    """Seconds in which no schedule restores prefixes of so many tokens, with one device and one source.

    Whatever a schedule does, every token is in the end either computed or loaded. A request can only be computed from
    its front, so what is computed of request i is some number of tokens `x_i` from its start, and costs at least

        token * x_i + pair * x_i^2 + fixed * x_i / chunk

    since no forward computes more than a chunk. The device does one thing at a time and the source does one thing at
    a time, so the makespan is at least the larger of both sums,

        max(sum_i compute(x_i), latency + load * sum_i (n_i - x_i))

    for the `x_i` of that schedule, hence at least its minimum over all real `0 <= x_i <= n_i`. Compute costs are
    convex, so for a given device time most is computed where the last token of every request costs the same: for a
    marginal cost m, `x_i(m)` is where it is reached. The minimum lies where both sums meet, found by halving m.
    It cannot be reached in general: pages and chunks are whole, a chunk is not computed before its predecessors
    are there, and nothing can be computed while everything that is left is on its way.
    """
    each = cost.token_seconds + cost.fixed_seconds / chunk_tokens

    def computed(marginal: float) -> list[float]:
        if cost.pair_seconds == 0:
            share = 1.0 if marginal > each else marginal / each  # every token costs the same: any part of them
            return [share * tokens for tokens in prefixes]
        reach = max(0.0, (marginal - each) / (2 * cost.pair_seconds))
        return [min(tokens, reach) for tokens in prefixes]

    def both(marginal: float) -> tuple[float, float]:
        parts = computed(marginal)
        device = sum(each * part + cost.pair_seconds * part**2 for part in parts)
        left = sum(prefixes) - sum(parts)
        return device, latency_seconds + token_seconds * left if left > 0 else 0.0

    low, high = 0.0, each + 2 * cost.pair_seconds * max(prefixes)
    for _ in range(200):
        middle = (low + high) / 2
        device, source = both(middle)
        low, high = (middle, high) if device < source else (low, middle)
    return min(max(both(low)), max(both(high)))


def granularity(prefix: int, page_tokens: int, compute_seconds: float, load_seconds: float) -> float:
    """By how much two pointers may miss T_comp * T_io / (T_comp + T_io), as a part of it, where both costs are linear.

    Where they meet, and once more where the prefix is no whole number of pages or picks, one of them rests for at most
    as long as the other takes for a page. Chunks do not matter: the last one is cut where the meeting is expected.
    """
    bound = compute_seconds * load_seconds / (compute_seconds + load_seconds)
    return 2 * max(compute_seconds, load_seconds) * page_tokens / prefix / bound
