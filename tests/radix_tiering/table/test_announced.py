"""What others outside were told of, against a model of somebody who listens: pages come, are told of, leave by all the
ways in which pages leave, and their rows become others'."""

from __future__ import annotations

from itertools import count

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
SLOTS = 5
chains = st.sampled_from([FIRST, SECOND])
lengths = st.integers(0, len(FIRST))


class Listener(RuleBasedStateMachine):
    """`known`: by number, the key of each page that it was told of and not that it has left."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(SLOTS, LEAST_RECENTLY_USED)
        self.table = self.rig.table
        self.known: dict[int, bytes] = {}
        self.numbers = count(1)

    @property
    def _here(self) -> list[bytes]:
        """What of the two is found, each with its prefix."""
        return [page.key for keys in (FIRST, SECOND) for page in self.table.settled_chain(self.table.serving, keys)]

    @rule(keys=chains, length=lengths)
    def put(self, keys: list[bytes], length: int) -> None:
        held = self.table.settled_chain(self.table.serving, keys[:length])
        now = self.table.tick()
        self.table.refresh_all(held, now)
        for page in self.table.take_in(held[-1] if held else None, keys[len(held) : length], LENGTH, now):
            self.table.end(page, HOST, whole=True)

    @rule(keys=chains, start=lengths, end=lengths)
    def tell(self, keys: list[bytes], start: int, end: int) -> None:
        """Of a part of a chain, all of which may be known, here, or neither."""
        self.hear_of_leaving(100)
        before = set(self.known.values())
        part, numbers = keys[start:end], [next(self.numbers) for _ in keys[start:end]]
        fresh = self.table.announce(self.table.serving, part, numbers)
        follows = start == 0 or keys[start - 1] in before
        assert fresh == [key in self._here and key not in before and follows for key in part]
        self.known |= {number: key for number, key, new in zip(numbers, part, fresh, strict=True) if new}

    @rule(most=st.integers(1, 3))
    def hear_of_leaving(self, most: int) -> None:
        left = self.table.announced.take_left(most)
        assert len(left) <= most
        for number in left:
            del self.known[number]  # raises where it was never told, or was told so before

    @rule(keys=chains, at=st.integers(0, len(FIRST) - 1), step=st.integers(1, 9))
    def drop(self, keys: list[bytes], at: int, step: int) -> None:
        page = self.table.find(self.table.serving, keys[at])
        if page is not None:
            self.table.drop(page)
        self.table.clean_up(step)

    @rule()
    def evict(self) -> None:
        self.table.host.release(self.table.take_slots(SLOTS - 1, self.table.tick()))

    @rule()
    def leave_namespace(self) -> None:
        self.table.forget_namespace(self.table.serving)
        self.table.clean_up(2)

    @rule()
    def empty(self) -> None:
        """They have forgotten all, as where SGLang's tree was emptied."""
        self.table.announced.clear()
        self.known.clear()

    @invariant()
    def all_that_is_known_is_here_or_is_told_of_as_gone(self) -> None:
        check_rules(self.table)
        self.table.clean_up()
        left = list(self.table.announced._left)
        assert len(left) == len(set(left))
        still = {key for number, key in self.known.items() if number not in left}
        assert still <= set(self._here)
        for key in {*FIRST, *SECOND}:
            assert self.table.is_announced(self.table.serving, key) == (key in still)


TestListener = Listener.TestCase
TestListener.settings = settings(max_examples=examples(60), stateful_step_count=40)
