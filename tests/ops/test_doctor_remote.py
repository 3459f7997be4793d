"""`swift-tiers doctor` on the engine of the remote tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.base import remote_engine
from swift_tiers.ops.commands.doctor import remote
from swift_tiers.ops.commands.doctor.finding import Finding
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.radix_tiering.base.config import parse_config

from support.doctor import assert_finding


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that imports nothing of SGLang's."""
    monkeypatch.setattr(remote_engine, "DRIVER", "support.directory_driver:open_directory")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def look(**remote_fields: Any) -> dict[str, Finding]:
    checks = list(remote.checks(parse_config({"remote": {"object": "64KiB", "engine": "file", **remote_fields}})))
    return dict(zip((check.name for check in checks), run_checks(checks), strict=True))


def test_without_an_engine_there_is_nothing_to_look_at() -> None:
    assert not list(remote.checks(parse_config({})))


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_works(tmp_path: Path) -> None:
    for _ in range(2):
        found = look(options={"directory": str(tmp_path)}, lookup_deadline="1s")
        assert_finding(found["remote engine"], "ok", "opened in", "says in", "68KiB come in", "they stay there")
        assert_finding(found["who shares"], "note", "same hardware", "salt_file")
    assert len(list(tmp_path.iterdir())) == 1, "every look leaves an object"


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_cannot_be_opened(tmp_path: Path) -> None:
    found = look(options={"directory": str(tmp_path), "refuses": True})
    assert_finding(found["remote engine"], "wrong", "no store answers at this address", "remote.options")


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "OPEN_SECONDS", 2.0)
    (tmp_path / "trouble").write_text("exists hangs")
    found = look(options={"directory": str(tmp_path)})
    assert_finding(found["remote engine"], "wrong", "exists: no answer within 2 s")


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_nobody_has_tested(tmp_path: Path) -> None:
    found = look(engine="aibrix", options={"directory": str(tmp_path)}, lookup_deadline="1s")
    assert_finding(found["remote engine"], "warning", "passed through", "file and mooncake")


def test_questions_that_would_come_too_late() -> None:
    assert_finding(remote.answer_time(0.05, 0.02), "warning", "50.0 ms", "remote.lookup_deadline", "raise it")
    assert_finding(remote.answer_time(0.001, 0.02), "ok", "1.0 ms")


def test_a_library_that_is_old_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config({"remote": {"engine": "mooncake"}}).remote
    for version, status, word in (
        (None, "wrong", "pip install"),
        ("0.3.10", "warning", "0.3.13"),
        ("0.3.13", "ok", ""),
    ):
        monkeypatch.setattr(remote, "_version", lambda name, version=version: version)
        (found,) = remote.library(config)
        assert_finding(found, status, word)
    assert "libibverbs1" in remote._remedy(config, "ImportError: libibverbs.so.1: cannot open shared object file")


def test_a_salt_that_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "salt"
    file.write_text("secret")
    file.chmod(0o644)
    config = parse_config({"remote": {"engine": "file", "salt_file": str(file)}})
    assert_finding(remote.sharing(config), "wrong", "may be read by others", "chmod 600")
    file.chmod(0o600)
    assert_finding(remote.sharing(config), "ok", "same salt")
