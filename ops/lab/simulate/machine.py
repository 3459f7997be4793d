"""One server with its tiers replays a trace: what is hit where, and how long first tokens take.

The server is the product's tier stack over models of devices, SGLang and its scheduler (`ops/base/simulated`), on a
virtual runner. Its pages are as many as they would be, and smaller, as are all speeds, by the same number: so no time
is spent on checksums of blank memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import msgspec

from swift_tiers.radix_tiering.base.config import RemoteConfig, RestoreConfig, TiersConfig
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, KEY_BYTES, Namespace, PageGeometry, page_digest, round_up
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import CapTier
from swift_tiers.radix_tiering.bus.speak import carry_out
from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.host.landing import LandingSlots
from swift_tiers.radix_tiering.tiers.remote import ObjectShape, RemoteTier
from swift_tiers.radix_tiering.tiers.tier import Tier
from swift_tiers.sglang_ext.build.remote_side import MOST_READ_SECONDS

from ...base.devices.curve import FORWARD_TOKENS, Curve
from ...base.devices.hardware import Ssd
from ...base.devices.models import Model
from ...base.simulated.device import Device
from ...base.simulated.remote import StoreModel
from ...base.simulated.scheduler import ModelRequest, Scheduler, Serving
from ...base.simulated.stripes import BlankMemory, open_ssd
from ...base.simulated.work import PlannedRequest
from .runs import chunk_for

#: Where tokens of prompts come from, fastest first, as tables name it.
PLACES = {"device": "device", "host": "host", "ssd": "ssd", "remote": "shared store"}
LONGEST = 131_072
#: How many times smaller pages, and what is copied in a second, are than those that they stand for.
SMALLER = 512
#: How often the scheduler looks whether pages have come up, and whether anybody has come at all, seconds.
ROUND_SECONDS, IDLE_SECONDS = 0.002, 1.0
#: Between two looks whether all is done, seconds.
LOOK_SECONDS = 1.0
#: Objects of one page that the arrival memory of all ranks together holds: 256 MiB each, of 8 ranks.
ARRIVAL_SLOTS = 24
#: Requests whose pages are looked after at one time, at most.
MOST_AWAITED = 64

Result = TypeVar("Result")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A server. Sizes in bytes; 0: no such tier."""

    curve: Curve
    page_tokens: int
    device_bytes: float  # of the KV pool
    host_bytes: float = 0
    ssd: Ssd | None = None
    ssds: int = 0
    ssd_bytes: float = 0  # of all devices
    remote_bytes_per_second: float = 0
    remote_latency: float = 100e-6
    remote_pages: int = 1  # of an object there
    copy_bytes_per_second: float  # between host memory and all GPUs

    @property
    def page_bytes(self) -> int:
        """Of a page, as it would be."""
        return self.page_tokens * self.curve.model.token_bytes

    @property
    def geometry(self) -> PageGeometry:
        """Of the pages that stand for those."""
        return small_pages(self.curve.model, self.page_tokens)


