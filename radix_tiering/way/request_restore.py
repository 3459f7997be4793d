"""Everything that the engine knows of one request: a chain of pages, on their way up to host memory or there.

    WAITING --(worker takes it)--> RUNNING --(all pages settled)----> READY --(release)--> RELEASED
       |                              |------(deadline passed)------> READY, with what has come up so far
       |------(deadline passed)-------|-----------------------------> READY, with nothing
       '---------(release)------------'------------------------------------(release)-----> RELEASED

While it is RUNNING or READY its pages are pinned, but for those that have been copied out of landing memory to the
device already. READY is final until `release`: `pages` pages from the start of the chain lie in host memory or landing
memory, and cannot leave. Those that came up were verified on their way. Those that were in host memory are verified as
`host.verify` says: already; or before an answer is made of them ("beside": see `Verifier.verified`); or not at all
(false). Nothing is promised before that, but to a device that has begun to compute what is missing
(`Readiness.COMPUTE`): it is given pages run by run, as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from typing import NamedTuple

import numpy as np

from ..base.errors import NotHeldError
from ..restore.flight import Flight, Unit
from ..restore.planner import Decision
from ..restore.storyteller import Storyteller
from ..table.held_page import Page, Places, held_run
from ..table.tier_copies import HOST

#: Where whoever drives the device has not said that it can.
NOBODY_COMPUTES_LAYERS = "nothing here computes single layers"


def runs_of(units: np.ndarray) -> list[range]:
    """Neighbours among those that are so: bool [units]."""
    edges = np.flatnonzero(np.diff(units, prepend=False, append=False)).reshape(-1, 2).tolist()
    return [range(first, end) for first, end in edges]


class RestoreState(Enum):
    WAITING = auto()
    RUNNING = auto()
    READY = auto()
    RELEASED = auto()


class Readiness(IntEnum):
    """What a waiting request may do now. Ranks agree on the least."""

    WAIT = 0
    COMPUTE = 1  # be admitted, and compute what is missing while the rest comes up
    READY = 2  # be admitted with what there is; no more is coming


class Held(NamedTuple):
    """A wait for pages."""

    since: float  # the last one came, or it began
    arrived: int  # pages that have come, or are on the device
    until: float  # at most


class Restore:
    """One request's claim on a chain of pages. Made and changed by `Restorer`.

    `state`, `pages`, `drains`, `outcome`, `ended`, `decision`, `complete`, `sources` and the length of `flight` may be
    read by any thread: each is a hint, until READY. `asked`, `deadline` and `priced` change on the thread that drives
    the device. `story` says itself who may write it. All else is read and changed under the page table's lock.
    """

    __slots__ = (
        "also_here",
        "asked",
        "beside",
        "busy_until",
        "can_compute",
        "claimed",
        "complete",
        "computing_since",
        "copying",
        "deadline",
        "decision",
        "drains",
        "ended",
        "estimate",
        "flight",
        "held",
        "keys",
        "late",
        "leans_on",
        "may_drain",
        "no_layers",
        "outcome",
        "owed",
        "pages",
        "patience",
        "prefix_keys",
        "priced",
        "replan",
        "short",
        "sources",
        "spared",
        "started",
        "state",
        "story",
        "tiers",
        "unchecked",
        "waits_since",
        "wanted",
    )

    def __init__(
        self,
        keys: Sequence[bytes],
        prefix_keys: Sequence[bytes],
        started: float,
        *,
        tiers: Sequence[str],
        page_tokens: int,
        can_compute: bool = False,
        no_layers: str = NOBODY_COMPUTES_LAYERS,
        why: str = "",
        wanted: int | None = None,
    ) -> None:
        """`tiers`: their names by number, host memory's first. `no_layers`: why the device could not compute it layer
        by layer; empty if it could. `why`: it is all recomputed, for this reason, and nothing is looked for. `wanted`:
        pages that its request lacks, where these are not all of `keys`."""
        self.keys = keys  # the chain to bring up
        self.wanted = len(keys) if wanted is None else wanted
        self.prefix_keys = prefix_keys  # pages before it, which the device has: used, not moved
        #: The last of `keys`, which are a state: without them those before are of no use, and the other way round.
        self.beside = 0
        self.can_compute = can_compute  # the device could compute a part of it
        self.no_layers = no_layers
        self.started = started
        self.asked: float | None = None  # when somebody began to wait
        self.deadline = float("inf")  # until somebody waits
        self.state = RestoreState.WAITING
        self.outcome = ""  # how it ended, as `RestoreSnapshot` names it; empty: nothing was held
        self.ended: float | None = None
        self.claimed: list[Page] = []  # pinned
        self.leans_on: list[Page] = []  # pinned: of the prefix, what other restores have only heard of
        self.tiers = tiers
        self.sources: list[int] = []  # the tier of each claimed page, by number
        self.also_here: set[int] = set()  # claimed pages that come from elsewhere though host memory has them
        self.flight = Flight()  # of the claimed pages
        self.complete = False  # the chain has been claimed as far as it goes
        self.short = False  # a page that was claimed could not be read: no room, or dropped
        self.pages = 0  # final when READY
        self.decision: Decision | None = None
        self.replan = float("-inf")  # when it is decided anew
        self.priced = False  # one that cannot be computed in part: whether computing all of it is sooner was asked
        #: Seconds that it is expected to take, by its first decision; more where others came since, or where it no
        #: longer drains.
        self.estimate: float | None = None
        self.owed = 0.0  # of these for others, on one source; the most that was reckoned with
        self.patience = float("inf")  # seconds for which it may wait at most, by what computing costs
        self.unchecked = 0  # parts of it whose checksums are waited for before layers are copied
        self.computing_since: float | None = None  # the device computes what is missing
        self.drains = False  # it is loaded piece by piece, through landing memory that holds less than all of it
        self.may_drain = True  # every rank may take its pages so, as far as is known
        self.copying: dict[int, bool] = {}  # claimed pages that are being copied to the device: from landing memory?
        self.spared: set[int] = set()  # claimed pages that are pinned for it no longer, as they are not needed any more
        self.busy_until = float("-inf")  # about when the device will have computed what it was given
        self.waits_since: float | None = None  # when it was told to wait, and has been since; before it is admitted
        self.held: Held | None = None  # the device waits for pages
        self.late = ""  # why it fell behind its estimate, if it did
        self.story = Storyteller(
            page_tokens=page_tokens, prefix_pages=len(prefix_keys), wanted_pages=self.wanted, began=started, why=why
        )
        self.story.flight = self.flight

    # ---- its way ----

    @property
    def computing(self) -> bool:
        """The device computes what is missing, or has."""
        return self.computing_since is not None

    @property
    def under_way(self) -> bool:
        """Whether more of it may come, or be decided."""
        return self.state in (RestoreState.WAITING, RestoreState.RUNNING)

    def begins(self, now: float) -> None:
        """The device computes some of it, from now on or already."""
        if self.computing_since is None:
            self.computing_since = now

    def end(self, outcome: str, now: float) -> None:
        """How it ended, by the name of a count, and when; `settle` or `release` follows."""
        assert self.under_way, f"it is {self.state.name}, and ended as {self.outcome}"
        self.outcome, self.ended = outcome, now

    def settle(self, pages: int) -> None:
        """-> READY: so many pages from the start are there for good."""
        assert self.under_way, f"it is {self.state.name}"
        self.pages, self.state = pages, RestoreState.READY
        self.drains = False  # nothing more of it lands

    def let_go(self, first: int) -> list[Page]:
        """Those of its pages from this one on are nothing to it any more; which were pinned for it, as of `release`."""
        pinned = [page for unit, page in enumerate(self.claimed[first:], first) if unit not in self.spared]
        self.flight.fail_from(first)
        del self.claimed[first:], self.sources[first:]
        return pinned

    def release(self) -> list[Page]:
        """-> RELEASED; the pages that were pinned for it, whose pins whoever calls gives back."""
        assert not self.under_way or self.ended is not None, "it ends before it is released"
        self.state, self.story.flight = RestoreState.RELEASED, None
        claimed = (
            [page for unit, page in enumerate(self.claimed) if unit not in self.spared] if self.spared else self.claimed
        )
        pinned = [*self.leans_on, *claimed]
        self.leans_on, self.claimed = [], []
        return pinned

    # ---- its pages ----

    def come_from(self, tier: int, units: range, state: Unit) -> None:
        """They come from this tier instead, or are there at once."""
        self.sources[units.start : units.stop] = [tier] * len(units)
        self.flight.redirect(units, self.tiers[tier], state)

    def take_what_is_here(self) -> None:
        """What was to come from elsewhere, and has not, is taken from host memory, which has it, too. It stays looked
        at where it is copied: what was asked for may come yet."""
        states, to_come = self.flight.states(), (Unit.ABSENT, Unit.LOADING)
        here = np.zeros(len(states), np.bool_)
        here[[unit for unit in self.also_here if states[unit] in to_come and self.claimed[unit].resident]] = True
        for run in runs_of(here):
            self.come_from(HOST, run, Unit.PRESENT)

    @property
    def with_tokens(self) -> int:
        """How many of `keys`, from the first one on, stand for tokens."""
        return len(self.keys) - self.beside

    @property
    def reach(self) -> int:
        """Whole pages of its request, as far as known."""
        return len(self.prefix_keys) + len(self.keys)

    @property
    def tokens_behind(self) -> int:
        """Tokens of its request that follow what was claimed, as far as known: whole pages, and the last token."""
        return (self.wanted + self.beside - len(self.flight)) * self.story.page_tokens + 1

    @property
    def found_nothing(self) -> bool:
        """Whether it is known that nothing of its chain is held anywhere. Before anything of it was let go."""
        return self.complete and not self.claimed and not self.short

    @property
    def settled(self) -> bool:
        """Nothing is on its way any more, or could be."""
        return self.complete and not self.flight.loading and not any(self.flight.sources())

    @property
    def usable(self) -> int:
        """Pages from the start of the chain that could be promised now: they have come, and are held."""
        return held_run(self.claimed[: self.flight.arrived_from(0)])

    @property
    def all_there(self) -> bool:
        """Whether its whole chain has come up, or is on the device already, before anything of it was computed."""
        return self.complete and not self.computing and not self.short and len(self.flight) > 0 and self.flight.done

    def by_source(self) -> dict[str, int]:
        """Claimed pages that were found in each source, by its name; those without any are left out."""
        return {name: pages for tier, name in enumerate(self.tiers) if (pages := self.sources.count(tier))}

    def found(self, first: int = 0, end: int | None = None) -> list[str]:
        """The tiers, by name, that pages `[first, end)` came from or come from; all without an end."""
        return [self.tiers[tier] for tier in self.sources[first:end]]

    @property
    def slots(self) -> np.ndarray:
        """The places of its `pages`, until it is released; see `places`. For simulations, benches and tests."""
        return self.places(0, self.pages).numbers

    def places(self, first: int, end: int) -> Places:
        """Where pages `[first, end)` lie, to be copied to the device. Raises NotHeldError where one of them has not
        come up, or is held nowhere: whoever asks for it has been promised what nobody has."""
        if first == end:
            return Places.none()
        if not 0 <= first <= end <= len(self.claimed):
            raise NotHeldError(f"pages [{first}, {end}) of {len(self.claimed)}")
        if not self.flight.arrived_all(first, end):
            raise NotHeldError(f"not all of pages [{first}, {end}) have come up")
        return Places.of_pages(self.claimed[first:end])
