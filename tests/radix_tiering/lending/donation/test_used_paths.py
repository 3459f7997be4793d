"""What has been used of a tree lately, over a tree that is told by hand. (Over SGLang's: test_kept_prefixes.py.)"""

from __future__ import annotations

from collections.abc import Sequence

from swift_tiers.radix_tiering.lending.donation.used_paths import MOST_AT_ONCE, PathNode, UsedPaths

ROOT = 0


class Tree:
    """By node: its parent, and its tokens."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[int, int]] = {}
        self.reads = 0
        self.paths = UsedPaths(60.0, self._path)

    def _path(self, node: int) -> Sequence[PathNode]:
        self.reads += 1
        path: list[tuple[int, int, int]] = []
        while node in self.nodes:
            parent, tokens = self.nodes[node]
            path.append((node, parent, tokens))
            node = parent
        parts, start = [], 0
        for name, parent, tokens in reversed(path):
            parts.append(PathNode(name, parent, start, start + tokens))
            start += tokens
        return parts


def test_a_path_is_read_once_however_often_it_is_used() -> None:
    tree = Tree()
    tree.nodes = {1: (ROOT, 10), 2: (1, 20), 3: (2, 30)}
    for now in range(5):
        tree.paths.use(3, float(now))
    assert tree.paths.tokens(5.0) == 60
    assert tree.reads == 1
    assert tree.paths.end_of(2) == 30
    assert tree.paths.tokens(64.0) == 0
    assert tree.paths.end_of(2) is None


def test_what_is_no_node_is_no_use() -> None:
    tree = Tree()
    tree.paths.use(ROOT, 0.0)
    tree.paths.hold(7)
    tree.paths.let_go(7, 0.0)
    tree.paths.split(7)
    tree.paths.lost(7)
    assert tree.paths.tokens(0.0) == 0


def test_a_node_that_is_split_counts_once_whoever_hears_of_it_first() -> None:
    for first in (4, 1):
        tree = Tree()
        tree.nodes = {1: (ROOT, 10)}
        tree.paths.use(1, 0.0)
        tree.nodes = {3: (ROOT, 4), 1: (3, 6), 4: (3, 5)}
        if first == 4:
            tree.paths.hold(4)
            tree.paths.split(1)
        else:
            tree.paths.split(1)
            tree.paths.hold(4)
        assert tree.paths.tokens(0.0) == 4 + 6 + 5
        assert tree.paths.tokens(60.0) == 4 + 5
        tree.paths.let_go(4, 60.0)
        assert tree.paths.tokens(120.0) == 0


def test_one_look_lets_no_more_than_so_many_uses_end() -> None:
    tree = Tree()
    tree.nodes = dict.fromkeys(range(1, 3 * MOST_AT_ONCE + 1), (ROOT, 1))
    for number in tree.nodes:
        tree.paths.use(number, 0.0)
    assert [tree.paths.tokens(60.0) for _ in range(4)] == [2 * MOST_AT_ONCE, MOST_AT_ONCE, 0, 0]
