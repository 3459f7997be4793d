"""A simulated scheduler: requests come, wait for their pages, are computed, and leave what they have computed.

There is no SGLang here. This drives the tier stack as the linker and the hooks do in a server: one request is computed
at a time, in chunks; one that computes while its pages come up has its chunks cut by `Restorer.step`. The GPU is a
model: a forward is the time that it takes. Tokens of answers cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.errors import NotHeldError
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore
from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
from swift_tiers.sglang_ext.way.request import TieredRequest, TieringStage

from ..devices.curve import Computes
from .device import Device, Seat
from .work import Arrivals, PlannedRequest

#: Tokens that a request gets in a second once it has its first one.
DECODED_PER_SECOND = 40.0


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How a scheduler serves."""

    page_tokens: int
    forward_tokens: int  # that one forward computes at most
    layers: int
    bytes_per_second: float  # between host memory and the device, either way
    #: Between two rounds in which nothing is computed, seconds: while requests are there, and while none is.
    round_seconds: float = 0.02
    idle_seconds: float = 0.02
    #: Requests that are there at one time at most, and of these, those that are waited for.
    most_requests: int = 16
    most_awaited: int = 8


class ModelRequest:
    """One request, from its arrival until it is forgotten. Times are of the runner's clock."""

    tiered: TieredRequest

    def __init__(self, rid: str, arrived: float, call: PlannedRequest, seat: Seat, page_tokens: int) -> None:
        self.rid = rid
        self.arrived = arrived
        self.call = call
        self.facts = RequestFacts()
        self.page_tokens = page_tokens
        self.prompt_tokens = len(call.keys) * page_tokens + call.rest
        self.take(seat)
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None

    def take(self, seat: Seat) -> None:
        """What it has on the device before it is admitted."""
        self.seat = seat
        self.on_device = len(seat.pages)
        self.tail = [key.hex() for key in self.call.keys[self.on_device :]]
        self.tokens = self.on_device * self.page_tokens  # that are on the device

    @property
    def front(self) -> int:
        """Pages of its tail that the device has."""
        return min(self.tokens // self.page_tokens - self.on_device, len(self.tail))

    @property
    def over(self) -> float:
        """When it has its whole answer; it has its first token."""
        assert self.first_token is not None
        return self.first_token + self.call.answer_tokens / DECODED_PER_SECOND

    def output_tokens(self, now: float) -> int:
        if self.first_token is None:
            return 0
        return min(self.call.answer_tokens, 1 + int((now - self.first_token) * DECODED_PER_SECOND))


class _Load(NamedTuple):
    """Pages of a restore on their way to the device."""

    restore: Restore
    first: int  # of the restore's pages
    front: int  # of the request's tail, likewise
    pages: int
    landed: int  # of these, that are on the device already


class Scheduler:
    """The thread "scheduler", with "swift-offload" beside it."""

    def __init__(
        self,
        stack: TierStack,
        device: Device,
        computes: Computes,
        serving: Serving,
        blank: bytes,
        work: Arrivals,
        random: Random,
        runner: Runner,
    ) -> None:
        """`blank`: the checksum of every page."""
        self.device = device
        self.work = work
        #: Called at the beginning of each round, when a request has come, and when there was no room for one.
        self.begins: Callable[[float], None] = lambda now: None
        self.came: Callable[[], None] = lambda: None
        self.refused: Callable[[], None] = lambda: None
        self.waiting: list[ModelRequest] = []
        self.running: list[ModelRequest] = []  # those that are computed or answered
        self.ended: list[ModelRequest] = []  # since somebody looked
        self.counts: Counter[str] = Counter()
        self.serving = serving
        self.busy_seconds = 0.0  # in which something was computed
        self._stack = stack
        self._computes = computes
        self._blank = blank
        self._random = random
        self._runner = runner
        self._clock = runner.monotonic
        self._page_bytes = stack.namespace.geometry.page_bytes
        self._among: dict[str, TieredRequest] = {}
        self._current: ModelRequest | None = None  # is computed in chunks
        self._offloads = runner.queue()

    def start(self) -> None:
        self.work.begin(self._clock())
        self._runner.thread(self._run, "scheduler").start()
        self._runner.thread(self._offload, "swift-offload").start()

    def demand(self) -> int:
        """Tokens that its requests need together."""
        return sum(one.prompt_tokens + one.call.answer_tokens for one in (*self.running, *self.waiting))

    def serve_at_once(self, call: PlannedRequest) -> None:
        """As if it had been served before anybody looked, in no time: its pages, and those of its answer, are held."""
        seat = self.device.match(call.keys)
        if self.device.seat(seat):
            self.device.keep(seat)
        answer = self.work.answered(call, self.serving.page_tokens)
        self.device.leave(seat, answer)
        self._put((*call.keys, *answer), 0.0)

    # ---- rounds ----

    def _run(self) -> None:
        while True:
            now = self._clock()
            self.begins(now)
            self._arrivals(now)
            for asked in [one for one in self.running if one.first_token is not None and one.over <= now]:
                self._end(asked)
            if self._current is None:
                self._current = self._admitted()
            if self._current is None or not self._go_on(self._current):
                self._runner.sleep(self._pause(now))

    def _pause(self, now: float) -> float:
        if self.waiting or self.running:
            return self.serving.round_seconds
        return max(self.serving.round_seconds, min(self.serving.idle_seconds, self.work.next_at - now))

    def _arrivals(self, now: float) -> None:
        for arrived, call in self.work.due(now):
            if len(self.waiting) + len(self.running) < self.serving.most_requests:  # else clients give up
                self._arrive(arrived, call)

    def _arrive(self, arrived: float, call: PlannedRequest) -> None:
        seat, rid = self.device.match(call.keys), f"{self._random.getrandbits(128):032x}"
        asked = ModelRequest(rid, arrived, call, seat, self.serving.page_tokens)
        asked.facts.last_page = call.keys[-1].hex() if call.keys else ""
        asked.facts.no_layers = "no single layers are computed here"
        self._begin(asked)
        self.waiting.append(asked)
        self.counts["prompt_tokens"] += asked.prompt_tokens
        self.counts["reused_tokens"] += asked.tokens
        self.counts["hits"] += asked.on_device
        self.counts["misses"] += len(asked.tail)
        self.came()

    def _begin(self, asked: ModelRequest) -> None:
        """Bring up what the device lacks of it."""
        asked.tiered = TieredRequest(asked.rid, self._stack, self._among, asked.facts, device_pages=asked.on_device)
        asked.tiered.begin(asked.tail, [key.hex() for key in asked.call.keys[: asked.on_device]])

    def _make_room(self, asked: ModelRequest) -> None:
        """Where nobody runs who could give any back, whoever came last lets go of what it found on the device."""
        self.refused()
        holding = [one for one in self.waiting if one is not asked and one.seat.pages]
        if not self.running and holding:
            holding[-1].tiered.end()
            self.device.leave(holding[-1].seat)
            holding[-1].take(Seat(holding[-1].call.keys))
            self._begin(holding[-1])

    def _admitted(self) -> ModelRequest | None:
        """The first of those that wait which has its pages, or is to compute them, if there is room for it."""
        for asked in self.waiting[: self.serving.most_awaited]:
            readiness = asked.tiered.readiness()
            if readiness is Readiness.WAIT:
                continue
            if not self.device.seat(asked.seat):
                self._make_room(asked)
                return None
            asked.tiered.pages = asked.tiered.known_pages
            asked.tiered.computes = readiness is Readiness.COMPUTE
            asked.tiered.drains = asked.tiered.wants_draining
            asked.tiered.agreed = not asked.tiered.computes
            asked.admitted = self._clock()
            self.waiting.remove(asked)
            self.running.append(asked)
            return asked
        return None

    # ---- forwards ----

    def _go_on(self, asked: ModelRequest) -> bool:
        """One forward of the request that is computed; False where it has to wait for a page."""
        tiered, front = asked.tiered, asked.front
        on_course = tiered.stage is TieringStage.ON_COURSE or (tiered.stage is TieringStage.WAITING and tiered.computes)
        if on_course:
            step = tiered.next_step(front)
            if step.end == step.jump < tiered.pages:
                self._take_ahead(asked, front, step.jump)
                return False
        elif tiered.stage is TieringStage.WAITING:
            promised = tiered.promised(asked.tail) if asked.tail else 0
            step = Step(promised, promised)
        else:
            step = Step(front, front)
        page_tokens = self.serving.page_tokens
        start = max(asked.tokens, (asked.on_device + step.jump) * page_tokens)
        most = asked.prompt_tokens - start
        if on_course and step.end < tiered.pages:
            most = (step.end - step.jump) * page_tokens
        end = start + min(most, self.serving.forward_tokens)
        try:
            load = self._load(asked, front, step.jump)
        except NotHeldError:  # it was damaged, or flushed, just now
            return False
        if on_course:
            tiered.admit()
            reached = min(end // page_tokens - asked.on_device, tiered.pages)
            tiered.take(Step(step.jump, reached))
        self._compute(asked, start, end, load)
        if not on_course:
            tiered.end()
        if asked.tokens == asked.prompt_tokens:
            self._first_token(asked)
        return True

    def _take_ahead(self, asked: ModelRequest, front: int, jump: int) -> None:
        """Take pages `[front, jump)` of its tail as they land, where landing memory does not hold them all."""
        tiered = asked.tiered
        if not tiered.drains or tiered.stage is not TieringStage.ON_COURSE:
            return
        try:
            load = self._load(asked, front, jump)
        except NotHeldError:
            return
        if load is not None:
            tiered.take_ahead(jump)
            seconds = (load.pages - load.landed) * self._page_bytes / self.serving.bytes_per_second
            if seconds:
                self._runner.sleep(seconds)
            self._landed(asked, load, seconds)
            asked.tokens = (asked.on_device + jump) * self.serving.page_tokens

    def _load(self, asked: ModelRequest, front: int, jump: int) -> _Load | None:
        """Begin to copy pages `[front, jump)` of its tail to the device, if these are any."""
        tiered, pages = asked.tiered, jump - front
        if pages <= 0:
            return None
        first, places = tiered.places(asked.tail[front:jump])
        restore = tiered.restore
        assert restore is not None, "its pages have places"
        tiered.copies(first, pages)
        asked.facts.runs += tiered.take_runs()
        self.device.mark(asked.seat, front, jump, SlotState.LOADING)
        return _Load(restore, first, front, pages, int((places.numbers >= self._stack.host.slots).sum()))

    def _landed(self, asked: ModelRequest, load: _Load, seconds: float) -> None:
        pages = load.pages - load.landed
        self._stack.links["host-device"].count(pages, pages * self._page_bytes, seconds)
        self._stack.restorer.count_load(load.restore, load.first, load.pages, seconds, failed=False, landed=load.landed)
        self._stack.restorer.copied(load.restore, load.first, load.pages)
        asked.tiered.copied()
        self.device.mark(asked.seat, load.front, load.front + load.pages, SlotState.PRIVATE)

    def _compute(self, asked: ModelRequest, start: int, end: int, load: _Load | None) -> None:
        """Layer by layer: the forward follows behind the copy, and has one layer left to do when that is through."""
        seconds, serving = self._computes.seconds(start, end), self.serving
        copied = 0.0 if load is None else (load.pages - load.landed) * self._page_bytes / serving.bytes_per_second
        took = max(seconds, copied + seconds / serving.layers) if copied else seconds
        self.busy_seconds += seconds
        first, last = (tokens // serving.page_tokens - asked.on_device for tokens in (start, end))
        self.device.mark(asked.seat, first, last, SlotState.RECOMPUTING)
        self._runner.sleep(took)
        self.device.mark(asked.seat, first, last, SlotState.PRIVATE)
        if asked.facts.story is not None:
            asked.facts.story.forward(start, end - start, end - start, took, self._clock())
        if load is not None:
            self._landed(asked, load, copied)
        else:
            self._stack.costs.computed([(start, end)], seconds)
        asked.tokens = end

    def _first_token(self, asked: ModelRequest) -> None:
        asked.tiered.end()
        asked.first_token = self._clock()
        self._current = None
        self.device.keep(asked.seat)
        self._offloads.put(asked.call.keys)

    def _end(self, asked: ModelRequest) -> None:
        answer = self.work.answered(asked.call, self.serving.page_tokens)
        self.device.leave(asked.seat, answer)
        asked.ended = self._clock()
        self.running.remove(asked)
        self.ended.append(asked)
        self._offloads.put((*asked.call.keys, *answer))

    # ---- "swift-offload" ----

    def _offload(self) -> None:
        while True:
            self._put(self._offloads.get(), self.serving.bytes_per_second)

    def _put(self, keys: tuple[bytes, ...], bytes_per_second: float) -> None:
        """Take in to host memory what is not below the device yet. Without a speed it takes no time."""
        offered = self._stack.intake.begin(keys, ROOT_KEY, 1)
        pages = len(offered.slots)
        nbytes = pages * self._page_bytes
        if bytes_per_second and pages:
            self._runner.sleep(nbytes / bytes_per_second)
            self._stack.links["device-host"].count(pages, nbytes, nbytes / bytes_per_second)
        self._stack.intake.commit(offered, [self._blank] * pages)
