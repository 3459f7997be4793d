"""Requests that are made up, by a seed: how long they are, and when they come.

Their lengths are not the papers' samples, which are not published with them, but log-normal with a median and a 90th
percentile chosen to agree with what the papers, or the data sets' own descriptions, say of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

#: Of the standard normal distribution: 90 % lie below.
_P90 = 1.2816


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """A log-normal distribution of token counts, cut off at both ends."""

    median: int
    p90: int
    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        sigma = math.log(self.p90 / self.median) / _P90
        return max(self.least, min(self.most, round(self.median * math.exp(source.gauss(0.0, sigma)))))


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with a history that lies below the device, and new tokens behind it."""

    name: str
    history: Lengths
    new: Lengths
    origin: str


WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            name="WildChat",
            history=Lengths(median=2500, p90=8000, least=256, most=32_000),
            new=Lengths(median=80, p90=500, least=8, most=2048),
            origin="short to middling conversations; CacheFlow, Figure 1(a), has no numbers in its text: assumed",
        ),
        Workload(
            name="LMSYS-Chat",
            history=Lengths(median=6000, p90=16_000, least=512, most=32_000),
            new=Lengths(median=70, p90=400, least=8, most=2048),
            origin="CacheFlow calls it longer than WildChat, of up to 20,000 tokens and more: assumed",
        ),
        Workload(
            name="SWE-Bench",
            history=Lengths(median=12_000, p90=24_000, least=2048, most=40_000),
            new=Lengths(median=400, p90=2000, least=32, most=4096),
            origin="agents over shared repositories, of up to 20,000 tokens and more (CacheFlow, section 2): assumed",
        ),
        Workload(
            name="ShareGPT",
            history=Lengths(median=4000, p90=13_000, least=64, most=56_000),
            new=Lengths(median=40, p90=132, least=4, most=2048),
            origin="SwiftCache, section 2.2: 90 % of prompts below 132 tokens, 10 % of sessions above 13,000, 1 % "
            "above 56,000; medians assumed",
        ),
    )
}  # fmt: skip


class Arrival(NamedTuple):
    """One request of a stream."""

    seconds: float
    history: int
    new: int


def poisson(workload: Workload, per_second: float, count: int, seed: int, page_tokens: int) -> Iterator[Arrival]:
    """`count` requests whose gaps are exponential; histories are whole pages."""
    source = random.Random(seed)
    now = 0.0
    for _ in range(count):
        now += source.expovariate(per_second)
        history = max(1, workload.history.draw(source) // page_tokens) * page_tokens
        yield Arrival(now, history, workload.new.draw(source))
