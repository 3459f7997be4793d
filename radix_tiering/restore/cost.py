"""What recomputing and loading cost: the model behind every restore plan (CacheFlow, section 3.1).

Recomputing `n` tokens after `s` that are there already: a fixed part (launches, weights read once), a part for each
token, and a part for each pair of a token with one before it, which is what attention adds:

    T_comp(s, s + n) = fixed + linear * n + quadratic * ((s + n)^2 - s^2)

Loading `b` bytes from one source: its latency, and b / bandwidth. Sources work side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np


class ComputeCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of recomputation on one device with one model. No term is negative."""

    fixed_seconds: float  # of one forward, whatever its length
    token_seconds: float
    pair_seconds: float  # of (end^2 - start^2)

    def seconds(self, start: int, end: int) -> float:
        """One forward over tokens `[start, end)`, all before them being there; 0 for none."""
        if end <= start:
            return 0.0
        return self.fixed_seconds + self.token_seconds * (end - start) + self.pair_seconds * (end**2 - start**2)

    def scaled(self, factor: float) -> ComputeCost:
        """The same device, `factor` times as slow."""
        return ComputeCost(
            fixed_seconds=self.fixed_seconds * factor,
            token_seconds=self.token_seconds * factor,
            pair_seconds=self.pair_seconds * factor,
        )


class SourceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of loading from one source."""

    latency_seconds: float  # until the first byte
    bytes_per_second: float

    def seconds(self, nbytes: float) -> float:
        """0 for nothing."""
        return self.latency_seconds + nbytes / self.bytes_per_second if nbytes else 0.0

    def scaled(self, factor: float) -> SourceCost:
        """The same source, `factor` times as slow."""
        return SourceCost(
            latency_seconds=self.latency_seconds * factor, bytes_per_second=self.bytes_per_second / factor
        )


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one machine. Saved as JSON by `swift-tiers profile`."""

    compute: ComputeCost
    sources: dict[str, SourceCost]  # by tier, or by device of a tier: "peer", "host", "ssd", ...


class ComputeSample(msgspec.Struct, frozen=True):
    """One forward that was timed: tokens `[start, end)` took so many seconds."""

    start: int
    end: int
    seconds: float


class LoadSample(msgspec.Struct, frozen=True):
    """One load that was timed."""

    nbytes: int
    seconds: float


def fit_compute(samples: Sequence[ComputeSample]) -> ComputeCost:
    """The cost that explains the samples best, in the sense of relative error, with no negative term.

    Relative, because samples span three orders of magnitude and a plan for a short prefix must be as good as one for a
    long one. Raises ValueError without samples, or if one of them took no time.
    """
    rows = np.array([[1.0, one.end - one.start, one.end**2 - one.start**2] for one in samples], dtype=float)
    terms = _nonnegative_fit(rows, [one.seconds for one in samples])
    return ComputeCost(fixed_seconds=terms[0], token_seconds=terms[1], pair_seconds=terms[2])


def fit_source(samples: Sequence[LoadSample]) -> SourceCost:
    """Likewise for one source. Raises ValueError without samples, or if one of them took no time or moved nothing."""
    if any(one.nbytes < 1 for one in samples):
        raise ValueError("a load that moved nothing says nothing about bandwidth")
    rows = np.array([[1.0, one.nbytes] for one in samples], dtype=float)
    latency, per_byte = _nonnegative_fit(rows, [one.seconds for one in samples])
    # Latency alone explains the samples: all that is known of the bandwidth is that it was never in the way.
    fastest = max(one.nbytes / one.seconds for one in samples)
    return SourceCost(latency_seconds=latency, bytes_per_second=1 / per_byte if per_byte > 0 else fastest)


def _nonnegative_fit(rows: np.ndarray, seconds: Sequence[float]) -> list[float]:
    """Least squares of relative errors with non-negative terms, by trying every set of terms that are not zero."""
    times = np.asarray(seconds, dtype=float)
    if not len(times) or (times <= 0).any():
        raise ValueError("a cost is fitted to at least one sample, each of which took some time")
    weighted = rows / times[:, None]
    scale = np.abs(weighted).max(axis=0)  # columns differ by many orders of magnitude
    scale[scale == 0] = 1.0
    columns = rows.shape[1]
    best, least = np.zeros(columns), np.inf
    for count in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), count):
            part = list(chosen)
            solution, *_ = np.linalg.lstsq(weighted[:, part] / scale[part], np.ones(len(times)), rcond=None)
            if (solution < 0).any():
                continue
            error = float(np.square(weighted[:, part] @ (solution / scale[part]) - 1).sum())
            if error < least - 1e-12:
                best, least = np.zeros(columns), error
                best[part] = solution / scale[part]
    return [float(term) for term in best]


class Correction:
    """How far reality is off an estimate, as a factor: an average that forgets (EWMA), within bounds.

    1 means as estimated, 2 twice as slow. Averaged are logarithms, so that twice as slow and twice as fast weigh the
    same. Not thread-safe.
    """

    #: No source is believed to be further off its profile than this; a mistake of one sample can do no more harm.
    BOUND = 32.0

    def __init__(self, weight: float = 0.4) -> None:
        """`weight` of the newest sample: 0.4 moves nine tenths of the way to a new speed within five samples."""
        if not 0 < weight <= 1:
            raise ValueError(f"a weight lies above 0 and is at most 1, unlike {weight}")
        self._weight = weight
        self._log = 0.0

    @property
    def factor(self) -> float:
        return float(np.exp(self._log))

    def observe(self, estimated_seconds: float, real_seconds: float) -> None:
        """What `estimated_seconds` was the profile's uncorrected word for took `real_seconds`."""
        if estimated_seconds <= 0 or real_seconds <= 0:
            return
        bound = float(np.log(self.BOUND))
        sample = float(np.clip(np.log(real_seconds / estimated_seconds), -bound, bound))
        self._log += self._weight * (sample - self._log)


class LiveCosts:
    """A profile, and what has become of it since: one correction for compute and one for each source.

    Not thread-safe; `now()` is an immutable copy that may go anywhere.
    """

    def __init__(self, profile: CostModel, weight: float = 0.4) -> None:
        self._profile = profile
        self._compute = Correction(weight)
        self._sources = {name: Correction(weight) for name in profile.sources}

    def now(self) -> CostModel:
        """The costs to plan with."""
        return CostModel(
            compute=self._profile.compute.scaled(self._compute.factor),
            sources={name: source.scaled(self._sources[name].factor) for name, source in self._profile.sources.items()},
        )

    @property
    def factors(self) -> Mapping[str, float]:
        """How far each is off its profile: "compute", and sources by name."""
        return {"compute": self._compute.factor, **{name: one.factor for name, one in self._sources.items()}}

    def computed(self, start: int, end: int, seconds: float) -> None:
        self._compute.observe(self._profile.compute.seconds(start, end), seconds)

    def loaded(self, source: str, nbytes: int, seconds: float) -> None:
        """Raises KeyError for a source without a profile."""
        self._sources[source].observe(self._profile.sources[source].seconds(nbytes), seconds)
