"""What commands write: to a terminal, to a reader that has seen enough, and where there is no terminal at all."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table

from swift_tiers.ops.base.terminal import Terminal, spelled
from swift_tiers.ops.commands import console_command

from support.bus import HandWritten
from support.command_line import run_command
from support.redis import RealRedis

Capture = pytest.CaptureFixture[str]

#: Sets the title of a terminal, makes everything red, turns letters around.
HOSTILE = "a\x1b]0;pwned\x07\x1b[31mb\u202ec"
SWIFT = [sys.executable, "-m", "swift_tiers.ops"]


# ---- words of others ----


@pytest.fixture(scope="module")
def hostile_bus() -> Iterator[str]:
    with RealRedis() as redis:
        HandWritten(redis.admin, HOSTILE).write()
        yield redis.url


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "servers"),
        ("inspect", "servers", "--server", "nope"),
        ("control", "nope", "flush"),
        ("lease", "recall", "nope", "all"),
        ("console", "--once", "--server", "nope"),
    ],
    ids=" ".join,
)
def test_no_name_on_a_bus_steers_the_terminal(
    hostile_bus: str, words: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # room for the name in one line, however wide the other columns are
    _, out, err = run_command(capsys, *words, "--url", hostile_bus)
    assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    assert "\\x1b]0;pwned\\x07\\x1b[31mb\\u202ec" in out + err


@pytest.mark.parametrize("words", [("fsck",), ("replay", "--once"), ("-v", "config", "--check")], ids=" ".join)
def test_no_path_steers_the_terminal(words: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    code, out, err = run_command(capsys, *words, str(tmp_path / HOSTILE))
    assert code != 0
    assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    assert "pwned" in err


def test_tables_and_lines_are_spelled_out() -> None:
    terminal = Terminal(width=100)
    terminal.file = written = io.StringIO()
    table = Table("name")
    table.add_row(HOSTILE)
    terminal.print(table)
    terminal.print(HOSTILE)
    assert not {"\x1b", "\x07", "\u202e"} & set(written.getvalue())
    assert written.getvalue().count("a\\x1b]0;pwned") == 2


def test_lines_stay_lines() -> None:
    assert spelled("one\ntwo") == "one\ntwo"
    assert spelled("one\n\x1b[2Jtwo\n") == "one\n\\x1b[2Jtwo\n"


# ---- a reader that has seen enough ----


@pytest.mark.parametrize(
    "words", [("config", "--explain"), ("config", "--defaults"), ("--help",), ("bench", "--list")], ids=" ".join
)
def test_a_reader_that_leaves_is_no_error(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| true` does: whatever is written, nobody reads it
    try:
        result = subprocess.run([*SWIFT, *words], stdout=writing, stderr=subprocess.PIPE, timeout=120)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_full_disk_behind_what_is_printed_is_one_line_with_the_remedy() -> None:
    for words in (("config", "--explain"), ("config", "--defaults"), ("bench", "--list")):
        with open("/dev/full", "w") as full:
            result = subprocess.run([*SWIFT, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        assert result.returncode == 1
        assert result.stderr == (
            "swift-tiers: error: standard output: No space left on device; make room, or name another place behind "
            "`>`\n"
        )


@pytest.mark.parametrize(
    "closed", ["<&- >&- 2>&-", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("<&-", ">&-", "2>&-"))]
)
def test_streams_that_are_closed_are_no_error(closed: str, tmp_path: Path) -> None:
    """Nor do they lend their numbers to files that are opened then."""
    (tmp_path / "a.toml").write_text('[host]\nsize = "1MiB"\n')
    for words, code in (("config --defaults", 0), (f"fsck {tmp_path}", 1), ("console --demo --once", 0)):
        command = f"{sys.executable} -m swift_tiers.ops {words} {closed}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert result.returncode == code, words
        assert "Traceback" not in result.stderr
        assert "AttributeError" not in result.stderr


# ---- no terminal ----


def test_the_console_needs_a_terminal_and_says_so(tmp_path: Path) -> None:
    tape = tmp_path / "night.rec"
    words = ["console", "--demo", "--record", str(tape)]
    result = subprocess.run([*SWIFT, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("swift-tiers: error: this is no terminal")
    assert result.stderr.count("\n") == 1
    assert "--once" in result.stderr
    assert not tape.exists(), "nothing was begun"


@pytest.mark.parametrize("missing", ["stdin", "stdout", "stderr"])
def test_a_terminal_is_keys_and_a_screen(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main_end, other_end = pty.openpty()
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    try:
        with open(other_end, "r+b", buffering=0, closefd=False) as terminal, open(os.devnull) as nothing:
            for name in ("stdin", "stdout", "stderr"):
                monkeypatch.setattr(sys, f"__{name}__", terminal)
            assert console_command.has_screen()
            monkeypatch.setattr(sys, f"__{missing}__", nothing)
            assert not console_command.has_screen()
            monkeypatch.setenv("TEXTUAL_DRIVER", "a browser's")
            assert console_command.has_screen()
    finally:
        os.close(main_end)
        os.close(other_end)
