"""What is known of SGLang's tree: no more than the tree has, however many leaves come and go."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from swift_tiers.sglang_ext.tell import tree_shape
from swift_tiers.sglang_ext.tell.tree_shape import LEAVES_AGAIN, Node, TreeSummer


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
    assert set(summer.copy().nodes) <= {0, *tree.leaves}


class Unlisted(dict[int, Node]):
    """Nobody goes through all of it."""

    def items(self) -> Any:
        raise AssertionError("a sampling takes as long as there are nodes")

    values = keys = __iter__ = items


def test_no_sampling_goes_through_all_nodes_however_many_have_come_and_gone() -> None:
    """And it says which of those that are there is the deepest."""
    dice, summer, there = random.Random(1), TreeSummer(Tree()), dict[int, Node]()
    summer._nodes = Unlisted()  # type: ignore[assignment]
    for number in range(1, 6000):
        there[number] = Node(0, dice.choice([16, 900, 100_000]) * dice.randrange(1, 9), dice.randrange(1, 2000), 1)
        summer._enter(number, there[number])
        if number % 3 == 0:  # its path is another one now
            changed = dice.choice(list(there)[-50:])
            there[changed] = there[changed]._replace(depth=dice.randrange(1, 2000), tokens=dice.randrange(10**6))
            summer._enter(changed, there[changed])
        if number > 300:
            gone = number - 300
            summer.leaving(gone)
            del there[gone]
        if number % 20 == 0:
            found = summer.sample()
            assert (found.nodes, found.depth) == (len(there), max(node.depth for node in there.values()))
            assert found.deepest_tokens == max(node.tokens for node in there.values())
    for number in list(there):
        summer.leaving(number)
    assert summer.sample()[:4] == (0, 0, 0, 0)


def test_a_copy_is_of_its_moment_whatever_comes_and_goes_behind_it() -> None:
    """And of what it is made of, as much is made anew as changes."""
    dice, summer, there = random.Random(1), TreeSummer(Tree()), dict[int, Node]()
    copies = []
    for number in range(1, 4000):
        there[number] = Node(0, number, 1, 0)
        summer._enter(number, there[number])
        summer.note(number)
        if dice.random() < 0.3:
            gone = dice.choice(list(there)[-300:])
            summer._strike_out(gone)
            del there[gone]
        if number % 500 == 0:
            copies.append((summer.copy(), dict(there)))
    for copy, known in copies:
        assert copy.nodes == known
        assert set(copy.uses) == set(known)
    before = summer.copy()
    summer._enter(1, Node(0, 7, 1, 0))
    anew = [one is not other for one, other in zip(before._nodes, summer.copy()._nodes, strict=True)]
    assert sum(anew) == 1
