"""Python's collector of reference cycles, in a process that is a console and nothing else."""

from __future__ import annotations

import gc

#: Objects that may be new since the last search before they are searched all the same, which takes about 5 ms; after so
#: many such searches one goes further.
MOST_NEW, OFTEN = 20_000, 20


class Collector:
    """Searches while nobody presses a key. It changes settings of the process: for its command, not for the class.

    Searching everything takes 50 ms, came every few seconds and was a third of what the console took of a core. What
    looks bring is freed without a search, as soon as the next one has come.
    """

    def __init__(self) -> None:
        self._settled = False

    def rest(self) -> None:
        """Called again and again, when there is time. At the first, what is there is mostly code and is there until the
        end: it is not searched any more."""
        gc.collect()
        if not self._settled:
            self._settled = True
            gc.freeze()
            gc.set_threshold(MOST_NEW, OFTEN, OFTEN)
