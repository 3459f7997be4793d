"""The door of the remote tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec
import numpy as np

from ...base.config import PolicyConfig, RemoteConfig
from ...base.errors import ConfigError
from ...base.events import EventLog
from ...base.page import HeldPages, PageGeometry, page_digest
from ...base.runner import THREADS, Runner
from ...base.token_bucket import TokenBucket
from ...base.units import format_size
from ...figures.counters import LinkCounters
from ...table.policy import AdmissionPolicy, AdmitAlways, AdmitLongPrefixes, AdmitOnReuse
from ..tier import Chain, Read, Tier, Write
from .breaker import BreakerState
from .engine import OpenEngine
from .objects import ObjectNames, ObjectShape
from .reads import RemotePlace, RunSearch, WantedPage
from .rumours import RunKey
from .worker import FORGET_ARRIVED, RemoteWorker

#: Tokens of a run: what is asked for by one name.
RUN_TOKENS = 512
#: Objects that arrival memory holds at least.
FEWEST_SLOTS = 4
#: Runs that wait to be written: those of a few of the longest prompts that there are, of which one use offers all. One
#: takes 200 bytes; what has left host memory meanwhile is looked at once, and left out.
MOST_QUEUED_RUNS = 4096


class RemoteSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the remote tier has counted, and how its engine is, at one moment."""

    ready: bool  # the engine can be asked
    unopened: str  # why the last life of the child ended before it was ready; empty: it did not
    breaker: str  # "closed", "open", "trying"
    lives: int  # of the child, begun
    lookups: int  # questions
    lookups_late: int  # not answered within the deadline
    found_pages: int  # that a question found
    late: int  # questions, reads and writes that missed their deadline
    errors: int  # those that the engine answered with an error
    absent: int  # objects that were not there, though their run's last one was
    bad: int  # objects that were not what they should be


def arrival_slots(config: RemoteConfig, stride: int | None = None) -> int:
    """Objects that arrival memory holds. `stride`: bytes of one, see `ObjectShape`; None: the model is not known yet.
    Raises ConfigError where they are too few."""
    fewest = FEWEST_SLOTS
    if stride is None:
        # Pages of a small model fill less of an object than it may have: what is refused now would be for any.
        stride, fewest = int(config.object), 1
    slots = int(config.memory) // stride
    if slots < fewest:
        raise ConfigError(
            f"remote.memory: {format_size(config.memory)} is less than {fewest} object(s) of {format_size(stride)}; "
            "make it larger, or remote.object smaller"
        )
    return slots


def object_shape(geometry: PageGeometry, config: RemoteConfig, run_tokens: int = RUN_TOKENS) -> ObjectShape:
    """How pages of this geometry lie in objects. `run_tokens`: smaller for tests."""
    return ObjectShape.of(geometry.page_bytes, geometry.tokens, int(config.object), run_tokens)


