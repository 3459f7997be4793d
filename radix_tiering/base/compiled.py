"""Compiling what is done to many things at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_told: list[str] = []


def compiled(signature: str, *, nogil: bool = False) -> Callable[[Kernel], Kernel]:
    """A function that Python calls, compiled for these types when its module is first imported on a machine, and loaded
    later: what is kept on disk is compared with that module's file. `nogil`: it runs without the interpreter lock."""

    def compile_it(function: Kernel) -> Kernel:
        try:
            made: Any = numba.njit(signature, cache=True, nogil=nogil)(function)
        except RuntimeError as error:  # neither beside its file nor in the user's home
            if "cannot cache" not in str(error):
                raise
            _tell("swift-tiers: compiling, at every start: %s; set NUMBA_CACHE_DIR", error)
            made = numba.njit(signature, nogil=nogil)(function)
        else:
            if not made.stats.cache_hits:
                _tell("swift-tiers: compiling for half a minute, as on every machine once")
        kernel: Kernel = made
        return kernel

    return compile_it


def _tell(text: str, *facts: object) -> None:
    """Log it, once."""
    if not _told:
        _told.append(text)
        logger.info(text, *facts)
