"""A flush of memory takes steps, and requests, writes and evictions go on between them: whatever they do with what is
yet to be given up, by whichever tiers it goes, nobody finds a page of before it again."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.policy import LEAST_RECENTLY_USED
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST

from support.engine import chain
from support.examples import examples
from support.table_rig import LENGTH, PEER, SSD, Rig

KEYS = chain("first", "second", "third")
NUMBERS = st.integers(0, len(KEYS) - 1)
DIGEST = b"d" * 16


class Model(RuleBasedStateMachine):
    """`coming`: copies that have begun; `pinned`: pages, once for each pin; `to_settle`: pages that the flush under way
    has yet to go through; `flushed`: those that it is to end, since no tier that outlives it had, or was to have, a
    copy of them."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(len(KEYS), LEAST_RECENTLY_USED)
        self.table = self.rig.table
        self.coming: list[tuple[Page, int]] = []
        self.pinned: list[Page] = []
        self.to_settle: list[Page] | None = None
        self.flushed: set[Page] = set()

    def _begin(self, page: Page, tier: int) -> None:
        place = self.table.take_slot(None) if tier == HOST else self.rig.tiers[tier - 1].take()
        if place is not None:
            self.table.begin(page, tier, place, DIGEST)
            self.coming.append((page, tier))

    @rule(ends=st.booleans(), leaves=st.booleans())
    def put(self, ends: bool, leaves: bool) -> None:
        """Pages come in, and are there at once if it `ends`; those that have been written leave if it `leaves`."""
        held = self.table.settled_chain(self.table.serving, KEYS)
        missing, now = KEYS[len(held) :], self.table.tick()
        self.table.refresh_all(held, now)  # so that it does not make way itself
        taken = self.table.take_in(held[-1] if held else None, missing, LENGTH, now)
        if ends:
            self.table.end_all(taken, HOST, whole=True, digests=[DIGEST] * len(taken))
            self.write(PEER)
        else:
            self.coming += [(page, HOST) for page in taken]
        for page in held if leaves else []:
            if page.elsewhere(HOST):
                self.table.lose(page, HOST)

    @precondition(lambda self: self.coming)
    @rule(number=NUMBERS, count=st.integers(1, 3), whole=st.integers(0, 3))
    def end(self, number: int, count: int, whole: int) -> None:
        """What has begun one after the other; seldom because it failed."""
        start = number % len(self.coming)
        ended = self.coming[start : start + count]
        del self.coming[start : start + count]
        for page, tier in ended:
            copy = page.copy_in(tier)
            assert copy is not None
            if not self.table.end_all([page], tier, whole=whole > 0, digests=[DIGEST])[0] and tier != HOST:
                self.rig.tiers[tier - 1].release([copy.place])

    @precondition(lambda self: self.table.pages)
    @rule(tier=st.sampled_from([PEER, PEER, SSD]))
    def write(self, tier: int) -> None:
        """What the tier has not, as the mover does."""
        pages, _ = self.table.writable(self.table.listed(), tier)
        for page in pages:
            self._begin(page, tier)

    @precondition(lambda self: self.table.pages)
    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        """A page that a request found, perhaps before the flush, comes to host memory."""
        pages = [page for page in self.table.listed() if page.complete and not page.in_host]
        if pages:
            self._begin(pages[number % len(pages)], HOST)

    @precondition(lambda self: self.table.pages)
    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        pages = self.table.listed()
        self.pinned.append(pages[number % len(pages)])
        self.table.pin(self.pinned[-1])

    @precondition(lambda self: self.pinned)
    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        self.table.unpin(self.pinned.pop(number % len(self.pinned)))

    @rule(tier=st.sampled_from([HOST, PEER, SSD]))
    def evict(self, tier: int) -> None:
        victim = self.table.victim(tier)
        if victim is not None:
            self.table.evict(victim, tier)

    @precondition(lambda self: self.table.pages)
    @rule()
    def flush(self) -> None:
        self.table.forget_memory()
        self.flushed.update(page for page in self.table.listed() if not page.begun_in(SSD))
        self.to_settle = self.table.in_memory()

    @precondition(lambda self: self.to_settle is not None)
    @rule()
    def settle(self) -> None:
        """The next page; where there is none, the flush is over."""
        assert self.to_settle is not None
        if not self.to_settle:
            self.table.emptied(self.table.flushes)
            self.to_settle = None
        elif not (page := self.to_settle.pop()).dropped:
            self.table.settle(page)

    @invariant()
    def what_was_flushed_is_not_found(self) -> None:
        check_rules(self.table)
        for page in self.flushed:
            assert page.dropped or not self.table.holds(page)


class TestModel(Model.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=examples(600), stateful_step_count=30, deadline=None, derandomize=True)
