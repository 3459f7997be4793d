"""SwiftCache's conversations (section 5.1) on modelled devices, by the paper's way from lent memory and by servers'."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost
from swift_tiers.radix_tiering.restore.planner import HERE

from ....base.devices.curve import Curve
from ....base.devices.hardware import GB
from ....base.devices.models import MODELS, Model
from ..devices.clock import Clock
from ..devices.lines import Line
from ..devices.restoring import BY_AGE, LOAD, Request, Sends, Server
from ..devices.setup import Setup
from ..donors import Donor
from ..machine import LONGEST, Call, Lent, Machine, Replay, Running
from ..peer_route import DEFAULT_LANDING, PEER, PeerRoute
from ..runs import chunk_for
from ..tables import HELD, Cell, Compared, Table, compared, table
from ..workloads import Lengths
from .scenario import Scenario
from .swiftcache import H20, NVLINK, PCIE, kv_bytes

PAGE_TOKENS = 64
SECONDS, PER_SECOND = 900.0, 0.15
TURN = Lengths(median=40, p90=132, least=8, most=2000)
ANSWER = Lengths(median=250, p90=600, least=16, most=2000)
HISTORY = Lengths(median=26_000, p90=36_000, least=20_000, most=60_000)
HOST_BYTES = 96 * GB


class Sessions:
    """Conversations of long histories; each request is the next turn of one of them."""

    def __init__(self, count: int, seed: int, history: Lengths) -> None:
        self._random = random.Random(seed)
        self._lengths = [history.draw(self._random) for _ in range(count)]

    def opening(self, session: int) -> Call:
        return self._call(session, self._lengths[session], 0)

    def turn(self, session: int) -> Call:
        prompt = self._lengths[session] + TURN.draw(self._random)
        return self._call(session, prompt, ANSWER.draw(self._random))

    def _call(self, session: int, prompt: int, answer: int) -> Call:
        self._lengths[session] = prompt + answer
        first = session << 24
        whole, further = prompt // PAGE_TOKENS, (prompt + answer) // PAGE_TOKENS
        # What the last page of the prompt became with its answer is a page of its own.
        claimed = (prompt - 1) // PAGE_TOKENS
        return Call(
            0.0, prompt, tuple(range(first, first + whole)), answer=tuple(range(first + claimed, first + further))
        )


class Way(msgspec.Struct, frozen=True):
    """Where conversations lie that the device has no room for, and how they come back."""

    name: str
    lent: bool = True
    #: Landing memory, taken from the KV pool; None: as the paper has it, where pages are copied layer by layer over
    #: NVLink beside the forward that needs them.
    landing: Callable[[Model], float] | None = None


HOST = Way("host memory, PCIe", lent=False)
AS_THE_PAPER = Way("lent memory, as in the paper")
DEFAULT = Way("lent memory, as in a server", landing=lambda model: DEFAULT_LANDING)
LARGE = Way("the same, landing of a median history", landing=lambda model: HISTORY.median * model.token_bytes)
WAYS = (HOST, AS_THE_PAPER, DEFAULT, LARGE)
#: Of section 5.1: one of them is the master, the others lend.
MASTERS = ("LWM-7B", "Qwen3-14B", "Qwen3-32B")


class Conversed(NamedTuple):
    """A quarter of an hour of conversations."""

    replay: Replay
    lent: float  # bytes, in the mean
    recalls: int
    landed: float  # part of the pages from neighbours that landed on the device


def machine_for(model: Model, way: Way, pools: Sequence[float]) -> Machine:
    """One H20 with this model, whose neighbours have KV pools of so many bytes."""
    landing = way.landing(model) if way.landing is not None else 0.0
    route = Lent(to_device=NVLINK, to_host=PCIE, landing_bytes=landing, usual_pages=int(HISTORY.median // PAGE_TOKENS))
    return Machine(
        curve=Curve(model=model, gpu=H20),
        page_tokens=PAGE_TOKENS,
        device_bytes=kv_bytes(model, H20.memory_bytes) - landing,
        host_bytes=sum(pools) if way.lent else HOST_BYTES,
        copy_bytes_per_second=NVLINK if way is AS_THE_PAPER else PCIE,
        lent=route if way.landing is not None else None,
    )


def conversations(model: Model, way: Way, count: int, seconds: float = SECONDS) -> Conversed:
    """What becomes of so many of them."""
    clock = Clock()
    donors: list[Donor] = []
    workers = [name for name in MASTERS if name != model.name]
    pools = [kv_bytes(MODELS[name], H20.memory_bytes) for name in workers]
    running = Running(clock, machine_for(model, way, pools), BY_AGE if way.lent else LOAD)
    lending = _Lending()

    def changed() -> None:
        now_lent = sum(donor.lent_bytes for donor in donors)
        lending.note(clock.now, now_lent)
        running.tiers.limit(now_lent // (PAGE_TOKENS * model.token_bytes))

    if way.lent:
        running.tiers.limit(0)
        for number, (name, pool) in enumerate(zip(workers, pools, strict=True)):
            tokens = MODELS[name].token_bytes
            donors.append(
                Donor(
                    clock, pool_bytes=pool, page_bytes=tokens * PAGE_TOKENS, page_tokens=PAGE_TOKENS, per_second=0.5,
                    lengths=Lengths(median=1500, p90=7000, least=100, most=30_000), hold_seconds=12.0, seed=number,
                    changed=changed,
                )
            )  # fmt: skip
    sessions = Sessions(count, seed=13, history=HISTORY)
    source = random.Random(17)
    # Every conversation has been opened before, and what its donors did not need for a minute has been lent.
    warm = 120.0
    for donor in donors:
        donor.run(warm + seconds)
    for session in range(count):
        clock.at(70.0 + session / 10, lambda session=session: running.warm(sessions.opening(session)))  # type: ignore[misc]
    now = warm
    while (now := now + source.expovariate(PER_SECOND)) < warm + seconds:
        session = source.randrange(count)
        clock.at(now, lambda session=session: running.call(sessions.turn(session)))  # type: ignore[misc]
    clock.run()
    route = running.route
    landed = route.landed / max(1, route.landed + route.passed) if route is not None else 0.0
    return Conversed(
        running.result(), lending.mean(warm, warm + seconds), sum(donor.recalls for donor in donors), landed
    )


class _Lending:
    """What is lent over time."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int]] = [(0.0, 0)]

    def note(self, now: float, lent: int) -> None:
        self._changes.append((now, lent))

    def mean(self, start: float, end: float) -> float:
        ends = [*(when for when, _ in self._changes[1:]), end]
        spans = zip(self._changes, ends, strict=True)
        return sum(max(0.0, min(until, end) - max(when, start)) * lent for (when, lent), until in spans) / (end - start)


