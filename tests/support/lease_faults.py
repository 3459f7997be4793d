"""What goes wrong in a simulated world of donors and borrowers: drawn from a seed, or listed by a test."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

#: How long things go wrong, seconds of true time. A lease's term is 2 s.
CHAOS_SECONDS = 10.0
#: The clocks' rates are within `1 - DRIFT` and `1 + DRIFT`.
DRIFT = 0.05


class Fault(NamedTuple):
    """One thing that goes wrong, or one wish of a server. `length` in seconds; what `amount` is depends on the kind."""

    at: float
    kind: str
    #: A process, or with "cut", "lossy", "slow" and "twice" also "*": every connection.
    target: str
    length: float
    amount: float


class Shape(NamedTuple):
    """How large a world is."""

    donors: int
    borrowers: int
    blocks: int  # of memory, each donor's
    #: Whether a donor can cut off a borrower's mapping. Then borrowers write into lent memory themselves.
    revocable: bool


#: Kinds whose target is a donor, a borrower, or either.
OF_DONORS = ("withdraw", "limit", "recall")
OF_BORROWERS = ("want", "drop", "leave")
OF_ALL = ("stop", "crash", "rate", "cut", "lossy", "slow", "twice")


def draw_shape(random: Random) -> Shape:
    return Shape(random.choice((1, 1, 2, 3)), random.choice((1, 2, 2, 3)), random.randint(1, 5), random.random() < 0.5)


def draw_faults(random: Random, shape: Shape, kinds: Sequence[str] = ()) -> list[Fault]:
    """A dozen or two of these kinds. Without any: some worlds only lose letters, some only stop processes, ..."""
    if not kinds:
        kinds = [*random.sample(OF_ALL, random.randint(1, len(OF_ALL))), *OF_DONORS, *OF_BORROWERS]
    faults = []
    for _ in range(random.randint(4, 20)):
        kind = random.choice(kinds)
        faults.append(make_fault(kind, shape, random.random(), random.random(), random.random(), random.random()))
    return sorted(faults)


def make_fault(kind: str, shape: Shape, at: float, target: float, length: float, amount: float) -> Fault:
    """From four numbers in [0, 1), so that a test may draw them as it likes."""
    donors = [f"d{number}" for number in range(shape.donors)]
    borrowers = [f"b{number}" for number in range(shape.borrowers)]
    targets = donors if kind in OF_DONORS else borrowers if kind in OF_BORROWERS else donors + borrowers
    if kind in ("cut", "lossy", "slow", "twice"):
        targets = [*targets, "*", "*"]
    # Mostly shorter than a lease, sometimes much longer.
    seconds = 8.0 * length**3
    return Fault(at * CHAOS_SECONDS, kind, targets[int(target * len(targets))], seconds, amount)
