"""Charts: arithmetic of what is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.model.charts import ChartSeries, beside, chart, columns, condensed
from swift_tiers.console.model.glyphs import ASCII, UNICODE

VALUES = st.lists(st.none() | st.floats(0, 1e12), max_size=300)


@given(VALUES, st.integers(1, 120))
def test_condensing_keeps_the_mean_of_all_and_the_bounds(values: list[float | None], width: int) -> None:
    short = condensed(values, width)
    assert len(short) <= max(width, 0)
    assert len(short) == len(values) or len(values) > width
    known = [value for value in values if value is not None]
    kept = [value for value in short if value is not None]
    assert bool(known) == bool(kept)
    if known:
        assert min(known) * 0.999 <= min(kept) <= max(kept) <= max(known) * 1.001


def test_condensing_counts_from_the_newest() -> None:
    assert condensed([100.0, 1.0, 3.0, 5.0, 7.0], 3) == [100.0, 2.0, 6.0]
    assert condensed([None, None, 1.0, None], 2) == [None, 1.0]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@given(values=VALUES, height=st.integers(1, 12))
def test_a_larger_value_is_never_drawn_lower(glyphs, values, height) -> None:
    top = max((value for value in values if value is not None), default=0.0)
    lines = columns(glyphs, values, height, top)
    assert [len(line) for line in lines] == [len(values)] * height

    def drawn(at: int) -> int:
        return sum(glyphs.sparks.index(line[at]) for line in lines)

    known = sorted((value, drawn(at)) for at, value in enumerate(values) if value is not None)
    assert [level for _, level in known] == sorted(level for _, level in known)
    assert all((level > 0) == (value > 0) for value, level in known)
    if top > 0:
        assert known[-1][1] == height * (len(glyphs.sparks) - 1)
    unknown = [at for at, value in enumerate(values) if value is None]
    assert all(lines[-1][at] == glyphs.unknown for at in unknown)


@given(VALUES, st.integers(14, 200), st.integers(1, 10))
def test_every_line_of_a_chart_has_its_width(values: list[float | None], width: int, height: int) -> None:
    drawn = chart(UNICODE, ChartSeries("read", "ssd", values, lambda value: f"{value:.3g}"), width, height)
    assert len(drawn) == height + 1
    for line in [*drawn, *beside(drawn, drawn)]:
        length = sum(len(part if isinstance(part, str) else part[0]) for part in line)
        assert length in (width, 2 * width + 2)
