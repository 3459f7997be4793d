"""A simulated device that restores prefixes, and has the product's storyteller write down how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from swift_tiers.radix_tiering.figures.story import RestoreStory
from swift_tiers.radix_tiering.restore.flight import Step, Unit
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.restore.storyteller import Storyteller

from ...base.devices.lines import Done
from ...base.devices.restoring import Request, Restoration, Server

#: Told when page `at` of a restoration has come from a source, after so many seconds.
Arrived = Callable[[Restoration, str, int, float], None]


class TellingServer(Server):
    """Does what `Server` does, and can tell of each request how its prefix came back."""

    arrived: Arrived
    computing: Callable[[Restoration, Step], None]

    def tell(self, arrived: Arrived, computing: Callable[[Restoration, Step], None]) -> None:
        """To be called before anything is submitted. `computing`: a forward begins."""
        self.arrived, self.computing = arrived, computing
        self._tellers: dict[Restoration, Storyteller] = {}
        self._places: dict[Restoration, Sequence[str | None]] = {}

    def submit(
        self,
        request: Request,
        sources: Sequence[str | None],
        told: Callable[[Restoration], None] = lambda restoration: None,
    ) -> Restoration:
        tokens, now = self.setup.page_tokens, self._clock.now
        teller = Storyteller(
            page_tokens=tokens,
            prefix_pages=request.start // tokens,
            wanted_pages=-(-(request.prefix + request.new) // tokens),
            began=now,
            why="" if sources else "nothing of it lies below the device",
        )
        teller.found({str(name): sum(1 for one in sources if one == name) for name in dict.fromkeys(sources)})
        teller.waited_for(now)
        for name in dict.fromkeys(sources):
            if name is not None and name != HERE:
                teller.asked(name, now)
        self._next = teller, sources
        return super().submit(request, sources, told)

    def story(self, restoration: Restoration) -> RestoreStory:
        """As far as it has come."""
        story = self._tellers[restoration].told()
        if restoration.restored is not None:
            return story
        states = restoration.flight.states()
        return msgspec.structs.replace(
            story,
            computed_pages=restoration.computed,
            arrived_pages=states.count(Unit.PRESENT),
            loading_pages=states.count(Unit.LOADING),
        )

    def forget(self, restoration: Restoration) -> None:
        self._tellers.pop(restoration, None)
        self._places.pop(restoration, None)

    def _plan(self, restoration: Restoration) -> None:
        if restoration not in self._tellers:
            self._tellers[restoration], self._places[restoration] = self._next
        before = restoration.decided
        front = restoration.flight.step(1).jump
        where = restoration.flight.whereabouts(front, HERE)
        super()._plan(restoration)
        if restoration.decided != before and where:
            tokens = restoration.request.start // self.setup.page_tokens + front
            self._tellers[restoration].decided(self._planner.decide(tokens, where), front)

    def _arrival(self, restoration: Restoration, source: str, unit: int) -> Done:
        asked = self._clock.now
        came = super()._arrival(restoration, source, unit)

        def arrived() -> None:
            teller = self._tellers.get(restoration)
            if teller is not None:
                teller.arrived(source, self._clock.now)
                self.arrived(restoration, source, unit, self._clock.now - asked)
            came()

        return arrived

    def _begin(self, restoration: Restoration, step: Step) -> None:
        teller, places = self._tellers[restoration], self._places[restoration]
        front = restoration.flight.front
        if step.jump > front:
            runs = [(str(name), len(list(same))) for name, same in groupby(places[front : step.jump])]
            teller.loaded(front, runs)
        teller.computed(step.jump, step.end)
        began, new = self._clock.now, restoration.new_left
        super()._begin(restoration, step)
        computed = (step.end - step.jump) * self.setup.page_tokens
        restoration_new = new - restoration.new_left
        start = restoration.request.start + step.jump * self.setup.page_tokens
        self._forward = teller, start, computed, computed + restoration_new, began
        self.computing(restoration, step)

    def _computed(self, restoration: Restoration, step: Step) -> None:
        teller, start, computed, of, began = self._forward
        now = self._clock.now
        if computed:
            teller.forward(start, computed, max(1, of), now - began, now)
        if step.end == len(restoration.flight):
            teller.taken(now)
        super()._computed(restoration, step)
