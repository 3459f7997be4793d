"""A server of several ranks that lends: a process each, with a clock, letters and borrowers of its own, whose pools
have to be as full as each other at every step."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.base.virtual.schedule import Task
from swift_tiers.radix_tiering.lending.donation.rank_lender import NOTHING, RankLender
from swift_tiers.radix_tiering.lending.donation.rank_runs import PoolsDifferError, RankRuns
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases import ipc_address
from swift_tiers.radix_tiering.tiers.testing.network import Network

from .donor import PAGE_TOKENS, ROUND_SECONDS, LendingProcess

#: What fails where a rank stumbles: calls of its lease service, and what it reckons.
RANK_FAILURES = ("stock", "fenced", "withdraw_runs", "to_withdraw", "wanted_bytes", "bytes_in", "demand")
#: Within which all requests have what they need, once nothing goes wrong, seconds.
LAST_SECONDS = 10.0
#: Steps within which all is back at the end: an error keeps the first rank from deciding for a second.
LAST_STEPS = 400


class Apart(AssertionError):
    """Ranks of one server do not do the same."""


class Meeting:
    """Where the ranks of one life of a server wait for each other, in one virtual time."""

    def __init__(self, runner: VirtualRunner, ranks: int) -> None:
        self._runner = runner
        self._ranks = ranks
        self._open = _Collective()
        #: Meetings that all have come to.
        self.held = 0

    def least(self, what: str, values: Sequence[int]) -> list[int]:
        """The least of what all ranks say; all of them come to the same."""
        one = self._open
        one.said.append((what, list(values)))
        if len(one.said) == self._ranks:
            if len({(name, len(said)) for name, said in one.said}) > 1:
                raise Apart("; ".join(f"{name}, {len(said)} values" for name, said in one.said))
            one.result = [min(column) for column in zip(*(said for _, said in one.said), strict=True)]
            self._open = _Collective()
            self.held += 1
            self._runner.wake_some(one.waiters, self._ranks)
        while one.result is None:
            self._runner.block(one.waiters, f"other ranks: {what}")
        return one.result


class _Collective:
    def __init__(self) -> None:
        self.said: list[tuple[str, list[int]]] = []
        self.result: list[int] | None = None
        self.waiters: deque[Task] = deque()


class _Asked(NamedTuple):
    """A request of the server's own, as its ranks are told of it."""

    pages: int
    steps: int
    keep: bool  # whether it leaves a cached prefix


class _OnRank:
    """The same on one rank."""

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked
        self.pages: list[int] | None = None  # until there is room
        self.steps = 0


class _Rank:
    """One rank's process."""

    def __init__(self, server: RankedDonor, number: int, shape: tuple[int, int, int], window: float) -> None:
        self.number = number
        self._server = server
        name, address = list(server.addresses.items())[number]
        self.one = one = LendingProcess(name, address, server.network, server.draw, *shape)
        self.requests: list[_OnRank] = []
        self.begun = 0  # requests that it has been told of
        self._computed = False
        self._failing = ""
        self.lender = RankLender(
            number,
            len(server.addresses),
            RankRuns(
                one.pool, one.layout, one.service, one.effects, fence=self._fence,
                copying=one.server.copying,
            ),
            ElasticSizer(shape[0], PAGE_TOKENS, window_seconds=window),
            lambda values: server.meeting.least("lending", values),
            clock=one.process.monotonic,
            demand=self._demand,
            kept=lambda: 0,
            forget=lambda: None,
            failed=lambda where, error: server.failed(self._failing, error),
            taken_back=lambda pages, seconds: server.waited.append(seconds),
        )  # fmt: skip
        self.thread = one.process.thread(self.schedule, f"scheduler-{name}")

    def stumble(self, what: str) -> None:
        """The next call of this fails."""

        def raises(*_: Any, **__: Any) -> Any:
            delattr(owner, name)
            self._failing = what
            raise RuntimeError(f"{what} stumbles")

        owner, name = (self, "_demand_fails") if what == "demand" else (self.one.service, what)
        setattr(owner, name, raises)

    # ---- its scheduler ----

    def schedule(self) -> None:
        while self.step():
            self.one.process.sleep(ROUND_SECONDS)
        for request in self.requests:
            if request.pages is not None:
                self.one.pool.finish(request.pages, keep=False)
        self.requests.clear()

    def step(self) -> bool:
        """One step of all ranks; whether there is another one."""
        server, pool = self._server, self.one.pool
        says = [NOTHING, NOTHING] if self.number else [len(server.asked), int(not server.ending)]
        told, goes_on = server.meeting.least("requests", says)
        for asked in server.asked[self.begun : told]:
            self.requests.append(_OnRank(asked))
            self.lender.arrived()
        self.begun = told
        self.one.server.computing(bool(self.requests))
        self.lender.step(computed=self._computed)
        self._computed = False
        for request in list(self.requests):
            self._go_on(request)
        pool.check()
        free, lent = pool.free_pages, self.lender.lent_pages
        least = server.meeting.least("pools", [free, -free, lent, -lent])
        if least != [free, -free, lent, -lent]:
            raise Apart(f"{self.one.name}: {free} pages are free here, {lent} lent; elsewhere {least}")
        return bool(goes_on)

    def _go_on(self, request: _OnRank) -> None:
        pool = self.one.pool
        if request.pages is None:
            request.pages = pool.alloc(request.asked.pages)
            if request.pages is None:
                self.lender.refused()
                return
            self._server.happened["donor: a request of its own"] += not self.number
            pool.look(request.pages)
        self._computed = True
        request.steps += 1
        if request.steps > request.asked.steps:
            pool.look(request.pages)
            pool.finish(request.pages, keep=request.asked.keep)
            self.requests.remove(request)

    def _demand(self) -> int:
        if (fails := getattr(self, "_demand_fails", None)) is not None:
            fails()
        return sum(request.asked.pages for request in self.requests) * PAGE_TOKENS

    def _fence(self) -> Callable[[], bool]:
        """What was under way when pages left the pool is over a little later, on each rank at its own time."""
        process = self.one.process
        over = process.monotonic() + self._server.draw.random() * 2 * ROUND_SECONDS
        return lambda: process.monotonic() >= over

    def end(self) -> None:
        """Steps until all that came back is the pool's again."""
        for _ in range(LAST_STEPS):
            self.lender.arrived()
            self.lender.step(computed=False)
            (lent,) = self._server.meeting.least("the end", [-self.lender.lent_pages])
            if not lent:
                return
            self.one.process.sleep(ROUND_SECONDS)