def small_pages(model: Model, tokens: int) -> PageGeometry:
    """Of pages of a model that are smaller by `SMALLER`."""
    return PageGeometry(layers=model.stored_layers, planes=1, tokens=tokens, row_bytes=model.layer_bytes // SMALLER)


class Call(NamedTuple):
    """One request: when it comes, its length, its blocks; so many of them are in a shared store; the blocks that its
    answer makes whole."""

    seconds: float
    tokens: int
    blocks: tuple[int, ...]
    remote: int = 0
    answer: tuple[int, ...] = ()


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests."""

    tokens: int
    hits: dict[str, int]  # tokens, by place
    seconds: tuple[float, ...]  # to the first token, ascending
    device_busy: float

    def share(self, place: str) -> float:
        return self.hits.get(place, 0) / self.tokens

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    def percentile(self, share: float) -> float:
        return self.seconds[max(0, round(share * len(self.seconds)) - 1)]


def page_key(block: int) -> bytes:
    """The key of a block of a trace."""
    return (block + 1).to_bytes(KEY_BYTES, "big")


class Trace:
    """Requests that come at their own times (`Arrivals`)."""

    def __init__(self, calls: Iterable[Call], page_tokens: int) -> None:
        self._calls = iter(calls)
        self._page_tokens = page_tokens
        self._next: Call | None = None
        self.came = 0
        #: Told of the pages of a request, from its beginning on, that are in a shared store when it comes.
        self.shared: Callable[[Sequence[bytes]], None] = lambda keys: None
        self.next_at = math.inf

    @property
    def over(self) -> bool:
        """Nobody comes any more."""
        return self._next is None

    def begin(self, now: float) -> None:
        self._began = now
        self._go_on()

    def due(self, now: float) -> Iterator[tuple[float, PlannedRequest]]:
        while self._next is not None and self.next_at <= now:
            call, when = self._next, self.next_at
            self._go_on()
            self.came += 1
            planned = self.planned(call)
            if call.remote:
                self.shared(planned.keys[: call.remote])
            yield when, planned

    def planned(self, call: Call) -> PlannedRequest:
        # The last token is computed in any case: it is what the first new one follows from.
        keys = tuple(map(page_key, call.blocks[: (call.tokens - 1) // self._page_tokens]))
        return PlannedRequest(keys, call.tokens - len(keys) * self._page_tokens, 0, list(call.answer))

    def answered(self, call: PlannedRequest, page_tokens: int) -> tuple[bytes, ...]:
        return tuple(map(page_key, call.talk))

    def _go_on(self) -> None:
        self._next = next(self._calls, None)
        self.next_at = math.inf if self._next is None else self._began + self._next.seconds


class ModelServer:
    """A machine in virtual time. To be made by a task of the runner; `start` lets requests come."""

    def __init__(
        self,
        runner: Runner,
        machine: Machine,
        work: Trace,
        restore: RestoreConfig,
        *,
        lent: Tier | None = None,
        landing: LandingSlots | None = None,
        lent_cost: SourceCost | None = None,
    ) -> None:
        """`lent`: memory that neighbours lend, for pages of the machine's `geometry`, `landing` where they land, and
        what is known of reading it."""
        self.machine = machine
        self.work = work
        self._runner = runner
        geometry, curve = machine.geometry, machine.curve
        host = BlankMemory(geometry, max(1, int(machine.host_bytes // machine.page_bytes)) * geometry.stride_bytes)
        if not machine.host_bytes:  # nothing is kept below the device, so nothing is looked for there
            host.limit_bytes, restore = 0, msgspec.structs.replace(restore, strategy="recompute")
        tiers, sources = list[Tier](), {HERE: _cost(0.0, machine.copy_bytes_per_second / SMALLER)}
        if lent is not None:
            tiers.append(lent)
        if lent_cost is not None:
            sources["peer"] = lent_cost
        unit = None
        if machine.ssd is not None and machine.ssds:
            speed = machine.ssd.bytes_per_second / SMALLER
            unit = round_up(-(-geometry.page_bytes // machine.ssds), BLOCK_BYTES)
            # A unit of each page is on each device.
            array, ssd = open_ssd(runner, "r", machine.ssds, int(machine.ssd_bytes // machine.page_bytes), unit)
            array.bytes_per_second = speed
            tiers.append(ssd)
            sources["ssd"] = _cost(machine.ssd.latency_seconds, machine.ssds * speed)
        blank = page_digest(host.page(0), unit)
        if machine.remote_bytes_per_second:
            speed = machine.remote_bytes_per_second / SMALLER
            shape = ObjectShape(geometry.page_bytes, machine.remote_pages, machine.remote_pages)
            store = StoreModel(runner, shape, speed, machine.remote_latency)
            tiers.append(
                remote := RemoteTier(
                    shape,
                    RemoteConfig(engine="model", admission="always"),
                    store.open(ARRIVAL_SLOTS),
                    page_tokens=machine.page_tokens,
                    read_seconds=MOST_READ_SECONDS,
                    fingerprint=lambda page: blank,
                    runner=runner,
                )
            )
            sources["remote"] = _cost(machine.remote_latency, speed)
            work.shared = lambda keys: store.hold(self.stack.digest, keys)
            while not remote.snapshot().ready:
                runner.sleep(ROUND_SECONDS)
        chunk = max(machine.page_tokens, chunk_for(curve))
        costs = CostModel(compute=curve.fitted(chunk, LONGEST), sources=sources)
        space = Namespace(
            model=curve.model.name, weights="simulated", dtype="bfloat16", geometry=geometry, first_layer=0,
            kv_heads=1, head_dim=1, rank="tp0/1",
        )  # fmt: skip
        self.stack = TierStack(
            space,
            TiersConfig(restore=msgspec.structs.replace(restore, chunk=chunk)),
            host,
            tiers,
            runner=runner,
            costs=LiveCosts(costs, runner=runner),
            landing=landing,
            copies_beside=True,
        )
        self.stack.planner.forward_tokens = FORWARD_TOKENS
        serving = Serving(
            page_tokens=machine.page_tokens, forward_tokens=FORWARD_TOKENS, layers=curve.model.stored_layers,
            bytes_per_second=machine.copy_bytes_per_second / SMALLER, round_seconds=ROUND_SECONDS,
            idle_seconds=IDLE_SECONDS, most_requests=sys.maxsize, most_awaited=MOST_AWAITED,
        )  # fmt: skip
        device = Device(geometry, int(machine.device_bytes // machine.page_bytes), self.stack.digest, runner)
        self.scheduler = Scheduler(self.stack, device, curve, serving, blank, work, Random(0), runner)

    def warm(self, call: Call) -> None:
        """A request that was served before anybody measured."""
        self.scheduler.serve_at_once(self.work.planned(call))

    def leave_device(self) -> None:
        """Nothing is on the device any more."""
        device = self.scheduler.device
        device.pool.evict(device.pool.pages)

    def leave_host(self) -> None:
        """Nothing is in host memory any more; what is beneath it stays there."""
        stack = self.stack
        for limit in (0, None):
            carry_out(stack, CapTier(tier="host", limit=limit), lambda outcome: None)
            stack.errands.wait_idle(LOOK_SECONDS)

    def run(self) -> Replay:
        """All requests, from now on, until the last one has its first token."""
        began, hits = self._runner.monotonic(), self.hits()
        self.scheduler.start()
        while not self.work.over or len(self.scheduler.ended) < self.work.came:
            self._runner.sleep(LOOK_SECONDS)
        ended = self.scheduler.ended
        found = {place: count - hits.get(place, 0) for place, count in self.hits().items()}
        return Replay(
            tokens=self.scheduler.counts["prompt_tokens"],
            hits=found,
            seconds=tuple(sorted(map(_seconds, ended))),
            device_busy=self.scheduler.busy_seconds / (max(one.ended or 0.0 for one in ended) - began),
        )

    def hits(self) -> dict[str, int]:
        """Tokens that were found in each place so far."""
        tiers = {name: one.hits for name, one in self.stack.snapshot().tiers.items()}
        pages = {"device": self.scheduler.counts["hits"], **tiers}
        return {place: found * self.machine.page_tokens for place, found in pages.items()}


def _seconds(one: ModelRequest) -> float:
    assert one.first_token is not None, "it has ended"
    return one.first_token - one.arrived


def _cost(latency: float, speed: float) -> SourceCost:
    return SourceCost(latency_seconds=latency, bytes_per_second=speed)


def in_virtual_time(simulate: Callable[[VirtualRunner], Result]) -> Result:
    """What this comes to, as the first task of a runner that draws nothing."""
    runner = VirtualRunner(switch=0.0, stall=0.0, most_steps=sys.maxsize, most_seconds=math.inf)
    result: Result = runner.run(lambda: simulate(runner))
    return result


def replay(machine: Machine, calls: Iterable[Call], restore: RestoreConfig | None = None) -> Replay:
    """All of these requests, in order of time; `restore`: as a server's configuration says it."""
    work = Trace(calls, machine.page_tokens)
    return in_virtual_time(lambda runner: ModelServer(runner, machine, work, restore or RestoreConfig()).run())
