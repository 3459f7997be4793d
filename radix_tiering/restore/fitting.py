"""From timed forwards and loads to costs, and how well the costs explain them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec
import numpy as np
from msgspec import Meta

from .cost import Amount, ComputeCost, SourceCost

#: Nobody times forwards better than to this part of what they take, however well a fit goes through a few of them.
TIMING_ERROR = 0.02
#: Loads of sizes that lie closer together than this factor do not tell latency from bandwidth.
TELLING_SIZES = 2.0
#: A forward over fewer tokens tells what one takes at least, not what chunks cost.
SHORTEST_FORWARD = 32

_Positive = Annotated[float, Meta(gt=0)]


class Computed(Protocol):
    """A sample of computing: so many tokens in so many seconds, in forwards one after the other."""

    @property
    def tokens(self) -> int: ...

    @property
    def pairs(self) -> int:
        """Of each of these tokens with all before it, twice: the sum of (end^2 - start^2) over its prompts."""

    @property
    def seconds(self) -> float: ...

    @property
    def forwards(self) -> int: ...


class ComputeSample(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of one prompt took so many seconds to compute, all before them being there."""

    start: int
    end: int
    seconds: _Positive
    forwards: int = 1  # that it was done in, one after the other

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def pairs(self) -> int:
        return self.end**2 - self.start**2


class ForwardSample(msgspec.Struct, frozen=True):
    """One forward over tokens of one prompt, or of several at once."""

    tokens: int
    pairs: int
    seconds: _Positive
    forwards: int = 1


class LoadSample(msgspec.Struct, frozen=True):
    """What a source has brought, and in what time, while it brought nothing else."""

    nbytes: int
    seconds: _Positive
    begun: bool = True  # from when it was asked; else from when it had brought what it was asked for before


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """How far a cost is off the samples it was fitted to: |estimated / real - 1|."""

    samples: int
    median: Amount
    worst: Amount


def fit_compute(samples: Sequence[Computed]) -> ComputeCost:
    """The cost that explains the samples best, in the sense of relative error, with no negative term.

    Relative, because samples span three orders of magnitude and a plan for a short prefix must be as good as one for a
    long one. Where samples cannot tell terms apart, tokens are taken to be what costs. The shortest forwards say what
    one takes at least, and nothing else, where there are longer ones. Raises ValueError without samples, or if one of
    them took no time.
    """
    long = [one for one in samples if not is_shortest(one)] or samples
    terms = _nonnegative_fit(_compute_rows(long), [one.seconds for one in long])
    least = min((one.seconds for one in samples if is_shortest(one)), default=0.0) if long is not samples else 0.0
    return ComputeCost(fixed_seconds=terms[1], token_seconds=terms[0], pair_seconds=terms[2], least_seconds=least)


def is_shortest(sample: Computed) -> bool:
    """Whether reading the weights is about all that it does: that costs less than what is fixed in a chunk's forward on
    some devices, and more on others."""
    return sample.forwards == 1 and sample.tokens < SHORTEST_FORWARD


def most_fixed_seconds(cost: ComputeCost, samples: Sequence[Computed]) -> float:
    """What the fixed part of a forward may be, where `cost` was fitted to these samples: two standard errors more, but
    not more than the quickest of them took, and not less than `cost` says.

    Forwards of much the same length say little about what is fixed in them, and that is what every further forward of
    a plan costs. Raises ValueError without samples.
    """
    real = np.array([one.seconds / one.forwards for one in samples])
    estimates = np.array([_compute_seconds(cost, one) for one in samples])
    if not len(real):
        raise ValueError("without samples nothing is known of what is fixed")
    design = np.array(_compute_rows(samples), dtype=float) / estimates[:, None]
    scale = design.max(axis=0)
    design /= scale
    off = np.array([one.seconds for one in samples]) / estimates - 1
    variance = max(TIMING_ERROR**2, float(np.square(off).sum()) / max(1, len(samples) - design.shape[1]))
    # A trace of a ridge: what the samples cannot tell apart at all gets an error that is large, not infinite.
    covariance = variance * np.linalg.inv(design.T @ design + 1e-9 * np.eye(design.shape[1]))
    error = float(np.sqrt(covariance[1, 1]) / scale[1])
    return max(cost.fixed_seconds, min(cost.fixed_seconds + 2 * error, float(real.min())))


