"""One pipeline stage restores its part of a prefix alone: it asks no other stage for anything (CacheFlow, section 3.2).

    RESTORING --(all pages are on the device)--> DONE
        |-------(a page can neither be loaded nor computed here)--> STUCK
        '-------(close)--> CLOSED

It moves as a model that is not split does (`Restorer.step`): over pages whose KV has arrived, then a chunk that it
computes, from boundary pages instead of from the prompt. A page whose activations cannot be had is loaded instead; with
KV missing as well the stage is STUCK, and the stages together have to compute from the least `restored` of them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from ..restore.flight import Step
from ..stack import TierStack
from ..table.held_page import Places
from ..way.request_restore import Readiness
from .boundary_inputs import BoundaryInputs


class StageState(Enum):
    RESTORING = auto()
    DONE = auto()
    STUCK = auto()
    CLOSED = auto()


class Move(NamedTuple):
    """Of the pages of the prefix, `[front, jump)` are to be copied to the device, and `[jump, end)` computed behind."""

    front: int
    jump: int
    end: int


class StageRestore:
    """See the module. Used by the thread that drives the stage's device: `next_move`, do it, `moved`, and again."""

    def __init__(self, kv: TierStack, boundary: TierStack | None, keys: Sequence[bytes]) -> None:
        """`keys`: of all pages of the prefix, of which the device has none. `kv` and `boundary` hold them in both
        kinds; None for the first stage, which computes from the prompt."""
        self.state = StageState.RESTORING
        self.restored = 0  # pages from the start that the device has
        self._keys = keys
        self._stack = kv
        self._chunk = kv.planner.chunk
        self._inputs = None if boundary is None else BoundaryInputs(boundary, keys, self._chunk)
        self._kv = kv.restore(keys, can_compute=True)
        self._begun = not keys
        self._places = Places.none()  # of the pages that the last move copies
        if not keys:
            self._end(StageState.DONE)

    def next_move(self) -> Move | None:
        """What the device should do next; None: nothing yet, or ever if the state is another than RESTORING.

        Does not wait. What it says stays possible until it is told to have been `moved`.
        """
        if self.state is not StageState.RESTORING:
            return None
        if not self._begun and self._stack.restorer.poll(self._kv) is Readiness.WAIT:
            return None
        self._begun = True
        front, claimed = self.restored, len(self._kv.flight)
        if front < claimed:
            step = self._stack.restorer.step(self._kv, front)
        else:
            step = Step(front, min(front + self._chunk, len(self._keys)))
        move = Move(front, step.jump, step.jump + self._computable(step))
        if move.end == front:
            return None
        if front < claimed:
            self._places = self._stack.restorer.places(self._kv, front, move.jump)
            self._stack.restorer.take(self._kv, Step(move.jump, move.end))
        return move

    def kv_slots(self, move: Move) -> np.ndarray:
        """Where the pages that the last move copies lie in the host memory of the KV's stack: int64."""
        return self._places.numbers[: move.jump - move.front]

    def boundary_slots(self, move: Move) -> np.ndarray:
        """Where the activations of the pages to be computed lie in the host memory of theirs: int64; not for the first
        stage."""
        assert self._inputs is not None, "the first stage computes from the prompt"
        return self._inputs.slots(move.jump, move.end)

    def moved(self, move: Move, copy_seconds: float = 0.0) -> None:
        """The device has done it; copying took so long."""
        if move.jump > move.front:
            pages = move.jump - move.front
            self._stack.restorer.count_load(self._kv, move.front, pages, copy_seconds, failed=False)
        self.restored = move.end
        if self._inputs is not None:
            self._inputs.passed(move.end)
        if move.end == len(self._keys):
            self._stack.restorer.split(self._kv)
            self._end(StageState.DONE)

    def close(self) -> None:
        """Give back what is claimed, whatever has become of it. Idempotent."""
        if self.state is StageState.RESTORING:
            self._end(StageState.CLOSED)

    def _computable(self, step: Step) -> int:
        """Pages from `step.jump` on that can be computed now."""
        if step.end == step.jump or self._inputs is None:
            return step.end - step.jump
        available = self._inputs.available(step.jump, step.end)
        if available == 0 and not self._load_instead(step) and step.jump == self.restored:
            self._end(StageState.STUCK)
        return available or 0

    def _load_instead(self, step: Step) -> bool:
        """Load KV up to the end of `step` before anything else; False if its first page cannot be loaded."""
        flight = self._kv.flight
        with self._stack.table.lock:
            if step.jump >= len(flight) or flight.source(step.jump) is None:
                return False
            # The next step holds there, and the source is told.
            flight.steer(max(flight.lead, step.end), self._stack.planner.island())
        return True

    def _end(self, state: StageState) -> None:
        self.state = state
        self._stack.restorer.release(self._kv)
        if self._inputs is not None:
            self._inputs.close()
