"""Waiting requests, and which of them SGLang may admit: what every rank has to say in the same way.

A rank knows by itself how far a request's pages have come up. Whether the request may be admitted is agreed on, and the
collectives for that are entered by every rank alike: requests, what was agreed on them, and how many were awaited are
the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.way.request_restore import Readiness

from ..build.least import AllReduce, least
from .request import TieredRequest, TieringStage

#: Waiting requests that one scheduling round may wait for: who has nothing to wait for is not counted.
MAX_AWAITED = 8
#: Waiting requests that are looked at in the beginning of a round; where there are more, by turns.
MOST_LOOKED_AT = 1024


class Admission:
    """Of one rank. Scheduler's thread."""

    def __init__(self, requests: Mapping[str, TieredRequest], all_reduce: AllReduce) -> None:
        """`requests`: those that the tiers serve; `all_reduce(tensor, op)`: over the ranks that serve them."""
        #: SGLang's queue, whose requests it asks for in this order.
        self.queue: Callable[[], Sequence[Any]] = tuple
        self._requests = requests
        self._all_reduce = all_reduce
        self._looked = True
        #: Somebody has been admitted in this round, or goes on being computed in chunks. `RestoringAdder` says it.
        self.others_admitted = False
        self._turn = 0  # where among those that wait the next look begins
        self._awaited: list[TieredRequest] = []  # had to wait, in this round
        self._asked: set[TieredRequest] = set()  # in this round
        #: Those that may enter though many are awaited, and were not asked for; None: nobody knows yet.
        self._others: set[object] | None = None

    def begin_round(self) -> None:
        """Nobody has been looked at yet: where a batch is full, nobody is."""
        self._looked = self.others_admitted = False
        self._awaited.clear()
        self._asked.clear()
        self._others = None

    def look(self) -> None:
        """Find out, for those that wait, at once, which of them have nothing to wait for on any rank: one collective in
        a round in which anybody may be admitted, if anybody waits."""
        if self._looked:
            return
        self._looked = True
        waiting = [one for one in self._requests.values() if one.stage is TieringStage.WAITING and not one.agreed]
        begin = self._turn if len(waiting) > max(self._turn, MOST_LOOKED_AT) else 0
        some = waiting[begin : begin + MOST_LOOKED_AT]
        self._turn = begin + len(some)
        if some:
            self._agree(some, [one.at_once() for one in some])

    def may_enter(self, request: TieredRequest, chunk_taken: Callable[[], bool]) -> bool:
        """Whether a waiting request may be admitted now. `chunk_taken()`: whether SGLang, which can compute one request
        in chunks, is doing so.

        Only the first few that have to wait are asked for in one round: SGLang asks for all of them in each, and with
        all of them the deadlines would start together, and the pins would fill host memory. Who has nothing to wait for
        passes them, however many they are, and so does who computes, as long as that may begin: in a batch of its own
        where its pages come meanwhile, since what it computes delays the first tokens of those before it.
        """
        self.look()
        self._asked.add(request)
        if self._others:
            self._others.discard(request)
        if request.agreed:
            return True
        if self._waits_for_its_turn(request, chunk_taken):
            return False  # and for no pages: what it would compute is not asked for
        if len(self._awaited) >= MAX_AWAITED and not request.computes:
            return False
        if any(one is request for one in self._awaited):
            return False  # SGLang asks twice where it would take others off the device for it
        (readiness,) = self._agree([request], [request.readiness()])
        if readiness is Readiness.WAIT or self._waits_for_its_turn(request, chunk_taken):
            self._awaited.append(request)
            return False
        return True

    def _waits_for_its_turn(self, request: TieredRequest, chunk_taken: Callable[[], bool]) -> bool:
        return request.computes and (chunk_taken() or (request.comes and self.others_admitted))

    def is_over(self, chunk_taken: Callable[[], bool]) -> bool:
        """Whether nobody else may be admitted in this round: as many are awaited as may be, and all others of the queue
        have been asked for, or would be refused. SGLang would ask for each of them. The same on every rank."""
        if len(self._awaited) < MAX_AWAITED:
            return False
        if self._others is None:
            self._others = set()
            for req in self.queue():
                one = self._requests.get(req.rid)
                if one is None or one.req is not req:
                    self._others.add(req.rid)  # who has nothing in the tiers need not wait for them
                elif one not in self._asked and (
                    one.agreed or (one.computes and not self._waits_for_its_turn(one, chunk_taken))
                ):
                    self._others.add(one)
        return not self._others

    def _agree(self, requests: Sequence[TieredRequest], mine: Sequence[Readiness]) -> list[Readiness]:
        """The least of what the ranks say of each; every rank takes part with the same requests.

        A request is taken as its pages land where every rank that has not got them all wants that. Where some want it,
        and others do not, it goes on waiting: those that wanted it load its pages in another way from now on.
        """
        facts = np.zeros((len(requests), 6), np.int64)
        for row, (request, readiness) in enumerate(zip(requests, mine, strict=True)):
            if readiness is Readiness.WAIT:
                continue
            wants = request.wants_draining
            may = wants or readiness is Readiness.READY
            facts[row] = readiness, request.known_pages, request.wants_layers(), may, not wants, request.may_wait()
        agreed = []
        for request, said in zip(requests, least(facts, self._all_reduce), strict=True):
            if not said[0] and not request.heard:
                agreed.append(Readiness.WAIT)
                continue
            ready, pages, by_layers, drains, nobody_wants, comes = said
            readiness = Readiness(ready)
            if readiness is Readiness.COMPUTE and not (drains or nobody_wants):
                request.refuse_draining()
                readiness = Readiness.WAIT
            agreed.append(readiness)
            request.agreed = readiness is Readiness.READY
            request.computes = readiness is Readiness.COMPUTE
            request.pages, request.by_layers, request.drains = pages, bool(by_layers), bool(drains)
            request.comes = bool(comes)
            request.heard = ready != Readiness.WAIT
        return agreed
