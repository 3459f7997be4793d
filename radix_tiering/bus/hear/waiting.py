"""Waiting for what others say on the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...base.runner import THREADS, Runner

#: Between two looks, seconds.
POLL_SECONDS = 0.05

Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], seconds: float, runner: Runner = THREADS) -> Found | None:
    """What `look` finds, looking once at least; None if that is nothing for so long."""
    end = runner.monotonic() + seconds
    while True:
        found = look()
        if found is not None or runner.monotonic() >= end:
            return found
        runner.sleep(POLL_SECONDS)
