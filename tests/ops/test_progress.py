"""Progress lines where there is no terminal, bars where there is one."""

from __future__ import annotations

import io
import sys

import pytest

from swift_tiers.ops.base.progress import _Lines, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = _Lines("working", 100, " pages", clock=lambda: now[0])
    for done in range(1, 41):
        now[0] += 1
        lines.update(done)
    lines.update(41, text="still working")
    expected = ["working", "working: 15 of 100 pages", "working: 30 of 100 pages", "still working: 41 of 100 pages"]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_detail_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Else a training that tells its loss at each step would fill a log."""
    now = [0.0]
    lines = _Lines("working", 100, "", clock=lambda: now[0])
    for done in range(1, 17):
        now[0] += 1
        lines.update(done, detail=f"loss {done}")
    assert capsys.readouterr().err.splitlines() == ["working", "working: 15 of 100; loss 15"]


def test_lines_without_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as bar:
        bar.update(0, text="downloading")
    assert capsys.readouterr().err.splitlines() == ["working", "downloading"]


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("working", total=10) as bar:
        bar.update(5, text="half of it")
        bar.update(6, detail="six of it")
    assert "half of it" in terminal.getvalue()
    assert "half of it; six of it" in terminal.getvalue()
    assert "\x1b[2K" in terminal.getvalue()
