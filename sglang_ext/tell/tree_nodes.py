"""The largest subtrees of SGLang's radix tree, and where a page lies in it, from what `TreeShape` knows.

What takes long is done on the publisher's thread, on a copy; the tree itself is asked on the scheduler's, in steps.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from swift_tiers.radix_tiering.figures.forms import NodeEntry

from .on_the_way import OnTheWay
from .tree_shape import Node, TreeCopy

#: Nodes that are gone through without letting others go first, on a thread that is in no hurry.
NODES_IN_A_ROW = 1000

#: By node: those that hang at it. At None: those at the root.
Children = Mapping[int | None, list[int]]


def largest_subtrees(tree: TreeCopy, ends: Iterable[int], count: int, now: float) -> list[NodeEntry]:
    """Without keys. `ends`: of each request that is there, the node that it has locked the path to; `now`: monotonic.
    Any thread."""
    nodes = tree.nodes
    locks = Counter(ends)
    subtree: dict[int, int] = {}
    hits: dict[int, int] = {}
    held: dict[int, int] = {}
    latest: dict[int, float] = {}
    for number, node_id in enumerate(_leaves_first(nodes)):
        node = nodes[node_id]
        use = tree.uses.get(node_id)
        own = (
            subtree.get(node_id, 0) + _tokens(nodes, node),
            hits.get(node_id, 0) + (use.hits if use is not None else 0),
            held.get(node_id, 0) + locks[node_id],
            max(latest.get(node_id, 0.0), use.latest if use is not None else 0.0),
        )
        subtree[node_id], hits[node_id], held[node_id], latest[node_id] = own
        if node.parent in nodes:
            subtree[node.parent] = subtree.get(node.parent, 0) + own[0]
            hits[node.parent] = hits.get(node.parent, 0) + own[1]
            held[node.parent] = held.get(node.parent, 0) + own[2]
            latest[node.parent] = max(latest.get(node.parent, 0.0), own[3])
        if number % NODES_IN_A_ROW == 0:
            time.sleep(0)
    return [
        NodeEntry(
            node_id,
            nodes[node_id].parent if nodes[node_id].parent in nodes else None,
            _tokens(nodes, nodes[node_id]),
            subtree[node_id],
            hits[node_id],
            held[node_id],
            max(0.0, now - latest[node_id]) if latest[node_id] else None,
            "",
        )
        for node_id in heapq.nsmallest(count, subtree, key=lambda one: (-subtree[one], one))
    ]


def children_of(tree: TreeCopy) -> Children:
    """Who hangs where. Any thread."""
    found: dict[int | None, list[int]] = defaultdict(list)
    for number, (node_id, node) in enumerate(tree.nodes.items()):
        found[node.parent if node.parent in tree.nodes else None].append(node_id)
        if number % NODES_IN_A_ROW == 0:
            time.sleep(0)
    return found


def read_keys(core: Any, nodes: Iterable[int], found: dict[int, str]) -> Iterator[None]:
    """The key of the last page of each node, hex; of those that have left meanwhile there is none. Scheduler's
    thread, a node at a time."""
    for node_id in nodes:
        try:
            found[node_id] = core.get_last_hash_value(node_id) or ""
        except KeyError:
            pass
        yield


class Whereabouts:
    """Where the device has the pages of a sequence: `look` on the scheduler's thread, then the rest on any."""

    def __init__(self, core: Any, root: int, children: Children, chain: list[str], page_size: int) -> None:
        """`chain`: hex keys, in order; of a sequence that is known in its last page only, that one."""
        self._core = core
        self._root = root
        self._children = children
        self._places = {key: place for place, key in enumerate(chain)}
        self._page_size = page_size
        self._slots: OnTheWay | None = None
        self._first = 0
        self.path: list[str] = []  # keys of the pages on the way, as far as they belong to the sequence

    def ready(self) -> bool:
        """Whether what was found has come."""
        return self._slots is None or self._slots.ready()

    def slots(self) -> dict[str, int]:
        """The device's page of each page of the sequence that it has, by hex key; only once `ready`."""
        if self._slots is None:
            return {}
        pages = self._slots.numpy()[:: self._page_size] // self._page_size
        return dict(zip(self.path, pages.tolist(), strict=False))

    def follow(self) -> Iterator[None]:
        """Down from the root, by the keys: each is over all before it, so one that is known settles the path to it."""
        deepest, matched = None, 0
        below = list(self._children.get(None, ()))
        while below:
            node_id = below.pop()
            count = self._matched(node_id)
            if count:
                deepest, matched = node_id, count
                below = list(self._children.get(node_id, ()))
            yield
        if deepest is not None:
            self._take(deepest, matched)

    def search(self) -> Iterator[None]:
        """Through all nodes: where nothing is known of the pages before."""
        for node_id in [node_id for nodes in self._children.values() for node_id in nodes]:
            count = self._matched(node_id)
            if count:
                self._take(node_id, count)
                return
            yield

    def _matched(self, node_id: int) -> int:
        """Pages of the node up to the last one that is in the sequence."""
        try:
            keys = self._core.get_hash_values(node_id)
        except KeyError:
            return 0
        if not keys:
            return 0
        if keys[-1] in self._places:
            return len(keys)
        return next((place for place in range(len(keys), 0, -1) if keys[place - 1] in self._places), 0)

    def _take(self, node_id: int, matched: int) -> None:
        try:
            before = self._core.get_prefix_hash_values(node_id)
            path = [*before, *self._core.get_hash_values(node_id)[:matched]]
            rows = self._core.collect_full_device_indices(node_id, self._root)
        except KeyError:
            return
        if len(rows) >= len(path) * self._page_size:
            self.path = path
            self._slots = OnTheWay(rows[: len(path) * self._page_size])


def _tokens(nodes: Mapping[int, Node], node: Node) -> int:
    parent = nodes.get(node.parent)
    return node.tokens - (parent.tokens if parent is not None else 0)


def _leaves_first(nodes: Mapping[int, Node]) -> list[int]:
    return sorted(nodes, key=lambda node_id: -nodes[node_id].depth)