class RankedDonor:
    """One after the other its lives."""

    def __init__(
        self,
        name: str,
        directory: Path,
        network: Network,
        draw: random.Random,
        happened: Counter[str],
        ranks: int,
    ) -> None:
        self.name = name
        self.network = network
        self.draw = draw
        self.happened = happened
        #: Lease name -> lease address, of each rank.
        self.addresses = {f"{name}.tp{rank}": ipc_address(directory, f"{name}.tp{rank}") for rank in range(ranks)}
        self._shape = draw.choice((12, 40, 120)), draw.choice((1, 1, 2)), draw.choice((2048, 4096, 4096, 6144))
        #: Seconds after which what requests missed had come back from borrowers.
        self.waited: list[float] = []
        self.alive = False
        self.begin()

    def begin(self) -> None:
        """A life begins."""
        self.meeting = Meeting(self.network.runner, len(self.addresses))
        self.asked: list[_Asked] = []
        self.ending = False
        window = self.draw.choice((0.2, 2.0))
        self.ranks = [_Rank(self, number, self._shape, window) for number in range(len(self.addresses))]
        self.alive = True
        for rank in self.ranks:
            rank.thread.start()

    def stop(self, seconds: float) -> None:
        """One rank does nothing for so long, or all of them."""
        for rank in self.ranks if self.draw.random() < 0.3 else [self.draw.choice(self.ranks)]:
            rank.one.process.stop(seconds)

    def hang(self, seconds: float) -> None:
        """No copy into one rank's memory ends for so long."""
        self.draw.choice(self.ranks).one.hang(seconds)

    def unhang(self) -> None:
        """Copies go on."""
        for rank in self.ranks:
            rank.one.hang(0.0)

    def kill(self) -> None:
        """All processes end at once, as where one of them does."""
        self.alive = False
        for rank in self.ranks:
            rank.one.process.kill()
        for name in self.addresses:
            self.network.ended(name)

    def stumble(self, draw: random.Random) -> str:
        """Something fails once, on one rank; what."""
        rank, what = draw.choice(self.ranks), draw.choice(RANK_FAILURES)
        rank.stumble(what)
        return f"{rank.one.name}: {what} fails"

    def failed(self, what: str, error: Exception) -> None:
        """A rank tells of an error."""
        if "stumbles" not in str(error) and not isinstance(error, PoolsDifferError):
            raise AssertionError(f"{self.name}: {error!r}") from error
        self.happened[f"donor: {what} fails"] += 1

    def ask(self, pages: int, seconds: float) -> None:
        """A request of its own needs so many pages for so long."""
        self.asked.append(_Asked(min(pages, self._shape[0]), int(seconds / ROUND_SECONDS), self.draw.random() < 0.5))

    def close(self) -> None:
        """End in order, where nothing is wrong any more: all requests are served, all that was lent comes back."""
        runner = self.network.runner
        limit = runner.now + LAST_SECONDS
        while any(request.pages is None for rank in self.ranks for request in rank.requests):
            assert runner.now < limit, f"{self.name}: a request waits for memory for ever"
            runner.sleep(ROUND_SECONDS)
        self.ending = True
        self._together(lambda rank: rank.thread)
        for rank in self.ranks:
            rank.lender.close()
            rank.one.close()
        ends = {rank: rank.one.process.thread(rank.end, f"end-{rank.one.name}") for rank in self.ranks}
        for thread in ends.values():
            thread.start()
        self._together(ends.__getitem__)
        for rank in self.ranks:
            rank.one.check(rank.lender.lent_pages)
        self.alive = False

    def _together(self, thread: Callable[[_Rank], Any]) -> None:
        for rank in self.ranks:
            thread(rank).join()
