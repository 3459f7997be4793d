"""The linker: SGLang's prefix tree on one side, the tier stack on the other.

SGLang calls every method here on the scheduler's thread, between two batches. So nothing here waits for a tier, takes
the page table's lock for long, or lets an exception out (one would end the server). Two threads of our own do the
copying: "swift-offload" from the device pool to host slots, in the order in which offloads were accepted, and
"swift-load" from host slots to the device pool, layer by layer.

A request's way up:

1. `arrive` when SGLang first matches the request: a restore begins to bring its pages up to host memory.
2. `settled` while the request waits in the queue: other requests pass; bounded by `policy.restore_deadline`.
3. `lookup` at admission: only pages that lie verified and pinned in host memory are promised.
4. `load`, `start_layer_wise_loading`: copied into the request's private device slots while the forward runs.
5. `finish_layer_wise_loading`, `depart`: pins are given back.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from swift_tiers.radix_tiering.page import ROOT_KEY
from swift_tiers.radix_tiering.restore import Restore, RestoreState, Source
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.sglang_ext.build import build_stack
from swift_tiers.sglang_ext.device_pool import DevicePool, open_device_pool

logger = logging.getLogger(__name__)

#: Pages taken into host memory in one step: bounds how long the page table is locked.
OFFLOAD_STEP_PAGES = 64
#: How often a wait for a layer looks whether the loading thread still lives, seconds.
WATCHDOG_SECONDS = 1.0

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def never_raises(
    default: Callable[[], Result],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Turn an exception into `default()`, a log line and an event: SGLang ends the server on any exception here."""

    def decorate(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(method)
        def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                logger.exception("swift-tiers: %s failed; going on without the tiers", method.__name__)
                args[0].stack.events.emit("linker.error", where=method.__name__, error=repr(error))  # type: ignore[attr-defined]
                return default()

        return guarded

    return decorate


def _no_lengths() -> list[int]:
    return []


class WatchedLoadCounter(LayerWiseLoadCounter):
    """SGLang's layer counter, except that a wait ends when the loading thread has died.

    The stock counter waits without a limit, so a dead thread would hang the server for good.
    """

    def __init__(self, num_layers: int, alive: Callable[[], bool]) -> None:
        super().__init__(num_layers)
        self._alive = alive

    def wait_until(self, threshold: int) -> None:
        self._watch(self.consumer_index, threshold)
        super().wait_until(threshold)

    def finish(self, index: int) -> bool:
        for layer in range(self.num_layers):
            self._watch(index, layer)
        return super().finish(index)

    def _watch(self, index: int, layer: int) -> None:
        futures = self.futures.get(index)
        while futures is not None and not futures[layer].done():
            try:
                futures[layer].exception(timeout=WATCHDOG_SECONDS)
            except TimeoutError:
                if not self._alive():
                    self.fail(index, RuntimeError("the loading thread has died"))


class Claim:
    """What one request has below the device, from its arrival until it is admitted or gone. Scheduler's thread."""

    __slots__ = ("hashes", "loading", "restore")

    def __init__(self, hashes: Sequence[str], restore: Restore) -> None:
        self.hashes = hashes  # SGLang's page hashes of the tail that the device did not have
        self.restore = restore
        self.loading = False

    def offset_of(self, page_hash: str) -> int | None:
        """Where in the chain a tail begins now: the device may have gained pages since the request arrived."""
        if self.hashes[0] == page_hash:
            return 0
        try:
            return self.hashes.index(page_hash)
        except ValueError:
            return None


class _Load(NamedTuple):
    rid: str
    claim: Claim
    pages: int  # of the claim, from its start, that are now on the device
    slots: np.ndarray
    pool_pages: np.ndarray


class _Offload(NamedTuple):
    hashes: list[str]
    rows: torch.Tensor
    ready: list[Any]
    parent: str | None
    depth: int


class SwiftLinker(UnifiedCacheLinker):
    """SGLang's `dynamic` linker over a `TierStack`."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        pool = open_device_pool(params.token_to_kv_pool_allocator.get_kvcache(), params.page_size)
        self._start(pool, build_stack(server_args, params, pool.geometry, extra_config or {}))
        self.forward_stream = forward_stream

    @classmethod
    def over(cls, pool: DevicePool, stack: TierStack) -> SwiftLinker:
        """A linker over a stack that exists already; for benches and tests."""
        linker = cls.__new__(cls)
        linker._start(pool, stack)
        return linker

    def _start(self, pool: DevicePool, stack: TierStack) -> None:
        self.pool = pool
        self.stack = stack
        self.forward_stream = None
        self.pools = {PoolName.KV: pool}
        self.claims: dict[str, Claim] = {}
        self.served: dict[str, dict[str, int]] = {}  # rid -> pages by tier of its last load, for attribution
        self._queued: dict[str, _Load] = {}
        self._running: dict[int, list[_Load]] = {}
        self._loads: queue.SimpleQueue[tuple[int, list[_Load], Any] | None] = queue.SimpleQueue()
        self._offloads: queue.SimpleQueue[_Offload | None] = queue.SimpleQueue()
        self._offload_results: deque[bool] = deque()
        self._offloads_accepted = 0
        self._offloads_done = 0
        self._next_parent: tuple[str | None, int] = (None, 1)
        self._closed = False
        self.layer_done_counter = WatchedLoadCounter(pool.geometry.layers, lambda: self._load_thread.is_alive())
        self._load_thread = self._spawn(self._run_loads, "swift-load")
        self._offload_thread = self._spawn(self._run_offloads, "swift-offload")

    @staticmethod
    def _spawn(target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    # ---- arrival: before admission ----

    @never_raises(lambda: None)
    def arrive(self, rid: str, hashes: Sequence[str], prefix_hashes: Sequence[str] = ()) -> None:
        """Begin to bring up the pages `hashes`, which follow `prefix_hashes` that the device has.

        A second call for the same request begins anew.
        """
        self.depart(rid)
        keys = [bytes.fromhex(page_hash) for page_hash in hashes]
        prefix = [bytes.fromhex(page_hash) for page_hash in prefix_hashes]
        self.claims[rid] = Claim(hashes, self.stack.restore(keys, prefix))

    def settled(self, rid: str) -> bool:
        """Whether `rid` may be admitted: its pages are up, or its deadline has passed."""
        claim = self.claims.get(rid)
        try:
            return claim is None or self.stack.restorer.poll(claim.restore)
        except Exception:
            logger.exception("swift-tiers: the restore of request %s failed; it is recomputed", rid)
            return True

    @never_raises(lambda: None)
    def depart(self, rid: str) -> None:
        """The request is admitted without a load, or has ended: nothing is kept for it any more."""
        claim = self.claims.get(rid)
        if claim is not None and not claim.loading:
            del self.claims[rid]
            self.stack.restorer.release(claim.restore)

    # ---- SGLang's linker interface: admission ----

    @never_raises(_no_lengths)
    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Every restorable length of the tail `transfers`, in pages: all of them up to what is verified and pinned."""
        hashes = _keys(transfers)
        claim = self.claims.get(rid)
        if claim is None:
            self.arrive(rid, hashes)
            return []
        offset = claim.offset_of(hashes[0])
        if offset is None or claim.restore.state is not RestoreState.READY:
            return []
        return list(range(1, min(len(hashes), claim.restore.pages - offset) + 1))

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue the copy of promised pages into device slots. Always accepted: ranks must answer alike."""
        try:
            (transfer,) = [transfer for transfer in transfers if transfer.name == PoolName.KV]
            claim = self.claims[rid]
            offset = claim.offset_of(transfer.keys[0])
            assert offset is not None
            last = offset + len(transfer.keys)
            slots = claim.restore.slots[offset:last]
            pool_pages = self.pool.page_indices(transfer.device_indices)
            if len(slots) != len(pool_pages):
                raise RuntimeError(f"{len(pool_pages)} pages asked for, {len(slots)} promised")
            claim.loading = True
            self._queued[rid] = _Load(rid, claim, last, slots, pool_pages)
            sources = claim.restore.sources[offset:last]
            self.served[rid] = {source.value: sources.count(source) for source in Source}
        except Exception as error:
            # Refusing here could split the ranks; a load that fails is answered by SGLang with 503 on all of them.
            logger.exception("swift-tiers: the load of request %s cannot be queued", rid)
            self.stack.events.emit("linker.error", where="load", error=repr(error))
            nothing = np.empty(0, dtype=np.int64)
            broken = Claim([""], Restore([], [], 0.0))
            self._queued[rid] = _Load(rid, self.claims.get(rid, broken), -1, nothing, nothing)
        return True

    @never_raises(lambda: False)
    def cancel_queued_load(self, rid: str) -> bool:
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        load.claim.loading = False
        self.depart(rid)
        return True

    def start_layer_wise_loading(self) -> int:
        """Hand the queued loads to the loading thread; -1 if there are none."""
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index = self.layer_done_counter.update_producer()
        self._running[index] = loads
        try:
            # Whoever used the slots before has to be done with them.
            ready = self.record_offload_ready()
            if not self._load_thread.is_alive():
                self._load_thread = self._spawn(self._run_loads, "swift-load")
                self.stack.events.emit("thread.restarted", thread="swift-load")
            self._loads.put((index, loads, ready))
        except Exception as error:
            logger.exception("swift-tiers: loads cannot be started")
            self.layer_done_counter.fail(index, error)
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait until every layer of the batch has landed; False if one did not."""
        landed: bool = self.layer_done_counter.finish(counter_index)
        for load in self._running.pop(counter_index, []):
            load.claim.loading = False
            self.depart(load.rid)
        return landed

    # ---- SGLang's linker interface: offload ----

    def expect_offload(self, parent: str | None, depth: int) -> None:
        """What the next `offload` is not told: the page before its first one, and its position, in pages from 1."""
        self._next_parent = (parent, depth)

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Queue pages for the tiers. Always accepted; the result comes in the order of acceptance."""
        parent, depth = self._next_parent
        self._next_parent = (None, 1)
        try:
            (transfer,) = [transfer for transfer in transfers if transfer.name == PoolName.KV]
            # A private copy of the indices: they are read later, on another thread.
            rows = transfer.device_indices.clone()
            job = _Offload(list(transfer.keys), rows, self.record_offload_ready(), parent, depth)
        except Exception:
            logger.exception("swift-tiers: an offload cannot be queued")
            job = _Offload([], torch.empty(0, dtype=torch.int64), [], None, 1)
        if not self._offload_thread.is_alive() and not self._closed:
            self._restart_offloads()
        self._offloads_accepted += 1
        self._offloads.put(job)
        return True

    def num_completed_offloads(self) -> int:
        if not self._offload_thread.is_alive() and not self._closed:
            self._restart_offloads()
        return len(self._offload_results)

    def pop_completed_offload(self) -> bool:
        return self._offload_results.popleft()

    def _restart_offloads(self) -> None:
        """The offloading thread died over one job: answer that job, so that its device pages are unlocked."""
        self.stack.events.emit("thread.restarted", thread="swift-offload")
        if self._offloads_done < self._offloads_accepted - self._offloads.qsize():
            self._finish_offload(False)
        self._offload_thread = self._spawn(self._run_offloads, "swift-offload")

    # ---- SGLang's linker interface: lifecycle ----

    def reset(self) -> None:
        """SGLang empties its tree (/flush_cache): quiesce, then empty the tiers as `policy.flush_cache` says."""
        self._quiesce()
        level = self.stack.config.policy.flush_cache
        self.stack.flush(host=level != "device", ssd=level == "all")

    def close(self) -> None:
        """End the threads, write what is admitted, save the index. Idempotent."""
        if self._closed:
            return
        self._quiesce()
        self._closed = True
        self._loads.put(None)
        self._offloads.put(None)
        self._load_thread.join(5)
        self._offload_thread.join(5)
        self.stack.close(timeout=8.0)

    def _quiesce(self) -> None:
        """Wait for copies in flight, forget results and claims."""
        deadline = time.monotonic() + 10
        while self._offloads_done < self._offloads_accepted and time.monotonic() < deadline:
            if not self._offload_thread.is_alive():
                self._restart_offloads()
            time.sleep(0.0005)
        for index in list(self._running):
            self.finish_layer_wise_loading(index)
        for rid in [*self._queued, *self.claims]:
            self.cancel_queued_load(rid)
            self.depart(rid)
        self.served.clear()
        self._offload_results.clear()
        self.layer_done_counter.reset()

    def weights_changed(self, namespace: Any) -> None:
        """The model computes other KV from now on: nothing that came before may be found again."""
        self._quiesce()
        self.stack.change_namespace(namespace)

    # ---- our threads ----

    def _run_loads(self) -> None:
        while (job := self._loads.get()) is not None:
            index, loads, ready = job
            try:
                for event in ready:
                    event.synchronize()
                self._copy_in(index, loads)
            except Exception as error:
                logger.exception("swift-tiers: a load failed")
                for load in loads:
                    self.stack.restorer.count_load(load.claim.restore, load.pages, 0.0, failed=True)
                self.layer_done_counter.fail(index, error)

    def _copy_in(self, index: int, loads: list[_Load]) -> None:
        broken = [load.rid for load in loads if load.pages < 0]
        if broken:
            raise RuntimeError(f"requests {broken} could not be queued")
        started = time.monotonic()
        pool_pages = np.concatenate([load.pool_pages for load in loads])
        slots = np.concatenate([load.slots for load in loads])
        self.pool.copy_in(
            pool_pages, self.stack.host.slab, slots, lambda layer: self.layer_done_counter.complete(index, layer)
        )
        seconds = time.monotonic() - started
        for load in loads:
            self.stack.restorer.count_load(load.claim.restore, len(load.slots), seconds, failed=False)

    def _run_offloads(self) -> None:
        while (job := self._offloads.get()) is not None:
            stored = False
            try:
                for event in job.ready:
                    event.synchronize()
                stored = self._copy_out(job)
            except Exception as error:
                logger.exception("swift-tiers: an offload failed")
                self.stack.events.emit("offload.failed", error=repr(error))
            self._finish_offload(stored)

    def _finish_offload(self, stored: bool) -> None:
        self._offload_results.append(stored)
        self._offloads_done += 1

    def _copy_out(self, job: _Offload) -> bool:
        """Take the pages into host memory; True if every one of them is held afterwards."""
        pool_pages = self.pool.page_indices(job.rows)
        keys = [bytes.fromhex(page_hash) for page_hash in job.hashes]
        parent = bytes.fromhex(job.parent) if job.parent else ROOT_KEY
        for start in range(0, len(keys), OFFLOAD_STEP_PAGES):
            step = keys[start : start + OFFLOAD_STEP_PAGES]
            put = self.stack.begin_put(step, parent, job.depth + start)
            try:
                source = pool_pages[start + np.asarray(put.indices, dtype=np.int64)]
                self.pool.copy_out(source, self.stack.host.slab, np.asarray(put.slots, dtype=np.int64))
            except BaseException:
                self.stack.abort_put(put)
                raise
            self.stack.commit_put(put)
            if put.refused:
                return False
            parent = step[-1]
        return bool(keys)


def _keys(transfers: list[PoolTransfer]) -> list[str]:
    """The page hashes of the KV transfer among `transfers`."""
    (transfer,) = [transfer for transfer in transfers if transfer.name == PoolName.KV]
    keys: list[str] = transfer.keys
    return keys
