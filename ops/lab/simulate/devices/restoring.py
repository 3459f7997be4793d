"""One device and its sources restore requests: by the product's planner and its two pointers, or as others do it.

This drives `Planner`, `Flight` and `Batch` as the restorer and the hooks of SGLang do: whenever the device is free it
takes the next step of the first request in its queue that has one; whenever a source has room it takes the next load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from swift_tiers.radix_tiering.restore.batch import Batch
from swift_tiers.radix_tiering.restore.flight import Flight, Step
from swift_tiers.radix_tiering.restore.planner import HERE, Costs, Decision, Planner

from ....base.devices.curve import Computes
from .baselines import InOrder
from .clock import Clock
from .grain import Grain, LayerGrain, PageGrain
from .lines import Done, Line
from .setup import Setup

#: A waiting request is planned for anew after so long, seconds; as in the restorer.
REPLAN_SECONDS = 0.01
#: What a source has under way takes it about so long, seconds, or is so many bytes, in so many picks; likewise.
WINDOW_SECONDS, WINDOW_BYTES, PICKS = 0.05, 8 << 20, 4


class Sends(Protocol):
    """A source: `done` is called when the bytes are there."""

    def send(self, nbytes: float, done: Done) -> None: ...


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives: `start` tokens that the device has, then `prefix` tokens below it, then `new` ones."""

    arrival: float
    prefix: int
    new: int
    start: int = 0


class Sharing(Enum):
    """What sources load next."""

    AGE = "age"  # for whom the device will compute next, as the product
    NEED = "need"  # for whoever has most recomputation left, as CacheFlow, and the product with "by-need"
    BLIND = "blind"  # for the oldest request, without a plan


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How prefixes come back."""

    name: str
    loads: bool = True
    computes: bool = True
    sharing: Sharing = Sharing.AGE
    #: The device computes a chunk of each request in turn (CacheFlow, Algorithm 1), not the oldest request first, as
    #: SGLang does, which has one chunked request at a time.
    in_turn: bool = False
    #: Prefixes of fewer tokens come back layer by layer (L_delta).
    layer_wise_below: int = 0

    @property
    def planned(self) -> bool:
        """Whether the product's planner is asked when to begin to compute."""
        return self.sharing is not Sharing.BLIND


RECOMPUTE = Method(name="recompute", loads=False, sharing=Sharing.BLIND)
LOAD = Method(name="load", computes=False, sharing=Sharing.BLIND)
TWO_POINTERS = Method(name="plain two pointers", sharing=Sharing.BLIND)
SWIFT_TIERS = Method(name="swift-tiers")
BY_NEED = Method(name="swift-tiers, loads by need", sharing=Sharing.NEED)
IN_TURN = Method(name="swift-tiers, chunks in turn", sharing=Sharing.NEED, in_turn=True)


class Restoration:
    """One request on its way to its first token."""

    def __init__(self, request: Request, flight: Flight, grain: Grain) -> None:
        self.request = request
        self.flight = flight
        self.grain = grain
        self.new_left = request.new
        self.computing = False
        self.decided = float("-inf")
        self.decision: Decision | None = None
        self.first_token: float | None = None
        self.restored: float | None = None  # when its whole prefix was there
        self.computed = 0  # units from the front, the last of which was computed

    @property
    def seconds(self) -> float:
        """Time to first token."""
        assert self.first_token is not None, "asked for before it was there"
        return self.first_token - self.request.arrival


