"""What to do about a prefix that the device lacks, by what it costs: wait for its pages, or begin to compute them.

Loading goes on in either case, from the back; the question is only whether computing begins as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

from .batch import Forward
from .cost import ComputeCost, CostModel, SourceCost
from .plan import (
    CHUNK_TOKENS,
    Prefix,
    RestorePlan,
    Run,
    Strategy,
    forwards_behind,
    plan_layers,
    plan_recompute,
    plan_restore,
    priced,
    pure_plans,
)

#: Where pages lie that can be copied to the device at once.
HERE = "host"
#: What copying from host memory costs where nothing has been measured: nothing that matters beside the others.
_AT_ONCE = SourceCost(latency_seconds=0.0, bytes_per_second=math.inf)
#: Copying from host memory takes so many times a forward over one page where it is done first, see `copied_first`.
COPIED_FIRST = 3.0
#: By source: seconds for which it has others to serve first.
Owed = Mapping[str, float]
NOTHING_OWED: Owed = {}

Choice = Literal["auto", "load", "recompute", "token-wise", "layer-wise"]


class Costs(Protocol):
    """What is known of costs now; `LiveCosts` is one."""

    @property
    def compute(self) -> ComputeCost | None: ...

    @property
    def compute_at_worst(self) -> ComputeCost | None:
        """What computing may cost, as far as anybody can say; not less than `compute`, and known when that is."""

    @property
    def sources(self) -> Mapping[str, SourceCost]: ...

    @property
    def together(self) -> float:
        """How many times its estimate a restore that computes and loads at once takes; 1 or more."""


class Decision(NamedTuple):
    """What to do, and why."""

    compute: bool  # begin to compute; else wait for pages
    load: bool  # load anything at all
    lead: int  # pages that are loaded first, front to back
    plan: RestorePlan | None  # None where costs are not known, or do not matter
    why: str
    layer_wise: bool = False  # compute its layers from the bottom; where that cannot be, as the other fields say
    drains: bool = False  # what landing memory has no room for waits for it, and its pages are taken as they land

    @property
    def strategy(self) -> Strategy:
        """In a word."""
        if self.layer_wise:
            return Strategy.LAYER_WISE
        if self.plan is not None:
            return self.plan.strategy
        if not self.compute:
            return Strategy.LOAD
        return Strategy.TOKEN_WISE if self.load else Strategy.RECOMPUTE


class Planner:
    """Decides for one rank. Pure; as thread-safe as the costs that it reads."""

    def __init__(
        self,
        costs: Costs,
        *,
        page_tokens: int,
        page_bytes: int,
        layers: int,
        choice: Choice = "auto",
        chunk_tokens: int = CHUNK_TOKENS,
        copy_first: bool = True,
    ) -> None:
        """`page_bytes`: of the KV of one page, all layers. `choice`: `restore.strategy` of the configuration, and
        `copy_first` of it."""
        self.costs = costs
        self.choice = choice
        self._copy_first = copy_first
        self._page_tokens = page_tokens
        self._page_bytes = page_bytes
        self._layers = layers
        #: Tokens that the device computes in one forward at most; None: any number.
        self.forward_tokens: int | None = None
        #: The device has computed a step when the next one is asked for. Else it may be computing it still, as
        #: accelerators are given their work ahead, and what is decided counts from when it will be done.
        self.launch_blocks = True
        #: What copying one page from host memory takes now, seconds; None: too few have been copied.
        self.copying: Callable[[], float | None] = lambda: None
        #: Pages of a chunk.
        self.chunk = max(1, chunk_tokens // page_tokens)

    def decide(
        self,
        start: int,
        sources: Sequence[str | None],
        tokens_behind: int = 0,
        *,
        beyond: int = 0,
        owed: Owed = NOTHING_OWED,
    ) -> Decision:
        """What to do for pages `[start, start + len(sources))` of a prompt; `sources[i]` is None for a page that has to
        be computed, `HERE` for one that can be copied at once. `tokens_behind`: tokens of the prompt that follow them.
        `beyond`: so many of them come through host memory unless they wait until landing memory is drained. `owed`:
        what sources bring to others first."""
        missing = len(sources) - sources.count(HERE)
        if not missing:
            return Decision(False, True, 0, None, "every page is in host memory")
        if self.choice == "recompute":
            return Decision(True, False, 0, None, "restore.strategy is recompute")
        if self.choice in ("token-wise", "layer-wise"):
            return Decision(True, True, 0, None, f"restore.strategy is {self.choice}")
        if self.choice == "load":
            drains = beyond > 0 and self._slower_through_host(beyond, sources) > (self._one_page(start) or math.inf)
            return Decision(False, True, len(sources), None, "restore.strategy is load", drains=drains)
        costs = self._model(sources, owed)
        if isinstance(costs, str):
            return Decision(False, True, len(sources), None, f"what {costs} costs is not known yet")
        prefix = self._prefix(start, sources, tokens_behind)
        plan = plan_restore(
            prefix, costs, chunk_tokens=self.chunk * self._page_tokens, forward_tokens=self.forward_tokens
        )
        why = ""
        if plan.strategy is Strategy.TOKEN_WISE:
            plan, why = self._unless_in_doubt(plan, prefix, costs)
        if beyond and (drained := self._drained(plan, prefix, costs, beyond, sources)) is not None:
            why = f"loading takes {_ms(drained.seconds)} as landing memory is drained, and nothing is faster"
            return Decision(False, True, len(sources), drained, why, drains=True)
        if plan.strategy is Strategy.LOAD:
            why = why or f"loading takes {_ms(plan.seconds)}, and nothing is faster"
            return Decision(False, True, 0, plan, why)
        if plan.strategy is Strategy.RECOMPUTE:
            why = why or f"recomputing takes {_ms(plan.seconds)}, and no page comes sooner"
        else:
            why = f"recomputing {plan.recomputed} of {prefix.tokens} tokens meanwhile takes {_ms(plan.seconds)}"
        return Decision(True, True, plan.lead // self._page_tokens, plan, why)

    def recomputes(
        self,
        start: int,
        sources: Sequence[str | None],
        tokens_behind: int = 0,
        owed: Owed = NOTHING_OWED,
        beside: int = 0,
    ) -> Decision | None:
        """To compute all of a prefix that cannot be computed in part, where that is sooner than loading it although
        computing costs as much as it may; None: wait for its pages. As for `decide`. `beside`: so many of the last
        pages stand for no tokens: they are loaded, and not computed."""
        worst = self.costs.compute_at_worst
        if self.choice != "auto" or None in sources or all(source == HERE for source in sources) or worst is None:
            return None
        costs = self._model(sources, owed)
        if isinstance(costs, str):
            return None
        prefix = self._prefix(start, sources, tokens_behind)
        at_worst = CostModel(compute=worst, sources=costs.sources)
        longest = self.forward_tokens or prefix.tokens + tokens_behind
        recomputed, *loaded = pure_plans(prefix, at_worst, longest)
        if beside and beside < len(sources):
            recomputed = plan_recompute(self._prefix(start, sources[:-beside], tokens_behind), at_worst, longest)
        if not loaded or recomputed.first_token_seconds >= loaded[0].first_token_seconds:
            return None
        why = f"recomputing takes {_ms(recomputed.seconds)}, loading {_ms(loaded[0].seconds)}; it is not done in part"
        return Decision(True, False, 0, recomputed, why)

    def recomputes_what_is_here(
        self, start: int, pages: int, tokens_behind: int = 0, beside: int = 0
    ) -> Decision | None:
        """Likewise, of pages that are all in host memory. None: copy them, as nearly always: they are copied beside the
        forward over the tokens behind them."""
        each, worst = self.here_seconds(), self.costs.compute_at_worst
        if self.choice != "auto" or each is None or worst is None:
            return None
        computed = max(1, pages - beside)
        first, end = start * self._page_tokens, (start + computed) * self._page_tokens
        copying = self.latency_seconds(HERE) + pages * each
        longest = self.forward_tokens or end + tokens_behind - first
        forwards = forwards_behind(end + tokens_behind - first, 0, longest)
        if worst.in_forwards(first, end + tokens_behind, forwards) >= copying:
            return None
        prefix, known = self._prefix(start, [HERE] * computed, tokens_behind), self.costs.compute
        assert known is not None, "known where the worst is"
        plan = plan_recompute(prefix, CostModel(compute=known, sources={}), longest)
        why = f"recomputing takes {_ms(plan.seconds)}, copying from host memory {_ms(copying)}"
        return Decision(True, False, 0, plan, why)

    def most_patience(self, start: int, sources: Sequence[str | None], beside: int = 0) -> float:
        """How long it may be waited for pages behind page `start` of a prompt, that come from there: as long as
        computing them would take, seconds; without bound where costs are not known, or an operator says what to do."""
        costs = self._model(sources)
        if self.choice != "auto" or not sources or isinstance(costs, str):
            return math.inf
        first, tokens = start * self._page_tokens, max(1, len(sources) - beside) * self._page_tokens
        return costs.compute.in_forwards(
            first, first + tokens, forwards_behind(tokens, 0, self.forward_tokens or tokens)
        )

    def lands_sooner(self, pages: int, source: str, start: int, tokens_behind: int) -> bool:
        """Whether so many pages behind page `start` of a prompt, which host memory has, come sooner by landing from
        `source` while landing memory is drained: that takes one forward more, while what is copied from host memory is
        copied beside the forward that needs it. `tokens_behind`: tokens of the prompt that follow them."""
        here, there, one_page = self.here_seconds(), self.page_seconds(source), self._one_page(start)
        cost = self.costs.compute
        if here is None or there is None or one_page is None or cost is None or self.choice not in ("auto", "load"):
            return False
        first = (start + pages) * self._page_tokens
        forward = cost.seconds(first, first + tokens_behind)
        return pages * there + one_page + forward < max(pages * here, forward)

    def copied_first(self, start: int, pages: int) -> bool:
        """Whether so many pages behind page `start` of a prompt, which host memory has, are to be copied before the
        forward that needs them is launched, where others decode: they would wait for the copy, which is worth one
        forward more, if it takes many times as long."""
        each, one_page = self.here_seconds(), self._one_page(start)
        if not self._copy_first or each is None or one_page is None or self.choice not in ("auto", "load"):
            return False
        return pages * each > COPIED_FIRST * one_page

    def here_seconds(self) -> float | None:
        """What copying one page from host memory takes; None: nobody knows."""
        known = self.page_seconds(HERE)
        return self.copying() if known is None else known

    def _drained(
        self, plan: RestorePlan, prefix: Prefix, costs: CostModel, beyond: int, sources: Sequence[str | None]
    ) -> RestorePlan | None:
        """To load all of it while landing memory is drained, which takes one forward more, that of its first page; None
        where `plan` is faster, some of whose pages, of `beyond`, come through host memory."""
        one_page, forward = self._one_page(prefix.start // self._page_tokens), self.forward_tokens
        plans = pure_plans(prefix, costs, forward or self.chunk * self._page_tokens)
        loaded = next((one for one in plans if one.strategy is Strategy.LOAD), None)
        if loaded is None or one_page is None:
            return None
        through_host = max(0, beyond - plan.recomputed // self._page_tokens)
        other = plan.first_token_seconds + self._slower_through_host(through_host, sources)
        return loaded if loaded.first_token_seconds + one_page < other else None

    def _slower_through_host(self, pages: int, sources: Sequence[str | None]) -> float:
        """What so many of the pages that `sources` bring take longer, at least, that pass through host memory: seconds.
        As long as a copy from there; as long as they take now where that is not known."""
        each = self.here_seconds()
        if each is None:
            each = max((self.page_seconds(source) or 0.0 for source in set(sources) if source is not None), default=0.0)
        return pages * each

    def _one_page(self, start: int) -> float | None:
        """What a forward over one page behind `start` pages of a prompt takes; None if unknown."""
        forward = self.forward(start)
        return None if forward is None else forward.at_worst(0, 1)

    def _unless_in_doubt(self, mixed: RestorePlan, prefix: Prefix, costs: CostModel) -> tuple[RestorePlan, str]:
        """A plan that does both, if it is still the best where computing costs as much as it may, and where both at
        once take as much longer as they did before; else the better of the others, and why."""
        worst = self.costs.compute_at_worst
        assert worst is not None, "computing is of known cost"
        at_worst = CostModel(compute=worst, sources=costs.sources)
        forward = self.forward_tokens or self.chunk * self._page_tokens
        both = priced(mixed, prefix, at_worst, forward)
        doubtful = both.seconds * self.costs.together + both.behind_seconds
        if all(doubtful < plan.first_token_seconds for plan in pure_plans(prefix, at_worst, forward)):
            return mixed, ""
        plan = min(pure_plans(prefix, costs, forward), key=lambda plan: plan.first_token_seconds)
        what = "loading" if plan.strategy is Strategy.LOAD else "recomputing"
        saved = plan.first_token_seconds - mixed.first_token_seconds
        return plan, f"{what} takes {_ms(plan.seconds)}; doing both would save {_ms(saved)}, which is not certain"

    def by_layers(
        self,
        decision: Decision,
        start: int,
        sources: Sequence[str | None],
        tokens_behind: int,
        refused: str,
        owed: Owed = NOTHING_OWED,
    ) -> Decision:
        """`decision`, or one for layer-wise restoration where that is wanted, or faster by what it costs.

        `sources` are as for `decide`, but of all pages that the device lacks: those that can be copied at once are
        computed, too. `tokens_behind`: tokens of the prompt that follow them. `refused`: why these cannot be restored
        so; empty if they can.
        """
        if self.choice not in ("auto", "layer-wise") or not sources:
            return decision
        tokens = len(sources) * self._page_tokens
        # Where its layers cannot be computed after all, what is missing of it is.
        compute = sources.count(HERE) < len(sources)
        if not refused and None in sources:
            refused = "some of its pages have no source"
        if not refused and self.forward_tokens is not None and tokens > self.forward_tokens:
            refused = f"its {tokens} tokens are more than one forward takes ({self.forward_tokens})"
        if self.choice == "layer-wise":
            why = "restore.strategy is layer-wise"
            if refused:
                return decision._replace(why=f"{why}, but {refused}")
            return Decision(compute, True, 0, None, why, layer_wise=True)
        copying = self.costs.sources.get(HERE)
        if refused or copying is None:
            return decision
        costs = self._model(sources, owed, copied_later=True)
        if isinstance(costs, str):
            return decision
        prefix = self._prefix(start, sources, max(tokens_behind, 1))
        plan = plan_layers(prefix, costs, copying)
        forward = plan.behind_seconds
        other = decision.plan.first_token_seconds if decision.plan is not None else 0.0
        if decision.strategy is Strategy.LOAD:
            # What is copied whole is copied while the forward behind it runs, so only what is longer than that counts.
            other = max(plan.load_seconds.values()) + max(copying.seconds(tokens * prefix.token_bytes), forward)
        if not 0 < plan.cutover < prefix.layers or plan.first_token_seconds >= other:
            return decision
        instead = f"not {_ms(other - forward)}"
        why = f"computing {plan.cutover} of {prefix.layers} layers meanwhile takes {_ms(plan.seconds)}, {instead}"
        return Decision(compute, True, 0, plan, why, layer_wise=True)

    def compute_seconds(self, start: int, most: Callable[[], int] | None = None) -> Callable[[int, int], float] | None:
        """What computing pages `[a, b)` behind page `start` of a prompt takes, seconds; None if unknown. `most`: pages
        that one forward computes now, a chunk if None."""
        cost = self.costs.compute
        if cost is None:
            return None
        one = self._forward_seconds(cost, start)
        longest = most or (lambda: self.chunk)
        return lambda first, end: (
            cost.fixed_seconds * max(0, math.ceil((end - first) / longest()) - 1) + one(first, end)
        )

    def forward(self, start: int, tokens_behind: int = 0) -> Forward | None:
        """What one forward over pages behind page `start` of a prompt takes; None if unknown. `tokens_behind`: tokens
        of the prompt that follow the last of these pages."""
        cost, worst = self.costs.compute, self.costs.compute_at_worst
        if cost is None or worst is None:
            return None

        def joined(pages: int) -> float:
            longest = self.forward_tokens or pages * self._page_tokens + tokens_behind
            end = start * self._page_tokens  # or further back, which makes both dearer alike
            apart, beside = (
                cost.in_forwards(end, end + tokens_behind, forwards_behind(tokens_behind, room, longest))
                for room in (0, longest - pages * self._page_tokens)
            )
            return apart - beside

        return Forward(self._forward_seconds(cost, start), self._forward_seconds(worst, start), joined)

    def _forward_seconds(self, cost: ComputeCost, start: int) -> Callable[[int, int], float]:
        tokens = self._page_tokens
        return lambda first, end: cost.seconds((start + first) * tokens, (start + end) * tokens)

    def most(self, decision: Decision | None) -> int:
        """Pages that one forward of a restore computes at most."""
        planned = decision.plan.forward_tokens if decision is not None and decision.plan is not None else 0
        if decision is not None and decision.drains:
            planned = self.forward_tokens or 0  # it computes only what does not come, and of that all there is
        return max(self.chunk, planned // self._page_tokens)

    def page_seconds(self, source: str) -> float | None:
        """What loading one page among many takes, in seconds; None if that is not known."""
        cost = self.costs.sources.get(source)
        return None if cost is None else self._page_bytes / cost.bytes_per_second

    def latency_seconds(self, source: str) -> float:
        """How long it takes until the first page begins to come; 0 where that is not known."""
        cost = self.costs.sources.get(source)
        return 0.0 if cost is None else cost.latency_seconds

    def island(self, decision: Decision | None = None) -> int:
        """Pages between two absent ones that are computed rather than jumped over: as many as cost less than one more
        forward's fixed part, and no more than one forward takes."""
        cost = self.costs.compute
        if cost is None:
            return 1
        each = cost.token_seconds * self._page_tokens
        return max(1, min(self.most(decision), math.ceil(cost.fixed_seconds / each))) if each > 0 else 1

    def _prefix(self, start: int, sources: Sequence[str | None], tokens_behind: int) -> Prefix:
        return Prefix(
            start=start * self._page_tokens,
            runs=tuple(Run(len(list(group)) * self._page_tokens, source) for source, group in groupby(sources)),
            token_bytes=self._page_bytes // self._page_tokens,
            layers=self._layers,
            behind=tokens_behind,
            page_tokens=self._page_tokens,
        )

    def _model(
        self, sources: Sequence[str | None], owed: Owed = NOTHING_OWED, *, copied_later: bool = False
    ) -> CostModel | str:
        """The costs of what is needed, or what is not known of it. `copied_later`: what is in host memory is there,
        and copying it is reckoned with apart."""
        compute = self.costs.compute
        if compute is None:
            return "recomputing"
        known = {HERE: _AT_ONCE, **self.costs.sources}
        if copied_later:
            known[HERE] = _AT_ONCE
        needed = {source for source in set(sources) if source is not None}
        for source in sorted(needed):
            if source not in known:
                return f"loading from {source}"
        return CostModel(
            compute=compute, sources={source: known[source].behind(owed.get(source, 0.0)) for source in needed}
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
