"""An engine of the remote tier as commands use it: one question after the other, each waited for."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from swift_tiers.radix_tiering.base.config import RemoteConfig
from swift_tiers.radix_tiering.tiers.remote.child_engine import ChildEngine
from swift_tiers.radix_tiering.tiers.remote.engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, Verb
from swift_tiers.sglang_ext.build.remote_side import DRIVER

from .errors import CommandError


class EngineAnswered(NamedTuple):
    """What a question came to."""

    done: Sequence[bool]
    seconds: float


class WaitedEngine:
    """As the server has it: in a child, over slots. Raises CommandError where it cannot be opened, or ends, or does not
    answer."""

    def __init__(self, config: RemoteConfig, slots: int, stride: int, seconds: float) -> None:
        """`seconds`: that opening it, and each answer, may take."""
        assert config.engine is not None
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._seconds = seconds
        self._number = 0
        began = time.perf_counter()
        self._engine = ChildEngine(DRIVER, config.engine, config.options, slots, stride, self._events.put)
        try:
            self._next("it is not ready")
        except BaseException:
            self._engine.end()
            raise
        self.opened_seconds = time.perf_counter() - began

    @property
    def memory(self) -> np.ndarray:
        """uint8 [slots, stride]."""
        return self._engine.memory

    def ask(self, verb: Verb, names: Sequence[str], slots: Sequence[int] = ()) -> EngineAnswered:
        self._number += 1
        began = time.perf_counter()
        self._engine.ask(EngineJob(self._number, verb, names, slots))
        event = self._next(f"{verb}: no answer")
        assert isinstance(event, EngineAnswer)
        return EngineAnswered(event.done, time.perf_counter() - began)

    def _next(self, problem: str) -> Any:
        try:
            event = self._events.get(timeout=self._seconds)
        except queue.Empty:
            raise CommandError(f"{problem} within {self._seconds:.0f} s") from None
        if isinstance(event, EngineGone):
            raise CommandError(event.reason)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.end()
