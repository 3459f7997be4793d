"""Lines as they are drawn."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from swift_tiers.console.widgets.panel import plain_segments

GROUND = Style(color="white", bgcolor="black")
STYLES = (Style(), Style(color="red"), Style(bold=True), Style(color="green", bgcolor="blue"))
PARTS = st.lists(st.tuples(st.text("ab é█", max_size=4), st.sampled_from([None, *STYLES])), max_size=8)


def cells(segments: list[Segment]) -> list[tuple[str, Style | None]]:
    return [(letter, segment.style) for segment in segments for letter in segment.text]


@given(st.sampled_from(["", Style(italic=True), Style(meta={"@click": "app.go(0)"})]), PARTS)
def test_a_line_of_styles_in_a_row_is_drawn_as_rich_draws_it(
    base: Style | str, parts: list[tuple[str, Style | None]]
) -> None:
    line = Text(style=base, no_wrap=True, end="")
    for words, style in parts:
        line.append(words, style)
    assume(line.spans or not base)  # rich leaves the style of a line away where it has no other
    segments = plain_segments(line, GROUND)
    assert segments is not None
    wanted = Segment.apply_style(line.render(Console(), end=""), GROUND)
    assert cells(segments) == cells(list(wanted))


def test_styles_over_each_other_are_left_to_rich() -> None:
    line = Text("abc", end="")
    line.append("def", STYLES[1])
    line.stylize(STYLES[2], 1, 5)
    assert plain_segments(line, GROUND) is None
    assert plain_segments(Text("abc", "red"), GROUND) is None