def tail_rows(name: str, count: int, ways: Sequence[Way] = WAYS) -> list[list[Cell]]:
    """A row for each way of so many conversations with one model."""
    model, rows = MODELS[name], []
    host = conversations(model, HOST, count).replay
    for way in ways:
        one = conversations(model, way, count)
        below = one.replay.share(HERE) + one.replay.share(PEER)
        less = [round(100 * (1 - one.replay.percentile(at) / host.percentile(at))) for at in (0.5, 0.99)]
        rows.append(
            [
                name, count, way.name, round(100 * one.replay.share("device"), 1), round(100 * below, 1),
                round(100 * one.landed, 1) if way.landing is not None else None,
                *(round(1000 * one.replay.percentile(at)) for at in (0.5, 0.99)),
                *((round(one.lent / GB), one.recalls, *less) if way.lent else (None,) * 4),
            ]
        )  # fmt: skip
    return rows


PAPER = "54 to 69"


def tail() -> list[Table]:
    rows: list[list[Cell]] = []
    against: list[Compared] = []
    for name, count in (("LWM-7B", 4), ("Qwen3-14B", 12), ("Qwen3-32B", 9)):
        for row in tail_rows(name, count):
            less = row[-1]
            if less is None:
                rows.append([*row, None, None])
                continue
            assert isinstance(less, int)
            against.append(compared(f"{name}, {row[2]}", less, 54, 69, reproduced=False))
            rows.append([*row, PAPER, against[-1].shown])
    return [
        table(
            "swiftcache-tail",
            "SwiftCache, Figure 7: conversations of long histories on one H20, host memory over PCIe against lent "
            "memory",
            [
                "model", "conversations", "below the device", "device hits (%)", "hits below (%)", "landed (%)",
                "P50 (ms)", "P99 (ms)", "lent (GB, mean)", "recalls", "P50 less by (%)", "P99 less by (%)",
                "paper: P99 (%)", HELD,
            ],
            rows,
            [
                "Histories of 20,000 to 60,000 tokens, opened before; then a quarter of an hour of turns at 0.15 per "
                "second, each of a conversation chosen at random, with some 40 new tokens and 250 of answer. 96 GB of "
                "host memory behind 32 GB/s of PCIe (0.8 of it), all for this one server, against what two "
                "neighbours lend: as in section 5.1 the other two of LWM-7B, Qwen3-14B and Qwen3-32B, sized by the "
                "sizer that serves. They get a request every two seconds, of 1,500 tokens in the median and up to "
                "30,000, which each hold their KV for 12 s (assumed: the paper gives no rates).",
                "**Not reproduced:** the paper's gains, by any way. The two workers' pools are 78 GB beside LWM-7B, 94 "
                "and 130 GB beside the others, and 60 to 98 GB of that are lent, with about a hundred recalls: less "
                "than 96 GB of host memory for the first two, so histories are forgotten, and computed for seconds. "
                "There sizes decide and not links. Beside Qwen3-32B they fit, and the way decides: what the paper does "
                "is faster, what a server does by default is slower than host memory, since all but 256 MiB of a "
                "history cross PCIe twice, and before the request is computed. Landing memory of a median history "
                "makes up for that in part, but comes out of the KV pool. What the way itself costs: "
                "`swiftcache-route`.",
            ],
            against,
        )
    ]  # fmt: skip


