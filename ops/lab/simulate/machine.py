"""One server with its tiers replays a trace: what is hit where, and how long first tokens take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost
from swift_tiers.radix_tiering.restore.planner import HERE

from ...base.devices.curve import Curve
from ...base.devices.hardware import Ssd
from .devices.clock import Clock
from .devices.lines import Line, Stripes
from .devices.restoring import SWIFT_TIERS, Method, Request, Restoration, Sends, Server
from .devices.setup import SSD, Setup, geometry
from .peer_route import PEER, PeerRoute
from .runs import chunk_for
from .stripe_set import StripeSetModel
from .tiers import REMOTE, Claim, Tiers

#: Where tokens of prompts come from, fastest first, as tables name it.
PLACES = {"device": "device", HERE: "host", SSD: "ssd", REMOTE: "shared store"}
LONGEST = 131_072


class Lent(msgspec.Struct, frozen=True, kw_only=True):
    """How pages come from memory that neighbours lend, in bytes per second."""

    to_device: float
    to_host: float
    landing_bytes: float
    usual_pages: int  # of a request, from which its cost was learnt


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
    copy_bytes_per_second: float = 0  # between host memory and all GPUs
    #: What `host_bytes` says is lent by neighbours, and comes by this way.
    lent: Lent | None = None


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


class Running:
    """A machine in virtual time."""

    def __init__(
        self, clock: Clock, machine: Machine, method: Method = SWIFT_TIERS, copies: Line | None = None
    ) -> None:
        """`copies`: the way between host memory and the device, if it is shared with others."""
        self._clock = clock
        self._machine = machine
        curve, tokens = machine.curve, machine.page_tokens
        page = geometry(tokens, curve.model.token_bytes)
        costs: dict[str, SourceCost] = {}
        sources: dict[str, Sends] = {}
        stripes = self._stripes(page.page_bytes)
        ssd = None
        if stripes is not None and machine.ssd is not None:
            ssd = StripeSetModel(stripes, int(machine.ssd_bytes / machine.ssds // stripes.unit_bytes))
            sources[SSD], costs[SSD] = stripes, _cost(machine.ssd.latency_seconds, stripes.bytes_per_second)
        if machine.remote_bytes_per_second:
            speed, latency = machine.remote_bytes_per_second, machine.remote_latency
            sources[REMOTE], costs[REMOTE] = Line(clock, speed, latency_seconds=latency), _cost(latency, speed)
        self.route: PeerRoute | None = None
        if machine.lent is not None:
            lent = machine.lent
            self.route = PeerRoute(clock, page.page_bytes, lent.landing_bytes, lent.to_device, lent.to_host)
            sources[PEER], costs[PEER] = self.route, self.route.cost(lent.usual_pages)
        if copies is None and machine.copy_bytes_per_second:
            copies = Line(clock, machine.copy_bytes_per_second)
        chunk = max(tokens, chunk_for(curve))
        setup = Setup(
            costs=CostModel(compute=curve.fitted(chunk, LONGEST), sources=costs), token_bytes=curve.model.token_bytes,
            layers=curve.model.layers, page_tokens=tokens, chunk_tokens=chunk,
        )  # fmt: skip
        self.server = Server(clock, curve, sources, setup, method, copies=copies)
        self.tiers = Tiers(
            clock, page, device_pages=int(machine.device_bytes // page.page_bytes),
            host_pages=int(machine.host_bytes // page.page_bytes), ssd=ssd,
            lent=machine.lent is not None,
        )  # fmt: skip
        self._hits: dict[str, int] = dict.fromkeys([*PLACES, PEER] if self.route is not None else PLACES, 0)
        self._seconds: list[float] = []
        self._tokens = 0

    def call(self, call: Call) -> None:
        """A request that arrives now."""
        tokens = self._machine.page_tokens
        # The last token is computed in any case: it is what the first new one follows from.
        whole = call.blocks[: (call.tokens - 1) // tokens]
        claim = self.tiers.claim(whole, call.remote)
        self._tokens += call.tokens
        self._hits["device"] += claim.on_device * tokens
        for source in claim.sources:
            self._hits[source] += tokens
        start, prefix = claim.on_device * tokens, len(claim.sources) * tokens
        request = Request(arrival=self._clock.now, start=start, prefix=prefix, new=call.tokens - start - prefix)
        self.server.submit(request, claim.sources, self._finished(claim, call.answer))

    def warm(self, call: Call) -> None:
        """A request that was served before anybody measured."""
        tokens = self._machine.page_tokens
        self.tiers.finish(self.tiers.claim(call.blocks[: call.tokens // tokens]), call.answer)

    def _finished(self, claim: Claim, answer: Sequence[int]) -> Callable[[Restoration], None]:
        def finished(restoration: Restoration) -> None:
            self._seconds.append(restoration.seconds)
            if self.route is not None:
                self.route.give_back(len(restoration.landed))
            self.tiers.finish(claim, answer)

        return finished

    def result(self) -> Replay:
        """Raises AssertionError while requests wait."""
        assert not self.server.waiting
        busy = self.server.busy_seconds / self._clock.now
        return Replay(tokens=self._tokens, hits=self._hits, seconds=tuple(sorted(self._seconds)), device_busy=busy)

    def _stripes(self, page_bytes: int) -> Stripes | None:
        machine = self._machine
        if machine.ssd is None or not machine.ssds:
            return None
        # Units as large as pages allow, one for each device, so that few events stand for many requests.
        return Stripes(ssd_lines(self._clock, machine.ssd, machine.ssds), -(-page_bytes // machine.ssds))


def ssd_lines(clock: Clock, ssd: Ssd, count: int) -> list[Line]:
    """So many devices of a kind."""
    latency, request = ssd.latency_seconds, 1 / ssd.requests_per_second
    return [Line(clock, ssd.bytes_per_second, latency_seconds=latency, request_seconds=request) for _ in range(count)]


def _cost(latency: float, speed: float) -> SourceCost:
    return SourceCost(latency_seconds=latency, bytes_per_second=speed)


def replay(machine: Machine, calls: Iterable[Call], method: Method = SWIFT_TIERS) -> Replay:
    """All of these requests, in order of time."""
    clock = Clock()
    running = Running(clock, machine, method)
    for call in calls:
        clock.at(call.seconds, lambda call=call: running.call(call))  # type: ignore[misc]
    clock.run()
    return running.result()
