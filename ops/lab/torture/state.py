"""What is in a world: the engine, the models around it, and what has happened so far."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from swift_tiers.radix_tiering.base.errors import DamagedPageError
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.base.virtual.schedule import BEGIN
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.tiers.testing.model_engine import ModelStore
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier
from swift_tiers.radix_tiering.way.request_restore import Restore

from .devices import PowerArray
from .model_peer import ModelPeer
from .neighbours import Neighbourhood
from .plan import Plan
from .stacks import chain, content, device_digests, page_at

#: When a page was put that is being put now.
UNDER_WAY = 1 << 60

#: Something that is done, with what it draws from.
Step = Callable[[random.Random], None]


def history_line(runner: VirtualRunner, what: str) -> str:
    """What the thread that is on does now, for people."""
    who = runner.current.name if runner.current is not None else ""
    return f"{runner.now - BEGIN:12.6f}  {who:<14} {what}"


class WorldState:
    """Shared by everybody in a world. Where a process of the world begins, `runner`, `stack` and the models are new;
    all else stays."""

    runner: VirtualRunner
    stack: TierStack

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.array: PowerArray | None = None
        self.peer: ModelPeer | None = None
        self.neighbourhood: Neighbourhood | None = None
        self.attic: ModelTier | None = None
        self.store: ModelStore | None = None
        self.leases: list[LeaseKey] = []
        #: How often what happened: what a run of many worlds has never reached, it has not tested.
        self.happened: Counter[str] = Counter()
        #: What was done, in the order of virtual time, for people.
        self.history: list[str] = []
        self._words: dict[bytes, str] = {}
        self.moment = 0
        self.put_at: dict[bytes, int] = {}
        self.flushed_at = -1  # when the last flush of everything began that has returned
        self.flushed_for_good_at = -1  # the same, of those that said that no crash brings anything back
        self.opened = False  # whether a stripe set has ever been made

    def tell(self, what: str) -> None:
        """One more line of the history: what the thread that is on does now."""
        self.history.append(history_line(self.runner, what))

    def words(self, keys: Sequence[bytes]) -> str:
        """A prompt, for people: which branch is taken at each page."""
        return self._words.get(keys[-1], "?")

    def prompt(self, draw: random.Random) -> list[bytes]:
        """The keys of a prompt's pages. There are few branches, so that requests share prefixes."""
        branches = [draw.choice((0, 0, 1)) for _ in range(draw.randint(1, 7))]
        keys = chain(*branches)
        self._words[keys[-1]] = "".join(map(str, branches))
        return keys

    # ---- oracles ----

    def compare(self, restore: Restore, keys: Sequence[bytes], first: int, places: Sequence[int]) -> None:
        """Every page that is promised is there, and its bytes are those that were put under its key. Where pages are
        verified beside their copy, damage is an error of this copy instead, and nothing else is. `first`: which of the
        restore's pages lies at the first of `places`."""
        by_device = self.plan.by_device
        verified = self.stack.restorer.verifier.verified(restore, first, places, by_device=by_device)
        copied = []
        for key, place in zip(keys[first:], places, strict=False):
            assert place >= 0, "a page is promised that is nowhere"
            assert key in self.put_at, "a page that nobody put"
            copied.append(page_at(self.stack, int(place)).copy())
        wanted = zip(copied, keys[first:], strict=False)
        right = all(np.array_equal(page, content(key, len(page))) for page, key in wanted)
        try:
            verified(device_digests(copied) if by_device else None)
        except DamagedPageError:
            assert not right, "what was copied is as it was put"
            self.happened["damage found beside a copy"] += 1
        else:
            assert right, "wrong bytes"

    def look(self) -> None:
        """The rules of the page table hold."""
        with self.stack.table.lock:
            check_rules(self.stack.table)
