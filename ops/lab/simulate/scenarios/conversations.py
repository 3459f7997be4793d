"""SwiftCache's conversations (section 5.1) on modelled devices, by the paper's way from lent memory and by servers'."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.config import RestoreConfig
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.testing.network import Network

from ....base.devices.curve import Curve
from ....base.devices.hardware import GB
from ....base.devices.models import MODELS, Model
from ..lent import DEFAULT_LANDING, Borrowing, DonorModel, Guests, network
from ..machine import Call, Machine, ModelServer, Replay, Trace, in_virtual_time
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
#: Host memory of a server that borrows: what comes from donors and goes there passes through it.
PASSAGE_BYTES = 32 * GB
#: What donors serve themselves.
GUESTS = Guests(per_second=0.5, lengths=Lengths(median=1500, p90=7000, least=100, most=30_000), hold_seconds=12.0)
#: When conversations are opened, one after the other, and when somebody begins to measure, seconds.
OPENED, APART, WARM = 70.0, 2.0, 120.0


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
    return Machine(
        curve=Curve(model=model, gpu=H20),
        page_tokens=PAGE_TOKENS,
        device_bytes=kv_bytes(model, H20.memory_bytes) - landing,
        host_bytes=HOST_BYTES if not way.lent else sum(pools) if way is AS_THE_PAPER else PASSAGE_BYTES,
        copy_bytes_per_second=NVLINK if way is AS_THE_PAPER else PCIE,
    )


def neighbours(runner: VirtualRunner, letters: Network, model: Model, guests: Guests | None) -> dict[str, DonorModel]:
    """Servers of the other models."""
    return {
        name: DonorModel(
            name, letters, runner, MODELS[name], kv_bytes(MODELS[name], H20.memory_bytes), PAGE_TOKENS, guests, number
        )
        for number, name in enumerate(name for name in MASTERS if name != model.name)
    }


def borrowing(runner: VirtualRunner, model: Model, way: Way, work: Trace, guests: Guests | None) -> Borrowing:
    """A server of this model, and its donors."""
    pools = [kv_bytes(MODELS[name], H20.memory_bytes) for name in MASTERS if name != model.name]
    letters = network(runner)
    return Borrowing(
        runner,
        machine_for(model, way, pools),
        work,
        RestoreConfig(),
        neighbours(runner, letters, model, guests),
        letters,
        landing_bytes=way.landing(model) if way.landing is not None else None,
        to_device=NVLINK,
        to_host=PCIE,
    )


def conversations(model: Model, way: Way, count: int, seconds: float = SECONDS) -> Conversed:
    """What becomes of so many of them."""
    sessions = Sessions(count, seed=13, history=HISTORY)
    opened = [sessions.opening(session) for session in range(count)]
    work = Trace(_turns(sessions, count, seconds), PAGE_TOKENS)

    def simulate(runner: VirtualRunner) -> Conversed:
        borrower = borrowing(runner, model, way, work, GUESTS) if way.lent else None
        server = (
            borrower.server
            if borrower is not None
            else ModelServer(runner, machine_for(model, way, ()), work, RestoreConfig(strategy="load"))
        )
        # Every conversation has been opened before, and what donors did not need for a minute has been lent.
        runner.sleep(OPENED)
        for call in opened:
            server.warm(call)
            runner.sleep(APART)
        runner.sleep(WARM - OPENED - APART * count)
        if borrower is None:
            return Conversed(server.run(), 0.0, 0, 0.0)
        borrower.measure()
        before, replay = borrower.recalls, server.run()
        came = borrower.memory.landed + borrower.memory.passed
        return Conversed(replay, borrower.mean_lent, borrower.recalls - before, borrower.memory.landed / max(1, came))

    return in_virtual_time(simulate)


def _turns(sessions: Sessions, count: int, seconds: float) -> Iterator[Call]:
    """Requests for so long, each the next turn of one of the conversations."""
    source, now = random.Random(17), 0.0
    while (now := now + source.expovariate(PER_SECOND)) < seconds:
        yield sessions.turn(source.randrange(count))._replace(seconds=now)


def tail_rows(name: str, count: int, ways: Sequence[Way] = WAYS) -> list[list[Cell]]:
    """A row for each way of so many conversations with one model."""
    model, rows = MODELS[name], []
    host = conversations(model, HOST, count).replay
    for way in ways:
        one = conversations(model, way, count)
        below = one.replay.share("host") + one.replay.share("peer")
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
                "A server that borrows has 32 GB of host memory besides, through which pages come and go where they "
                "do not land; its leases, its donors' lenders and what is saved of a lease that is recalled are those "
                "that serve. *As in the paper* lent memory takes the place of host memory, at the speed of NVLink, "
                "and gives up what policy values least as soon as a donor wants it.",
                "**Not reproduced:** the paper's gains, by any way. The two workers' pools are 78 GB beside LWM-7B, 94 "
                "and 130 GB beside the others, and 58 to 97 GB of that are lent, with some forty recalls: less than 96 "
                "GB of host memory for the first two, so histories are forgotten, and computed for seconds, for which "
                "others wait. There sizes decide and not links. Beside Qwen3-32B they fit, and the way decides: the "
                "paper's is the fastest; a server's takes a ninth less in the median than host memory's, and with "
                "landing memory of a median history, which comes out of the KV pool, a quarter less. What lies at a "
                "neighbour comes over NVLink there, though the 32 GB of host memory have half of it as well "
                "([decision 30](decisions/0030-lent-memory-before-host-memory.md)), and takes one forward more. The "
                "longest "
                "are as long as from host memory: recalls find little, since pages go first where donors have taken "
                "nothing back lately, and there into the leases that are taken back last. What the way itself "
                "costs: `swiftcache-route`.",
            ],
            against,
        )
    ]  # fmt: skip


# ---- the way by itself ----


def first_token(model: Model, way: Way, history: int, new: int = 40, *, host_too: bool = False) -> tuple[float, float]:
    """Seconds of one request whose whole history lies below the device, and what part of it landed there. `host_too`:
    what is lent has it, and host memory as well."""
    tokens = history // PAGE_TOKENS * PAGE_TOKENS
    blocks = tuple(range(tokens // PAGE_TOKENS))
    work = Trace([Call(0.0, tokens + new, blocks)], PAGE_TOKENS)
    if way is LARGE:  # one page more, since one is kept for digests
        way = Way(way.name, landing=lambda model: (tokens + PAGE_TOKENS) * model.token_bytes)

    def simulate(runner: VirtualRunner) -> tuple[float, float]:
        if not way.lent:
            server = ModelServer(runner, machine_for(model, way, ()), work, RestoreConfig(strategy="load"))
            memory = None
        else:
            borrower = borrowing(runner, model, way, work, None)
            server, memory = borrower.server, borrower.memory
            runner.sleep(OPENED)
        server.warm(Call(0.0, tokens + 1, blocks))
        runner.sleep(WARM)
        server.leave_device()
        if memory is not None and way.landing is not None and not host_too:
            server.leave_host()
        (seconds,) = server.run().seconds
        return seconds, memory.landed / len(blocks) if memory is not None else 0.0

    return in_virtual_time(simulate)


def routes() -> list[Table]:
    rows: list[list[Cell]] = []
    for name in MASTERS:
        for history in (8192, 32_768):
            found = [first_token(MODELS[name], way, history) for way in WAYS]
            seconds = [each for each, _ in found]
            both, from_there = first_token(MODELS[name], DEFAULT, history, host_too=True)
            rows.append(
                [
                    name, history, *(round(1000 * each) for each in seconds), round(1000 * both),
                    round(100 * from_there), *(round(seconds[0] / each, 2) for each in (*seconds[1:], both)),
                ]
            )  # fmt: skip
    return [
        table(
            "swiftcache-route",
            "The way from lent memory by itself: first token (ms) of 40 new ones behind a history that lies below the "
            "device of one H20",
            [
                "model", "history", "host memory", "lent, as in the paper", "lent, as in a server",
                "lent, landing for all of it", "both have it", "of which lent (%)", "paper's way over host",
                "server's over host", "with landing for all over host", "both over host",
            ],
            rows,
            [
                "*As in the paper:* pages are copied over NVLink layer by layer, beside the forward that needs them. "
                "*As in a server:* they are fetched by one thread, here one after the other, over NVLink into landing "
                "memory (256 MiB by default, `device.landing`). Where that holds them all, the request is admitted "
                "when they are there. Where it does not, they are taken to the request's own memory as they land, in "
                "rounds of the scheduler, which looks every 2 ms, and one page is computed first "
                "([decision 29](decisions/0029-landing-memory-is-drained.md)). Pages of 64 tokens; the device computes "
                "what it gets to sooner.",
                "By default the server's way from lent memory takes 0.3 to 0.65 of what host memory takes behind "
                "32,768 tokens. Behind 8,192 it takes 0.4 of it for LWM-7B, whose KV is large, and 1.2 to 1.5 times as "
                "long for the others: there one forward more is most of it, and landing memory that holds the history "
                "saves that. *Both have it* is what mostly is so, since a page is written to host memory first: a "
                "server takes it from wherever it comes sooner ([decision "
                "30](decisions/0030-lent-memory-before-host-memory.md)), so that lent memory never makes it slower.",
            ],
        )
    ]  # fmt: skip


SCENARIOS = {
    "swiftcache-tail": Scenario("SwiftCache: P99 of long conversations, host against lent memory", tail),
    "swiftcache-route": Scenario("SwiftCache: the way from lent memory, as in the paper and as in a server", routes),
}
