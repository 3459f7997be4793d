"""What is known of SGLang's tree: no more than the tree has, however many leaves come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from swift_tiers.sglang_ext.tell import tree_shape
from swift_tiers.sglang_ext.tell.tree_shape import LEAVES_AGAIN, TreeSummer


class Info(NamedTuple):
    """As SGLang tells of a node."""

    node_id: int
    parent_id: int
    path_end: int
    num_children: int


class Tree:
    """A root with leaves."""

    def __init__(self) -> None:
        self.leaves: dict[int, None] = {}

    def collect_path_info(self, nodes: Sequence[int]) -> list[list[Any]]:
        (node,) = nodes
        if node not in self.leaves:
            raise KeyError(node)
        return [[Info(0, -1, 0, len(self.leaves)), Info(node, 0, 16, 0)]]


def test_leaves_that_were_evicted_are_kept_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more come and go between two samplings than are read again in one."""
    monkeypatch.setattr(tree_shape, "BUDGET_SECONDS", 60.0)
    tree, most = Tree(), 0
    summer = TreeSummer(tree)
    for node in range(1, 100 * LEAVES_AGAIN):
        tree.leaves[node] = None
        summer.note(node)
        if node % (4 * LEAVES_AGAIN) == 0:
            summer.sample()
        if node > 8:
            gone = next(iter(tree.leaves))
            summer.leaving(gone)
            del tree.leaves[gone]
        most = max(most, len(summer._again))
    assert most <= 8 * LEAVES_AGAIN
    assert set(summer._again) <= {0, *tree.leaves}
    assert set(summer._nodes) <= {0, *tree.leaves}