class RemoteTier(Tier):
    """Pages in an engine that other servers use as well. All that is known of them is hearsay: they are found by
    asking, verified when they have come, and nothing is ever counted on that lies there.

    Nothing waits for the engine. Answers come on the thread "swift-remote", no later than their deadline and what one
    round of it takes.
    """

    name = "remote"
    hints = True
    most_queued = MOST_QUEUED_RUNS

    def __init__(
        self,
        shape: ObjectShape,
        config: RemoteConfig,
        open_engine: OpenEngine,
        *,
        page_tokens: int,
        read_seconds: float,
        scope: str = "",
        secret: bytes = b"",
        writes: bool = True,
        probes: bool = False,
        fingerprint: Callable[[np.ndarray], bytes] = page_digest,
        events: EventLog | None = None,
        runner: Runner = THREADS,
    ) -> None:
        """`shape`: see `object_shape`; `page_tokens`: tokens of a page. `read_seconds`: after which a read is given up.
        `scope`, `secret`: see `ObjectNames`. `writes`: whether this server writes at all. `probes`: what a read
        takes is found out before anybody waits for one; see `CostProbe`. `fingerprint`: the checksum of a page, as the
        stack has it. `events`: where lives of the engine are told."""
        self.shape = shape
        self.together = self.shape.run
        self.granule = self.shape.pages
        self.writes_in_flight = 2 * self.shape.run
        self._config = config
        self._page_tokens = page_tokens
        self._writes = writes and config.admission != "never"
        self._lookup_seconds = float(config.lookup_deadline)
        self._read_seconds = read_seconds
        self._clock = runner.monotonic
        self._throttle = TokenBucket(float(config.throttle)) if config.throttle is not None else None
        self._worker = RemoteWorker(
            self.shape,
            ObjectNames(self.shape, scope, secret),
            open_engine,
            runner=runner,
            trial_seconds={"exists": self._lookup_seconds, "get": read_seconds},
            throttle=self._throttle,
            fingerprint=fingerprint,
            events=events,
            probes=probes,
            writes=self._writes,
        )

    def throttle(self, bytes_per_second: float) -> bool:
        """Slow the link to the engine down to this rate from now on; False where it was not opened to be throttled. Any
        thread."""
        if self._throttle is not None:
            self._throttle.bytes_per_second = bytes_per_second
        return self._throttle is not None

    def tell_costs(self, loaded: Callable[[int, float], None]) -> None:
        self._worker.loaded = loaded

    def answer_within(self, answers: AbstractContextManager[object]) -> None:
        super().answer_within(answers)
        self._worker.answers = answers

    def admission(self, policy: PolicyConfig, tokens_per_page: int) -> AdmissionPolicy:
        if self._config.admission == "reuse":
            return AdmitOnReuse(policy.admission_uses)
        if self._config.admission == "size":
            return AdmitLongPrefixes(-(-policy.admission_tokens // tokens_per_page))
        return AdmitAlways()

    # ---- room: the engine's own business ----

    @property
    def capacity_bytes(self) -> int:
        """Nobody here knows."""
        return 0

    def takes(self, length: int) -> bool:
        return self._writes and length <= self.shape.page_bytes and self._worker.line.takes

    def reserve(self, lengths: Sequence[int]) -> list[Any]:
        return []

    def release(self, places: Sequence[RemotePlace]) -> None:
        """A hint is given up."""

    # ---- what it has ----

    def asks(self, depth: int, pages: int) -> bool:
        run = self.shape.run
        return (
            self._worker.line.open
            and (depth + pages) // run > depth // run
            and pages * self._page_tokens >= self._config.min_tokens
        )

    def find(self, chain: Chain, done: Callable[[list[Any]], None]) -> None:
        self._worker.put(RunSearch(chain, done, self._clock() + self._lookup_seconds))

    def lacks(self, namespace: bytes, key: bytes) -> bool:
        return self._worker.rumours.lacks(RunKey(namespace, key))

    # ---- bytes ----

    def write(self, writes: Sequence[Write]) -> None:
        run = self.shape.run
        if len(writes) != run or any(write.record.depth % run != at % run for at, write in enumerate(writes, 1)):
            raise ValueError(f"what is written together is {run} pages, in order, in depths up to a multiple of that")
        self._worker.put(writes)

    def read(self, reads: Sequence[Read]) -> None:
        until = self._clock() + self._read_seconds
        self._worker.put([WantedPage(read, read.copy.place, until) for read in reads])

    def forget_arrived(self) -> None:
        with suppress(RuntimeError):  # closed: nothing is left
            self._worker.put(FORGET_ARRIVED)

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._worker.links

    # ---- telling ----

    def snapshot(self) -> RemoteSnapshot:
        """What has been counted, and how the engine is."""
        line = self._worker.line
        return RemoteSnapshot(
            ready=line.ready, unopened=line.unopened, breaker=line.breaker.state.value, **self._worker.counts
        )

    def details(self) -> dict[str, Any]:
        said = self.snapshot()
        asked = said.ready and said.breaker == BreakerState.CLOSED.value
        if said.ready:
            word = "asked" if asked else "not asked"
        else:
            word = "cannot be opened" if said.unopened else "starting"
        return {
            "remote_engine": word,
            "remote_engine_asked": int(asked),
            "remote_questions": said.lookups,
            "remote_late": said.late,
            "remote_errors": said.errors,
            "remote_lost": said.absent,
            "remote_bad": said.bad,
        }

    def close(self, held: Iterable[HeldPages] | None = None, timeout: float | None = None) -> None:
        """What is being written is given up. Idempotent."""
        self._worker.close()
