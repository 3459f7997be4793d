"""Python's collector of reference cycles, in a process that is a console and nothing else."""

from __future__ import annotations

import gc

#: After so many new objects that are still there the youngest are searched; of ten such searches one goes further.
#: What a look brings is freed without a search, as soon as the next one has come.
NEW_OBJECTS, OFTEN = 50_000, 10


def settle() -> None:
    """What is there now, mostly code, is there until the end: it is not searched any more.

    Otherwise a search of everything comes every few seconds and takes 50 ms, during which no key is answered. It is a
    setting of the process: for its command, once the first look is on the screen.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, OFTEN, OFTEN)
