"""One restore by layers: computed from the bottom, copied to the device from the top (CacheFlow, section 3.1).

The units of its flight are layers. The device computes them upwards for all of its tokens, one at a time, since each
needs the one below; beginning when every page lies in host memory, another thread copies them downwards. Where both
meet, every layer is there. A layer is never copied and computed at once. Copying may begin late, end early, or never
come to anything: then computing goes on to the top, which is what would have happened without it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base.runner import THREADS, Runner
from .flight import Flight, Step, Unit
from .planner import HERE

#: How often a wait for a layer looks whether the copying thread still lives, seconds.
WATCHDOG_SECONDS = 1.0


class LayerCourse:
    """The two pointers. `next_load`, `landed` and `failed` are for the thread that copies, the others for the one that
    drives the device; in a test both may be one."""

    def __init__(self, layers: int, alive: Callable[[], bool] = lambda: True, runner: Runner = THREADS) -> None:
        """`alive()`: whether the copying thread lives; a layer is not waited for that will never land."""
        self._flight = Flight([HERE] * layers)
        self._alive = alive
        self._changed = runner.condition()
        self._reason = ""

    @property
    def computed(self) -> int:
        """Layers from the bottom that were computed, or are now."""
        return self._flight.front

    @property
    def layers(self) -> int:
        return len(self._flight)

    @property
    def reason(self) -> str:
        """Why nothing more is copied; empty if nothing has gone wrong."""
        return self._reason

    # ---- upwards ----

    def to_compute(self) -> int:
        """How many layers have to be computed, from the bottom, as things are; `computed` if none is left.

        The next layer is not copied from now on. One that is being copied already is waited for.
        """
        with self._changed:
            self._flight.computed()
            front = self._flight.front
            while front < len(self._flight) and self._flight[front] is Unit.LOADING:
                if not self._changed.wait(WATCHDOG_SECONDS) and not self._alive():
                    self._give_up("the thread that copies has died")
            self._flight.reserve(front + 1)
            top = len(self._flight)
            while top > front and self._flight[top - 1] is Unit.PRESENT:
                top -= 1
            return top

    def compute(self) -> int:
        """The device computes the next layer, which `to_compute` has been asked about; its number. It may be there
        already, where other ranks have got less far."""
        with self._changed:
            front = self._flight.front
            self._flight.take(Step(front, front + 1))
            return front

    def close(self, reason: str = "") -> None:
        """Nothing more is copied, and nothing is being copied when this returns. Idempotent."""
        with self._changed:
            self._flight.reserve(len(self._flight))
            while self._flight.loading:
                if not self._changed.wait(WATCHDOG_SECONDS) and not self._alive():
                    self._give_up("the thread that copies has died")
            self._give_up(reason)

    # ---- downwards ----

    def next_load(self) -> int | None:
        """The layer to copy next; None if both have met, or no more is to be copied."""
        with self._changed:
            units = self._flight.next_load(HERE)
            if not units:
                return None
            self._flight.take_load(units)
            return units.start

    def landed(self, layer: int) -> None:
        """The device can use it."""
        with self._changed:
            self._flight.arrived(layer)
            self._changed.notify_all()

    def failed(self, reason: str) -> None:
        """What is being copied will not land; nothing more is copied."""
        with self._changed:
            self._give_up(reason)
            self._changed.notify_all()

    def _give_up(self, reason: str) -> None:
        self._flight.abandon_source(HERE)
        self._reason = self._reason or reason
