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
from support.table_rig import LENGTH, PEER, SSD, FlushInSteps, Rig

KEYS = chain("first", "second", "third")
NUMBERS = st.integers(0, len(KEYS) - 1)
DIGEST = b"d" * 16


class Model(RuleBasedStateMachine):
    """`coming`: copies that have begun; `pinned`: pages, once for each pin."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(len(KEYS), LEAST_RECENTLY_USED)
        self.table = self.rig.table
        self.coming: list[tuple[Page, int]] = []
        self.pinned: list[Page] = []
        self.flushes = FlushInSteps(self.table)

    def _begin(self, page: Page, tier: int) -> None:
        place = self.table.take_slot(None) if tier == HOST else self.rig.tiers[tier - 1].take()
        if place is not None:
            self.table.begin(page, tier, place, DIGEST)
            self.coming.append((page, tier))

    @rule(ends=st.booleans(), lent=st.booleans())
    def put(self, ends: bool, lent: bool) -> None:
        """Pages come in; are there at once if it `ends`; and if they are `lent` too, in lent memory alone."""
        held = self.table.settled_chain(self.table.serving, KEYS)
        missing, now = KEYS[len(held) :], self.table.tick()
        self.table.refresh_all(held, now)  # so that it does not make way itself
        taken = self.table.take_in(held[-1] if held else None, missing, LENGTH, now)
        self.coming += [(page, HOST) for page in taken]
        if ends:
            self._end(len(taken))
        if ends and lent:
            self._end(self._write(PEER))
            for page in [*held, *taken]:
                if page.elsewhere(HOST):
                    self.table.lose(page, HOST)

    def _end(self, count: int, *, start: int | None = None, whole: bool = True) -> None:
        """So many copies that have begun one after the other, without `start` those that have begun last."""
        start = len(self.coming) - count if start is None else start
        ended = self.coming[start : start + count]
        del self.coming[start : start + count]
        for page, tier in ended:
            copy = page.copy_in(tier)
            assert copy is not None
            if not self.table.end_all([page], tier, whole=whole, digests=[DIGEST])[0] and tier != HOST:
                self.rig.tiers[tier - 1].release([copy.place])

    @precondition(lambda self: self.coming)
    @rule(number=NUMBERS, count=st.integers(1, 3), whole=st.integers(0, 3))
    def end(self, number: int, count: int, whole: int) -> None:
        """Seldom because it failed."""
        self._end(count, start=number % len(self.coming), whole=whole > 0)

    @precondition(lambda self: self.table.pages)
    @rule(tier=st.sampled_from([PEER, PEER, SSD]))
    def write(self, tier: int) -> None:
        self._write(tier)

    def _write(self, tier: int) -> int:
        """What the tier has not, as the mover does; how many pages."""
        pages, _ = self.table.writable(self.table.listed(), tier)
        for page in pages:
            self._begin(page, tier)
        return len(pages)

    @precondition(lambda self: self.table.pages)
    @rule()
    def read(self) -> None:
        """Pages that a request found, perhaps before the flush, come to host memory."""
        for page in self.table.listed():
            if page.complete and not page.in_host:
                self._begin(page, HOST)

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
        self.flushes.begin()

    @precondition(lambda self: self.flushes.under_way)
    @rule()
    def settle(self) -> None:
        self.flushes.go_on(1)

    @invariant()
    def what_was_flushed_is_not_found(self) -> None:
        check_rules(self.table)
        self.flushes.check()


class TestModel(Model.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=examples(600), stateful_step_count=30, deadline=None, derandomize=True)


def test_what_comes_up_from_lent_memory_meanwhile_is_flushed_as_well() -> None:
    model = Model()
    model.put(ends=True, lent=True)
    model.flush()
    model.read()
    assert model.coming
    model._end(len(model.coming))
    model.what_was_flushed_is_not_found()


def test_what_is_flushed_is_not_written_to_where_it_would_outlive_that() -> None:
    model = Model()
    model.put(ends=True, lent=False)
    model.flush()
    model.write(SSD)
    assert not model.coming
    model.what_was_flushed_is_not_found()
