"""Waiting requests, and which of them SGLang may admit: what every rank has to say in the same way.

A rank knows by itself how far a request's pages have come up. Whether the request may be admitted is agreed on, and the
collectives for that are entered by every rank alike: arrivals, what was agreed on them, and how many were awaited are
the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from swift_tiers.radix_tiering.way.request_restore import Readiness

from ..tell.request_facts import RequestFacts

if TYPE_CHECKING:
    from .cache import SwiftLinkerWrapper
    from .linker import SwiftLinker

#: Waiting requests that one scheduling round may wait for: who has nothing to wait for is not counted.
MAX_AWAITED = 8


class Arrival:
    """A waiting request, as far as every rank agrees on it."""

    __slots__ = (
        "agreed",
        "can_compute",
        "computes",
        "device_node",
        "device_pages",
        "evictions",
        "facts",
        "key",
        "layer_wise",
        "pages",
        "req",
        "restarts",
        "tail",
        "tails",
    )

    def __init__(
        self,
        req: Any,
        key: Any,
        facts: RequestFacts,
        device_pages: int,
        device_node: int,
        evictions: int,
        can_compute: bool,
    ) -> None:
        self.req = req  # SGLang's: two that wait may have one rid, see `SwiftLinkerWrapper.owns`
        self.key = key
        self.facts = facts
        self.device_pages = device_pages  # of its prefix, on the device when it arrived
        self.device_node = device_node  # where they end in the tree
        self.evictions = evictions  # device evictions until then
        self.can_compute = can_compute  # with a part of its pages, while the rest comes up
        self.agreed = False  # every rank has settled its restore
        self.computes = False  # it may be admitted with a part of its pages, and compute what is missing
        self.layer_wise = False  # every rank would compute it layer by layer
        self.pages = 0  # of its prefix below the device, of which every rank knows
        self.restarts = 0
        self.tail: Sequence[str] = ()  # page hashes behind its prefix on the device, when it arrived
        self.tails: dict[tuple[int, int], Sequence[str]] = {}  # (device length, key length) -> page hashes


class Admission:
    """Of one rank. Scheduler's thread."""

    def __init__(self, wrapper: SwiftLinkerWrapper, linker: SwiftLinker) -> None:
        self._wrapper = wrapper
        self._linker = linker
        self._awaited = 0  # requests that had to wait, in this round

    def begin_round(self) -> None:
        """Find out, for all waiting requests at once, which of them have nothing to wait for on any rank: one
        collective in a round, if anybody waits."""
        self._awaited = 0
        arrivals, courses = self._wrapper.arrivals, self._wrapper.courses
        waiting = [arrival for rid, arrival in arrivals.items() if not arrival.agreed and rid not in courses]
        if waiting:
            self._agree(waiting, [self._settled(arrival.req.rid) for arrival in waiting])

    def may_enter(self, arrival: Arrival, chunk_taken: Callable[[], bool]) -> bool:
        """Whether a waiting request may be admitted now. `chunk_taken()`: whether SGLang, which can compute one request
        in chunks, is doing so.

        Only the first few that have to wait are asked for in one round: SGLang asks for all of them in each, and with
        all of them the deadlines would start together, and the pins would fill host memory. Who has nothing to wait for
        passes them, however many they are.
        """
        if arrival.agreed:
            return True
        if self._awaited >= MAX_AWAITED:
            return False
        (readiness,) = self._agree([arrival], [self._linker.readiness(arrival.req.rid)])
        if readiness is Readiness.WAIT or (readiness is Readiness.COMPUTE and chunk_taken()):
            self._awaited += 1
            return False
        return True

    def _settled(self, rid: str) -> Readiness:
        return Readiness.READY if self._linker.settled(rid) else Readiness.WAIT

    def _agree(self, arrivals: Sequence[Arrival], mine: Sequence[Readiness]) -> list[Readiness]:
        """The least of what the ranks say of each; every rank takes part with the same arrivals."""
        facts = []
        for arrival, readiness in zip(arrivals, mine, strict=True):
            rid, waits = arrival.req.rid, readiness is Readiness.WAIT
            pages = 0 if waits else self._linker.known_pages(rid)
            facts.append([readiness, pages, 0 if waits else self._linker.by_layers(rid)])
        least = torch.tensor(facts, dtype=torch.int)
        self._wrapper.cache._all_reduce_attn_groups(least, torch.distributed.ReduceOp.MIN)
        agreed = []
        for arrival, (readiness, pages, by_layers) in zip(arrivals, least.tolist(), strict=True):
            agreed.append(Readiness(readiness))
            arrival.agreed = agreed[-1] is Readiness.READY
            arrival.computes = agreed[-1] is Readiness.COMPUTE
            arrival.pages, arrival.layer_wise = pages, bool(by_layers)
        return agreed
