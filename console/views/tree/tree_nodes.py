"""SGLang's radix tree as one rank told it: who is behind whom, drawn with branches; sorted without losing that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.views import NodeEntry, NodesView

from ...model.glyphs import Glyphs
from ...model.table import Row
from ..parts.lazy_rows import LazyRows
from ..parts.settled import Remembered

#: What the nodes of one parent are sorted by, by the name of the column; None: not known.
ORDERS: dict[str, Callable[[NodeEntry], float | None]] = {
    "subtree": lambda node: node.subtree_tokens,
    "share": lambda node: node.subtree_tokens,
    "tokens": lambda node: node.tokens,
    "hits": lambda node: node.hits,
    "locks": lambda node: node.locks,
    "idle": lambda node: node.idle_seconds,
}


class Branch(NamedTuple):
    """One node where it is drawn: `trunks` says of each level above whether its line goes on below."""

    view: NodesView
    node: NodeEntry
    trunks: tuple[bool, ...]  # of its ancestors, outermost first, then its own; empty: a root

    def drawn(self, glyphs: Glyphs) -> str:
        """What stands before its name."""
        if not self.trunks:
            return ""
        above = "".join(glyphs.trunk if more else " " * len(glyphs.trunk) for more in self.trunks[:-1])
        return above + (glyphs.branch if self.trunks[-1] else glyphs.last_branch)


class Tree:
    """The listed nodes of one rank. A node whose parent is not listed is shown as a root."""

    def __init__(self, view: NodesView) -> None:
        self.view = view
        self.nodes = {node.node: node for node in view.table}
        self.largest = max((node.subtree_tokens for node in view.table), default=0)
        self._children: dict[int | None, list[NodeEntry]] = {}
        for node in self.nodes.values():
            above = node.parent if node.parent in self.nodes and node.parent != node.node else None
            self._children.setdefault(above, []).append(node)

    def behind(self, node: int) -> list[NodeEntry]:
        """Its children that are listed."""
        return self._children.get(node, [])

    def above(self, node: NodeEntry) -> list[NodeEntry]:
        """Its ancestors that are listed, the outermost first."""
        found: list[NodeEntry] = []
        seen = {node.node}
        while node.parent in self.nodes and node.parent not in seen:
            node = self.nodes[node.parent]
            seen.add(node.node)
            found.append(node)
        return found[::-1]

    def branches(self, column: str = "subtree", descending: bool = True, root: int | None = None) -> Iterator[Branch]:
        """All nodes, or those behind one, parents before their children; nodes of one parent sorted by a column."""
        value = ORDERS[column]

        def order(nodes: list[NodeEntry]) -> list[NodeEntry]:
            known = [node for node in nodes if value(node) is not None]
            known.sort(key=lambda node: value(node) or 0.0, reverse=descending)
            return [*known, *(node for node in nodes if value(node) is None)]

        top = order(self._children.get(root, []))
        inner = root is not None
        # What is still to come, the next one last. Each node is taken once, whatever the answer says of parents.
        waiting = [(node, (number + 1 < len(top),) if inner else ()) for number, node in enumerate(top)][::-1]
        left = set(self.nodes)
        while waiting:
            node, trunks = waiting.pop()
            if node.node not in left:
                continue
            left.discard(node.node)
            yield Branch(self.view, node, trunks)
            behind = order(self._children.get(node.node, []))
            waiting += [(one, (*trunks, number + 1 < len(behind))) for number, one in enumerate(behind)][::-1]


_TREES: Remembered[NodesView, Tree] = Remembered(Tree)


def tree_of(view: NodesView) -> Tree:
    """The app's thread only."""
    return _TREES.of(view)


class NodeRows(LazyRows[Branch]):
    """Rows of several trees, one after another."""

    def __init__(
        self, trees: Sequence[Tree], make: Callable[[Branch], Row], root: int | None = None, column: str = "subtree",
        descending: bool = True,
    ) -> None:  # fmt: skip
        branches = [branch for tree in trees for branch in tree.branches(column, descending, root)]
        super().__init__(branches, node_key, make)
        self._trees, self._root = trees, root

    def ordered(self, column: str, descending: bool) -> NodeRows:
        """Children stay behind their parents; by what no one sorts nodes by, the largest first."""
        if column not in ORDERS:
            return self
        return NodeRows(self._trees, self._make, self._root, column, descending)


def node_key(branch: Branch) -> str:
    return f"{branch.view.server} {branch.view.rank} {branch.node.node}"
