"""How close the two pointers come to what no schedule can beat, where the costs are exactly what is planned with."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from swift_tiers.radix_tiering.restore.cost import ComputeCost
from swift_tiers.radix_tiering.restore.plan import two_pointer_bound

from ....base.devices.curve import Linear
from ..bounds import batch_bound
from ..devices.restoring import IN_TURN, SWIFT_TIERS, Method, Request
from ..runs import linear_setup, restore
from ..tables import Cell, Table, table
from .scenario import Scenario

#: Loading over computing.
RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
LENGTHS = (1024, 2048, 4096, 8192, 32_768)
CHUNK = 512
LINEAR = ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=0.0)
#: Costs of batches: linear; as of a dense model of 8 billion weights; and attention alone above 5,000 tokens.
COSTS = {
    "linear": LINEAR,
    "fixed part": ComputeCost(fixed_seconds=5e-3, token_seconds=1e-4, pair_seconds=0.0),
    "fixed part and attention": ComputeCost(fixed_seconds=1e-2, token_seconds=1e-4, pair_seconds=5e-9),
    "mostly attention": ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=2e-8),
}
BATCHES = (1, 2, 4, 8)


def single(tokens: int, ratio: float) -> float:
    """What restoring one prefix takes, as a multiple of T_comp * T_io / (T_comp + T_io)."""
    compute = LINEAR.seconds(0, tokens)
    result = restore(
        Linear(LINEAR), linear_setup(LINEAR, compute * ratio / tokens, CHUNK), SWIFT_TIERS, [_request(tokens)]
    )
    return result.makespan / two_pointer_bound(compute, compute * ratio)


def recomputation(prefixes: Sequence[int], cost: ComputeCost) -> float:
    """Seconds to compute all of them, one after the other, in chunks."""
    return sum(cost.seconds(0, tokens) + cost.fixed_seconds * (-(-tokens // CHUNK) - 1) for tokens in prefixes)


def batch(prefixes: Sequence[int], ratio: float, cost: ComputeCost, method: Method) -> tuple[float, float]:
    """What restoring a batch takes, as a multiple of the lower bound, and of the better pure strategy."""
    compute = recomputation(prefixes, cost)
    token_seconds = compute * ratio / sum(prefixes)
    result = restore(Linear(cost), linear_setup(cost, token_seconds, CHUNK), method, map(_request, prefixes))
    bound = batch_bound(prefixes, cost, CHUNK, token_seconds)
    return result.makespan / bound, result.makespan / min(compute, compute * ratio)


def batches(size: int, seed: int) -> Iterator[list[int]]:
    """Prefixes of one length, long and short, and of mixed lengths."""
    source = random.Random(seed)
    yield [8192] * size
    yield [2048] * size
    yield [16 * source.randint(64, 1024) for _ in range(size)]
    yield [16 * int(64 * math.pow(16, source.random())) for _ in range(size)]


def _request(tokens: int) -> Request:
    return Request(arrival=0.0, prefix=tokens, new=0)


def singles() -> list[Table]:
    rows = [[tokens, *(round(single(tokens, ratio), 3) for ratio in RATIOS)] for tokens in LENGTHS]
    return [
        table(
            "bound-single",
            "One prefix: time over T_comp·T_io/(T_comp+T_io), by tokens and by T_io/T_comp",
            ["tokens", *(f"{ratio:g}" for ratio in RATIOS)],
            rows,
            [
                "No noise, costs linear and known, pages of 16 tokens, chunks of 512. CacheFlow states the bound (Eq. "
                "1) and that two pointers reach it; bound here: at most 1.05.",
            ],
        )
    ]


def batch_row(name: str, size: int) -> list[Cell]:
    """The worst that becomes of batches of so many prefixes, with costs of that name."""
    worst = [
        [
            max(batch(prefixes, ratio, COSTS[name], method) for prefixes in batches(size, seed=1))
            for ratio in (0.25, 0.5, 1.0, 2.0, 4.0)
        ]
        for method in (IN_TURN, SWIFT_TIERS)
    ]
    over_bound = [max(one[0] for one in of_method) for of_method in worst]
    over_pure = [max(one[1] for one in of_method) for of_method in worst]
    return [name, size, *(round(one, 3) for one in (*over_bound, *over_pure))]


def of_batches() -> list[Table]:
    rows = [batch_row(name, size) for name in COSTS for size in BATCHES]
    return [
        table(
            "bound-batch",
            "Batches: makespan over the lower bound, and over the better of loading all and recomputing all",
            [
                "compute cost",
                "batch",
                "in turn / bound",
                "oldest first / bound",
                "in turn / pure",
                "oldest first / pure",
            ],
            rows,
            [
                "The worst of four batches (equal long, equal short, two of mixed lengths) at T_io/T_comp of 0.25 to "
                "4. The lower bound and why it holds: `ops/lab/simulate/bounds.py`. Bound here for chunks in turn, as "
                "in CacheFlow's Algorithm 1: at most 1.10.",
                "SGLang computes chunks of one request at a time, the oldest first, and sources serve it first. Its "
                "requests get their first tokens sooner on the average, and the last one a little later.",
            ],
        )
    ]


SCENARIOS = {
    "bound-single": Scenario("how close one restore comes to what no split can beat", singles),
    "bound-batch": Scenario("how close batches come to a lower bound of their makespan", of_batches),
}
