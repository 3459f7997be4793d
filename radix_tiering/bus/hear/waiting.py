"""Waiting for what others say on the bus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Between two looks, seconds.
POLL_SECONDS = 0.05

Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], seconds: float) -> Found | None:
    """What `look` finds, looking once at least; None if that is nothing for so long."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None or time.monotonic() >= end:
            return found
        time.sleep(POLL_SECONDS)