# ---- the way by itself ----


def first_token(model: Model, way: Way, history: int, new: int = 40) -> tuple[float, float]:
    """Seconds of one request whose whole history lies below the device, and what part of it landed there."""
    clock, curve, pages = Clock(), Curve(model=model, gpu=H20), history // PAGE_TOKENS
    costs: dict[str, SourceCost] = {}
    sources: dict[str, Sends] = {}
    if way.landing is not None:
        page_bytes = PAGE_TOKENS * model.token_bytes
        # One page more, since one is kept for digests.
        landing = way.landing(model) if way is DEFAULT else (pages + 1) * page_bytes
        route = PeerRoute(clock, page_bytes, landing, NVLINK, PCIE)
        sources[PEER], costs[PEER] = route, route.cost(pages)
    chunk = chunk_for(curve)
    setup = Setup(
        costs=CostModel(compute=curve.fitted(chunk, LONGEST), sources=costs), token_bytes=model.token_bytes,
        layers=model.layers, page_tokens=PAGE_TOKENS, chunk_tokens=chunk,
    )  # fmt: skip
    copies = Line(clock, NVLINK if way is AS_THE_PAPER else PCIE)
    server = Server(clock, curve, sources, setup, BY_AGE if way.lent else LOAD, copies=copies)
    one = server.submit(Request(arrival=0.0, prefix=history, new=new), [PEER if sources else HERE] * pages)
    clock.run()
    return one.seconds, len(one.landed) / pages


def routes() -> list[Table]:
    rows: list[list[Cell]] = []
    for name in MASTERS:
        for history in (8192, 32_768):
            found = [first_token(MODELS[name], way, history) for way in WAYS]
            seconds = [each for each, _ in found]
            rows.append(
                [
                    name, history, *(round(1000 * each) for each in seconds), round(100 * found[2][1], 1),
                    *(round(seconds[0] / each, 2) for each in seconds[1:]),
                ]
            )  # fmt: skip
    return [
        table(
            "swiftcache-route",
            "The way from lent memory by itself: first token (ms) of 40 new ones behind a history that lies below the "
            "device of one H20",
            [
                "model", "history", "host memory", "lent, as in the paper", "lent, as in a server",
                "lent, landing for all of it", "landed by default (%)", "paper's way over host", "server's over host",
                "with landing for all over host",
            ],
            rows,
            [
                "*As in the paper:* pages are copied over NVLink layer by layer, beside the forward that needs them. "
                "*As in a server:* they are fetched before the request is admitted, one after the other, by one "
                "thread: over NVLink into landing memory as long as that has room (256 MiB by default, "
                "`device.landing`), the others over PCIe to host memory and from there to the device "
                "([decision 7](decisions/0007-lent-pages-come-up-through-host-memory.md)). Pages of 64 tokens; "
                "while they come the device computes what it gets to sooner.",
                "By default the server's way from lent memory takes 1.6 to 1.9 times as long as host memory: the tier "
                "is worth it where host memory is too small, or with landing memory as large as what requests bring "
                "back.",
            ],
        )
    ]  # fmt: skip


SCENARIOS = {
    "swiftcache-tail": Scenario("SwiftCache: P99 of long conversations, host against lent memory", tail),
    "swiftcache-route": Scenario("SwiftCache: the way from lent memory, as in the paper and as in a server", routes),
}
