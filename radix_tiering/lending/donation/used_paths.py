"""How much of a radix tree has been used within the last seconds, counted while it is used and never by a walk.

A use of a node is one of all nodes on the path to it: whoever reads a prefix reads what is before it. So what has been
used lately is a tree, too, with the same root: the paths to the nodes whose own use is recent, or which somebody holds.
This is that tree. A node enters it with the first use, or hold, that ends at it or behind it, and leaves it with the
last one. Each costs as much as the nodes that enter or leave with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Ends of uses that one look takes out: it is the scheduler's thread that waits. What is left counts until the next.
MOST_AT_ONCE = 256


class PathNode(NamedTuple):
    """A node on a path from the root."""

    node: int
    parent: int
    start: int  # tokens from the root to its beginning
    end: int  # and to its end


class _UsedNode:
    """A node that is used or held, or has one behind it that is."""

    __slots__ = ("below", "end", "held", "listed", "parent", "start", "used")

    def __init__(self, part: PathNode) -> None:
        self.parent, self.start, self.end = part.parent, part.start, part.end
        self.below = 0  # children that are known
        self.held = 0  # who holds the path to it
        self.used: float | None = None  # when last, by a use that ends here
        self.listed = False  # among the uses that are to end


class UsedPaths:
    """Told of every use, hold, split and loss of a tree's nodes. Times are seconds of one clock and never go back.

    Node numbers are never used again, a node that is split keeps its number for its lower part, and only leaves that
    nobody holds are lost. Not thread-safe.
    """

    def __init__(self, seconds: float, read: Callable[[int], Sequence[PathNode]]) -> None:
        """`seconds`: how long a use counts. `read`: the path to a node as it is now, without the root; empty for the
        root and for nodes that have left."""
        self.seconds = seconds
        self._read = read
        self.clear()

    def clear(self) -> None:
        """The tree is empty now."""
        self._known: dict[int, _UsedNode] = {}
        #: A use that is to end, for each node with one: of a time that is not later than its newest.
        self._ends: list[tuple[float, int]] = []
        self._tokens = 0

    def tokens(self, now: float) -> int:
        """That are used or held."""
        self.expire(now)
        return self._tokens

    def end_of(self, node: int) -> int | None:
        """The tokens from the root to the end of a node, if that is used or held."""
        known = self._known.get(node)
        return None if known is None else known.end

    def __contains__(self, node: int) -> bool:
        return node in self._known

    # ---- what happens in the tree ----

    def use(self, node: int, now: float) -> None:
        """Somebody has read, or put there, all as far as the end of this node."""
        known = self._look_up(node)
        if known is not None:
            self._used(node, known, now)

    def hold(self, node: int) -> None:
        """Somebody uses all as far as the end of this node from now on."""
        known = self._look_up(node)
        if known is not None:
            known.held += 1

    def let_go(self, node: int, now: float) -> None:
        """Who held it has used it until now."""
        known = self._known.get(node)
        if known is not None and known.held:
            known.held -= 1
            self._used(node, known, now)

    def split(self, node: int) -> None:
        """The node has a new parent, which has the upper part of its tokens."""
        if node in self._known:
            self._enter(self._read(node))

    def lost(self, node: int) -> None:
        """A leaf has left the tree. Who used it has used what is before it, which is still there."""
        known = self._known.pop(node, None)
        if known is None:
            return
        self._tokens -= known.end - known.start
        parent = self._known.get(known.parent)
        if parent is not None:
            parent.below -= 1
            if known.used is not None:
                self._used(known.parent, parent, known.used)
            self._drop_unused(known.parent)

    def expire(self, now: float) -> None:
        """Uses that are older than `seconds` end, the oldest `MOST_AT_ONCE` of them."""
        oldest = now - self.seconds
        for _ in range(MOST_AT_ONCE):
            if not self._ends or self._ends[0][0] > oldest:
                return
            _, node = heapq.heappop(self._ends)
            known = self._known.get(node)
            if known is None or known.used is None:
                continue
            known.listed = False
            if known.used > oldest:
                self._used(node, known, known.used)
            else:
                known.used = None
                self._drop_unused(node)

    # ---- within ----

    def _look_up(self, node: int) -> _UsedNode | None:
        if node not in self._known:
            self._enter(self._read(node))
        return self._known.get(node)

    def _used(self, node: int, known: _UsedNode, when: float) -> None:
        known.used = when if known.used is None else max(known.used, when)
        if not known.listed:
            known.listed = True
            heapq.heappush(self._ends, (when, node))

    def _enter(self, path: Sequence[PathNode]) -> None:
        """Take in what of a path is new, at its end or by a split. What is known with the same parent has all before it
        known as it is."""
        first = len(path)
        while first and not self._agrees(path[first - 1]):
            first -= 1
        for part in path[first:]:
            known = self._known.get(part.node)
            if known is None:
                known = self._known[part.node] = _UsedNode(part)
                self._tokens += part.end - part.start
            else:  # split: the tokens before its start are those of a node that is new on this path
                former = self._known.get(known.parent)
                if former is not None:  # else it is the root
                    former.below -= 1
                self._tokens -= part.start - known.start
                known.parent, known.start = part.parent, part.start
            parent = self._known.get(part.parent)
            if parent is not None:
                parent.below += 1

    def _agrees(self, part: PathNode) -> bool:
        known = self._known.get(part.node)
        return known is not None and known.parent == part.parent

    def _drop_unused(self, node: int) -> None:
        """Forget it, and all before it, as far as nobody uses or holds it and nothing behind it is known."""
        known = self._known.get(node)
        while known is not None and not known.below and not known.held and known.used is None:
            del self._known[node]
            self._tokens -= known.end - known.start
            node = known.parent
            known = self._known.get(node)
            if known is not None:
                known.below -= 1
