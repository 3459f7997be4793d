"""Python's garbage collector, which looks at every page in each full collection, while all threads stand still.

Pages are no garbage while they are held, and are freed at once when they are not: nothing in them refers back. So what
has survived one full collection need not be looked at again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

#: So many more pages than before are worth a look less. What is frozen with them, and becomes garbage in a cycle later,
#: is never freed: some requests' worth for hundreds of gigabytes of KV.
PAGES = 100_000


class Garbage:
    """Has the collector leave alone what is there, as pages come in. Collections, and so this, run on any thread."""

    def __init__(self, pages: Callable[[], int], freeze: Callable[[], None] = gc.freeze) -> None:
        """`pages()`: how many are held. What was there at the start is left alone from now on."""
        self._pages = pages
        self._freeze = freeze
        gc.collect()
        self._settle()
        gc.callbacks.append(self._collected)

    def _settle(self) -> None:
        self._freeze()
        self._frozen = self._pages()

    def _collected(self, phase: str, details: dict[str, int]) -> None:
        """What is left after a full collection is no garbage."""
        if phase == "stop" and details["generation"] == 2:
            self._frozen = min(self._frozen, self._pages())
            if self._pages() - self._frozen >= PAGES:
                self._settle()

    def end(self) -> None:
        """Leave nothing alone any more. Idempotent."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
            gc.unfreeze()
