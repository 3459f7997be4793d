"""The command line: what it answers, and how it fails."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands import bench_command
from swift_tiers.ops.commands.bench_command import Bench, all_benches, find_benches, summary_of
from swift_tiers.radix_tiering.base.errors import ConfigError, StripeSetBusyError


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(options: object) -> int:
        raise error

    monkeypatch.setattr(bench_command, "run", run)


def test_help_and_version_need_no_heavy_import() -> None:
    code = textwrap.dedent("""
        import sys
        from swift_tiers.ops import cli
        for words in (["--help"], ["demo", "--help"], ["--version"]):
            try:
                cli.main(words)
            except SystemExit as error:
                assert not error.code, error.code
        heavy = {"torch", "sglang", "numpy", "transformers", "rich"} & set(sys.modules)
        assert not heavy, heavy
    """)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "demo" in result.stdout
    assert "swift-tiers 0" in result.stdout


def test_python_m_is_the_same_program() -> None:
    command = [sys.executable, "-m", "swift_tiers.ops", "bench", "--list"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "attention" in result.stdout
    assert subprocess.run(command[:3], capture_output=True, timeout=60).returncode == 2


@pytest.mark.parametrize("words", [[], ["nonsense"], ["demo", "--turns", "x"], ["config"], ["fsck"]])
def test_usage_errors_are_one_line_and_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(words)
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("swift-tiers: error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CommandError("went wrong"), 1, "went wrong"),
        (CommandError("found it", 3), 3, "found it"),
        (ConfigError("host.size: no"), 2, "host.size: no"),
        (StripeSetBusyError("in use"), 1, "in use"),
        (ValueError("two\nlines"), 1, "ValueError: two lines (-v shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_are_one_line(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, error)
    assert cli.main(["bench", "any"]) == code
    assert capsys.readouterr().err == f"swift-tiers: error: {text}\n"


def test_a_log_comes_before_the_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, CommandError("it died", detail="    its last words"))
    assert cli.main(["bench", "any"]) == 1
    assert capsys.readouterr().err == "    its last words\nswift-tiers: error: it died\n"


@pytest.mark.parametrize("words", [["-v", "bench", "any"], ["bench", "-v", "any"]])
def test_verbose_shows_the_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ValueError("deep"))
    assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith("swift-tiers: error: ValueError: deep\n")


def test_a_broken_pipe_that_is_not_ours_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, BrokenPipeError("a child has ended"))
    assert cli.main(["bench", "any"]) == 1
    assert "BrokenPipeError: a child has ended" in capsys.readouterr().err


# ---- bench ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "helper.py").write_text("def helps():\n    pass\n")
    (tmp_path / "disk.py").write_text(
        '"""Disk against\nmemory. More."""\nimport not_there\ndef main(argv):\n    pass\n'
    )
    return tmp_path


def test_benches_are_found_without_importing_them(folder: Path) -> None:
    assert find_benches(folder, "a.b") == {"disk": Bench("a.b.disk", "Disk against memory")}


def test_summaries() -> None:
    assert summary_of("") == ""
    assert summary_of("`python -m x.y`: A against\nB.\n\nMore.") == "A against B"


def test_a_bench_gets_its_own_options_and_decides_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run_bench(bench: Bench, arguments: list[str]) -> int:
        seen.append((bench.module, arguments))
        return 3

    monkeypatch.setattr(bench_command, "run_bench", run_bench)
    assert cli.main(["bench", "ssd-raw", "--json", "file", "--help", "-v"]) == 3
    assert seen == [("swift_tiers.ops.commands.bench.ssd_raw", ["--json", "file", "--help", "-v"])]


def test_every_listed_bench_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    benches = all_benches()
    assert {"attention", "ssd"} <= benches.keys()
    for bench in benches.values():
        with pytest.raises(SystemExit) as raised:
            bench_command.run_bench(bench, ["--help"])
        assert not raised.value.code
        assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["bench"], ["bench", "nonsense"]])
def test_an_unknown_bench_names_the_known_ones(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert "attention" in capsys.readouterr().err
