"""What routers are told of pages beneath the device: SGLang's KV events (`--kv-events-config`), for our tiers.

A router that goes by KV events keeps where every block lies, and sends a request to the server that has most of its
prefix. SGLang tells of a block when the device has it (medium GPU), and when it has it no more. Here the same router is
told that a page which leaves the device is still beneath it, and when it is there no more either: medium CPU_PINNED,
as SGLang's HiCache tells of its host memory, whichever tiers have it. To routers these are one place: what this server
brings up faster than it computes it.

A page is told of when the device evicts it, the pages before it first. So nothing is told twice that the device has
anyway; what SSDs still have of before a restart is told of after it has been used.

SGLang's tree writes the events itself, since what is in one (tokens, hashes for each format of event) is known to it
alone: it is asked to with its word for a node that has got a copy in host memory. Events of whole nodes come out; what
of them is beneath, and was not told yet, is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, StorageMedium

from swift_tiers.radix_tiering.stack import TierStack

from .guard import never_raises

BENEATH = StorageMedium.CPU
#: Pages that left beneath and are told of at once: what more there are is told in the next round.
MOST_LEFT = 8192
#: Pages that are told of in one hold of the page table's lock.
PAGES_PER_HOLD = 1024
#: Of no copy to host memory that SGLang makes.
_NO_COPY = 2**62


class KvEvents:
    """Of the rank that tells routers of events. Scheduler's thread."""

    def __init__(self, core: Any, stack: TierStack, namespace: Callable[[], bytes | None]) -> None:
        """`core`: SGLang's tree, which records events. `namespace`: of what the device has now; None: of weights that
        are gone."""
        self.stack = stack
        self._core = core
        self._namespace = namespace
        #: The pages of nodes of which events are to come out of the tree, in its order.
        self._asked: deque[bytes] = deque()
        self._is_over = False  # something went wrong: until all begins anew no more is told than what has left

    def failed(self) -> None:
        self._is_over = True
        self._asked.clear()

    @never_raises(lambda: None)
    def leaving(self, node_id: int) -> None:
        """The device is about to evict a leaf of the tree."""
        namespace = self._namespace()
        if namespace is None or self._is_over or self._is_told(namespace, node_id):
            return
        ((*before, _),) = self._core.collect_path_info((node_id,))
        untold = [node_id]
        for node in reversed(before):
            if self._is_told(namespace, node.node_id):
                break  # and so is all before it
            untold.append(node.node_id)
        for one in reversed(untold):
            keys = [bytes.fromhex(key) for key in self._core.get_hash_values(one)]
            if not self.stack.probe(keys[:1]):
                break  # nor is there anything behind it
            self._core.finish_write_through([one], _NO_COPY)
            self._asked += keys

    def _is_told(self, namespace: bytes, node_id: int) -> bool:
        """Whether the last page of this node was told of."""
        key = self._core.get_last_hash_value(node_id)
        return bool(key) and self.stack.table.is_announced(namespace, bytes.fromhex(key))

    @never_raises(lambda: None)
    def cleared(self) -> None:
        """SGLang has emptied its tree, and told routers that there is nothing: whatever went wrong before is over."""
        self._asked.clear()
        with self.stack.table.lock:
            self.stack.table.announced.clear()
        self._is_over = False

    def complete(self, events: list[Any]) -> list[Any]:
        """What the tree has told since the last time, with what there is to tell of pages beneath it."""
        before = max((at for at, event in enumerate(events) if isinstance(event, AllBlocksCleared)), default=-1) + 1
        told = events[:before]  # of which nothing is left
        for event in events[before:]:
            if isinstance(event, BlockStored) and event.medium == BENEATH:
                told += self._beneath(event)
            else:
                told.append(event)
        if self.stack.table.announced.some_left:
            with self.stack.table.lock:
                left = self.stack.table.announced.take_left(MOST_LEFT)
            told.append(BlockRemoved(block_hashes=left, medium=BENEATH))
        return told

    @never_raises(list)
    def _beneath(self, event: BlockStored) -> list[BlockStored]:
        """Of an event of whole nodes those pages that are beneath the device, and were not told of yet."""
        if self._is_over:
            return []
        hashes, tokens, size = event.block_hashes, event.token_ids, event.block_size
        fresh: list[bool] = []
        for start in range(0, len(hashes), PAGES_PER_HOLD):
            part = hashes[start : start + PAGES_PER_HOLD]
            fresh += self._announce([self._asked.popleft() for _ in part], part)
        return [
            msgspec.structs.replace(
                event,
                block_hashes=hashes[start:end],
                parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
                token_ids=tokens[start * size : end * size],
            )
            for start, end in _runs(fresh)
        ]

    def _announce(self, keys: list[bytes], hashes: list[int]) -> list[bool]:
        namespace = self._namespace()
        if namespace is None:
            return [False] * len(keys)
        with self.stack.table.lock:
            return self.stack.table.announce(namespace, keys, hashes)


def _runs(fresh: list[bool]) -> Iterator[tuple[int, int]]:
    """Where runs of True begin and end."""
    end = 0
    for is_fresh, run in groupby(fresh):
        start, end = end, end + len(list(run))
        if is_fresh:
            yield start, end
