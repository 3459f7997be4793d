"""One simulated server: requests, a device, tiers, leases, and what it counts and tells."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import groupby
from random import Random
from typing import Any

import msgspec

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.figures.story import COMPUTED
from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.table.tier_copies import HOST

from ...base.devices.curve import Curve
from ...base.devices.hardware import GPUS
from ...base.devices.lines import Line
from ...base.devices.models import MODELS
from ...base.devices.restoring import Request, Restoration
from ...base.devices.setup import Setup, geometry
from .lending import BorrowerSide, DemoLentMemory, DonorSide, Post
from .restores import TellingServer
from .stripes import DemoStripes
from .tiers import PEER, SSD, DemoClaim, DemoTiers
from .work import Habit, PlannedRequest, RequestSource

PAGE_TOKENS, CHUNK_TOKENS, LONGEST = 64, 1024, 131_072
#: Tokens that a request gets in a second once it has its first one.
DECODED_PER_SECOND = 40.0
#: Ended requests that are remembered.
ENDED = 40
#: Requests that are there at one time at most.
MOST_REQUESTS = 16
GIB = 1 << 30


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is made of. Sizes in bytes, speeds in bytes per second."""

    name: str
    host: str
    model: str
    gpu: str
    device_bytes: int
    host_bytes: int
    devices: int = 0
    device_slots: int = 0  # stripe units of each
    device_speed: float = 0.0
    lends: bool = False
    borrows: bool = False
    habit: Habit


class DemoRequest:
    """One request, from its arrival until it is forgotten."""

    def __init__(self, rid: str, arrived: float, call: PlannedRequest, claim: DemoClaim) -> None:
        self.rid = rid
        self.arrived = arrived  # all times by the virtual clock
        self.call = call
        self.claim = claim
        self.on_device = len(claim.device)
        self.found = tuple(claim.sources)
        self.prompt_tokens = len(call.keys) * PAGE_TOKENS + call.rest
        self.restoration: Restoration | None = None
        self.began: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.late = ""
        self.block_table: tuple[tuple[int, int], ...] = ()

    @property
    def state(self) -> str:
        if self.ended is not None:
            return "finished"
        if self.first_token is not None:
            return "running"
        return "restoring" if self.found else "waiting" if self.began is None else "running"

    def output_tokens(self, now: float) -> int:
        if self.first_token is None:
            return 0
        return min(self.call.answer_tokens, 1 + int((now - self.first_token) * DECODED_PER_SECOND))


