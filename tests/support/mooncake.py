"""A real Mooncake Store over TCP, and servers' tier stacks over it: the real driver in its real child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.demo.store import LocalStore, check_library
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.tiers.remote import ChildEngine, RemoteTier
from swift_tiers.radix_tiering.tiers.tier import Chain, Read, ReadOutcome
from swift_tiers.sglang_ext.build.remote_side import DRIVER

from support.engine import GEOMETRY, make_stack
from support.remote import SHAPE, remote_config

LOOKUP_SECONDS, READ_SECONDS = 0.02, 1.0
#: A child imports SGLang first.
START_SECONDS = 300.0
#: Slots of its slab: fewer than the objects of the chains that tests use, so that what has come is read again.
SLOTS = 8


def skip_without_library() -> None:
    """Skips a test where Mooncake Store is not installed, and says what is missing."""
    try:
        check_library()
    except CommandError as error:
        pytest.skip(str(error))


@contextmanager
def local_store(folder: Path, **options: Any) -> Iterator[LocalStore]:
    """Two nodes, and a master that takes one for dead after two seconds, and lets objects go soon."""
    flags = ["--client_ttl=2", "--default_kv_lease_ttl=500"]
    with LocalStore(folder, options.pop("node_bytes", 32 << 20), nodes=options.pop("nodes", 2), flags=flags) as store:
        yield store


class TimedTier(RemoteTier):
    """Notes how much later than its deadline each answer comes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lateness: list[float] = []

    def find(self, chain: Chain, done: Callable[[list[Any]], None]) -> None:
        until = time.monotonic() + self._lookup_seconds

        def told(places: list[Any]) -> None:
            self.lateness.append(time.monotonic() - until)
            done(places)

        super().find(chain, told)

    def read(self, reads: Sequence[Read]) -> None:
        until = time.monotonic() + self._read_seconds

        def told(read: Read, outcome: ReadOutcome) -> None:
            self.lateness.append(time.monotonic() - until)
            read.done(outcome)

        super().read([read._replace(done=partial(told, read)) for read in reads])


class StoreServer:
    """The tiers of a server: host memory, and the store."""

    def __init__(self, store: LocalStore, **config: Any) -> None:
        self.children: list[ChildEngine] = []

        def open_engine(tell: Callable[[Any], None]) -> ChildEngine:
            self.children.append(ChildEngine(DRIVER, "mooncake", store.options, SLOTS, SHAPE.stride, tell))
            return self.children[-1]

        self.events = EventLog(THREADS.time)
        self.tier = TimedTier(
            SHAPE,
            remote_config(lookup_deadline=Duration(LOOKUP_SECONDS), **config),
            open_engine,
            page_tokens=GEOMETRY.tokens,
            read_seconds=READ_SECONDS,
            events=self.events,
        )
        self.stack = make_stack(64, clock=time.monotonic, others=[self.tier], events=self.events)

    @property
    def counts(self) -> Any:
        return self.tier.snapshot()

    def wait_ready(self) -> None:
        assert wait_for(lambda: self.counts.ready or None, START_SECONDS), "the child is never ready"

    def wait_asked(self) -> None:
        """Until the engine is asked again."""
        asked = wait_for(lambda: (self.counts.ready and self.counts.breaker == "closed") or None, START_SECONDS)
        assert asked, "the engine is never asked again"


class Timers:
    """How late this machine, busy with other things, wakes up whoever waits for a moment: a thread finds out."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="timers")

    def _look(self) -> None:
        while not self._over.is_set():
            until = time.monotonic() + LOOKUP_SECONDS
            self._over.wait(LOOKUP_SECONDS)
            self.worst = max(self.worst, time.monotonic() - until)

    def __enter__(self) -> Timers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def allow(self, servers: Iterable[StoreServer]) -> None:
        """No answer has come later than its deadline and 20 ms, beyond what the machine itself was late."""
        for server in servers:
            worst = max(server.tier.lateness, default=0.0)
            assert worst <= 0.02 + self.worst, f"an answer came {worst:.3f} s late; a timer, {self.worst:.3f} s"
