"""Runs of the simulation that scenarios share: one server, one source, some requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.plan import CHUNK_TOKENS
from swift_tiers.radix_tiering.restore.planner import Costs

from ...base.devices.curve import Computes, Curve
from .devices.clock import Clock
from .devices.lines import Line
from .devices.restoring import Method, Request, Restoration, Server
from .devices.setup import Setup

#: Where the prefixes of these runs lie.
REMOTE = "remote"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests of one run."""

    seconds: tuple[float, ...]  # to the first token, in the order in which they were given
    makespan: float  # until the last prefix was there
    device_busy: float  # parts of the time in which some request waited
    source_busy: float

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    def percentile(self, share: float) -> float:
        """The smallest time that so many of the requests did not exceed."""
        ordered = sorted(self.seconds)
        return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def chunk_for(curve: Curve) -> int:
    """Tokens of a chunk: 512, as the paper has it, or the next power of two whose tokens cost at most a quarter more
    than those of a forward four times as long. A mixture of experts reads all of its weights for every chunk."""
    chunk = CHUNK_TOKENS
    while curve.seconds(0, chunk) / chunk > 1.25 * curve.seconds(0, 4 * chunk) / (4 * chunk) and chunk < 8192:
        chunk *= 2
    return chunk


def setup_for(curve: Curve, bytes_per_second: float, latency: float, chunk_tokens: int, longest: int) -> Setup:
    """What a server on this device plans with: a fit to its forwards, and what its source is."""
    cost = curve.fitted(chunk_tokens, longest)
    source = SourceCost(latency_seconds=latency, bytes_per_second=bytes_per_second)
    return Setup(
        costs=CostModel(compute=cost, sources={REMOTE: source}), token_bytes=curve.model.token_bytes,
        layers=curve.model.layers, chunk_tokens=chunk_tokens,
    )  # fmt: skip


def linear_setup(cost: ComputeCost, token_seconds: float, chunk_tokens: int = 512, page_tokens: int = 16) -> Setup:
    """A setup without noise whose source takes `token_seconds` for each token."""
    source = SourceCost(latency_seconds=0.0, bytes_per_second=1000 / token_seconds)
    return Setup(
        costs=CostModel(compute=cost, sources={REMOTE: source}), token_bytes=1000, layers=32, page_tokens=page_tokens,
        chunk_tokens=chunk_tokens, forward_tokens=chunk_tokens,
    )  # fmt: skip


def restore(
    device: Computes, setup: Setup, method: Method, requests: Iterable[Request], costs: Costs | None = None
) -> Result:
    """All of these requests, whose prefixes lie behind one line of the setup's speed. `costs`: what is planned with,
    if not those of the setup."""
    clock = Clock()
    cost = setup.costs.sources[REMOTE]
    line = Line(clock, cost.bytes_per_second, latency_seconds=cost.latency_seconds)
    server = Server(clock, device, {REMOTE: line}, setup, method, costs=costs)
    asked: Sequence[Request] = list(requests)
    submitted: dict[int, Restoration] = {}

    def arrive(number: int) -> None:
        sources = [REMOTE] * (asked[number].prefix // setup.page_tokens)
        submitted[number] = server.submit(asked[number], sources)

    for number, request in enumerate(asked):
        clock.at(request.arrival, lambda number=number: arrive(number))  # type: ignore[misc]
    clock.run()
    if server.waiting:
        raise AssertionError(f"{server.waiting} requests never got their first token")
    restored = [submitted[number].restored for number in range(len(asked))]
    return Result(
        seconds=tuple(submitted[number].seconds for number in range(len(asked))),
        makespan=max(when or 0.0 for when in restored) - min(request.arrival for request in asked),
        device_busy=server.busy_seconds / server.active_seconds,
        source_busy=line.busy_seconds / server.active_seconds,
    )
