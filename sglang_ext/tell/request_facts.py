"""What the tiers did for one request. It hangs on SGLang's own record of the request, and so lives exactly as long."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from swift_tiers.radix_tiering.restore.storyteller import Storyteller
from swift_tiers.radix_tiering.way.request_restore import NOBODY_COMPUTES_LAYERS, Restore

#: Neighbouring pages from one place, in order: (("host", 30), ("ssd", 4)).
Runs = tuple[tuple[str, int], ...]

#: Characters of a request id that are shown as they are.
LONGEST_RID = 128

_WORDS = {"cut_short": "cut short"}


class RequestFacts:
    """Scheduler's thread, but for the fields of a restore, which other threads set."""

    __slots__ = (
        "_outcome",
        "_restore",
        "_waited",
        "arrived",
        "counted",
        "ended",
        "last_node",
        "last_page",
        "no_layers",
        "runs",
        "story",
        "whole",
    )

    def __init__(self) -> None:
        self.arrived: float | None = None  # seconds since 1970, as it was told first
        self.runs: Runs = ()  # pages of the prompt that were loaded from below, from the first admission on
        self.last_page = ""  # hex key of the last page of its prompt that may be found
        self.whole = ""  # why it needs its prefix whole before it is computed; empty if it does not
        self.no_layers = NOBODY_COMPUTES_LAYERS  # why it cannot be computed layer by layer; empty if it can
        self.last_node: int | None = None  # of SGLang's tree, that it was counted at
        self.counted = False  # among the prompts that the sums are over
        self.ended = False  # its end has been told
        self.story: Storyteller | None = None  # how its prefix came back; None: it has not been looked for
        self._restore: Restore | None = None
        self._outcome = "none"
        self._waited = 0.0

    @classmethod
    def of(cls, req: Any) -> RequestFacts:
        """Those of SGLang's `Req`, made if need be."""
        facts: RequestFacts | None = getattr(req, "swift_tiers", None)
        if facts is None:
            facts = req.swift_tiers = cls()
        return facts

    def pages(self, tier: str) -> int:
        """Pages of the prompt that were loaded from `tier`."""
        return sum(count for name, count in self.runs if name == tier)

    @property
    def loaded_pages(self) -> int:
        """Pages of the prompt that were loaded, from whichever tier."""
        return sum(count for _, count in self.runs)

    def follow(self, restore: Restore) -> None:
        """The request's pages are being brought up. Once more, if the device has lost some meanwhile."""
        self.let_go()
        self._restore = restore
        if self.story is None or not self.story.covered:
            # Like `runs`, it is of the first time: one that was retracted finds most of its pages on the device.
            self.story = restore.story

    def let_go(self) -> None:
        """Nothing is kept of the restore but how it ended. Without a restore: nothing."""
        restore, self._restore = self._restore, None
        if restore is not None and restore.outcome and restore.ended is not None:
            self._outcome = _WORDS.get(restore.outcome, restore.outcome)
            self._waited += restore.ended - restore.started

    @property
    def restoring(self) -> bool:
        """Whether its pages are coming up."""
        return self._restore is not None and self._restore.ended is None

    def restore(self, now: float) -> tuple[str, float]:
        """How the restore goes or went, in the bus's words, and the seconds that it took until `now`, of all of them
        if there were several. By the clock of the stack."""
        restore = self._restore
        if restore is None:
            return self._outcome, self._waited
        ended, outcome = restore.ended, restore.outcome
        if ended is None:
            return "waiting", self._waited + now - restore.started
        if not outcome:
            return self._outcome, self._waited
        return _WORDS.get(outcome, outcome), self._waited + ended - restore.started


def tell_forward(batch: Any, seconds: float, ended: float) -> None:
    """A forward over prompts took `seconds` and has ended: for the stories of what it computed of them."""
    lengths = batch.extend_lens or ()
    of_tokens = sum(lengths)
    for req, start, length in zip(batch.reqs, batch.prefix_lens or (), lengths, strict=False):
        facts: RequestFacts | None = getattr(req, "swift_tiers", None)
        if facts is not None and facts.story is not None and not req.retracted_stain:
            facts.story.forward(start, length, of_tokens, seconds, ended)


def runs_of(tiers: Iterable[str]) -> Runs:
    """Neighbouring pages from one place, counted."""
    return tuple((tier, len(list(group))) for tier, group in groupby(tiers))


def shown_rid(rid: str) -> str:
    """A request's id as it may stand in a key: clients choose it, so one that is long or not printable is replaced by
    `sha256-` and 32 hex digits of its digest."""
    if len(rid) <= LONGEST_RID and rid.isprintable() and rid:
        return rid
    return "sha256-" + hashlib.sha256(rid.encode(errors="surrogatepass")).hexdigest()[:32]
