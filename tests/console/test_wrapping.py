"""Lines that are longer than the screen: nothing of them is lost, and nothing is cut within a word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style
from rich.text import Text

from swift_tiers.console.model.wrapping import wrapped

PARTS = st.lists(
    st.tuples(st.text("ab 漢é█", max_size=12), st.sampled_from([Style(color="red"), Style(bold=True)])), max_size=9
)


def line_of(parts: list[tuple[str, Style]]) -> Text:
    line = Text(no_wrap=True, end="")
    for words, style in parts:
        line.append(words, style)
    return line


@given(PARTS, st.integers(1, 60))
def test_nothing_is_lost_and_nothing_is_too_long(parts: list[tuple[str, Style]], width: int) -> None:
    line = line_of(parts)
    lines = wrapped([line], width)
    if width >= 30:
        assert all(one.cell_len <= max(width, 2) for one in lines)
    assert "".join(one.plain for one in lines).replace(" ", "") == line.plain.replace(" ", "")


@given(PARTS, st.integers(30, 60))
def test_every_word_keeps_its_style(parts: list[tuple[str, Style]], width: int) -> None:
    def styles(line: Text) -> list[tuple[str, Style]]:
        signs: list[Style | None] = [None] * len(line.plain)
        for start, end, style in line.spans:
            signs[start:end] = [style] * (end - start)
        return [(sign, style) for sign, style in zip(line.plain, signs, strict=True) if sign != " "]

    line = line_of(parts)
    assert [one for part in wrapped([line], width) for one in styles(part)] == styles(line)


def test_it_goes_on_beneath_its_beginning_between_words() -> None:
    lines = wrapped([Text("  its pages are misses and the server goes on without it"), Text("short")], 30)
    assert [line.plain for line in lines] == [
        "  its pages are misses and the",
        "      server goes on without",
        "      it",
        "short",
    ]


def test_what_fits_stays_the_line_that_it_is() -> None:
    line = Text("as wide as it may be")
    assert wrapped([line], len(line.plain))[0] is line
