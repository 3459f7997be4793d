"""`swift-tiers console` and `swift-tiers replay` without a screen: what they print, and what they refuse."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.console.feeds.recording import RecordingFeed
from swift_tiers.console.views import VIEWS
from swift_tiers.ops.cli import main
from swift_tiers.ops.commands import console_command

from support.bus import HandWritten
from support.command_line import run_command
from support.console_world import WorldFeed
from support.redis import RealRedis, free_port

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused here would be refused in a terminal, too."""
    monkeypatch.setattr(console_command, "has_screen", lambda: True)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Ten seconds of a world with something wrong."""
    now = 0.0
    recording = RecordingFeed(WorldFeed(), tmp_path / "world.rec", "0.1.0", monotonic=lambda: now)
    for _ in range(20):
        recording.look()
        now += 0.5
    recording.close()
    return tmp_path / "world.rec"


# ---- one look, printed ----


def once(capsys: Capture, tape: Path, *words: str) -> str:
    code, out, err = run_command(capsys, "replay", str(tape), "--at", "9", "--once", *words)
    assert (code, err) == (0, "")
    return out


def test_what_is_wrong_is_printed_first_and_then_the_servers(tape: Path, capsys: Capture) -> None:
    out = once(capsys, tape)
    lines = out.splitlines()
    assert lines[0].startswith("swift-tiers RECORDING")
    assert lines[0].endswith("3 WRONG  4 warnings")
    assert "is out of service: write failed" in lines[1] + lines[2] + lines[3]
    servers = [line.split()[:2] for line in lines if line.startswith(("WRONG  ", "warning  ", "GONE"))]
    assert servers == [["WRONG", "alpha"], ["WRONG", "beta"], ["GONE", "gamma"]]
    assert "\x1b" not in out  # no terminal, no colours


def test_rates_are_there(tape: Path, capsys: Capture) -> None:
    (line,) = (line for line in once(capsys, tape).splitlines() if "read from tiers" in line)
    assert "/s" in line


@pytest.mark.parametrize("view", [view.NAME for view in VIEWS])
def test_every_view_can_be_printed_in_ascii_too(tape: Path, capsys: Capture, view: str) -> None:
    out = once(capsys, tape, "--view", view, "--ascii")
    assert "failed" not in out.splitlines()[0]
    assert out.isascii()
    assert len(out.splitlines()) > 2


def test_a_program_gets_alarms_view_and_everything_seen(tape: Path, capsys: Capture) -> None:
    said: dict[str, Any] = json.loads(once(capsys, tape, "--json", "--view", "lea", "--server", "beta"))
    assert said["nature"] == "recording"
    assert {alarm["mark"] for alarm in said["alarms"]} >= {"WRONG", "warning"}
    assert said["view"]["name"] == "leases"
    (pair,) = said["view"]["rows"]
    assert (pair["donor"], pair["lent"], pair["stale"]) == ("alpha.dp0-tp0", 2 << 30, False)
    assert [one["server"]["server"] for one in said["snapshot"]["servers"]] == ["alpha", "beta", "gamma"]


def test_a_terminal_gets_what_it_has_room_for_and_colours(tape: Path) -> None:
    command = [sys.executable, "-m", "swift_tiers.ops", "replay", str(tape), "--once"]
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}

    def shown(**more: str) -> str:
        main_end, other_end = pty.openpty()
        os.set_blocking(main_end, False)
        env = environment | {"TERM": "xterm-256color", "COLUMNS": "60", **more}
        subprocess.run(command, stdout=other_end, env=env, check=True, timeout=120)
        os.close(other_end)
        try:
            return os.read(main_end, 1 << 20).decode()
        finally:
            os.close(main_end)

    assert "\x1b[" in shown()
    plain = shown(NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert all(len(line) <= 80 for line in plain.replace("\x1b[1m", "").replace("\x1b[0m", "").split("\r\n"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--view", "nothing"), "there is no view 'nothing'; there are overview"),
        (("--json",), "--json is what --once prints"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tape: Path, capsys: Capture, words: tuple[str, ...], said: str
) -> None:
    code, out, err = run_command(capsys, "replay", str(tape), *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_server_that_is_not_there_is_named_with_those_that_are(tape: Path, capsys: Capture) -> None:
    code, _, err = run_command(capsys, "replay", str(tape), "--once", "--server", "delta")
    assert code == 1
    assert "no server 'delta' on this bus; there are: alpha, beta, gamma" in err


def test_a_real_bus_is_read_and_a_lost_one_is_said_to_be(capsys: Capture) -> None:
    with RealRedis() as redis:
        HandWritten(redis.admin, lends=True).write()
        code, out, err = run_command(capsys, "console", "--url", redis.url, "--once", "--json", "--interval", "0.1")
        assert (code, err) == (0, "")
        said = json.loads(out)
        assert [one["server"] for one in said["view"]["rows"]] == ["alpha"]
        assert said["nature"] == "live"
    code, out, err = run_command(capsys, "console", "--url", f"redis://127.0.0.1:{free_port()}", "--once")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "not reachable" in err


# ---- what is refused ----


def refused(capsys: Capture, *words: str) -> str:
    """The one line with which it ends."""
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.rec"
    assert f"{path}: No such file" in refused(capsys, "replay", str(path))
    path.write_text("{}")
    assert "is no recording of `swift-tiers console --record`" in refused(capsys, "replay", str(path))


def test_a_file_is_not_recorded_over(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.rec"
    path.write_text("mine")
    said = refused(capsys, "console", "--url", "redis://127.0.0.1:1", "--record", str(path))
    assert "is there already; give another name" in said
    assert path.read_text() == "mine"


def test_a_bus_that_was_never_reached_leaves_no_recording(tmp_path: Path, capsys: Capture) -> None:
    """The same command can be given again."""
    path = tmp_path / "a.rec"
    words = ("console", "--once", "--url", "redis://127.0.0.1:1", "--record", str(path))
    for _ in range(2):
        assert "not reachable" in refused(capsys, *words)
        assert not path.exists()


@pytest.mark.parametrize("words", [("replay", ""), ("console", "--directory", ""), ("console", "--record", "")])
def test_an_empty_path_is_refused(words: tuple[str, ...], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "an empty name is no path" in capsys.readouterr().err


@pytest.mark.parametrize("speed", ["0", "65", "fast", "nan"])
def test_speeds_that_there_are_not_are_refused(speed: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "a.rec", "--speed", speed])
    assert ended.value.code == 2
    assert "is not a number from 1/16 to 64" in capsys.readouterr().err
