"""The linker: SGLang's prefix tree on one side, the tier stack on the other.

SGLang calls every method here on the scheduler's thread, between two batches. So nothing here holds the page table's
lock for long, or waits for a tier, but `reset` where it empties the ssd tier, `still` and `close`; what waits for
copies says so. Methods with `never_raises` let no exception out; of the others none is expected: one would end the
server. Copying is done by `Offloader` and `Loader`, on threads of their own.

A request's way up:

1. `TieredRequest.begin` when SGLang first matches the request: a restore begins to bring its pages up to host memory.
2. `TieredRequest.readiness` while it waits in the queue: others pass; bounded by `policy.restore_deadline`.
3. `lookup` at admission: only pages that are there and pinned are promised (`way.request_restore`: READY).
4. `load`, `start_layer_wise_loading`: copied into the request's private device slots while the forward runs.
5. `finish_layer_wise_loading`, `TieredRequest.end`: pins are given back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from swift_tiers.radix_tiering.base.ending import Ending
from swift_tiers.radix_tiering.base.page import Namespace
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.stack import Emptied, TierStack
from swift_tiers.radix_tiering.table.held_page import Places

from ..build.assembly import build_tiers, unlock_pages
from ..build.reporting import Reporting
from ..build.weights import LoadedAdapters, are_unnamed, unnamed_weights
from ..pools.device_pool import DevicePool
from ..pools.opening import open_pool
from ..tell.forward_times import ForwardTimes
from ..tell.guard import never_raises
from ..tell.on_the_way import OnTheWay
from ..tell.request_facts import shown_rid, tell_forward
from .loads import Load, Loader, StateLoad
from .offloads import QUIESCE_SECONDS, Offload, Offloader
from .request import TieredRequest

if TYPE_CHECKING:
    from ..build.peer_side import PeerSide

logger = logging.getLogger(__name__)

#: What the end of a linker may take, seconds: SGLang gives a scheduler 15 in which to end, its process with it.
END_SECONDS = 12.0
#: Of these, for what comes after the tiers.
REST_SECONDS = 2.0
#: So many may decode beside a prompt, for each of its tokens, where a forward tells what computing costs.
MOST_DECODE = 1 / 8

#: What `policy.flush_cache` has emptied beneath the device.
EMPTIED: dict[str, Emptied] = {"device": "nothing", "host": "memory", "all": "all"}


def _no_lengths() -> Sequence[int]:
    return []


@dataclass
class NodeTransfer(PoolTransfer):
    """What a node of the tree offers, and where it stands in its sequence, which SGLang's own transfer does not say."""

    parent: str | None = None  # hash of the page before the first one
    depth: int = 1  # position of the first one, in pages from 1
    path: int = 0  # so many of its first pages come before the node, and are offered along
    state_only: bool = False  # its page was offered before, and is named for the state behind it


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
        config = parse_config(extra_config or {})
        pool = open_pool(params, config.host.lossy_codec, forward_stream)
        stack, side = build_tiers(server_args, params, pool, config)
        self._start(pool, stack, side)
        if self.state_pool is PoolName.MAMBA:
            params.req_to_token_pool.register_layer_transfer_counter(self.loader.counter)
        self.forward_stream = forward_stream
        try:
            pool.prepare(stack.host.slab)
        except BaseException:
            self.close()  # devices that were opened are closed in order, whatever ends the start
            raise

    @classmethod
    def over(cls, pool: DevicePool, stack: TierStack) -> SwiftLinker:
        """A linker over a stack that exists already; for benches and tests."""
        linker = cls.__new__(cls)
        linker._start(pool, stack)
        return linker

    def _start(self, pool: DevicePool, stack: TierStack, peer_side: PeerSide | None = None) -> None:
        self.pool = pool
        self.stack = stack
        self.peer_side = peer_side
        self.reporting: Reporting | None = None  # once the scheduler is complete
        self.forward_stream = None
        self.pools: dict[PoolName, Any] = {PoolName.KV: pool}
        #: What SGLang calls the pool of the model's states, or windows; None where it has none.
        self.state_pool: PoolName | None = None
        if pool.states is not None:
            self.state_pool = PoolName.SWA if pool.states.windows else PoolName.MAMBA
            self.pools[self.state_pool] = pool.states
        #: By id, since SGLang's interface names them so: those that wait, or compute while their pages come up.
        self.requests: dict[str, TieredRequest] = {}
        self.adapters = LoadedAdapters()
        self.offloader = Offloader(pool, stack)
        # Whoever used the slots before has to be done with them: the same events as for an offload.
        self.loader: Loader = Loader(pool, stack, ready=lambda: self.record_offload_ready())
        self.layer_done_counter = self.loader.counter
        self.stale_device = False  # the device still has KV of weights that are gone: nothing is taken from it
        #: By the request's id, or by an object of its own for one that only fails its batch.
        self._queued: dict[object, Load] = {}
        self._running: dict[int, list[Load]] = {}
        self._closed = False
        stack.planner.launch_blocks = pool.device.type == "cpu"
        self._times = ForwardTimes(blocking=stack.planner.launch_blocks)

    def begin_round(self) -> None:
        """A scheduling round begins: no request has been admitted in it yet."""
        self._times.round_began(time.monotonic())
        if self.peer_side is not None:
            self.peer_side.tick()

    @never_raises(lambda: None)
    def forward_ended(self, batch: Any) -> None:
        """A batch's result is there. Prompts, alone or nearly, that waited for no load say what computing costs."""
        took = self._times.result(batch.launch_ts, time.monotonic())
        if took is None:
            return
        prompts = _prompts(batch)
        if prompts and took.alone and not _wants_more_than_answers(batch) and not _others_compute(batch):
            self.stack.costs.computed(prompts, took.seconds)
        if batch.forward_mode.is_extend_without_speculative():
            tell_forward(batch, took.seconds, took.ended)

    def partly_computed(self) -> None:
        """The batch that runs now computes less than its tokens tell: nothing is to be learnt from it."""
        self._times.not_alone()

    # ---- SGLang's linker interface: admission ----

    @never_raises(_no_lengths)
    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> Sequence[int]:
        """Every restorable length of the tail `transfers`, in pages: all of them up to what is there and pinned now;
        where the model keeps a state, the one that it is of."""
        request = self.requests.get(rid)
        pages = 0 if request is None else request.promised(kv_transfer(transfers).keys)
        if self.pool.states is not None:
            return [pages] if pages else []
        return range(1, pages + 1)  # no list: it is asked for in each round, and there may be 100,000 pages

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue the copy of promised pages into device slots. Always accepted: ranks must answer alike."""
        request = self.requests.get(rid)
        try:
            transfer = kv_transfer(transfers)
            if request is None:
                raise RuntimeError("nothing is kept for it")
            first, places = request.places(transfer.keys)
            # Read on the loading thread: this one would wait for all that the device has to do before.
            rows = OnTheWay(transfer.device_indices)
            if len(places) * self.pool.page_size != len(rows):
                raise RuntimeError(f"{len(rows)} tokens asked for, {len(places)} pages promised")
            state = self._state_load(request, transfers, first + len(places))
            request.copies(first, len(places))
            self._queued[rid] = Load(request, request.restore, first, places, rows, state)
        except Exception as error:
            # Refusing here could split the ranks; a load that fails is answered by SGLang with 503 on all of them.
            logger.exception("swift-tiers: the load of request %s cannot be queued", shown_rid(rid))
            self.stack.events.emit("linker.error", where="load", error=repr(error))
            self._queued[rid] = Load(None, None, 0, Places.none(), _no_rows())
        return True

    def _state_load(self, request: TieredRequest, transfers: list[PoolTransfer], end: int) -> StateLoad | None:
        """Of the state behind the first `end` pages of its restore."""
        if self.pool.states is None:
            return None
        (rows,) = [transfer.device_indices for transfer in transfers if transfer.name == self.state_pool]
        return StateLoad(*request.state_places(end), OnTheWay(rows))

    @never_raises(lambda: False)
    def cancel_queued_load(self, rid: str) -> bool:
        return self._cancel(rid)

    def _cancel_all(self) -> None:
        for whose in list(self._queued):
            self._cancel(whose)

    def _cancel(self, whose: object) -> bool:
        load = self._queued.pop(whose, None)
        if load is None:
            return False
        if load.restore is not None:
            load.restore.story.withdraw(load.first)
        if load.request is not None:
            load.request.copied()
        return True

    def start_layer_wise_loading(self) -> int:
        """Hand the queued loads to the loading thread; -1 if there are none."""
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        self._times.not_alone()
        index = self.loader.start(loads)
        self._running[index] = loads
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """The batch has run: wait until every layer of it has landed; False if one did not.

        False, too, where SGLang has run the batch without looking after its loads: has never begun them, or has had no
        layer of its forward wait for them. What it computed over is not known then, so nobody may be told its result.
        """
        ignored = self._take_ignored(counter_index)
        landed = self._finish(counter_index)
        if not ignored:
            return landed
        logger.error("swift-tiers: %s; its loading requests fail", ignored)
        self.stack.events.emit("linker.error", where="forward", error=ignored)
        return False

    def _take_ignored(self, counter_index: int) -> str:
        """How a batch that has run has ignored its loads, if it has."""
        if self._queued:
            self._cancel_all()
            return "a batch ran whose loads were never begun"
        if counter_index in self._running and not self.loader.counter.was_awaited(counter_index):
            return "a forward ran that did not wait for what was loaded for it"
        return ""

    def _finish(self, index: int) -> bool:
        """Wait until nothing is copied for these loads any more; whether all of it has landed."""
        landed = self.loader.counter.finish(index)
        for load in self._running.pop(index, []):
            if load.request is not None:
                load.request.copied()
        return landed

    # ---- loads that no batch waits for ----

    @never_raises(lambda: None)
    def load_ahead(self, request: TieredRequest) -> None:
        """Begin the load that is queued for it, at once: no batch of it is to run. Nothing may read its pages on the
        device, or take their slots there, before `finish_ahead` has said that it is over."""
        load = self._queued.pop(request.rid, None)
        if load is not None:
            self._times.not_alone()
            index = self.loader.start([load])
            self._running[index] = [load]
            request.loads_ahead.append(index)

    @never_raises(lambda: False)
    def finish_ahead(self, request: TieredRequest, *, wait: bool) -> bool:
        """Whether all such loads of it are over; `wait`: until they are. Then
        `request.lost_ahead` says whether one has failed."""
        while request.loads_ahead and (wait or self.loader.counter.is_over(request.loads_ahead[0])):
            if not self._finish(request.loads_ahead.pop(0)):
                request.lost_ahead = True
        return not request.loads_ahead

    @never_raises(lambda: None)
    def fail_with_batch(self, request: TieredRequest) -> None:
        """The batch that is about to run fails, since what was loaded ahead of it has not come whole."""
        request.lost_ahead = False
        self._queued[object()] = Load(None, None, 0, Places.none(), _no_rows())  # clients choose ids: none is this

    # ---- SGLang's linker interface: offload ----

    @never_raises(lambda: True)
    def holds(self, page_hash: str) -> bool:
        """Whether a page is held below the device now."""
        return bool(self.stack.probe([bytes.fromhex(page_hash)]))

    @never_raises(lambda: False)
    def brings(self, page_hash: str) -> bool:
        """Whether a page is on its way out of the device: what follows it has its turn behind it. With KV of weights
        that are gone no page need come first: nothing is stored."""
        namespace = self.offered_namespace
        return namespace is None or self.offloader.brings(namespace, page_hash)

    @property
    def offered_namespace(self) -> bytes | None:
        """Digest; whose KV it is that is offered now. None: of weights that are gone."""
        return None if self.stale_device else self.stack.digest

    @never_raises(lambda: True)
    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Queue pages for the tiers. Always accepted; the result comes in the order of acceptance."""
        try:
            node = kv_transfer(transfers)
            if not isinstance(node, NodeTransfer):
                raise TypeError("it does not say where in its sequence it stands")
            # A private copy of the indices: they are read later, on another thread.
            hashes, rows = list(node.keys), OnTheWay(node.device_indices)
            # Bound now: the weights may change before it is copied, and what is computed with the next ones is another
            # namespace's.
            namespace = self.offered_namespace
            states = [OnTheWay(one.device_indices) for one in transfers if one.name == self.state_pool]
            ready = self.record_offload_ready()
            parent, depth, path = node.parent, node.depth, node.path
            job = Offload(hashes, rows, ready, parent, depth, namespace, path, *states, state_only=node.state_only)
        except Exception:
            logger.exception("swift-tiers: an offload cannot be queued")
            job = Offload([], _no_rows(), [], None, 1, None)
        self.offloader.submit(job)
        return True

    @never_raises(lambda: 0)
    def num_completed_offloads(self) -> int:
        return self.offloader.answered

    def pop_completed_offload(self) -> bool:
        return self.offloader.take_answer()

    # ---- SGLang's linker interface: lifecycle ----

    @never_raises(lambda: None)
    def reset(self) -> None:
        """SGLang empties its tree (/flush_cache): quiesce, then empty the tiers as `policy.flush_cache` says."""
        level = self.stack.config.policy.flush_cache
        try:
            self._quiesce()
        finally:
            self.stack.flush_soon(EMPTIED[level])
        if self.stale_device:
            # What the device computed with weights that are gone is gone as well; whatever of it might have slipped
            # through is in a namespace that is left now.
            self._leave_namespace()
            self.stale_device = False
            self.stack.events.emit("offload.resumed")

    @never_raises(lambda: None)
    def close(self) -> None:
        """End the threads, write what is admitted, save the index. Idempotent.

        Takes about `END_SECONDS` at most, of which the index gets most, and ends every part though one fails.
        """
        if self._closed:
            return
        self._closed = True
        ending = Ending(END_SECONDS, self.stack.runner)
        if self.reporting is not None:
            ending.end(self.reporting.stop_orders)
        copies_ended = [self.loader.close(ending.left() / 12)]
        ending.end(self._quiesce, ending.left() / 6, True)
        copies_ended.append(self.offloader.close(ending.left() / 12))
        ending.end(self.stack.close, max(1.0, ending.left() - REST_SECONDS))
        if self.peer_side is not None:
            ending.end(self.peer_side.close)
        if self.reporting is not None:
            ending.end(self.reporting.close)
        if all(copies_ended):
            # What the process leaves locked the kernel unlocks in one go, while nothing can end it.
            ending.end(unlock_pages, self.stack.host.slab)
        ending.over()

    @never_raises(lambda: False)
    def wait_offloads(self, timeout: float = QUIESCE_SECONDS) -> bool:
        """Wait until nothing is copied out of the device any more; False on timeout."""
        return self.offloader.wait(timeout)

    @never_raises(lambda: None)
    def make_room(self) -> None:
        """The device has no room left: nothing of it is to be locked for being copied, if that can be. Waits for what
        is being copied, see `Offloader.make_room`."""
        self.offloader.make_room()

    @never_raises(lambda: None)
    def wait_copies(self) -> None:
        """Wait until nothing is copied out of the device any more, nor to it ahead of a batch. What has become of that
        is asked later, as ever."""
        self.wait_offloads()
        for request in list(self.requests.values()):
            self.finish_ahead(request, wait=True)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within this no thread of ours asks anything of the device, so that CUDA graphs can be captured: they are
        spoilt by whatever is. To be entered while no batch runs, once copies have been waited for (`wait_copies`)."""
        with ExitStack() as held:
            for tier in self.stack.tiers.values():
                held.enter_context(tier.still())
            if self.peer_side is not None:
                held.enter_context(self.peer_side.still())
            yield

    @never_raises(lambda: None)
    def stop_offloads(self) -> None:
        """The device's pool is about to go, and SGLang's tree with it: see `Offloader.stop`."""
        self.offloader.stop()

    def _quiesce(self, timeout: float = QUIESCE_SECONDS, at_end: bool = False) -> None:
        """Wait for copies in flight, forget answers and requests. Offloads that take too long are given up; loads only
        `at_end`, when nobody takes the slots that they are copied to."""
        self.wait_offloads(timeout)
        self.offloader.forget()
        for index in list(self._running):
            if not at_end or self.loader.counter.is_over(index):
                self._finish(index)
        self._cancel_all()
        for request in list(self.requests.values()):
            request.end()
        self.loader.counter.reset()

    @never_raises(lambda: None)
    def weights_changed(self, *, device_emptied: bool) -> None:
        """The model computes other KV from now on: nothing that came before may be found again.

        Unless the device was emptied with the update, its tree still has KV of the old weights, and nothing is taken
        from it until it is (`reset`). What is on its way out of it by now is of the old ones, stays so, and is waited
        for.
        """
        self.stale_device = True  # as long as it is not known that all of this went well
        try:
            for request in self.requests.values():
                request.give_up()
            self.wait_offloads()
            self._leave_namespace()
        except BaseException:
            self.stack.find_nothing()
            raise
        self.stale_device = not device_emptied
        if self.stale_device:
            self.stack.events.emit("offload.paused", reason="the weights changed, and the device was not flushed")

    def _leave_namespace(self) -> None:
        """For one of weights that no file describes. What was served before may come back, unless it was of such
        weights, too: those have another name each time."""
        before = self.stack.namespace
        self.stack.change_namespace(_unnamed(before), comes_back=not are_unnamed(before.weights))


def _no_rows() -> OnTheWay:
    return OnTheWay(torch.empty(0, dtype=torch.int64))


def _unnamed(namespace: Namespace) -> Namespace:
    """The same, with weights that no file describes."""
    return msgspec.structs.replace(namespace, weights=unnamed_weights())


def kv_transfer(transfers: list[PoolTransfer]) -> PoolTransfer:
    """The one of the KV among `transfers`."""
    (transfer,) = [transfer for transfer in transfers if transfer.name == PoolName.KV]
    return transfer


def _prompts(batch: Any) -> list[tuple[int, int]]:
    """The tokens `[start, end)` that a `ScheduleBatch` computes of each of its prompts; empty for another batch.

    With `--enable-mixed-chunk` those who decode take part in it, with a token each, which SGLang puts behind the
    prompts'. It costs what a token of a prompt costs, and counts as one of the last of them, but for attention: it
    reads all of its request's KV for itself, which tokens of one prompt do together. Costs have no term for that, so
    those who decode have to be few beside the prompts' tokens.
    """
    decode = len(batch.decoding_reqs or ()) if batch.forward_mode == ForwardMode.MIXED else 0
    lengths: list[int] = list(batch.extend_lens or ())
    lengths = lengths[: len(lengths) - decode]
    if batch.forward_mode not in (ForwardMode.EXTEND, ForwardMode.MIXED) or not lengths:
        return []
    if decode > sum(lengths) * MOST_DECODE:
        return []
    lengths[-1] += decode
    return [(start, start + length) for start, length in zip(batch.prefix_lens, lengths, strict=False)]


def _others_compute(batch: Any) -> bool:
    """Whether, with data-parallel attention, other ranks compute beside this one, which waits for them in each layer:
    what the forward takes is not what its own tokens cost."""
    return sum(one > 0 for one in batch.global_num_tokens or ()) > 1


def _wants_more_than_answers(batch: Any) -> bool:
    """Whether log probabilities or hidden states of prompts are asked of a `ScheduleBatch`: what its tokens cost is not
    what prompts cost then, least of all with SwiftKV, where all of them go through all layers."""
    if batch.return_hidden_states:
        return True
    starts = batch.extend_logprob_start_lens if batch.return_logprob else None
    return any(length > start for length, start in zip(batch.extend_lens, starts or (), strict=False))
