"""A `StepScheduler` in a process of its own, so that each test module can have one with other arguments.

A test sends it a function of its own module by name; the function gets the scheduler and runs there. What it raises
is raised here, with its traceback.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from .forked import CONTEXT, become, call_by_path, start
from .redis import free_port

START_SECONDS = 180


def _serve(
    connection: Connection, arguments: list[str], environment: dict[str, str], prepare: str, rank: int | None
) -> None:
    def resolved() -> None:
        if rank is not None:  # the others are to find devices that nobody holds yet
            connection.send((0, "resolved", None))
            connection.recv()

    become(environment)
    # SGLang ends its process group on some errors; the tests' own must not be hit.
    os.setpgrp()
    try:
        from swift_tiers.ops.lab.torture.ranks.scheduler import StepScheduler

        call_by_path(prepare)
        from .router import listening

        scheduler = StepScheduler(listening(arguments), rank or 0, resolved)
        _watch(scheduler)
        connection.send((0, "ready", None))
    except BaseException:  # noqa: BLE001 - told to the other side
        connection.send((0, "failed", traceback.format_exc()))
        return
    while (job := connection.recv()) is not None:
        number, path, name, values = job
        try:
            spec = importlib.util.spec_from_file_location("scheduler_test_module", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            answer = getattr(module, name)(scheduler, *values)
            _assert_watched(scheduler)
            connection.send((number, "done", answer))
        except BaseException:  # noqa: BLE001 - told to the other side
            connection.send((number, "failed", traceback.format_exc()))
    scheduler.scheduler.release_host_resources()


#: Turns of the scheduler's loop from one map of the device to the next.
TURNS_A_MAP = 5


def _watch(scheduler: Any) -> None:
    """Whatever a test does with requests is looked at as a server with a bus looks at it, in each turn of the loop; and
    a router hears of it."""
    from swift_tiers.sglang_ext.tell import device_map
    from swift_tiers.sglang_ext.tell.sampler import Sampler

    from .router import router_of

    scheduler.router = router_of(scheduler.scheduler)
    cache = scheduler.scheduler.tree_cache
    if getattr(cache, "sampler", cache) is not None:
        return
    cache.sampler = sampler = Sampler(scheduler.scheduler, scheduler.linker, 0.0)
    turns, tick = itertools.count(), sampler.tick

    def watched() -> None:
        tick()
        if next(turns) % TURNS_A_MAP == 0:
            device_map.completed(device_map.capture(scheduler.scheduler, scheduler.linker, walk=True))

    sampler.tick = watched


def _assert_watched(scheduler: Any) -> None:
    from swift_tiers.sglang_ext.tell.kv_events import KvEvents
    from swift_tiers.sglang_ext.tell.sampler import Sampler

    from .router import assert_known

    if scheduler.router is not None:
        assert_known(scheduler.router, scheduler.scheduler)
    if (linker := getattr(scheduler, "linker", None)) is not None:
        failed = [event.fields for event in linker.stack.events.since() if event.kind == "linker.error"]
        of_watched = [one for one in failed if hasattr(Sampler, one["where"]) or hasattr(KvEvents, one["where"])]
        assert all("injected" in one["error"] for one in of_watched), failed


class SchedulerProcess:
    """Start with SGLang's arguments; use as a context manager. `prepare`: functions that are called there before
    anything else, see `call_by_path`. `rank`: of several, which are made at once by `SchedulerRanks`. `fresh`: it
    imports SGLang itself, since `prepare` changes what SGLang's modules take from each other."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str] | None = None,
        prepare: str = "",
        *,
        rank: int | None = None,
        fresh: bool = False,
    ) -> None:
        whole = {**os.environ, **(environment or {})}
        self._connection, theirs = CONTEXT.Pipe()
        self._asked = 0  # so often
        context = multiprocessing.get_context("spawn") if fresh else CONTEXT
        self._process = context.Process(target=_serve, args=(theirs, arguments, whole, prepare, rank), daemon=True)
        if fresh:
            self._process.start()
        else:
            start(self._process, whole)
        theirs.close()
        if rank is None:
            self.await_start()

    def await_start(self) -> None:
        self._receive(START_SECONDS)

    def go_on(self) -> None:
        """Of a rank, of which all have resolved their arguments."""
        self._connection.send(None)

    def __call__(self, function: Callable[..., Any], *values: Any, timeout: float = 280) -> Any:
        """Run `function(scheduler, *values)` there; its result, or its exception as an AssertionError."""
        self.ask(function, *values)
        return self.answer(timeout)

    def ask(self, function: Callable[..., Any], *values: Any) -> None:
        """Begin to; `answer` follows."""
        self._asked += 1
        self._connection.send((self._asked, inspect.getfile(function), function.__name__, values))

    def answer(self, timeout: float = 280) -> Any:
        return self._receive(timeout)

    def _receive(self, timeout: float) -> Any:
        number = -1
        while number != self._asked:  # whoever asked before may have been ended while it waited
            if not self._connection.poll(timeout):
                self.kill()
                raise AssertionError(f"the scheduler gave no answer within {timeout} s")
            try:
                number, outcome, value = self._connection.recv()
            except EOFError:
                raise AssertionError(f"the scheduler's process died (exit code {self._process.exitcode})") from None
        if outcome == "failed":
            raise AssertionError(f"in the scheduler's process:\n{value}")
        return value

    def close(self) -> None:
        if self._process.is_alive():
            self._connection.send(None)
            self._process.join(30)
        self.kill()

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def __enter__(self) -> SchedulerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SchedulerRanks:
    """The schedulers of a server with `--tp-size`, a process each, that take the same steps; a context manager."""

    def __init__(
        self,
        ranks: int,
        arguments: list[str],
        environment: dict[str, str] | None = None,
        prepare: str = "",
        *,
        fresh: bool = False,
        each: Sequence[Sequence[str]] = (),
    ) -> None:
        """`each`: more arguments for each of them, as machines may have that are told different things."""
        # Ranks meet there many seconds from now.
        all_of_them = [*arguments, "--tp-size", str(ranks), "--dist-init-addr", f"127.0.0.1:{free_port()}"]
        cores = sorted(os.sched_getaffinity(0))
        threads = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))}
        self.ranks = [
            SchedulerProcess(
                [*all_of_them, *(each[rank] if each else ())],
                {**threads, **(environment or {})},
                prepare,
                rank=rank,
                fresh=fresh,
            )
            for rank in range(ranks)
        ]

    def __call__(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        """What `function(scheduler, *values)` gives on each."""
        for rank in self.ranks:
            rank.ask(function, *values)
        return [rank.answer() for rank in self.ranks]

    def __enter__(self) -> SchedulerRanks:
        try:
            for rank in self.ranks:
                rank.await_start()  # to be resolved
            for rank in self.ranks:
                rank.go_on()
            for rank in self.ranks:
                rank.await_start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
