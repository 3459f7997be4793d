"""`swift-tiers console` and `swift-tiers replay` as commands: what they refuse, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_tiers.ops.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line with which it ends."""
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.rec"
    assert f"{path}: No such file" in refused(capsys, "replay", str(path))
    path.write_text("{}")
    assert "is no recording of `swift-tiers console --record`" in refused(capsys, "replay", str(path))


def test_a_file_is_not_recorded_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.rec"
    path.write_text("mine")
    said = refused(capsys, "console", "--url", "redis://127.0.0.1:1", "--record", str(path))
    assert "is there already; give another name" in said
    assert path.read_text() == "mine"


@pytest.mark.parametrize("speed", ["0", "65", "fast", "nan"])
def test_speeds_that_there_are_not_are_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "a.rec", "--speed", speed])
    assert ended.value.code == 2
    assert "is not a number from 1/16 to 64" in capsys.readouterr().err
