"""What others outside were told of, against a model of somebody who listens: pages come, are told of, leave by all the
ways in which pages leave, and their rows become others'."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swift_tiers.radix_tiering.table.policy import LEAST_RECENTLY_USED
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST

from support.engine import chain
from support.examples import examples
from support.table_rig import LENGTH, Rig

#: Two sequences with one beginning.
FIRST = chain("a", "b", "c", "d")
SECOND = [*FIRST[:2], *chain("e", "f")]
KEYS = [*FIRST, *SECOND[2:]]
SLOTS = 5
chains = st.sampled_from([FIRST, SECOND])
lengths = st.integers(1, len(FIRST))
#: Where a part of a chain begins: mostly where the chain does.
starts = st.sampled_from([0, 0, 0, 1, 2, 3])
#: Of what takes all along: now and then.
seldom = st.sampled_from([False] * 5 + [True])


class Listener(RuleBasedStateMachine):
    """`known`: the keys of pages that it was told of, and not that they have left."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(SLOTS, LEAST_RECENTLY_USED)
        self.table = self.rig.table
        self.known: set[bytes] = set()

    @property
    def _here(self) -> set[bytes]:
        """What of the two is found, each with its prefix."""
        return {page.key for keys in (FIRST, SECOND) for page in self.table.settled_chain(self.table.serving, keys)}

    @property
    def _left(self) -> set[bytes]:
        """Of what it knows: it has left since."""
        return {KEYS[number] for number in self.table.announced._left}

    @rule(keys=chains, length=lengths)
    def put(self, keys: list[bytes], length: int) -> None:
        held = self.table.settled_chain(self.table.serving, keys[:length])
        now = self.table.tick()
        self.table.refresh_all(held, now)
        for page in self.table.take_in(held[-1] if held else None, keys[len(held) : length], LENGTH, now):
            self.table.end(page, HOST, whole=True)

    @rule(keys=chains, start=starts, end=lengths)
    def tell(self, keys: list[bytes], start: int, end: int) -> None:
        """Of a part of a chain, all of which may be known, here, both, or neither."""
        part, here, before = keys[start:end], self._here, self.known - self._left
        follows = start == 0 or keys[start - 1] in before
        fresh = self.table.announce(self.table.serving, part, [KEYS.index(key) for key in part])
        assert fresh == [key in here and key not in self.known and follows for key in part]
        self.known |= {key for key, new in zip(part, fresh, strict=True) if new}
        told = {key for key in part if key in here and follows}
        assert self.known - self._left == before | told

    @rule(most=st.integers(1, 3))
    def hear_of_leaving(self, most: int) -> None:
        left = self.table.announced.take_left(most)
        assert len(left) <= most
        for number in left:
            self.known.remove(KEYS[number])  # raises where it was never told, or was told so before

    @rule(keys=chains, at=st.integers(0, len(FIRST) - 1), step=st.integers(1, 9))
    def drop(self, keys: list[bytes], at: int, step: int) -> None:
        page = self.table.find(self.table.serving, keys[at])
        if page is not None:
            self.table.drop(page)
        self.table.clean_up(step)

    @rule(keys=chains, at=st.integers(0, len(FIRST) - 1))
    def go_and_come_back(self, keys: list[bytes], at: int) -> None:
        self.drop(keys, at, 9)
        self.put(keys, len(keys))

    @rule(count=st.integers(1, SLOTS))
    def evict(self, count: int) -> None:
        self.table.host.release(self.table.take_slots(count, self.table.tick()))

    @rule(happens=seldom)
    def leave_namespace(self, happens: bool) -> None:
        if happens:
            self.table.forget_namespace(self.table.serving)
            self.table.clean_up(2)

    @rule(happens=seldom)
    def empty(self, happens: bool) -> None:
        """They have forgotten all, as where SGLang's tree was emptied."""
        if happens:
            self.table.announced.clear()
            self.known.clear()

    @invariant()
    def all_that_is_known_is_here_or_is_told_of_as_gone(self) -> None:
        check_rules(self.table)
        self.table.clean_up()
        still = self.known - self._left
        assert self._left <= self.known
        assert still <= self._here
        for key in KEYS:
            assert self.table.is_announced(self.table.serving, key) == (key in still)


TestListener = Listener.TestCase
TestListener.settings = settings(max_examples=examples(200), stateful_step_count=40)
