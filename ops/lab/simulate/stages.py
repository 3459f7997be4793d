"""A prefix restored on a pipeline of GPUs, each of which has some of the layers (CacheFlow, section 3.2).

Every stage has a device, a source and two pointers of its own. To compute a chunk it needs what the stage before it
hands over: either that stage computes it, or it was stored as a boundary activation and is loaded like a page.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from ...base.devices.curve import Curve
from .devices.clock import Clock
from .devices.lines import Line
from .devices.restoring import (
    RECOMPUTE,
    SWIFT_TIERS,
    TWO_POINTERS,
    Request,
    Restoration,
    Server,
    Setup,
)
from .runs import REMOTE, setup_for

#: Chunks whose boundary activations are asked for ahead of the compute pointer.
AHEAD = 2


class Inputs(Enum):
    """Where a stage has its inputs from."""

    STORED = "boundary activations"  # the third dimension
    CHUNK_BY_CHUNK = "the stage before, chunk by chunk"
    WHOLE = "the stage before, when it is done"


class Stages:
    """One prefix on `stages` GPUs of a kind. Every stage loads its own layers' KV through a line of its own."""

    def __init__(
        self,
        curve: Curve,
        stages: int,
        bytes_per_second: float,
        chunk_tokens: int,
        inputs: Inputs,
        *,
        loads: bool = True,
    ) -> None:
        self._clock = Clock()
        self._inputs = inputs
        self._chunk = chunk_tokens
        self._activation_bytes = curve.model.activation_bytes
        part = msgspec.structs.replace(curve, share=curve.share / stages)
        whole = setup_for(part, bytes_per_second, 0.0, chunk_tokens, 32_768)
        self._setup: Setup = msgspec.structs.replace(
            whole, token_bytes=whole.token_bytes // stages, layers=whole.layers // stages, forward_tokens=chunk_tokens
        )
        self._lines = [Line(self._clock, bytes_per_second) for _ in range(stages)]
        self._asked = [0] * stages  # tokens whose activations have been asked for
        self._here = [0] * stages  # tokens whose activations are there
        self._restorations: list[Restoration] = []
        # A stage that waits for another cannot tell when it will get to a page, so it loads what it can.
        method = RECOMPUTE if not loads else SWIFT_TIERS if inputs is Inputs.STORED else TWO_POINTERS
        self._servers = [
            Server(
                self._clock, part, {REMOTE: line}, self._setup, method, gate=self._gate(stage),
                progress=self._progress(stage),
            )
            for stage, line in enumerate(self._lines)
        ]  # fmt: skip

    def restore(self, tokens: int) -> float:
        """Seconds until every stage has its part of a prefix of so many tokens."""
        pages = tokens // self._setup.page_tokens
        for stage, server in enumerate(self._servers):
            self._restorations.append(
                server.submit(Request(arrival=0.0, prefix=pages * self._setup.page_tokens, new=0), [REMOTE] * pages)
            )
            self._ask_ahead(stage)
        self._clock.run()
        return max(one.restored or float("inf") for one in self._restorations)

    def _gate(self, stage: int) -> Callable[[], int] | None:
        if stage == 0:
            return None

        def pages() -> int:
            if self._inputs is Inputs.STORED:
                return self._here[stage] // self._setup.page_tokens
            before = self._restorations[stage - 1]
            if self._inputs is Inputs.WHOLE and before.restored is None:
                return 0
            return before.computed

        return pages

    def _progress(self, stage: int) -> Callable[[], None]:
        def computed() -> None:
            self._ask_ahead(stage)
            if stage + 1 < len(self._servers):
                # When this stage's own books are done.
                self._clock.after(0.0, self._servers[stage + 1].wake)

        return computed

    def _ask_ahead(self, stage: int) -> None:
        if stage == 0 or self._inputs is not Inputs.STORED:
            return
        one = self._restorations[stage]
        computed = one.computed * self._setup.page_tokens
        while self._asked[stage] < min(one.request.prefix, computed + AHEAD * self._chunk):
            tokens = min(self._chunk, one.request.prefix - self._asked[stage])
            self._asked[stage] += tokens
            self._lines[stage].send(tokens * self._activation_bytes, self._arrival(stage, tokens))

    def _arrival(self, stage: int, tokens: int) -> Callable[[], None]:
        def arrived() -> None:
            self._here[stage] += tokens
            self._servers[stage].wake()

        return arrived
