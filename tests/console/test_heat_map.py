"""Cells as signs: what a sign stands for, and that nothing is left out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.place import Place
from swift_tiers.console.views.parts.heat_map import MapLayout, Stretch, draw, layout, strongest_of

from support.console_world import World, scene_of

SCENE = scene_of(Place("blocks"), World(servers=("alpha",)))
NAMES = ("free", "cached", "pinned")


def stretches(lengths: list[int]) -> list[Stretch]:
    firsts = np.concatenate(([0], np.cumsum(lengths))).tolist()
    return [
        Stretch(first, length, str(number)) for number, (first, length) in enumerate(zip(firsts, lengths, strict=False))
    ]


@given(st.lists(st.integers(0, 500), max_size=6), st.integers(1, 60), st.integers(6, 20))
def test_everything_fits_at_the_smallest_step(lengths: list[int], width: int, height: int) -> None:
    plan = layout(stretches(lengths), width, height)
    assert plan.lines <= height
    assert sum(stretch.cells for stretch in plan.stretches) == sum(lengths)
    assert plan.step == 1 or plan._replace(step=plan.step - 1).lines > height


@given(st.integers(1, 40), st.integers(1, 8), st.data())
def test_of_too_many_stretches_those_around_the_cursor_are_shown(number: int, height: int, data: st.DataObject) -> None:
    near = data.draw(st.integers(0, number * 10 - 1))
    plan = layout(stretches([10] * number), 5, height, near)
    assert len(plan.stretches) <= height
    assert plan.lines <= height
    assert any(stretch.first <= near < stretch.first + stretch.cells for stretch in plan.stretches)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=200), st.integers(1, 30), st.integers(1, 9))
def test_signs_are_what_most_of_their_cells_are(codes: list[int], width: int, step: int) -> None:
    plan = MapLayout(step, width, (Stretch(0, len(codes)),))
    lines = draw(SCENE, plan, NAMES, strongest_of(np.array(codes), 3), gutter=2)
    signs = "".join(line.plain[2:] for line in lines)
    groups = [codes[at : at + step] for at in range(0, len(codes), step)]
    assert len(signs) == len(groups)
    for sign, group in zip(signs, groups, strict=True):
        most = max(map(group.count, group))
        assert sign in {SCENE.glyphs.signs[NAMES[code]] for code in group if group.count(code) == most}


def test_the_cursor_and_what_is_marked_are_seen_without_colour() -> None:
    codes = np.array([1] * 20)
    lines = draw(
        scene_of(Place("blocks"), glyphs=ASCII),
        MapLayout(1, 10, (Stretch(0, 20),)),
        NAMES,
        strongest_of(codes, 3),
        cursor=13,
        marked=[(2, 4)],
    )
    assert [line.plain for line in lines] == ["cc@@@ccccc", "ccc@cccccc"]
    cursor = [span for line in lines for span in line.spans if getattr(span.style, "reverse", False)]
    assert [(span.start, span.end) for span in cursor] == [(3, 4)], "the cursor is told from what is marked"


def test_a_click_finds_the_first_cell_of_its_sign() -> None:
    lines = draw(
        SCENE, MapLayout(7, 10, (Stretch(30, 140),)), NAMES, lambda edges: np.ones(len(edges) - 1, int), gutter=4
    )
    metas = [line.style.meta["cells"] for line in lines if isinstance(line.style, Style)]
    assert metas == [(4, 30, 7), (4, 100, 7)]


def test_states_of_another_release_have_a_sign() -> None:
    codes = np.array([0, 1])
    (line,) = draw(SCENE, MapLayout(1, 10, (Stretch(0, 2),)), ("free", "hidden"), strongest_of(codes, 2))
    assert line.plain == SCENE.glyphs.signs["free"] + "?"