class DemoServer:
    """One life of a server. It stops with `die`."""

    def __init__(self, plan: DemoPlan, post: Post, wall: Callable[[], float], seed: int) -> None:
        """`wall`: seconds since 1970, by the virtual clock."""
        self.plan = plan
        self.clock = post.clock
        self.wall = wall
        self.rank = "dp0-tp0"
        self.started = wall()
        self.pid = 4000 + seed % 1000
        self.counts: Counter[str] = Counter()
        self.requests: dict[str, DemoRequest] = {}
        self.ended: deque[DemoRequest] = deque(maxlen=ENDED)
        self.alive = True
        self.events = EventLog(wall)
        self._random = Random(seed)
        self._post = post
        model = MODELS[plan.model]
        page = geometry(PAGE_TOKENS, model.token_bytes)
        self.namespace = sha256(plan.model.encode()).digest()
        gpu = GPUS[plan.gpu]
        self._copies = Line(self.clock, gpu.pcie_bytes_per_second * 0.8)
        self.stripes: DemoStripes | None = None
        if plan.devices:
            unit = page.page_bytes // 2  # each page on two devices
            self.stripes = DemoStripes(self.clock, self.rank, plan.devices, plan.device_slots, unit, plan.device_speed)
        self.memory = DemoLentMemory(self.clock, page.page_bytes, 20e9) if plan.borrows else None
        self.tiers = DemoTiers(
            self.clock,
            page,
            self.namespace,
            self.events,
            device_pages=plan.device_bytes // page.page_bytes,
            host_pages=plan.host_bytes // page.page_bytes,
            stripes=self.stripes,
            peer=self.memory,
            copy_seconds=lambda nbytes: nbytes / self._copies.bytes_per_second,
        )
        self.device = self._device(Curve(model=model, gpu=gpu))
        self.device.tell(self._loaded, self._computing)
        self.work = RequestSource(plan.habit, self._random, seed << 40)
        self._fill()
        self.donor = (
            DonorSide(self.lease_name, post, self.tiers, self.events, self._random, self._demand)
            if plan.lends
            else None
        )
        self.borrower = (
            BorrowerSide(self.lease_name, post, self.tiers, self.memory, self._random)
            if self.memory is not None
            else None
        )
        self.clock.after(self.work.pause(), self._arrive)

    @property
    def lease_name(self) -> str:
        return f"{self.plan.name}.{self.rank}"

    def _device(self, curve: Curve) -> TellingServer:
        sources: dict[str, Any] = {}
        costs = {HERE: SourceCost(latency_seconds=0.0, bytes_per_second=self._copies.bytes_per_second)}
        if self.stripes is not None:
            sources[SSD] = self.stripes
            costs[SSD] = SourceCost(latency_seconds=100e-6, bytes_per_second=self.stripes.bytes_per_second)
        if self.memory is not None:
            sources[PEER] = self.memory
            costs[PEER] = SourceCost(latency_seconds=20e-6, bytes_per_second=self.memory.bytes_per_second)
        setup = Setup(
            costs=CostModel(compute=curve.fitted(CHUNK_TOKENS, LONGEST), sources=costs),
            token_bytes=curve.model.token_bytes,
            layers=curve.model.layers,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=CHUNK_TOKENS,
            forward_tokens=CHUNK_TOKENS,
        )
        return TellingServer(self.clock, curve, sources, setup, copies=self._copies)

    def _fill(self) -> None:
        """As if it had served for a while: its tiers hold something from the beginning on."""
        room = self.tiers.table.host.slots + (0 if self.stripes is None else self.stripes.free_units // 4)
        while self.tiers.table.directory(self.namespace).pages < 0.7 * room:
            call = self.work.draw()
            claim = self.tiers.claim(call.keys)
            self.tiers.seat(claim)
            self.tiers.settle(claim, 0)
            self.tiers.finish(claim, self.work.answered(call, PAGE_TOKENS))
            if self.tiers.table.of[HOST].pages >= 0.98 * self.tiers.table.host.slots:
                break

    # ---- requests ----

    def _arrive(self) -> None:
        if not self.alive:
            return
        self.clock.after(self.work.pause(), self._arrive)
        if len(self.requests) >= MOST_REQUESTS:
            return  # clients give up before they ask
        call = self.work.draw()
        claim = self.tiers.claim(call.keys)
        rid = f"{self._random.getrandbits(128):032x}"
        asked = self.requests[rid] = DemoRequest(rid, self.clock.now, call, claim)
        start, prefix = asked.on_device * PAGE_TOKENS, len(claim.sources) * PAGE_TOKENS
        request = Request(arrival=self.clock.now, start=start, prefix=prefix, new=asked.prompt_tokens - start - prefix)
        if claim.sources:
            self.counts["started"] += 1
        asked.restoration = self.device.submit(request, claim.sources, partial(self._first_token, asked))
        self.counts["prompt_tokens"] += asked.prompt_tokens
        self.counts["reused_tokens"] += start

    def _asked(self, restoration: Restoration) -> DemoRequest | None:
        return next((one for one in self.requests.values() if one.restoration is restoration), None)

    def _loaded(self, restoration: Restoration, source: str, unit: int, seconds: float) -> None:
        asked = self._asked(restoration)
        if asked is not None and unit < len(asked.claim.below):
            self.tiers.loaded(asked.claim, source, unit, seconds)

    def _computing(self, restoration: Restoration, step: Step) -> None:
        asked = self._asked(restoration)
        if asked is None:
            return
        if asked.began is None:
            asked.began = self.clock.now
            self.tiers.seat(asked.claim)
        for at, slot in enumerate(asked.claim.slots[: step.end]):
            self.tiers.pool.mark(slot, SlotState.RECOMPUTING if at >= step.jump else SlotState.PRIVATE)

    def _first_token(self, asked: DemoRequest, restoration: Restoration) -> None:
        if not self.alive:
            return
        asked.first_token = self.clock.now
        story = self.device.story(restoration)
        loaded = story.loaded
        copied = loaded * self.tiers.geometry.page_bytes
        self.tiers.device_counters.bytes_written += copied
        self.tiers.settle(asked.claim, loaded)
        self._count_restore(asked, restoration)
        slots = [page.slot for page in asked.claim.device]
        asked.block_table = _runs(slots)
        self.clock.after(asked.call.answer_tokens / DECODED_PER_SECOND, lambda: self._end(asked))

    def _count_restore(self, asked: DemoRequest, restoration: Restoration) -> None:
        if not asked.found:
            return
        story = self.device.story(restoration)
        estimated, took = story.estimated_seconds, story.there_seconds
        if story.pages(COMPUTED):
            self.counts["split"] += 1
        else:
            self.counts["completed"] += 1
        if estimated and took and took > 2 * estimated + 1.0 and self.stripes is not None:
            slow = any(device.line.bytes_per_second < device.usual for device in self.stripes.devices)
            if slow:
                asked.late = "ssd fell behind"
                self.counts["late"] += 1
                self.events.emit("restore.behind", pages=story.found, seconds=round(took, 3), reason=asked.late)
        for name in (HERE, SSD):
            if name in asked.found and took:
                self.tiers.counters(name).read_latency.observe(took)

    def _end(self, asked: DemoRequest) -> None:
        if not self.alive or asked.rid not in self.requests:
            return
        self.tiers.finish(asked.claim, self.work.answered(asked.call, PAGE_TOKENS))
        asked.ended = self.clock.now
        del self.requests[asked.rid]
        if len(self.ended) == ENDED and (oldest := self.ended[0].restoration) is not None:
            self.device.forget(oldest)
        self.ended.append(asked)

    def _demand(self) -> int:
        """Tokens that its requests need together."""
        return sum(one.prompt_tokens + one.call.answer_tokens for one in self.requests.values())

    # ---- what happens to it ----

    def pull_device(self, number: int) -> None:
        assert self.stripes is not None
        device = self.stripes.devices[number]
        self.stripes.pull(number, "write failed: Input/output error")
        pages = self.tiers.device_gone(number)
        self.events.emit("device.out", device=device.path, reason="write failed: Input/output error", pages=pages)

    def rush(self, seconds: float, factor: float) -> None:
        """For a while its requests come so many times as often."""
        usual = self.work.habit
        self.work.habit = msgspec.structs.replace(usual, per_second=usual.per_second * factor)
        self.clock.after(seconds, lambda: setattr(self.work, "habit", usual))

    def die(self) -> None:
        """Like a process that is killed: it says nothing more."""
        self.alive = False
        if self.donor is not None:
            self.donor.alive = False
            self._post.died(self.donor.name)


def _runs(slots: list[int]) -> tuple[tuple[int, int], ...]:
    """Neighbouring ones as first and last."""
    groups = groupby(enumerate(slots), key=lambda pair: pair[1] - pair[0])
    runs = [[slot for _, slot in group] for _, group in groups]
    return tuple((run[0], run[-1]) for run in runs)
