"""Copies into the device: batches of requests, layer by layer, on the thread "swift-load"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter

from swift_tiers.kernels.copy_queue import QueueMark
from swift_tiers.radix_tiering.base.runner import Runner, Thread
from swift_tiers.radix_tiering.restore.layers import LayerCourse
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import Places
from swift_tiers.radix_tiering.way.request_restore import Restore

from ..pools.device_pool import DevicePool, reached, wait_for
from ..tell.on_the_way import OnTheWay
from .request import TieredRequest

logger = logging.getLogger(__name__)

#: How often a wait for a layer looks whether the loading thread still lives, seconds.
WATCHDOG_SECONDS = 1.0


class WatchedLoadCounter(LayerWiseLoadCounter):
    """SGLang's layer counter, except that a wait ends when the loading thread has died.

    The stock counter waits without a limit, so a dead thread would hang the server for good.

    A layer on an accelerator is complete with a mark: the forward's stream waits for it there, while the thread that
    launches the forward goes on.
    """

    def __init__(self, num_layers: int, first: int, alive: Callable[[], bool], runner: Runner) -> None:
        """`first`: so many layers have states, and no KV, in front of all others. They are waited for before a forward
        begins: SGLang captures those of some models in a graph, which asks for nothing when it is replayed."""
        super().__init__(num_layers)
        self._first = first
        self._alive = alive
        self._changed = runner.condition()  # some future is done
        self._over: dict[int, Future[None]] = {}
        self._awaited: set[int] = set()  # batches of which some forward has waited for a layer

    def update_producer(self) -> int:
        index: int = super().update_producer()
        self._over[index] = Future()
        return index

    def complete(self, index: int, layer: int, mark: QueueMark | None = None) -> None:
        """The layer may be read, if there is a mark by whatever begins after it."""
        with self._changed:
            self.futures[index][layer].set_result(mark)
            self._changed.notify_all()

    def end(self, index: int) -> None:
        """Nothing is copied for the batch any more."""
        with self._changed:
            self._over[index].set_result(None)
            self._changed.notify_all()

    def fail(self, index: int, error: BaseException) -> None:
        with self._changed:
            super().fail(index, error)
            over = self._over.get(index)
            if over is not None and not over.done():
                over.set_exception(error)
            self._changed.notify_all()

    def set_consumer(self, index: int) -> None:
        super().set_consumer(index)
        if self._first:
            self.wait_until(self._first - 1)

    def wait_until(self, threshold: int) -> None:
        futures = self.futures.get(self.consumer_index)
        if futures is not None:
            self._awaited.add(self.consumer_index)
            self._watch(self.consumer_index, futures[threshold])
            if futures[threshold].exception() is None and (mark := futures[threshold].result()) is not None:
                mark.wait()
        super().wait_until(threshold)

    def was_awaited(self, index: int) -> bool:
        """Whether a forward has waited for a layer of the batch, before it is finished."""
        return index in self._awaited

    def is_due(self, index: int) -> bool:
        """Whether somebody waits for the batch yet: it was not given up when the loading thread had died."""
        with self._changed:
            over = self._over.get(index)
            return over is not None and not over.done()

    def is_over(self, index: int) -> bool:
        """Whether nothing is copied for the batch any more, or would be, as the loading thread has died."""
        over = self._over.get(index)
        return over is None or over.done() or not self._alive()

    def finish(self, index: int) -> bool:
        """Wait until nothing is copied for the batch any more; True when every layer of it has landed."""
        self._awaited.discard(index)
        if index in self._over:
            self._watch(index, self._over[index])
            ended = self._over.pop(index).exception() is None
            return super().finish(index) and ended
        landed: bool = super().finish(index)
        return landed

    def reset(self) -> None:
        super().reset()
        self._over.clear()
        self._awaited.clear()

    def _watch(self, index: int, future: Future[Any]) -> None:
        while not future.done():
            with self._changed:
                there = self._changed.wait_for(future.done, WATCHDOG_SECONDS)
            if not there and not self._alive():
                self.fail(index, RuntimeError("the loading thread has died"))


class StateLoad(NamedTuple):
    """The state behind the promised pages of one request, into private slots."""

    first: int  # of its pages in the restore
    places: Places  # where they lie
    rows: OnTheWay  # int64, those that SGLang has for it: of a window its last ones, where the device has the others


class Load(NamedTuple):
    """The promised pages of one request, into its private device slots."""

    request: TieredRequest | None  # None: it could not be queued, and fails with its batch
    restore: Restore | None  # the request's, as long as it is copied
    first: int  # of the restore's pages, from 0
    places: Places  # where they lie
    rows: OnTheWay  # of the device pool: int64 [pages * page_size]
    state: StateLoad | None = None  # where the model keeps one


class LayerLoad(NamedTuple):
    """The upper layers of the pages of one request, into slots of its own whose lower layers are being computed."""

    course: LayerCourse
    places: Places  # where they lie
    rows: OnTheWay  # of the device pool: int64 [pages * page_size]
    ready: list[Any]  # events after which the device slots may be written


class Loader:
    """A batch is one index of `counter`; its layers complete in order. Layers from the top come for one request."""

    def __init__(self, pool: DevicePool, stack: TierStack, *, ready: Callable[[], list[Any]]) -> None:
        """`ready()`: events after which the device slots of a batch that begins now may be written."""
        self._ready = ready
        self._pool = pool
        self._stack = stack
        self._runner = stack.runner
        self._jobs = self._runner.queue()  # of batches (index, loads, events), of layers, and None at the end
        #: Rows of the pool that are to be copied to, by the index of a batch, or less than 0 for layers.
        self._under_way: dict[int, list[OnTheWay]] = {}
        first = len(pool.begin_with) if pool.states is not None and not pool.states.windows else 0
        self.counter = WatchedLoadCounter(pool.model_layers, first, lambda: self._thread.is_alive(), self._runner)
        self._thread = self._spawn()

    # ---- the scheduler's thread ----

    def start(self, loads: list[Load]) -> int:
        """Begin a batch; its index."""
        index: int = self.counter.update_producer()
        try:
            self._revive()
            self._under_way[index] = [load.rows for load in loads]
            self._jobs.put((index, loads, self._ready()))
        except Exception as error:
            logger.exception("swift-tiers: loads cannot be started")
            self._under_way.pop(index, None)
            self.counter.fail(index, error)
        return index

    def start_layers(self, load: LayerLoad) -> None:
        """Begin to copy its layers, from the top down, as far as the course lets it."""
        self._revive()
        self._under_way[~id(load)] = [load.rows]
        self._jobs.put(load)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _revive(self) -> None:
        if not self._thread.is_alive():
            self._thread = self._spawn()
            self._stack.events.emit("thread.restarted", thread="swift-load")

    def rows_under_way(self) -> list[OnTheWay]:
        """The rows of the pool that are being copied to, or will be soon."""
        return [rows for batch in list(self._under_way.values()) for rows in batch]

    def close(self, timeout: float = 5.0) -> bool:
        """End the thread; whether it has ended, and copies nothing any more, in so many seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ---- our thread ----

    def _spawn(self) -> Thread:
        thread = self._runner.thread(self._run, "swift-load")
        thread.start()
        return thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, LayerLoad):
                try:
                    self._copy_layers(job)
                finally:
                    self._under_way.pop(~id(job), None)
                continue
            index, loads, ready = job
            if not self.counter.is_due(index):
                # The slots that it was to be copied to are others' by now.
                self._under_way.pop(index, None)
                continue
            try:
                self._copy_in(index, loads, ready)
            except BaseException as error:
                logger.exception("swift-tiers: a load failed")
                for load in loads:
                    self._count(load, 0.0, failed=True)
                self._under_way.pop(index, None)
                self.counter.fail(index, error)
                if not isinstance(error, Exception):
                    raise  # the thread dies of it, and whoever waits for the batch finds the next one alive

    def _copy_in(self, index: int, loads: list[Load], ready: list[Any]) -> None:
        whose = [(load.restore, load) for load in loads if load.restore is not None]
        if len(whose) < len(loads):
            raise RuntimeError("one of its requests could not be queued")
        self._pool.adopt_thread()
        pool_pages = np.concatenate([self._pool.page_indices(load.rows.wait()) for load in loads])
        slots = np.concatenate([load.places.numbers for load in loads])
        by_device = self._pool.has_digests and self._stack.restorer.verifier.beside
        looks = [
            self._stack.restorer.verifier.verified(
                restore, load.first, load.places.numbers.tolist(), by_device=by_device
            )
            for restore, load in whose
        ]
        states = [(restore, load.state) for restore, load in whose if load.state is not None]
        looks_at_states = [
            self._stack.restorer.verifier.verified(restore, state.first, state.places.numbers.tolist())
            for restore, state in states
        ]
        # What a forward takes that is under way is no part of what copying takes, by which is planned. A device that
        # goes on by itself is asked all the same at once: whoever launches the next forward waits for the marks.
        waits = self._pool.accelerator is None
        if waits:
            wait_for(ready)
        began, exact, first = self._runner.monotonic(), waits or reached(ready), None

        def layer_done(layer: int, mark: QueueMark | None) -> None:
            nonlocal began, exact, first
            for one in self._pool.releases[layer]:
                self.counter.complete(index, one, mark)
            first = first or mark
            if layer == self._pool.geometry.layers - 1 and not exact and not reached(ready):
                wait_for(ready)
                began = self._runner.monotonic()
                exact = first is None or not first.query()  # else this thread has had its turn late

        try:
            # What comes after the states comes before no layer that needs them.
            after = [*ready, *self._copy_states(index, [state for _, state in states], ready)]
            self._pool.copy_in(pool_pages, self._stack.host.slab, slots, layer_done, after)
        finally:
            if self._pool.states is not None:
                self._pool.states.settle()
        seconds = self._runner.monotonic() - began
        slots = np.concatenate([slots, *(state.places.numbers for _, state in states)])
        self._count_link(slots, self._pool.geometry.page_bytes, seconds, exact=exact)
        digests = self._pool.digests(pool_pages) if by_device else None
        ends = np.cumsum([len(load.places) for load in loads]).tolist()
        for verified, load, end in zip(looks, loads, ends, strict=True):
            verified(None if digests is None else digests[end - len(load.places) : end])
        for verified in looks_at_states:
            verified(None)
        # Before the batch ends: its pins are given back then, and with them what is counted here; and what is being
        # copied to may be looked at.
        for restore, load in whose:
            self._count(load, seconds, failed=False)
            self._copied(restore, load)
        self._under_way.pop(index, None)
        self.counter.end(index)

    def _copy_states(self, index: int, states: list[StateLoad], ready: Sequence[Any]) -> list[QueueMark]:
        """Before the layers that need them: all of them, since a batch is waited for as one. When they have come."""
        if self._pool.states is None:
            return []
        mark = None
        for state in states:
            slots = self._pool.states.slots_of(state.rows.wait().numpy())
            mark = self._pool.states.copy_in(slots, self._stack.host.slab, state.places.numbers, ready)
        for layer in self._pool.begin_with:
            self.counter.complete(index, layer, mark)
        return [mark] if mark is not None else []

    def _copy_layers(self, load: LayerLoad) -> None:
        started, copied = self._runner.monotonic(), 0
        try:
            self._pool.adopt_thread()
            pool_pages, after = self._pool.page_indices(load.rows.wait()), load.ready
            while (layer := load.course.next_load()) is not None:
                self._pool.copy_layer(pool_pages, self._stack.host.slab, load.places.numbers, layer, after)
                after = []  # what has come stays so
                load.course.landed(layer)
                copied += 1
        except BaseException as error:
            logger.exception("swift-tiers: a layer could not be copied to the device; it is computed")
            self._stack.events.emit("linker.error", where="layers", error=repr(error))
            load.course.failed(repr(error))
            if not isinstance(error, Exception):
                raise
        if copied:
            self._count_link(
                load.places.numbers, self._pool.geometry.layer_bytes * copied, self._runner.monotonic() - started
            )

    def _copied(self, restore: Restore, load: Load) -> None:
        """Others may land where it has been copied from; where that goes wrong, when its request ends."""
        try:
            self._stack.restorer.copied(restore, load.first, len(load.places))
        except Exception as error:
            logger.exception("swift-tiers: pages that were copied stay in landing memory until their request ends")
            self._stack.events.emit("linker.error", where="copied", error=repr(error))

    def _count_link(self, slots: np.ndarray, nbytes: int, seconds: float, *, exact: bool = True) -> None:
        """`nbytes` of each page. What had landed on the device came by another link, and was counted there."""
        pages = int((slots < self._stack.host.slots).sum())
        if pages:
            self._stack.links["host-device"].count(pages, pages * nbytes, seconds, exact=exact)

    def _count(self, load: Load, seconds: float, *, failed: bool) -> None:
        """Whatever goes wrong here, what has been copied has been."""
        if load.restore is None:
            return
        landed = int((load.places.numbers >= self._stack.host.slots).sum())
        count = self._stack.restorer.count_load
        try:
            count(load.restore, load.first, len(load.places), seconds, failed=failed, landed=landed)
            if load.state is not None and not failed:
                count(load.restore, load.state.first, len(load.state.places), None, failed=False)
        except Exception as error:
            logger.exception("swift-tiers: a load could not be counted")
            self._stack.events.emit("linker.error", where="count_load", error=repr(error))