def fit_source(samples: Sequence[LoadSample]) -> SourceCost:
    """Likewise for one source. Raises ValueError without samples, or if one of them took no time or moved nothing.

    Where all loads are of about one size, and were begun alike, bandwidth is taken to be what costs: to take it for
    latency would make a load of ten times the size look free.
    """
    sizes = [one.nbytes for one in samples]
    if min(sizes, default=1) < 1:
        raise ValueError("a load that moved nothing says nothing about bandwidth")
    alike = max(sizes, default=1) < TELLING_SIZES * min(sizes, default=1) and len({one.begun for one in samples}) < 2
    rows = [[one.nbytes] if alike else [one.nbytes, float(one.begun)] for one in samples]
    per_byte, latency = [*_nonnegative_fit(rows, [one.seconds for one in samples]), 0.0][:2]
    # Latency alone explains the samples: all that is known of the bandwidth is that it was never in the way.
    fastest = max(one.nbytes / one.seconds for one in samples)
    return SourceCost(latency_seconds=latency, bytes_per_second=1 / per_byte if per_byte > 0 else fastest)


def compute_residuals(cost: ComputeCost, samples: Sequence[Computed]) -> Residuals:
    """Raises ValueError without samples."""
    return _residuals([_compute_seconds(cost, one) for one in samples], [one.seconds for one in samples])


def source_residuals(cost: SourceCost, samples: Sequence[LoadSample]) -> Residuals:
    """Raises ValueError without samples."""
    return _residuals([load_seconds(cost, one) for one in samples], [one.seconds for one in samples])


def load_seconds(cost: SourceCost, sample: LoadSample) -> float:
    """What a source of this cost takes for what was sampled."""
    return cost.seconds(sample.nbytes) - (0.0 if sample.begun else cost.latency_seconds)


def _compute_rows(samples: Sequence[Computed]) -> list[list[float]]:
    """What each costs by the token, by the forward and by the pair."""
    return [[one.tokens, one.forwards, one.pairs] for one in samples]


def _compute_seconds(cost: ComputeCost, sample: Computed) -> float:
    return cost.of(sample.tokens, sample.pairs) + cost.fixed_seconds * (sample.forwards - 1)


def _residuals(estimates: Sequence[float], seconds: Sequence[float]) -> Residuals:
    if not seconds:
        raise ValueError("without samples there is nothing to be off")
    errors = [abs(estimate / real - 1) for estimate, real in zip(estimates, seconds, strict=True)]
    return Residuals(samples=len(errors), median=statistics.median(errors), worst=max(errors))


def _nonnegative_fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Least squares of relative errors with non-negative terms, by trying every set of terms that are not zero.

    Among sets that explain the samples alike, the one of fewer terms wins, then the one of earlier columns.
    """
    times = np.asarray(seconds, dtype=float)
    if not len(times) or (times <= 0).any():
        raise ValueError("a cost is fitted to at least one sample, each of which took some time")
    weighted = np.asarray(rows, dtype=float) / times[:, None]
    scale = np.abs(weighted).max(axis=0)  # columns differ by many orders of magnitude
    scale[scale == 0] = 1.0
    weighted /= scale
    columns = weighted.shape[1]
    # Normal equations: exact enough for costs, and several times as quick as a decomposition for each set.
    products, sums = weighted.T @ weighted, weighted.sum(axis=0)
    best, least = np.zeros(columns), np.inf
    for count in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), count):
            part = list(chosen)
            try:
                solution = np.linalg.solve(products[np.ix_(part, part)], sums[part])
            except np.linalg.LinAlgError:
                continue  # these terms cannot be told apart: fewer explain as much
            if (solution < 0).any():
                continue
            error = float(np.square(weighted[:, part] @ solution - 1).sum())
            if error < least - 1e-12:
                best, least = np.zeros(columns), error
                best[part] = solution / scale[part]
    return [float(term) for term in best]
