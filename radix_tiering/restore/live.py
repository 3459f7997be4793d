"""Costs that follow what really happens: corrections of a profile, or, where there is none, what was learned so far.

A cost with a profile keeps its shape; only its level is corrected. A cost without one is fitted to what has been
observed, again and again, and its level is corrected between two fits, so that either kind follows a change of speed
within a few samples. What copying a page from host memory to the device takes is told by the copies that are counted
(`TimedLink`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from ..base.runner import THREADS, Runner
from ..figures.counters import LinkCounters
from .cost import ComputeCost, CostModel, SourceCost
from .fitting import (
    ForwardSample,
    LoadSample,
    fit_compute,
    fit_source,
    is_shortest,
    load_seconds,
    most_fixed_seconds,
)

#: Forwards to have seen before the cost of computing is known, not all of one kind. They may all be as long: where much
#: is to be computed, each fills its chunk. What is fixed in them is open then, and `compute_at_worst` says how far.
ENOUGH_FORWARDS = 5
#: Of the newest shortest forwards, the quickest one tells what a forward takes at least.
SHORTEST_KEPT = 8
#: Loads to have seen of a source.
ENOUGH_LOADS = 3
#: Samples between two fits of a cost that is known; between the first ones fewer, half as many as there are.
REFIT_EVERY = 16
#: ... and, of a source's cost, up to so many as long as one fit after the other says the same: a fit takes as long as
#: loading several pages, on the thread that loads them. What changes meanwhile is followed by a correction.
REFIT_SELDOM = 256
#: So many samples after pages have flowed from a source, those that tell its latency as well correct nothing.
FLOWS_LATELY = 8
#: Fits say the same whose estimates are no further apart than this factor.
SAME_FIT = 1.25
#: Two samples in a row that are off by this factor, to the same side: the speed has changed, and what was sampled
#: before must not be fitted together with what comes now.
CHANGED_SPEED = 1.5
#: So many times its estimate at most a restore that does both is believed to take: where it would still be by far the
#: best, it is done again, and this is learned anew.
MOST_TOGETHER = 1.5
#: What is left of that belief after a restore that did only one of both, as a logarithm: one in a dozen tries again.
BELIEF_KEPT = 0.95
#: What is left of the doubt about computing after a restore that did only one of both: what forwards leave open only
#: one that does both can tell. Of a dozen, one is tried that is by far the best by what is believed.
DOUBT_KEPT = 0.9
#: ... and after one that did both, and took no more than so many times its estimate. Else all of it is back.
DOUBT_REFUTED, AS_ESTIMATED = 0.25, 1.1
#: Pages that have been copied before that is taken to say what copying one takes; so many more weigh as much as all
#: before them.
PAGES_TIMED = 256


class Correction:
    """How far reality is off an estimate, as a factor: an average that forgets (EWMA), within bounds.

    1 means as estimated, 2 twice as slow. Averaged are logarithms, so that twice as slow and twice as fast weigh the
    same. Not thread-safe.
    """

    #: Nothing is believed to be further off than this.
    BOUND = 32.0
    #: No sample counts as further off than this from what was believed before: with a weight of one half, one sample
    #: at most doubles or halves the factor, whatever went wrong with it.
    SURPRISE = 4.0

    #: Weight of the newest sample in `spread`, and what that is before there were any.
    SPREAD_WEIGHT = 0.25
    SPREAD = 0.1

    def __init__(self, weight: float = 0.5) -> None:
        """`weight` of the newest sample: with one half, five samples of a tenth of the speed make it 8.9 times slower.
        Raises ValueError unless it lies above 0 and is at most 1."""
        if not 0 < weight <= 1:
            raise ValueError(f"a weight lies above 0 and is at most 1, unlike {weight}")
        self._weight = weight
        self._log = 0.0
        self._spread = self.SPREAD

    @property
    def factor(self) -> float:
        return math.exp(self._log)

    @property
    def spread(self) -> float:
        """How far samples are off what was believed right before them, as a factor of 1 or more: about one standard
        deviation."""
        # A mean distance, of which a standard deviation of what is normal is a quarter more.
        return math.exp(1.25 * self._spread)

    def observe(self, estimated_seconds: float, real_seconds: float) -> None:
        """What `estimated_seconds` was the uncorrected word for took `real_seconds`. Nonsense is left out."""
        if not (0 < estimated_seconds < math.inf and 0 < real_seconds < math.inf):
            return
        surprise, bound = math.log(self.SURPRISE), math.log(self.BOUND)
        off = min(max(math.log(real_seconds / estimated_seconds) - self._log, -surprise), surprise)
        self._spread += self.SPREAD_WEIGHT * (abs(off) - self._spread)
        moved = self._log + self._weight * off
        self._log = min(max(moved, -bound), bound)


Sample = TypeVar("Sample", ForwardSample, LoadSample)
Cost = TypeVar("Cost", ComputeCost, SourceCost)


class Reservoir(Generic[Sample]):
    """The newest samples of every kind, so that many of one kind push out none of another. Bounded."""

    KINDS = 48
    EACH = 3

    def __init__(self) -> None:
        self._kinds: dict[Hashable, deque[Sample]] = {}

    def add(self, kind: Hashable, sample: Sample) -> bool:
        """The kind that has been without news for longest makes room for a new one. Whether this is one."""
        samples = self._kinds.pop(kind, None)
        new = samples is None
        if samples is None:
            if len(self._kinds) == self.KINDS:
                del self._kinds[next(iter(self._kinds))]
            samples = deque(maxlen=self.EACH)
        samples.append(sample)
        self._kinds[kind] = samples
        return new

    def samples(self) -> list[Sample]:
        """All of them, kinds with the oldest news first."""
        return [sample for samples in self._kinds.values() for sample in samples]


class _Following(Generic[Cost, Sample]):
    """One cost, as far as it is known."""

    def __init__(
        self,
        profile: Cost | None,
        *,
        fit: Callable[[Sequence[Sample]], Cost | None],
        estimate: Callable[[Cost, Sample], float],
        seldom: int | None = None,
    ) -> None:
        """`fit`: None while the samples are too few, or too much alike. `seldom`: samples between two fits at most, as
        long as they say the same; None: no more than otherwise."""
        self._fit: Callable[[Sequence[Sample]], Cost | None] = fit
        self._estimate: Callable[[Cost, Sample], float] = estimate
        self._cost: Cost | None = profile
        self._correction = Correction()
        self._reservoir: Reservoir[Sample] | None = Reservoir() if profile is None else None
        self._newest: deque[Sample] = deque(maxlen=REFIT_EVERY // 2)
        self._until_fit = 0
        self._apart = 0  # samples from one fit to the next
        self._seldom = seldom
        self._side = 0  # to which the last sample was far off: -1, 1, or 0 if it was not
        self._restarted = False  # sampling, since the last fit

    @property
    def factor(self) -> float:
        return self._correction.factor

    def cost(self) -> Cost | None:
        return None if self._cost is None else self._cost.scaled(self.factor)

    def observe(self, kind: Hashable, sample: Sample) -> None:
        if self._cost is None:
            believed = sample
        else:
            estimate = self._estimate(self._cost, sample)
            believed = _believable(sample, estimate * self.factor)
            tells = self._tells_speed(sample)
            if tells:
                self._correction.observe(estimate, sample.seconds)
            if tells and self._reservoir is not None and self._changed_speed(sample.seconds / estimate):
                # The fit is still what is planned with, corrected, until there are enough samples of the new speed.
                self._reservoir, self._restarted, self._until_fit = Reservoir(), True, 0
                self._newest.clear()
        if self._reservoir is not None:
            self._learn(self._reservoir, kind, believed)

    def _tells_speed(self, sample: Sample) -> bool:
        """Whether what it took is to correct the level; of each sample, in order."""
        return True

    def _changed_speed(self, ratio: float) -> bool:
        """Once for each fit: where the fit was wrong, and not the speed, samples of all kinds have to come together."""
        side = (ratio > CHANGED_SPEED) - (ratio < 1 / CHANGED_SPEED)
        again, self._side = side != 0 and side == self._side, side
        return again and not self._restarted

    def _learn(self, reservoir: Reservoir[Sample], kind: Hashable, sample: Sample) -> None:
        if reservoir.add(kind, sample):
            self._until_fit = min(self._until_fit, REFIT_EVERY)
        self._newest.append(sample)
        self._until_fit -= 1
        if self._until_fit > 0:
            return
        if self._until_fit == 0 and self._side and not self._restarted:
            # The next one tells whether the speed has changed: this one is not to be fitted with those before then.
            return
        samples = reservoir.samples()
        fitted = self._fit(samples)
        if fitted is None:
            return
        self._until_fit = self._apart = self._next_fit(fitted, len(samples))
        self._fitted_to(fitted, samples)
        self._cost, self._side, self._restarted = fitted, 0, False
        # Old samples are in the fit as well; how fast things are just now is what the newest say.
        self._correction = Correction()
        for one in self._newest:
            if self._tells_speed(one):
                self._correction.observe(self._estimate(fitted, one), one.seconds)

    def _next_fit(self, fitted: Cost, samples: int) -> int:
        """After how many samples more."""
        if self._seldom is not None and self._cost is not None and not self._restarted:
            ratios = [self._estimate(fitted, one) / self._estimate(self._cost, one) for one in self._newest]
            if all(1 / SAME_FIT < ratio < SAME_FIT for ratio in ratios):
                return min(self._seldom, max(2 * self._apart, samples // 2))
        return min(REFIT_EVERY, samples // 2)

    def _fitted_to(self, cost: Cost, samples: Sequence[Sample]) -> None:
        """`cost` was found for these samples, and is about to be believed."""


class _FollowingCompute(_Following[ComputeCost, ForwardSample]):
    """Computing, and what it may cost at worst."""

    def __init__(self, profile: ComputeCost | None) -> None:
        super().__init__(profile, fit=_learn_compute, estimate=lambda cost, one: cost.of(one.tokens, one.pairs))
        self._most_fixed = 0.0 if profile is None else profile.fixed_seconds
        self.doubt = 1.0  # how much of what forwards leave open counts: 1 all of it, 0 nothing
        self._shortest: deque[float] = deque(maxlen=SHORTEST_KEPT)  # what the newest of them took

    def shortest(self, seconds: float) -> None:
        """One of the shortest forwards took so long."""
        self._shortest.append(seconds)

    def cost(self) -> ComputeCost | None:
        cost = super().cost()
        return cost if cost is None else self._at_least(cost)

    def at_worst(self) -> ComputeCost | None:
        """With as large a fixed part as the fit leaves open, and longer by as much as forwards vary; both as far as is
        doubted."""
        if self._cost is None:
            return None
        fixed = self._cost.fixed_seconds + self.doubt * (self._most_fixed - self._cost.fixed_seconds)
        cost = msgspec.structs.replace(self._cost, fixed_seconds=fixed)
        return self._at_least(cost.scaled(self.factor * self._correction.spread**self.doubt))

    def _at_least(self, cost: ComputeCost) -> ComputeCost:
        """As seen just now, and corrected by nothing, where any of the shortest forwards was seen."""
        return msgspec.structs.replace(cost, least_seconds=min(self._shortest)) if self._shortest else cost

    def _fitted_to(self, cost: ComputeCost, samples: Sequence[ForwardSample]) -> None:
        self._most_fixed = most_fixed_seconds(cost, samples)


class _FollowingSource(_Following[SourceCost, LoadSample]):
    """A source. What it takes until something comes varies with what it has to do besides, and says nothing of its
    speed: where pages flow, these alone do."""

    def __init__(self, profile: SourceCost | None) -> None:
        super().__init__(profile, fit=_learn_source, estimate=load_seconds, seldom=REFIT_SELDOM)
        self._begun = FLOWS_LATELY  # samples since the last of a flow

    def _tells_speed(self, sample: LoadSample) -> bool:
        self._begun = self._begun + 1 if sample.begun else 0
        return not sample.begun or self._begun > FLOWS_LATELY


def _believable(sample: Sample, expected: float) -> Sample:
    """The sample, its seconds no further off than a correction believes: one freak must not bend a whole fit."""
    least, most = expected / Correction.SURPRISE, expected * Correction.SURPRISE
    return msgspec.structs.replace(sample, seconds=min(max(sample.seconds, least), most))


class _Known(NamedTuple):
    compute: ComputeCost | None
    compute_at_worst: ComputeCost | None
    sources: Mapping[str, SourceCost]
    model: CostModel | None


class LiveCosts:
    """The costs of one rank as they are now: a profile's, corrected, or learned from nothing.

    Any thread; a short lock. What `now`, `compute` and `sources` return is never changed afterwards.
    """

    def __init__(self, profile: CostModel | None = None, runner: Runner = THREADS) -> None:
        """A source that the profile does not know is learned, as everything is without a profile."""
        self._lock = runner.lock()
        self._compute = _FollowingCompute(None if profile is None else profile.compute)
        self._sources = {name: _FollowingSource(cost) for name, cost in (profile.sources if profile else {}).items()}
        self._known: _Known | None = None  # None: something has changed since
        self._together = 0.0  # the logarithm

    def now(self) -> CostModel | None:
        """The costs to plan with; None while computing is of unknown cost. A source is in it once its cost is known."""
        return self._look().model

    @property
    def compute(self) -> ComputeCost | None:
        """None while unknown."""
        return self._look().compute

    @property
    def compute_at_worst(self) -> ComputeCost | None:
        """What it may cost, by what forwards have shown: as much as they vary, and as much as they leave open of what
        is fixed, as far as that has not been refuted by restores that compute and load at once, and has been tried of
        late. Known when `compute` is."""
        return self._look().compute_at_worst

    @property
    def sources(self) -> Mapping[str, SourceCost]:
        """Those that are known."""
        return self._look().sources

    @property
    def together(self) -> float:
        """How many times its estimate a restore that computes and loads at once takes, by what the last ones took.

        What each costs alone is known of each; this is what they cost each other: the processors that both need, a
        forward more, a device that is busy with others. From 1 to `MOST_TOGETHER`.
        """
        return math.exp(self._together)

    def restored_together(self, estimated_seconds: float, real_seconds: float | None) -> None:
        """A restore has ended that was to compute and load at once. `real_seconds`: None where it met with what the
        estimate did not know of, as with nonsense: then nothing is learned but that doubts remain."""
        with self._lock:
            self._known = None
            if real_seconds is None or not (0 < estimated_seconds < math.inf and 0 < real_seconds < math.inf):
                self._compute.doubt = 1.0
                return
            ratio = real_seconds / estimated_seconds
            self._compute.doubt = self._compute.doubt * DOUBT_REFUTED if ratio <= AS_ESTIMATED else 1.0
            seen = min(max(math.log(ratio), 0.0), math.log(MOST_TOGETHER))
            self._together += (seen - self._together) / 2

    def restored_by_one(self) -> None:
        """A restore has ended that was not to compute and load at once."""
        with self._lock:
            self._together *= BELIEF_KEPT
            self._compute.doubt *= DOUBT_KEPT
            self._known = None

    @property
    def factors(self) -> Mapping[str, float]:
        """How far each is off its profile, or off what was learned of it: "compute", and sources by name, all of them
        known. 1 is as estimated, 2 twice as slow."""
        with self._lock:
            parts: dict[str, _Following[ComputeCost, ForwardSample] | _Following[SourceCost, LoadSample]]
            parts = {"compute": self._compute, **self._sources}
            return {name: part.factor for name, part in parts.items() if part.cost() is not None}

    def computed(self, spans: Sequence[tuple[int, int]], seconds: float) -> None:
        """One forward over tokens `[start, end)` of each of some prompts took `seconds`. Nonsense is left out."""
        if not (spans and all(0 <= start < end for start, end in spans) and 0 < seconds < math.inf):
            return
        tokens, pairs = sum(end - start for start, end in spans), sum(end**2 - start**2 for start, end in spans)
        sample = ForwardSample(tokens, pairs, seconds)
        # Lengths and starts of one power of two are of a kind; of several prompts, their starts on average.
        starts = sum(start * (end - start) for start, end in spans) // tokens
        kind = (tokens.bit_length(), starts.bit_length())
        with self._lock:
            if is_shortest(sample):
                self._compute.shortest(seconds)
            else:
                self._compute.observe(kind, sample)
            self._known = None

    def loaded(self, source: str, nbytes: int, seconds: float, *, begun: bool = True) -> None:
        """`source` has brought `nbytes` and nothing else in `seconds`: since it was asked, or, if it was not `begun`
        with, since it had brought what it was asked for before. Nonsense is left out."""
        if not (nbytes > 0 and 0 < seconds < math.inf):
            return
        with self._lock:
            following = self._sources.get(source)
            if following is None:
                following = self._sources[source] = _FollowingSource(None)
            following.observe((nbytes.bit_length(), begun), LoadSample(nbytes, seconds, begun))
            self._known = None

    def _look(self) -> _Known:
        known = self._known
        if known is not None:
            return known
        with self._lock:
            compute = self._compute.cost()
            found = {name: following.cost() for name, following in self._sources.items()}
            sources = {name: cost for name, cost in found.items() if cost is not None}
            model = None if compute is None else CostModel(compute=compute, sources=sources)
            self._known = _Known(compute, self._compute.at_worst(), sources, model)
            return self._known


def _learn_compute(samples: Sequence[ForwardSample]) -> ComputeCost | None:
    return None if len(samples) < ENOUGH_FORWARDS else fit_compute(samples)


def _learn_source(samples: Sequence[LoadSample]) -> SourceCost | None:
    return None if len(samples) < ENOUGH_LOADS else fit_source(samples)


class TimedLink(LinkCounters, counts=True):
    """The way from host memory to the device. Counted by one thread; any may ask what a page takes.

    The first copies say it by the quickest of them: nothing makes a copy quicker than copies are. Then each corrects
    what was believed before, within the bounds of a `Correction`: after one in which everything stood still a page is
    believed to take twice as long at most. What is not known exactly says nothing.
    """

    page_seconds: float = math.inf  # by the copies that were timed
    pages_timed: int = 0

    def count(self, pages: int, nbytes: int, seconds: float, *, exact: bool = True) -> None:
        super().count(pages, nbytes, seconds)
        if not exact or pages <= 0 or seconds <= 0:
            return
        if self.pages_timed < PAGES_TIMED:
            self.page_seconds = min(self.page_seconds, seconds / pages)
        else:
            # A few pages say little: what is the same for each copy is most of what theirs takes.
            correction = Correction(1 - 0.5 ** min(1.0, pages / PAGES_TIMED))
            correction.observe(self.page_seconds, seconds / pages)
            self.page_seconds *= correction.factor
        self.pages_timed += pages

    def copying(self) -> float | None:
        """What a page takes, seconds; None: too few have been copied."""
        return self.page_seconds if self.pages_timed >= PAGES_TIMED else None
