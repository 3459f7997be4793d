"""Ranks that wait for each other, each in a process and a virtual time of its own.

A rank meets the others in each collective of SGLang's and at the end of each step. All have to come to the same
meeting; who comes late there is waited for, so that all of them go on at the time of the last one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

#: How long a rank may take to come to the next meeting, seconds as they are: a guard against hanging.
PATIENCE = 300.0
#: What is made of what the ranks say.
REDUCES: dict[str, Callable[[Iterable[int]], int]] = {"MIN": min, "MAX": max, "SUM": sum}


class Meets(NamedTuple):
    """A rank has come to a meeting."""

    what: str  # the same on all ranks
    operation: str  # one of `REDUCES`
    values: list[int]
    now: float  # by its clock, virtual seconds
    told: list[str]  # what it did since the last one


class Over(NamedTuple):
    """A rank has come to its end."""

    steps: int
    happened: dict[str, int]
    told: list[str]  # what it did since the last meeting
    complaint: str = ""  # why, where it failed
    trace: str = ""


class Together(NamedTuple):
    """What a meeting has come to."""

    values: list[int]
    now: float  # of the last one that came


class OutOfStepError(AssertionError):
    """Ranks came to different meetings, or one is over while others wait: the server would hang."""


class RankFailedError(AssertionError):
    """A rank came to a bad end; its traceback is in the text."""


def lead(ranks: Sequence[Connection], history: list[str]) -> list[Over]:
    """Let the ranks meet until all are over; what they said last. `history`: takes what they tell.

    Raises OutOfStepError, and RankFailedError for the first of them that failed.
    """
    while True:
        said = [_next(rank, number) for number, rank in enumerate(ranks)]
        history += sorted(line for one in said for line in one.told)
        for number, one in enumerate(said):
            if isinstance(one, Over) and one.complaint:
                raise RankFailedError(f"rank {number}: {one.complaint}\n{one.trace}") from None
        over = [one for one in said if isinstance(one, Over)]
        if len(over) == len(ranks):
            return over
        meets = [one for one in said if isinstance(one, Meets)]
        if over or len({(one.what, one.operation, len(one.values)) for one in meets}) > 1:
            raise OutOfStepError("ranks do not do the same: " + "; ".join(map(_words, said)))
        values = [REDUCES[meets[0].operation](column) for column in zip(*(one.values for one in meets), strict=True)]
        together = Together(values, max(one.now for one in meets))
        for rank in ranks:
            rank.send(together)


def _next(rank: Connection, number: int) -> Meets | Over:
    if not wait([rank], PATIENCE):
        raise OutOfStepError(f"rank {number} comes to no meeting")
    try:
        said: Meets | Over = rank.recv()
    except EOFError:
        raise RankFailedError(f"rank {number}: its process has died") from None
    return said


def _words(said: Meets | Over) -> str:
    return "is over" if isinstance(said, Over) else f"{said.what} ({said.operation} of {len(said.values)})"


class Lockstep:
    """One rank's side."""

    def __init__(self, others: Connection, runner: Any, history: list[str]) -> None:
        """`history`: what the rank tells; it is passed on, and taken out."""
        self._others = others
        self._runner = runner
        self._history = history

    def meet(self, what: str, operation: str = "MIN", values: Sequence[int] = ()) -> list[int]:
        """Wait for the other ranks there; what was made of the values of all of them."""
        self._others.send(Meets(what, operation, list(values), self._runner.now, self._history[:]))
        self._history.clear()
        together: Together = self._others.recv()
        late = together.now - self._runner.now
        if late > 0:
            self._runner.sleep(late)
        return together.values

    def all_reduce(self, tensor: Any, op: Any) -> None:
        """As SGLang's `_all_reduce_attn_groups`."""
        name = str(op).rpartition(".")[2]
        asks = sys._getframe(1).f_code.co_name
        tensor.copy_(
            torch.tensor(self.meet(f"a collective in {asks}", name, tensor.flatten().tolist())).view_as(tensor)
        )
