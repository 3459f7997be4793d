"""The shape of a simulated device's tree: runs of pages without a branch are its nodes, as SGLang has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.views import NodeEntry
from swift_tiers.radix_tiering.table.held_page import Page


class DemoTreeShape(NamedTuple):
    """In sum; depths count nodes, `deepest` pages."""

    nodes: int
    leaves: int
    depth: int
    deepest: int


class DemoNode(NamedTuple):
    """A run of pages: its last one names it."""

    first: Page
    last: Page
    pages: int
    parent: Page | None  # the last page of the node before


def nodes_of(pages: Iterable[Page]) -> list[DemoNode]:
    """Parents before their children."""
    found = []
    for page in pages:
        begins = page.parent is None or len(page.parent.children) > 1
        if not begins:
            continue
        last, length = page, 1
        while len(last.children) == 1:
            last = next(iter(last.children))
            length += 1
        found.append(DemoNode(page, last, length, page.parent))
    return found


def shape_of(pages: Sequence[Page]) -> DemoTreeShape:
    nodes = nodes_of(pages)
    depths: dict[Page, int] = {}
    for node in sorted(nodes, key=lambda node: node.last.depth):
        depths[node.last] = 1 + (depths.get(node.parent, 0) if node.parent is not None else 0)
    leaves = sum(not node.last.children for node in nodes)
    return DemoTreeShape(
        len(nodes), leaves, max(depths.values(), default=0), max((node.last.depth for node in nodes), default=0)
    )


def table_of(pages: Sequence[Page], count: int, page_tokens: int) -> tuple[int, list[NodeEntry]]:
    """How many nodes there are, and those with the largest subtrees."""
    nodes = nodes_of(pages)
    numbers = {node.last: number for number, node in enumerate(nodes, 1)}
    below = {node.last: node.pages for node in nodes}
    for node in sorted(nodes, key=lambda node: -node.last.depth):
        if node.parent is not None:
            below[node.parent] += below[node.last]
    entries = [
        NodeEntry(
            numbers[node.last], None if node.parent is None else numbers[node.parent], node.pages * page_tokens,
            below[node.last] * page_tokens, node.first.uses, int(node.last.pins > 0), None, node.last.key.hex()[:16],
        )
        for node in nodes
    ]  # fmt: skip
    entries.sort(key=lambda entry: -entry.subtree_tokens)
    return len(nodes), entries[:count]
