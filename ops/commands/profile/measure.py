"""What is asked of the server, and the samples that come out of it.

In each round a fresh random prefix is computed chunk by chunk, each chunk a prompt of its own behind what the device
has: so each is one forward over `[start, start + chunk)`. Shorter and longer forwards follow at several starts, and
one of a few tokens. Then the prefix is loaded, in several lengths, from every source by turns: what lies above that
source is flushed before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from swift_tiers.radix_tiering.bus.contract.commands import CapTier, Flush
from swift_tiers.radix_tiering.restore.fitting import SHORTEST_FORWARD, ComputeSample, LoadSample

from ...base.errors import CommandError
from .session import ProfileSession

#: No more rounds than these, however fast they are.
ROUNDS = 8
#: Share of the time that the first walk over a prefix may take; a slow machine measures shorter prefixes.
WALK_SHARE = 0.25
#: Parts of a chunk that are computed at several starts.
PARTS = (8, 4, 2)
#: Ids of tokens: not the first ones, which are often special.
FIRST_ID = 10
#: Share of host memory that is loaded into: some of its pages may still be on their way somewhere.
HOST_SHARE = 0.9
#: How long a donor may take until it has lent and stored what is to be read from it, seconds.
LENDING_SECONDS = 20.0
POLL_SECONDS = 0.25


class Measurement:
    """Samples of one server. One thread."""

    def __init__(self, session: ProfileSession, *, longest: int, chunk: int, sources: Sequence[str], seed: int) -> None:
        """`longest`: prefix, tokens, a multiple of `chunk`. `sources`: from where to load, among host, ssd, peer."""
        self._session = session
        self._random = random.Random(seed)
        served = session.served()
        self._ids = range(FIRST_ID, served.vocabulary)
        self._token_bytes = served.model.page_bytes // served.model.page_tokens
        self._page = served.model.page_tokens
        self._forward = session.chunk()
        #: A prompt, and the page that follows its prefix.
        self.longest = min(longest, (session.room() - 4 * self._page) // chunk * chunk)
        self._chunk = chunk
        self.compute: list[ComputeSample] = []
        self.loads: dict[str, list[LoadSample]] = {source: [] for source in sources}
        self.left_out: dict[str, str] = {}
        if self.longest < 2 * chunk:
            raise CommandError(
                f"profile: the device holds {session.room()} tokens, too few for prefixes of two chunks of {chunk}; "
                "use a larger --max-total-tokens or --mem-fraction-static"
            )

    def run(self, seconds: float, tick: Callable[[float], None]) -> None:
        """Rounds until `seconds` are over, two at least. `tick` is told the seconds so far. Raises CommandError."""
        self._warm_up()
        started = time.monotonic()
        for number in range(ROUNDS):
            round_started = time.monotonic()
            prefix = self._walk(seconds * WALK_SHARE if not number else float("inf"), lambda: tick(_since(started)))
            self._parts(prefix)
            tick(_since(started))
            prefix = self._keep(prefix)
            for source in self.loads:
                if source not in self.left_out:
                    self._load(source, prefix)
                    tick(_since(started))
            self._session.order(Flush(tiers="all"))
            self._session.flush_device()
            spent = time.monotonic() - round_started
            if number and _since(started) + spent > seconds:
                break
        for source, samples in self.loads.items():
            if not samples:
                self.left_out.setdefault(source, "nothing could be loaded from it")

    def _warm_up(self) -> None:
        """A server's first forwards of each kind pay for allocations that later ones do not."""
        prompt = self._tokens(2 * self._chunk)
        for tokens in (self._page, self._chunk, 2 * self._chunk):
            self._session.ask(prompt[:tokens])
        self._session.settle()
        self._session.flush_device()

    # ---- computing ----

    def _walk(self, seconds: float, tick: Callable[[], None]) -> list[int]:
        """A fresh prefix on the device; shorter than the longest from now on if that takes longer than `seconds`."""
        prefix = self._tokens(self.longest)
        started = time.monotonic()
        for end in range(self._chunk, self.longest + 1, self._chunk):
            self._compute(prefix[:end])
            tick()
            if _since(started) > seconds and end >= 2 * self._chunk:
                self.longest = end
                break
        return prefix[: self.longest]

    def _parts(self, prefix: list[int]) -> None:
        """Parts of a chunk behind prefixes of several lengths, and fresh prompts of several lengths, one of them so
        short that it tells what a forward takes at least."""
        self._compute(self._tokens(SHORTEST_FORWARD // 2))
        for start in _doublings(self._chunk, len(prefix), zero=True):
            for part in PARTS:
                tokens = self._chunk // part
                if start + tokens <= self.longest:
                    self._compute(prefix[:start] + self._tokens(tokens))
        if self._forward > self._chunk:
            for tokens in _doublings(2 * self._chunk, min(self._forward, self.longest)):
                self._compute(self._tokens(tokens))

    def _compute(self, prompt: list[int]) -> None:
        answer = self._session.ask(prompt)
        self._session.settle()
        start = answer.tiers.get("device", 0)
        if start + answer.computed == len(prompt):  # nothing came from below
            forwards = -(-answer.computed // self._forward)
            self.compute.append(ComputeSample(start, len(prompt), answer.seconds, forwards))

    # ---- loading ----

    def _keep(self, prefix: list[int]) -> list[int]:
        """As much of `prefix` as host memory holds, which every load goes through, and what of the parts is there too
        forgotten: they would be evicted while loads are timed."""
        slots = self._session.tiers()["tiers"]["host"]["capacity_bytes"] // self._token_bytes
        tokens = min(len(prefix), int(slots * HOST_SHARE) // self._chunk * self._chunk)
        if not tokens:
            self.left_out |= dict.fromkeys(self.loads, "host.size holds less than a chunk")
            return []
        self._session.order(Flush(tiers="all"))
        self._session.flush_device()
        self._session.ask(prefix[:tokens])
        self._session.settle()
        return prefix[:tokens]

    def _load(self, source: str, prefix: list[int]) -> None:
        """Prefixes of several lengths from `source`, and from nowhere else."""
        if source == "peer" and not self._lent(prefix):
            self.left_out["peer"] = "no server of this machine lends memory"
            return
        for tokens in _doublings(self._chunk, len(prefix)):
            self._expose(source)
            before = self._session.copy_seconds()
            answer = self._session.ask(prefix[:tokens] + self._tokens(1))
            if answer.tiers.get(source, 0) == tokens:
                seconds = self._session.restore_seconds(answer)
                if source == "host":
                    seconds += self._session.copy_seconds() - before
                self.loads[source].append(LoadSample(tokens * self._token_bytes, seconds))
            self._session.settle()

    def _expose(self, source: str) -> None:
        """Afterwards `source` is the highest tier that has the prefix."""
        if source == "peer":
            # Pages that a peer has leave host memory first, and nothing else forgets those in host memory alone.
            self._session.order(CapTier(tier="host", limit="1B"))
            self._session.order(CapTier(tier="host"))
        elif source == "ssd":
            self._session.order(Flush(tiers="host"))
        self._session.flush_device()

    def _lent(self, prefix: list[int]) -> bool:
        """Whether other servers keep the whole prefix, within a time that they may take. Not on the device after."""
        deadline = time.monotonic() + LENDING_SECONDS
        while True:
            # What is used is offered to peers once more.
            self._session.flush_device()
            self._session.ask(prefix + self._tokens(1))
            self._session.settle()
            peer = self._session.tiers()["tiers"].get("peer")
            if peer is not None and peer["pages"] * self._page >= len(prefix):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(self._ids, k=count)


def _doublings(first: int, last: int, *, zero: bool = False) -> list[int]:
    """`first`, twice that and so on up to `last`, and `last` itself; 0 before them if `zero`."""
    found = [0] if zero else []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last]


def _since(started: float) -> float:
    return time.monotonic() - started
