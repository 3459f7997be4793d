"""Servers that lend what they do not need, in virtual time, by the product's sizing (SwiftCache, Algorithm 1)."""

from __future__ import annotations

import random
from collections.abc import Callable

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer

from .devices.clock import Clock
from .workloads import Lengths

#: Between two looks at what could be lent in addition, seconds; as in the lender.
LEND_SECONDS = 0.25


class Donor:
    """One server with short requests of its own: each holds its tokens for a while, then forgets them."""

    def __init__(
        self,
        clock: Clock,
        *,
        pool_bytes: float,
        page_bytes: int,
        page_tokens: int,
        per_second: float,
        lengths: Lengths,
        hold_seconds: float,
        seed: int,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when it lends more or less."""
        self._clock = clock
        self._page_bytes = page_bytes
        self._random = random.Random(seed)
        self._per_second = per_second
        self._lengths = lengths
        self._hold_seconds = hold_seconds
        self._changed = changed
        pages = int(pool_bytes // page_bytes)
        bounds = donation_bounds(True)
        assert bounds is not None
        self.sizer = ElasticSizer(
            pages, page_tokens, least_lent=int(bounds.least * pages), most_lent=int(bounds.most * pages)
        )
        self._needed = 0
        self.recalls = 0

    @property
    def lent_bytes(self) -> int:
        return self.sizer.lent * self._page_bytes

    def run(self, until: float) -> None:
        """Let requests come until then."""
        self._until = until
        self._next_request()
        self._look()

    def _next_request(self) -> None:
        when = self._clock.now + self._random.expovariate(self._per_second)
        if when < self._until:
            self._clock.at(when, self._request)

    def _request(self) -> None:
        tokens = self._lengths.draw(self._random)
        self._needed += tokens
        back = self.sizer.demand(self._needed, self._clock.now)
        if back:
            self.sizer.came_back(back)
            self.recalls += 1
            self._changed()
        self._clock.after(self._hold_seconds, lambda: self._release(tokens))
        self._next_request()

    def _release(self, tokens: int) -> None:
        self._needed -= tokens
        self.sizer.demand(self._needed, self._clock.now)

    def _look(self) -> None:
        spare = self.sizer.spare(self._clock.now)
        if spare:
            self.sizer.gave(spare)
            self._changed()
        if self._clock.now + LEND_SECONDS < self._until:
            self._clock.after(LEND_SECONDS, self._look)
