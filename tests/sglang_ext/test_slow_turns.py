"""Questions to a scheduler whose turns are long, or whose tree is large, are answered all the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from swift_tiers.radix_tiering.figures.telemetry import NotYet
from swift_tiers.sglang_ext.tell import answers, errands, tree_shape
from swift_tiers.sglang_ext.tell.errands import Errands
from swift_tiers.sglang_ext.tell.tree_shape import Node, TreeSummer

Answer = TypeVar("Answer")

NODES = 2000


class Core:
    """SGLang's tree: paths to its nodes are known."""

    def get_last_hash_value(self, node_id: int) -> str:
        return f"{node_id:064x}"


class Slow:
    """Asked ten times a turn, as a publisher does; its clock goes on by that alone."""

    def __init__(self, turn: float) -> None:
        self.now = 1000.0
        self.turn = turn
        shape = TreeSummer(Core())
        for number in range(1, NODES + 1):
            shape._nodes[number] = Node(0, 64, 1, 0)
        self.errands = Errands()
        sampler: Any = SimpleNamespace(
            errands=self.errands,
            shape=shape,
            present=list,
            scheduler=SimpleNamespace(
                tree_cache=SimpleNamespace(tree_core=Core(), root_node_handle=lambda: 0),
            ),
            linker=SimpleNamespace(pool=SimpleNamespace(page_size=16)),
        )
        self.scheduler = answers._Scheduler(sampler)

    def ask(self, question: Callable[[], Answer], turns: int) -> Answer:
        """The answer, which comes after so many turns at most."""
        for asked in range(10 * turns):
            try:
                return question()
            except NotYet:
                self.now += self.turn / 10
                if asked % 10 == 9:
                    self.errands.tick()
        raise AssertionError(f"no answer after {turns} turns of {self.turn} s")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Slow]:
    def make(turn: float) -> Slow:
        made = Slow(turn)
        clock = SimpleNamespace(monotonic=lambda: made.now, perf_counter=lambda: made.now, time=lambda: made.now)
        for module in (answers, errands, tree_shape):
            monkeypatch.setattr(module, "time", clock)
        return made

    return make


@pytest.mark.parametrize("turn", [0.01, 0.6, 5.0])
def test_nodes_are_told_however_long_turns_are(slow: Callable[[float], Slow], turn: float) -> None:
    made = slow(turn)
    found = made.ask(lambda: made.scheduler.nodes(10), turns=8)
    assert [(one.subtree_tokens, one.key) for one in found.table] == [(64, f"{node:064x}") for node in range(1, 11)]
    assert found.nodes == NODES


def test_nodes_are_told_however_long_their_ranking_takes(
    slow: Callable[[float], Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ranked = slow(0.1), list[float]()
    rank = answers.largest_subtrees

    def ranked_slowly(*arguments: Any) -> Any:
        made.now += 3.0
        ranked.append(made.now)
        return rank(*arguments)

    monkeypatch.setattr(answers, "largest_subtrees", ranked_slowly)
    first = made.ask(lambda: made.scheduler.nodes(10), turns=8)
    assert first.time < ranked[0], "it says when the tree was read"
    made.now += answers.FRESH_SECONDS / 2
    assert made.scheduler.nodes(5).table == first.table[:5]
    assert len(ranked) == 1, "ranked again for who asks at once"
    made.now += answers.FRESH_SECONDS
    assert made.ask(lambda: made.scheduler.nodes(10), turns=8).time > ranked[0]


def test_nodes_that_were_asked_for_and_given_up_are_told_to_nobody_later(slow: Callable[[float], Slow]) -> None:
    made = slow(0.1)
    while made.scheduler._keyed is None:
        with pytest.raises(NotYet):
            made.scheduler.nodes(10)
        made.now += made.turn
        made.errands.tick()
    for _ in range(100):
        made.now += 3600.0
        made.errands.tick()
    asked = made.now
    assert made.ask(lambda: made.scheduler.nodes(10), turns=8).time >= asked


def test_a_page_waits_for_as_many_turns_as_its_answer_takes(slow: Callable[[float], Slow]) -> None:
    """But not for longer than whoever asks."""
    made, key = slow(0.6), bytes(32)
    for _ in range(3):
        made.now += made.turn
        made.errands.tick()
    began = made.now
    made.ask(lambda: made.scheduler.device_slots(key, list), turns=20)
    assert answers.DEVICE_SECONDS < made.now - began <= answers.MOST_DEVICE_SECONDS + made.turn
