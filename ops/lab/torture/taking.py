"""A device that takes a request's pages piece by piece as they land, as SGLang's side does: a model with real bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.errors import NotHeldError
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore

from .stacks import GEOMETRY, content, device_digests, page_at

#: A round of the scheduler, and one copy of a page within the device take up to so long, virtual seconds.
ROUND_SECONDS, COPY_SECONDS = 2e-4, 1e-4
#: A request is done within so many rounds, whatever happens.
MOST_ROUNDS = 20_000


class KnownCosts:
    """Computing takes long, so that pages are loaded; a way through host memory would take long, too."""

    compute = compute_at_worst = ComputeCost(fixed_seconds=1e-3, token_seconds=1e-2, pair_seconds=0.0)
    together = 1.0

    def __init__(self, seconds_each: float = 1e-3, page: int = GEOMETRY.page_bytes) -> None:
        """`seconds_each`: what a page takes from lent memory; `page`: its bytes."""
        self.sources = {
            "host": SourceCost(latency_seconds=0.0, bytes_per_second=page / 1e-2),
            "peer": SourceCost(latency_seconds=0.0, bytes_per_second=page / seconds_each),
        }


class How(Enum):
    """How a request has ended."""

    WHOLE = "it has all of its pages"
    ABORTED = "it was aborted"


class Taking:
    """One request after the other is followed by the device, as SGLang follows one in chunks; each has a thread."""

    def __init__(self, stack: TierStack, runner: Runner, draw: random.Random) -> None:
        self.stack = stack
        self.computed = 0  # pages
        self.copied = 0  # pages, from anywhere
        self.failed = 0  # copies
        self.withdrawn = 0  # copies
        #: Part of copies that fail, and of those that are withdrawn before they begin: their request is aborted.
        self.fails = self.withdraws = 0.0
        #: ... and of looks at those that wait in which other ranks say that they do not take pages as they land.
        self.refuses = 0.0
        #: What happens between having a copy queued and taking its pages; some time passes then.
        self.meanwhile: Callable[[], None] | None = None
        self._runner = runner
        self._draw = draw
        self._followed = runner.lock()
        #: Whether what is copied is compared by what the device says of it.
        self.by_device = False

    def serve(self, keys: Sequence[bytes], until: float = math.inf) -> How:
        """A request for these pages, from its arrival on, or until this moment of the runner's clock: then it is
        aborted."""
        restore = self.stack.restore(keys, can_compute=True)
        try:
            while (readiness := self.stack.restorer.poll(restore)) is Readiness.WAIT:
                if self._runner.monotonic() > until:
                    return How.ABORTED
                self._pause()
            if readiness is Readiness.READY:
                return self._admitted(restore, keys)
            with self._followed:
                return self._followed_through(restore, keys, until)
        finally:
            self.stack.restorer.release(restore)

    def _admitted(self, restore: Restore, keys: Sequence[bytes]) -> How:
        memory: dict[int, np.ndarray] = {}
        promised = self.stack.restorer.present(restore, 0)
        if not self._copy(restore, keys, memory, 0, promised):
            return How.ABORTED
        self.computed += len(keys) - promised
        return How.WHOLE

    def _followed_through(self, restore: Restore, keys: Sequence[bytes], until: float) -> How:
        restorer, memory = self.stack.restorer, dict[int, np.ndarray]()
        front, begun, put_off, pages = 0, False, False, len(restore.flight)
        copies: list[Any] = []  # under way
        results: list[bool] = []
        rounds = 0
        try:
            while front < pages:
                rounds += 1
                assert rounds < MOST_ROUNDS, f"it never ends: {front} of {pages} pages, {self._state(restore)}"
                if self._runner.monotonic() > until:
                    return How.ABORTED
                if not begun and self.refuses and self._draw.random() < self.refuses:
                    restorer.refuse_draining(restore)
                if not begun and restorer.poll(restore) is Readiness.WAIT:
                    self._pause()
                    continue
                promised = front if begun else restorer.present(restore, front)
                if promised == pages and not begun:  # the rest has come meanwhile
                    return self._admitted(restore, keys)
                step = restorer.step(restore, promised)
                # What is left may have come since it was looked for: then it waits for the next look, once.
                goes_on = begun or step.end > (promised if put_off else step.jump)
                put_off = put_off or step.end > promised
                jump = step.jump if begun else promised
                step = Step(jump, max(jump, step.end))
                copy: Any = None
                if jump > front and goes_on:
                    first, count = front, jump - front
                    if self._draw.random() < self.withdraws:
                        restorer.places(restore, first, jump)
                        restorer.copies(restore, first, count)
                        self.withdrawn += 1
                        return How.ABORTED  # before anything of it was copied
                    copy = self._prepared(restore, memory, first, count, results)
                    if self.meanwhile is not None:
                        self.meanwhile()
                        self._pause()
                if goes_on:
                    restorer.take(restore, step)
                    begun = True
                    if copy is not None:
                        copies.append(copy)
                        copy.start()
                    self._compute(keys, memory, step.jump, step.end)
                    front = step.end
                if not all(results):
                    return How.ABORTED
                self._pause()
        except NotHeldError:
            return How.ABORTED  # what was to be copied has been flushed
        finally:
            for thread in copies:
                thread.join()
        if not all(results):
            return How.ABORTED
        restorer.split(restore)
        for unit, key in enumerate(keys[:pages]):
            assert np.array_equal(memory[unit], content(key)), f"wrong bytes in page {unit}"
        return How.WHOLE

    def _state(self, restore: Restore) -> str:
        return f"{restore.flight.states().hex()}, {sorted(restore.copying)} are copied, drains: {restore.drains}"

    def _compute(self, keys: Sequence[bytes], memory: dict[int, np.ndarray], first: int, end: int) -> None:
        for unit in range(first, end):
            self._runner.sleep(self._draw.random() * ROUND_SECONDS)
            memory[unit] = content(keys[unit]).copy()
        self.computed += end - first

    def _prepared(
        self, restore: Restore, memory: dict[int, np.ndarray], first: int, count: int, results: list[bool]
    ) -> Any:
        """A thread that copies them, as "swift-load" does beside the scheduler's: it is started once they are taken."""
        places = self.stack.restorer.places(restore, first, first + count).numbers.tolist()
        self.stack.restorer.copies(restore, first, count)

        def copy() -> None:
            results.append(self._copy_places(restore, memory, first, places))

        return self._runner.thread(copy, "swift-load")

    def _copy(
        self, restore: Restore, keys: Sequence[bytes], memory: dict[int, np.ndarray], first: int, count: int
    ) -> bool:
        try:
            places = self.stack.restorer.places(restore, first, first + count).numbers.tolist()
        except NotHeldError:
            return False
        self.stack.restorer.copies(restore, first, count)
        if not self._copy_places(restore, memory, first, places):
            return False
        for unit in range(first, first + count):
            assert np.array_equal(memory[unit], content(keys[unit])), f"wrong bytes in page {unit}"
        return True

    def _copy_places(self, restore: Restore, memory: dict[int, np.ndarray], first: int, places: Sequence[int]) -> bool:
        verified = self.stack.restorer.verifier.verified(restore, first, places, by_device=self.by_device)
        for unit, place in enumerate(places, first):
            self._runner.sleep(self._draw.random() * COPY_SECONDS)
            memory[unit] = page_at(self.stack, place).copy()
            if self._draw.random() < self.fails:
                self.failed += 1
                return False
        copied = [memory[unit] for unit in range(first, first + len(places))]
        verified(device_digests(copied) if self.by_device else None)
        self.copied += len(places)
        self.stack.restorer.copied(restore, first, len(places))
        return True

    def _pause(self) -> None:
        self._runner.sleep(self._draw.random() * ROUND_SECONDS)
