"""What lies at the ends of a tree's nodes beside KV, a state or a window: which are offered to the tiers, and when.

All on the scheduler's thread, and the same on every rank: ranks do not know what the tiers of the others hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper, _PendingOffload

from .linker import NodeTransfer, SwiftLinker

#: A prefix with a state that has been loaded so often is computed as often as this, where the device has room for it.
LOADED_TIMES, COMPUTED_TIMES = 2, 3
#: Prefixes that are remembered for that.
MOST_COME_BACK = 1024
#: Of the slots for states, or for KV of windows, so many may be locked by those that wait to be copied out; SGLang has
#: five for each request that may run, of which two are for states of the tree.
STATES_WAITING_SHARE = 0.1
#: Ends of prefixes of which is remembered when a window was offered there; and after how many requests it is again, if
#: one comes with that prefix.
MOST_WINDOWS, WINDOW_AGAIN = 1 << 14, 64


class StatefulLinkerWrapper(UnifiedCacheLinkerWrapper):
    """SGLang's tree-side driver of a linker; its own, where the model keeps no states, and no windows apart."""

    cache_linker: SwiftLinker

    def __init__(self, cache: Any, cache_linker: SwiftLinker) -> None:
        super().__init__(cache, cache_linker)
        self._arrived = 0  # requests, so far
        #: By the last page of prefixes with a state: how often they have come back, the latest last.
        self.came_back: dict[str, int] = {}
        #: By the last page of prefixes that the device had: how many requests had come when their window was offered.
        #: The latest last.
        self.windows_met: dict[str, int] = {}
        self._chain_end: Any = None  # the last node of those that are being offered

    @property
    def _has_windows(self) -> bool:
        return self.cache_linker.state_pool is PoolName.SWA

    @property
    def _component(self) -> ComponentType:
        """The part of a node that is a state of the model's, or a window."""
        return ComponentType.SWA if self._has_windows else ComponentType.MAMBA

    def _device_is_to_have(self, tail: Sequence[str]) -> bool:
        """Whether a prefix is to be computed though it is held with its state, so that SGLang keeps it on the device.

        What is loaded is the request's alone: a state goes on with the tokens behind it, and none stays where it came.
        So whoever comes next loads it again. Where one prefix comes back again and again, and there is room for it that
        nobody has, a few that ask for it compute it; SGLang keeps a state at a branch for the second of them.
        """
        end, pages = tail[-1], len(tail)
        times = self.came_back[end] = self.came_back.pop(end, 0) + 1
        while len(self.came_back) > MOST_COME_BACK:
            del self.came_back[next(iter(self.came_back))]
        slots, tokens = self.cache.req_to_token_pool.mamba_allocator, self.cache.token_to_kv_pool_allocator
        has_room = tokens.available_size() >= 2 * pages * self.cache.page_size
        if times <= LOADED_TIMES or not has_room or slots.available_size() <= self.cache.req_to_token_pool.size:
            return False
        if times >= LOADED_TIMES + COMPUTED_TIMES:
            del self.came_back[end]
        return True

    def offload_nodes(self, node_ids: Sequence[Any]) -> None:
        self._chain_end = node_ids[-1]
        super().offload_nodes(node_ids)

    def _offload_with_state(self, node_id: Any, offered: NodeTransfer, states: list[PoolTransfer]) -> None:
        """Offer a node, and what it has at its end; `states`: as SGLang itself would."""
        if self._has_windows:
            # SGLang cuts a node in two before its last window, and offers both: of use is the one behind which a
            # prompt, a chunk or an answer ends.
            is_end = bool(states) and node_id == self._chain_end
            states = [self._window(node_id, offered.device_indices)] if is_end else []
            may_wait = is_end and self._state_may_wait()
        else:
            may_wait = not states or self._state_may_wait()
        if may_wait:
            super()._offload_node(node_id, [offered, *states])
            return
        # A state stays where it is, and may leave: the device needs its slot sooner than it would be copied.
        with self.cache.locking_without(self._component):
            super()._offload_node(node_id, [offered])

    def _window(self, node_id: Any, rows: Any) -> PoolTransfer:
        """KV of the last tokens before the end of a node; `rows`: of the node, in the pool of all tokens. SGLang itself
        would offer what the node has of it, which may be less than a window."""
        states = self.cache_linker.pool.states
        assert states is not None, "windows of a model that has none"
        most = states.parts * states.slot_tokens
        if len(rows) < most:
            rows = self.cache.path_device_indices(node_id)
        allocator = self.cache.token_to_kv_pool_allocator
        return PoolTransfer(
            name=PoolName.SWA, device_indices=allocator.translate_swa_indices_for_transfer(rows[-most:])
        )

    def _meet_window(self, node_id: Any, end: str) -> None:
        """A request came with a prefix that the device has, up to page `end`. Where SGLang has cut a node in two there,
        it was stored without its window; or the tiers have lost that, or passed it over. What they hold ranks do not
        know of each other: so it is offered by how many requests have come since, the same on every rank."""
        if self._arrived < self.windows_met.get(end, -WINDOW_AGAIN) + WINDOW_AGAIN:
            return
        if not self.offload_state(node_id):
            return
        self.windows_met.pop(end, None)
        self.windows_met[end] = self._arrived
        while len(self.windows_met) > MOST_WINDOWS:
            del self.windows_met[next(iter(self.windows_met))]

    def offload_state(self, node_id: Any, slot: Any = None) -> bool:
        """Offer what lies behind a node that has been offered without it: the state in `slot`, or else the window.
        Whether it is: one that waits to be copied may have it already."""
        if any(offload.lock_node_id == node_id for offload in self.pending_offloads) or not self._state_may_wait():
            return False
        hashes, (pages, parent) = self.cache.tree_core.get_hash_values(node_id), self._before(node_id)
        if not hashes:
            return False
        rows = self.cache.path_device_indices(node_id)
        if slot is None:
            state = self._window(node_id, rows)
        else:
            state = PoolTransfer(name=self.cache_linker.state_pool, device_indices=slot)
        last = NodeTransfer(
            name=PoolName.KV,
            keys=hashes[-1:],
            device_indices=rows[-self.cache.page_size :],
            parent=hashes[-2] if len(hashes) > 1 else parent,
            depth=pages + len(hashes),
            state_only=True,
        )
        lock = self.cache.inc_lock_ref(node_id).to_dec_params()
        self.cache_linker.offload([last, state])
        # No node is told of: what SGLang knows of this one stays so.
        self.pending_offloads.append(_PendingOffload(node_id, lock, []))
        return True

    def _before(self, node_id: Any) -> tuple[int, str | None]:
        """How many pages precede a node, and the hash of the last one: a list of all would be made anew for each chunk
        of a prompt."""
        core = self.cache.tree_core
        ((*_, node),) = core.collect_path_info((node_id,))
        pages = node.path_start // self.cache.page_size
        return pages, core.get_last_hash_value(node.parent_id) if pages else None

    def replace_pending_offload_node(self, ack_id: Any, old_node_id: Any, new_node_ids: list[Any]) -> None:
        """A node that waits to be copied is cut in two. SGLang tells the first that waits under its lock, which may be
        its state alone, of which no node is told."""
        for index, pending in enumerate(self.pending_offloads):
            told = pending.publish_node_ids
            if pending.lock_node_id == ack_id and old_node_id in told:
                at = told.index(old_node_id)
                told = [*told[:at], *new_node_ids, *told[at + 1 :]]
                self.pending_offloads[index] = pending._replace(publish_node_ids=told)
                return

    def _state_may_wait(self) -> bool:
        """Whether one state more may be locked until it has been copied. SGLang admits requests without asking whether
        there are slots for their states, and ends where there are none: what it may need in one round stays free, or
        can be evicted. The same on every rank."""
        waiting = sum(
            self._component not in offload.lock_params.skipped_lock_components for offload in self.pending_offloads
        )
        if self._has_windows:
            # It asks whether there is room for windows: they need not all be short of it.
            states = self.cache_linker.pool.states
            assert states is not None, "windows of a model that has none"
            return waiting == 0 or waiting * states.parts < states.slots * STATES_WAITING_SHARE
        slots = self.cache.req_to_token_pool.mamba_allocator
        spare = int(slots.available_size() + self.cache.mamba_evictable_size())
        return waiting < slots.size * STATES_WAITING_SHARE and spare > self.cache.req_to_token_pool.size
