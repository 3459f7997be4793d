"""`swift-tiers config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_tiers.ops import cli
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.read_config import explain, load_config


@pytest.mark.parametrize("columns", ["80", "120"])
def test_explain_shows_every_field(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["config", "--explain"]) == 0
    output = capsys.readouterr().out
    fields = list(explain())
    assert fields
    for field in fields:
        assert f" {field.section}.{field.name} " in output
    assert all(len(line) <= int(columns) for line in output.splitlines()[:-1])
    assert "…" not in output, "a word is cut"


def test_defaults_are_what_no_file_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--defaults"]) == 0
    text = capsys.readouterr().out
    assert load_config(json.loads(text)) == TiersConfig()
    (tmp_path / "defaults.json").write_text(text)
    assert cli.main(["config", "--check", str(tmp_path / "defaults.json")]) == 0


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", '[host]\nsize = "1MiB"\n'), ("a.json", '{"host": {"size": "1MiB"}}')]
)
def test_a_good_file(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(text)
    assert cli.main(["config", "--check", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out == "ok\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"bus": {"url": "redis://x", "password_file": "/nowhere/at/all"}}', ["bus.password_file", "cannot be read"]),
        ('{"bus": {"directory": "/etc/hostname"}}', ["bus.directory", "not a directory"]),
        ('{"peer": {"donate": true, "directory": "/nowhere/at/all"}}', ["peer.directory", "cannot be made"]),
        ('{"peer": {"donate": true}, "bus": {"server": "%s"}}' % ("x" * 90), ["peer.directory", "bus.server"]),
        ('{"host": {"sice": 1}}', ["host.sice", "unknown field"]),
        ('{"host": {"size": "lots"}}', ["host.size"]),
        ('{"host": {"size": "9999TiB"}}', ["host.size", "machine"]),
        ('{"ssd": {"directories": ["/nowhere/at/all"]}}', ["ssd.directories[0]", "not a directory"]),
        ('{"remote": {"engine": "file"}}', ["remote.engine", "remote.options.file_storage_path"]),
        ("{", ["JSON"]),
    ],
)
def test_a_bad_file_is_one_line_and_2(
    text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert cli.main(["config", "--check", str(tmp_path / "bad.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("swift-tiers: error: ")
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


def test_a_check_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server makes the directory where it listens; whoever asks before it may be another user."""
    peer = {"donate": True, "directory": str(tmp_path / "leases")}
    # A name of its own: this machine's may be too long for a socket in a test's directory.
    (tmp_path / "a.json").write_text(json.dumps({"peer": peer, "bus": {"server": "a"}}))
    assert cli.main(["config", "--check", str(tmp_path / "a.json"), "--ranks", "8"]) == 0, capsys.readouterr().err
    assert not (tmp_path / "leases").exists()
    for ranks in ("0", "4097", "99999999999"):
        assert cli.main(["config", "--check", str(tmp_path / "a.json"), "--ranks", ranks]) == 2


def test_a_bus_that_a_server_would_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "swift-tiers").mkdir()
    (tmp_path / "swift-tiers").chmod(0o777)
    (tmp_path / "a.json").write_text('{"peer": {"borrow": true, "borrow_limit": "1GiB"}}')
    assert cli.main(["config", "--check", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("ok\n", 1)
    assert shown.err.startswith("swift-tiers: warning: serving without the bus and lending or borrowing no memory: ")


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--check", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
