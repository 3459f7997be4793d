"""Nothing of ours may raise on SGLang's scheduler thread: any exception there ends the server."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from swift_tiers.radix_tiering.base.repeats import FaultLogger

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _nobody() -> None:
    """Nobody needs to know."""


def never_raises(
    default: Callable[[], Result],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """For methods of an object with a `stack`: an exception becomes `default()`, a log line and an event. Where the
    object has a `failed`, that is called."""

    def decorate(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(method)
        def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                stack = args[0].stack  # type: ignore[attr-defined]
                # On the scheduler's thread the same may fail in every step.
                rare_logger: FaultLogger = vars(stack).setdefault("_fault_logger", FaultLogger(logger))
                rare_logger.exception(f"swift-tiers: {method.__name__} failed; going on without the tiers")
                stack.events.emit("linker.error", where=method.__name__, error=repr(error))
                getattr(args[0], "failed", _nobody)()
                return default()

        return guarded

    return decorate
