"""What a waiting request is promised, whatever the world does between any two looks at it.

Pages come to the device by others' doing and leave it again, reads end in any order or fail, memory is flushed.
"""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.way.request_restore import Readiness

from support.engine import check, content, end_all, page_at
from support.examples import examples
from support.restores import Link, on_ssd

PAGES = 12
DEADLINE = 4.0


class Promises(RuleBasedStateMachine):
    """One request. Until it is admitted (`own` is None) the device's pages are everybody's; from then on it has its
    own. `device`: pages from the start that the device has now."""

    @initialize(strategy=st.sampled_from(["token-wise", "auto", "load", "layer-wise"]), can_compute=st.booleans())
    def arrive(self, strategy: str, can_compute: bool) -> None:
        self.stack, self.clock, self.keys = on_ssd(
            PAGES, restore={"strategy": strategy, "chunk": 16}, policy={"restore_deadline": f"{DEADLINE:g}s"}
        )
        self.link = Link(self.stack)
        self.can_compute = can_compute
        self.restore = self.stack.restore(self.keys, can_compute=can_compute)
        self.stack.restorer.wait_idle()
        self.device, self.own, self.ended = 0, None, False
        self.waits_since: float | None = None
        self.readiness = Readiness.WAIT

    def waits(self) -> bool:
        return not self.ended and self.own is None

    # ---- the world ----

    @rule(pages=st.integers(1, PAGES))
    def others_compute(self, pages: int) -> None:
        self.device = max(self.device, pages)

    @rule(pages=st.integers(0, PAGES))
    def the_device_forgets(self, pages: int) -> None:
        self.device = min(self.device, pages)

    @precondition(lambda self: self.link.kept)
    @rule(number=st.integers(0, 100), well=st.sampled_from([True, True, True, False]))
    def a_read_ends(self, number: int, well: bool) -> None:
        (self.link.deliver if well else self.link.fail)(number)

    @rule(seconds=st.floats(0.01, 1.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def memory_is_flushed(self) -> None:
        self.stack.flush("memory")

    # ---- the request ----

    def promised(self) -> int:
        """What is promised now, looked at byte by byte."""
        restorer = self.stack.restorer
        reach = restorer.present(self.restore, self.device)
        assert self.device <= reach <= PAGES
        self.same(restorer.places(self.restore, self.device, reach).numbers, self.device)
        return reach

    def same(self, places: np.ndarray, first: int) -> None:
        for key, place in zip(self.keys[first:], places.tolist(), strict=False):
            assert np.array_equal(page_at(self.stack, place), content(key)), "another page's bytes"

    @precondition(waits)
    @rule()
    def is_matched(self) -> None:
        self.promised()

    @precondition(waits)
    @rule()
    def is_asked_for(self) -> None:
        reach = self.promised()
        self.readiness = self.stack.restorer.poll(self.restore)
        if self.can_compute and reach == len(self.restore.flight):
            assert self.readiness is not Readiness.WAIT, "it waits for nothing"
        now = self.clock()
        if self.readiness is not Readiness.WAIT:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        else:
            assert now - self.waits_since <= DEADLINE, "its deadline is not heard"

    @precondition(lambda self: self.waits() and self.readiness is Readiness.COMPUTE)
    @rule()
    def is_not_admitted_after_all(self) -> None:
        """There is no room, or another rank goes less far."""
        self.stack.restorer.step(self.restore, self.promised())

    @precondition(lambda self: self.waits() and self.readiness is not Readiness.WAIT)
    @rule()
    def is_admitted(self) -> None:
        reach = self.promised()
        if self.readiness is Readiness.READY or reach >= len(self.restore.flight):
            self.over()
            return
        step = self.stack.restorer.step(self.restore, reach)
        if step.end > reach:
            self.stack.restorer.take(self.restore, Step(reach, step.end))
            self.own = step.end

    @precondition(lambda self: not self.ended and self.own is not None)
    @rule()
    def goes_on(self) -> None:
        assert self.own is not None
        restorer, end = self.stack.restorer, len(self.restore.flight)
        step = restorer.step(self.restore, self.own)
        self.same(restorer.places(self.restore, self.own, step.jump).numbers, self.own)
        if step.end > self.own:
            restorer.take(self.restore, step)
            self.own = step.end
        if self.own == end:
            restorer.split(self.restore)
            self.over()

    @precondition(lambda self: not self.ended)
    @rule()
    def is_aborted(self) -> None:
        self.over()

    def over(self) -> None:
        self.stack.restorer.release(self.restore)
        self.ended = True

    @invariant()
    def nothing_is_promised_that_the_device_has_lost(self) -> None:
        if hasattr(self, "stack") and self.waits():
            reach = self.promised()
            assert reach == len(self.restore.flight) or not self.restore.all_there

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            for _ in range(200):  # with nothing coming any more, it ends by itself
                if self.ended:
                    break
                if self.own is None:
                    self.is_asked_for()
                    if self.readiness is not Readiness.WAIT:
                        self.is_admitted()
                else:
                    self.goes_on()
                self.clock.now += 0.3
            assert self.ended, "it never ends"
        finally:
            self.link.__exit__()
            self.over()
        check(self.stack)
        end_all()


TestPromises = Promises.TestCase
TestPromises.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
