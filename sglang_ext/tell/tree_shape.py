"""How large and how deep SGLang's radix tree is, without walking it.

The tree may be one of Rust, which gives no list of its nodes, and may have a hundred thousand of them. What it does
give is the path to a node. So the nodes where requests ended are noted as they go into the tree; a sampling reads the
paths to those, for as long as it may, and what leaves the tree is struck out. A node that was split since its path was
read stands one level too high until it is read again, which happens to some leaves in every sampling.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")

#: Seconds of the scheduler's thread that one sampling may spend on reading paths.
BUDGET_SECONDS = 0.003
#: Leaves whose paths are read again in one sampling.
LEAVES_AGAIN = 32
#: Of the numbers whose largest is asked for.
NUMBERS_IN_A_BLOCK = 1024
#: Of what is kept by node: a copy of all of it takes as long as there are blocks, a change behind it as one of them.
BLOCKS = 256


class Node(NamedTuple):
    """As it was when a path to it was read."""

    parent: int
    tokens: int  # from the root to its end
    depth: int  # nodes from the root to it, itself included
    children: int


class NodeUse(NamedTuple):
    """Who ended at a node, or at one behind it that has left since."""

    hits: int  # requests
    latest: float  # monotonic seconds


class TreeCopy:
    """What was known of the tree at one moment, for any thread. Whoever reads it puts it together."""

    def __init__(self, nodes: Sequence[dict[int, Node]], uses: Sequence[dict[int, NodeUse]], *, complete: bool) -> None:
        """Of both the blocks, which change no more."""
        self._nodes = nodes
        self._uses = uses
        self.complete = complete

    @cached_property
    def nodes(self) -> dict[int, Node]:
        return _joined(self._nodes)

    @cached_property
    def uses(self) -> dict[int, NodeUse]:
        return _joined(self._uses)


def _joined(blocks: Sequence[dict[int, Value]]) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for block in blocks:
        found.update(block)
    return found


class Shape(NamedTuple):
    """What is known of the tree now."""

    nodes: int
    leaves: int
    depth: int
    deepest_tokens: int
    complete: bool  # every path has been read


class _Numbers:
    """The largest of many numbers from 0 on that come and go. A heap would have to be cleared of what has gone, which
    takes as long as there are nodes; this takes what one block does."""

    def __init__(self) -> None:
        self._blocks: list[dict[int, int]] = []  # of so many numbers each: how often each is there

    def change(self, gone: int | None, come: int | None) -> None:
        if gone == come:
            return
        if come is not None:
            while come // NUMBERS_IN_A_BLOCK >= len(self._blocks):
                self._blocks.append({})
            block = self._blocks[come // NUMBERS_IN_A_BLOCK]
            block[come] = block.get(come, 0) + 1
        if gone is not None:
            block = self._blocks[gone // NUMBERS_IN_A_BLOCK]
            block[gone] -= 1
            if not block[gone]:
                del block[gone]

    def largest(self) -> int:
        """0 if there is none."""
        while self._blocks and not self._blocks[-1]:
            self._blocks.pop()
        return max(self._blocks[-1]) if self._blocks else 0


class _ByNode(Generic[Value]):
    """What is kept by node. A copy has the blocks themselves: one that a copy has is made anew before it changes."""

    def __init__(self) -> None:
        self._blocks: list[dict[int, Value]] = [{} for _ in range(BLOCKS)]
        self._copied: set[int] = set()  # blocks that a copy has

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._blocks[node_id % BLOCKS]

    def get(self, node_id: int) -> Value | None:
        return self._blocks[node_id % BLOCKS].get(node_id)

    def __setitem__(self, node_id: int, value: Value) -> None:
        self._own(node_id)[node_id] = value

    def pop(self, node_id: int, default: None = None) -> Value | None:
        return self._own(node_id).pop(node_id, default)

    def copied(self) -> tuple[dict[int, Value], ...]:
        """The blocks, as they are now for good."""
        self._copied.update(range(BLOCKS))
        return tuple(self._blocks)

    def _own(self, node_id: int) -> dict[int, Value]:
        number = node_id % BLOCKS
        if number in self._copied:
            self._copied.remove(number)
            self._blocks[number] = self._blocks[number].copy()
        return self._blocks[number]


class TreeSummer:
    """Scheduler's thread."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.clear()

    def clear(self) -> None:
        """The tree is empty now."""
        self._nodes = _ByNode[Node]()
        self._leaves = 0
        self._unread: dict[int, None] = {}
        self._uses = _ByNode[NodeUse]()  # of nodes that requests ended at
        self._again: OrderedDict[int, None] = OrderedDict()  # leaves, the next one to be read again first
        self._depths, self._tokens = _Numbers(), _Numbers()  # of all nodes

    def note(self, node_id: int, before: int | None = None) -> None:
        """A request went into the tree as far as this node; some of it went as far as `before`, if that is given."""
        self._unread[node_id] = None
        if before is not None and (use := self._uses.get(before)) is not None and use.hits:
            self._uses[before] = use._replace(hits=use.hits - 1)
        known = self._uses.get(node_id) or NodeUse(0, 0.0)
        self._uses[node_id] = NodeUse(known.hits + 1, time.monotonic())

    def leaving(self, node_id: int) -> None:
        """A leaf is about to be evicted."""
        if node_id in self._unread:
            # Nobody else might ever tell of the nodes above it.
            del self._unread[node_id]
            self._read(node_id)
        self._strike_out(node_id)

    def sample(self) -> Shape:
        """What the tree looks like; at most `BUDGET_SECONDS`, and what one path takes."""
        limit = time.perf_counter() + BUDGET_SECONDS
        while self._unread and time.perf_counter() < limit:
            node_id, _ = self._unread.popitem()
            self._read(node_id)
        for _ in range(min(LEAVES_AGAIN, len(self._again))):
            if time.perf_counter() >= limit:
                break
            node_id, _ = self._again.popitem(last=False)
            if self._is_leaf(node_id):
                self._read(node_id)
            if self._is_leaf(node_id):
                self._again[node_id] = None
        return Shape(
            nodes=len(self._nodes),
            leaves=self._leaves,
            depth=self._depths.largest(),
            deepest_tokens=self._tokens.largest(),
            complete=not self._unread,
        )

    def copy(self) -> TreeCopy:
        """What is known now. Takes no longer because there are more nodes."""
        return TreeCopy(self._nodes.copied(), self._uses.copied(), complete=not self._unread)

    def _is_leaf(self, node_id: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and not node.children

    def _read(self, node_id: int) -> None:
        try:
            (path,) = self._core.collect_path_info((node_id,))
        except KeyError:  # left the tree on another way than by eviction
            self._strike_out(node_id)
            return
        for depth, info in enumerate(path, start=1):
            self._enter(info.node_id, Node(info.parent_id, info.path_end, depth, info.num_children))

    def _enter(self, node_id: int, node: Node) -> None:
        before = self._nodes.get(node_id)
        self._nodes[node_id] = node
        self._leaves += (not node.children) - (before is not None and not before.children)
        self._depths.change(before and before.depth, node.depth)
        self._tokens.change(before and before.tokens, node.tokens)
        if not node.children:
            self._again[node_id] = None

    def _strike_out(self, node_id: int) -> None:
        self._again.pop(node_id, None)
        node = self._nodes.pop(node_id, None)
        use = self._uses.pop(node_id, None)
        if node is None:
            return
        if use is not None and node.parent in self._nodes:
            # Whoever used it used what is before it.
            above = self._uses.get(node.parent) or NodeUse(0, 0.0)
            self._uses[node.parent] = NodeUse(above.hits + use.hits, max(above.latest, use.latest))
        self._leaves -= not node.children
        self._depths.change(node.depth, None)
        self._tokens.change(node.tokens, None)
        parent = self._nodes.get(node.parent)
        if parent is not None and parent.children:
            self._enter(node.parent, parent._replace(children=parent.children - 1))