class Server:
    """One device, its queue, and its sources."""

    def __init__(
        self,
        clock: Clock,
        device: Computes,
        sources: Mapping[str, Sends],
        setup: Setup,
        method: Method = SWIFT_TIERS,
        *,
        costs: Costs | None = None,
        copies: Line | None = None,
        gate: Callable[[], int] | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`costs`: what is planned with, if not those of the setup. `copies`: the way from host memory to the device;
        None: it takes no time. `gate`: units from the front that can be computed at all, where more than their prefix
        is needed for it; `wake` when there are more. `progress` is called when a chunk has been computed."""
        self._clock = clock
        self._device = device
        self._sources = sources
        self.setup = setup
        self.method = method
        self._copies = copies
        self._gate = gate
        self._progress = progress
        self._planner = Planner(
            costs or setup.costs,
            page_tokens=setup.page_tokens,
            page_bytes=setup.page_bytes,
            layers=setup.layers,
            chunk_tokens=setup.chunk_tokens,
        )
        self._planner.forward_tokens = setup.forward_tokens
        self._batch: Batch[Restoration] | InOrder[Restoration] = (
            Batch(lambda: clock.now, by_age=method.sharing is Sharing.AGE)
            if method.planned
            else InOrder(lambda: clock.now)
        )
        self._queue: list[Restoration] = []
        self._busy = False
        self._active_since = 0.0
        self.busy_seconds = 0.0
        self.active_seconds = 0.0  # with a request in the queue
        self.computed_tokens = 0  # of prefixes that could have been loaded

    def submit(self, request: Request, sources: Sequence[str | None]) -> Restoration:
        """A request that arrives now. `sources[i]`: where page `i` of its prefix lies; `HERE`: in host memory."""
        grain = self._grain(request, sources, lambda: self._planner.most(restoration.decision))
        flight = Flight(grain.sources(sources) if self.method.loads else [None] * len(sources))
        restoration = Restoration(request, flight, grain)
        for unit, source in enumerate(grain.sources(sources)):
            if source == HERE and self.method.loads:
                flight.take_load(range(unit, unit + 1))
                flight.arrived(unit)
        if not self._queue:
            self._active_since = self._clock.now
        self._queue.append(restoration)
        self._batch.add(
            restoration, flight, grain.planned_seconds, grain.unit_seconds, grain.planned_forward, grain.latency_seconds
        )
        self._plan(restoration)
        self._clock.after(0.0, self._began)  # when all that arrive at this time have
        return restoration

    @property
    def waiting(self) -> int:
        """Requests without their first token."""
        return len(self._queue)

    def _grain(self, request: Request, sources: Sequence[str | None], most: Callable[[], int]) -> Grain:
        pages = PageGrain(request.start, request.new, self.setup, self._device, self._planner, most)
        whole = len(set(sources)) == 1 and None not in sources
        if not (whole and request.prefix < self.method.layer_wise_below):
            return pages
        return LayerGrain(request.start, request.prefix, request.new, self.setup, self._device)

    def wake(self) -> None:
        """The gate has opened further."""
        self._go_on()

    def _began(self) -> None:
        """As in a server: what a request needs is asked for before anybody asks whether it may be computed."""
        self._pump()
        self._go_on()

    def _go_on(self) -> None:
        self._drive()
        self._pump()

    # ---- the sources ----

    def _pump(self) -> None:
        for name, source in self._sources.items():
            window = self._window(name)
            while self._batch.under_way(name) < window:
                pick = self._batch.next_load(name, max(1, window // PICKS))
                if pick is None:
                    break
                for unit in pick.units:
                    source.send(pick.request.grain.unit_bytes, self._arrival(pick.request, name, unit))

    def _window(self, source: str) -> int:
        """Pages that a source may have under way."""
        most = max(self._planner.chunk, WINDOW_BYTES // self.setup.page_bytes, 1)
        each = self._planner.page_seconds(source)
        return most if each is None else max(2, min(most, int(WINDOW_SECONDS / each)))

    def _arrival(self, restoration: Restoration, source: str, unit: int) -> Done:
        def arrived() -> None:
            restoration.flight.arrived(unit)
            self._batch.answered(source)
            self._go_on()

        return arrived

    # ---- the device ----

    def _drive(self) -> None:
        """Give the device something to do, if it is free and somebody has something."""
        if self._busy:
            return
        for restoration in self._order():
            step = self._step(restoration)
            if step is not None:
                self._begin(restoration, step)
                return

    def _order(self) -> Sequence[Restoration]:
        """Whom the device serves first."""
        if not self.method.in_turn:
            return list(self._queue)
        # Who has its prefix first; then whose compute pointer is least far, since its next chunk costs least.
        return sorted(self._queue, key=lambda one: (not one.flight.done, one.flight.front))

    def _plan(self, restoration: Restoration) -> None:
        """Decide whether it begins to compute, by where its pages are now."""
        flight, now = restoration.flight, self._clock.now
        if not restoration.grain.planned or not (self.method.planned and self.method.computes):
            restoration.computing = self.method.computes
            self._batch.set_computing(restoration, restoration.computing)
            return
        if now - restoration.decided < REPLAN_SECONDS:
            return
        restoration.decided = now
        front = flight.step(1).jump
        tokens = restoration.request.start // self.setup.page_tokens + front
        decision = self._planner.decide(tokens, flight.whereabouts(front, HERE), restoration.request.new)
        restoration.computing, restoration.decision = decision.compute, decision
        lead = min(front + decision.lead, len(flight)) if decision.lead else 0
        flight.steer(lead, self._planner.island(decision))
        self._batch.set_computing(restoration, decision.compute)

    def _step(self, restoration: Restoration) -> Step | None:
        """What the device can do for it now; None if it has to wait."""
        flight = restoration.flight
        whole = Step(len(flight), len(flight))
        if flight.done and not flight.computing:
            return whole
        if not restoration.computing:
            self._plan(restoration)
        if not restoration.computing:
            return None
        step = self._batch.next_step(restoration, restoration.grain.chunk(self._most(restoration)))
        if self._gate is not None:
            step = Step(step.jump, max(step.jump, min(step.end, self._gate())))
        return step if step.end > step.jump or step == whole else None

    def _most(self, restoration: Restoration) -> int:
        """Tokens of its next forward, at most."""
        if not self.method.loads or restoration.flight.done:
            return self.setup.forward_tokens
        return self._planner.most(restoration.decision) * self.setup.page_tokens

    def _begin(self, restoration: Restoration, step: Step) -> None:
        flight, grain = restoration.flight, restoration.grain
        copied = step.jump - flight.front
        flight.abandon_loading(step.jump, step.end)
        flight.take(step)
        self._batch.set_computing(restoration, True)
        computed = grain.tokens(step.end - step.jump)
        room = max(0, self.setup.forward_tokens - computed)  # what follows joins in, as in the hooks of SGLang
        new = min(restoration.new_left, room) if step.end == len(flight) else 0
        restoration.new_left -= new
        seconds = grain.seconds(step.jump, step.end, restoration.request.new - restoration.new_left - new, new)
        copy_seconds = 0.0
        if self._copies is not None and copied:
            self._copies.send(copied * grain.unit_bytes, lambda: None)
            copy_seconds = self._copies.free_at - self._clock.now
        # Layer by layer: the forward follows behind the copy, and has one layer left to do when that is through.
        took = max(seconds, copy_seconds + seconds / self.setup.layers) if copy_seconds else seconds
        self._busy = True
        self.busy_seconds += seconds
        self.computed_tokens += computed
        self._pump()
        self._clock.after(took, lambda: self._computed(restoration, step))

    def _computed(self, restoration: Restoration, step: Step) -> None:
        self._busy = False
        flight = restoration.flight
        flight.computed()
        if step.end > step.jump:
            restoration.computed = step.end
            self._progress()
        if flight.front == len(flight) and restoration.restored is None:
            restoration.restored = self._clock.now
        if flight.front == len(flight) and not restoration.new_left:
            restoration.first_token = self._clock.now
            self._queue.remove(restoration)
            self._batch.remove(restoration)
            if not self._queue:
                self.active_seconds += self._clock.now - self._active_since
        self._go_on()
