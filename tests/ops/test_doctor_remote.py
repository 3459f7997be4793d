"""`swift-tiers doctor` on the engine of the remote tier."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swift_tiers.ops.base import remote_engine
from swift_tiers.ops.commands.doctor import engine_ports, remote
from swift_tiers.ops.commands.doctor.finding import Finding
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel
from swift_tiers.radix_tiering.restore.profiles import ModelIdentity, Profile, profile_path, save_profile
from swift_tiers.sglang_ext.build.hardware import hardware_name

from support.doctor import assert_finding


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that imports nothing of SGLang's."""
    monkeypatch.setattr(remote_engine, "DRIVER", "support.directory_driver:open_directory")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent / "no profiles"))


def look(ranks: int = 1, **remote_fields: Any) -> dict[str, Finding]:
    options = remote_fields.pop("options", {})
    named = {"file_storage_path": options.get("directory", ""), **options}  # the quick driver has a name of its own
    config = parse_config({"remote": {"object": "64KiB", "engine": "file", "options": named, **remote_fields}})
    checks = list(remote.checks(config, ranks))
    return dict(zip((check.name for check in checks), run_checks(checks), strict=True))


def test_without_an_engine_there_is_nothing_to_look_at() -> None:
    assert not list(remote.checks(parse_config({}), 1))


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_works(tmp_path: Path) -> None:
    for _ in range(2):
        found = look(options={"directory": str(tmp_path)}, lookup_deadline="1s")
        said = ("opened in", "says in", "68KiB come in", "they stay there", "recomputing")
        assert_finding(found["remote engine"], "note", *said)
        assert_finding(found["who shares"], "note", "same hardware", "by their content", "salt_file")
    assert len(list(tmp_path.iterdir())) == 1, "every look leaves an object"


@pytest.mark.usefixtures("_quick")
def test_two_ranks(tmp_path: Path) -> None:
    found = look(2, options={"directory": str(tmp_path)}, lookup_deadline="1s")
    assert_finding(found["remote engine"], "note", "a second rank finds what the first one wrote")
    found = look(2, options={"directory": str(tmp_path), "alone": True}, lookup_deadline="1s")
    assert_finding(found["remote engine"], "wrong", "a second rank does not find", "remote.options")


def test_who_has_no_home_has_no_profile_to_compare_with(homeless: None) -> None:
    (found,) = remote.against_recomputing(1e9)
    assert_finding(found, "note", "not known", "swift-tiers profile")


def test_how_it_compares_with_recomputing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (found,) = remote.against_recomputing(1e9)
    assert_finding(found, "note", "not known", "swift-tiers profile")
    made = profile()  # a token of 4 KiB in a millisecond: 4 MB/s
    save_profile(made, profile_path(made.model, made.hardware))
    (found,) = remote.against_recomputing(8e6)
    assert_finding(found, "ok", "4096 tokens come 2 times as fast")
    (found,) = remote.against_recomputing(4e5)
    assert_finding(found, "warning", "0.1 times as fast", "leave it out")
    save_profile(msgspec.structs.replace(made, hardware="another"), tmp_path / "other.json")
    (found,) = remote.against_recomputing(1e9, str(tmp_path / "other.json"))
    assert_finding(found, "note", "not known")


def profile() -> Profile:
    model = ModelIdentity(
        model="m", dtype="float32", quantization="", tensor_size=1, layers=1, page_tokens=4, page_bytes=4000 * 4
    )
    return Profile(
        model=model,
        hardware=hardware_name(),
        name="a model",
        made="",
        versions={},
        costs=CostModel(compute=ComputeCost(fixed_seconds=0, token_seconds=1e-3, pair_seconds=0), sources={}),
        chunk_tokens=512,
        compute_samples=(),
        source_samples={},
        residuals={},
    )


@pytest.mark.usefixtures("_quick")
def test_an_engine_of_files_that_is_told_no_directory_is_not_opened() -> None:
    found = look()
    assert_finding(found["remote engine"], "wrong", "is told no directory", "remote.options.file_storage_path")
    assert set(found) == {"remote engine", "who shares"}


@pytest.mark.usefixtures("_quick")
def test_who_else_writes_to_an_engine_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They serve what KV they like: checksums have no key."""

    def found(mode: int) -> Finding:
        tmp_path.chmod(mode)
        return look(options={"directory": str(tmp_path)}, lookup_deadline="1s")["store's directory"]

    for mode in (0o700, 0o755):
        assert_finding(found(mode), "ok", str(tmp_path), "nobody else")
    assert_finding(found(0o775), "warning", f"{tmp_path}: may be written by group", "0775", "trusted", "chmod go-w")
    assert_finding(found(0o777), "warning", "by everybody", "chmod go-w")
    assert_finding(found(0o1777), "warning", "by everybody", "below it")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    status = os.stat_result((0o040755, 0, 0, 1, 12345, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda self: status)
    assert_finding(remote.writers(tmp_path), "warning", "belongs to uid 12345", "trusted", "of this user's own")


def test_a_directory_of_a_store_that_is_not_there_yet_and_one_behind_a_file(tmp_path: Path) -> None:
    assert_finding(remote.writers(tmp_path / "none"), "ok", "made by the first server")
    (tmp_path / "file").touch()
    assert_finding(remote.writers(tmp_path / "file" / "kv"), "wrong", "cannot be looked at", "name another")


def test_ports_that_are_open() -> None:
    config = parse_config({"remote": {"engine": "mooncake"}}).remote
    assert_finding(engine_ports.look(config), "note", "environment", "master_server_address")
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"127.0.0.1:{master.getsockname()[1]}"
        (found,) = engine_ports.reached(address)
        assert_finding(found, "ok", "answers", "private")
    (found,) = engine_ports.reached(address)
    assert_finding(found, "wrong", "no master answers", "mooncake_master")
    (found,) = engine_ports.reached("nowhere")
    assert_finding(found, "wrong", "no master answers")
    assert not list(engine_ports.open_here([]))
    data = engine_ports.OpenPort(15001, "mooncake_master", False)
    (found,) = engine_ports.open_here([data])
    assert_finding(found, "note", "15001 (mooncake_master)", "this network")
    (found,) = engine_ports.open_here([data, engine_ports.OpenPort(8080, "mooncake.mooncake_store_service", True)])
    assert_finding(found, "warning", "8080", "empty the store")


def test_the_ports_of_a_process_are_found() -> None:
    code = (
        "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    words = [sys.executable, "-c", code, "mooncake.mooncake_store_service"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        try:
            assert engine_ports.OpenPort(port, "mooncake.mooncake_store_service", True) in list(
                engine_ports.listening()
            )
        finally:
            running.kill()


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_cannot_be_opened(tmp_path: Path) -> None:
    found = look(options={"directory": str(tmp_path), "refuses": True})
    assert_finding(found["remote engine"], "wrong", "no store answers at this address", "remote.options")


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trouble").write_text("exists hangs")

    class Impatient(remote.WaitedEngine):
        """Once it is open: to start its child may take long."""

        def __enter__(self) -> remote.WaitedEngine:
            engine = super().__enter__()
            self._seconds = 2.0
            return engine

    monkeypatch.setattr(remote, "WaitedEngine", Impatient)
    found = look(options={"directory": str(tmp_path)})
    assert_finding(found["remote engine"], "wrong", "exists: no answer within 2 s")


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_nobody_has_tested(tmp_path: Path) -> None:
    found = look(engine="aibrix", options={"directory": str(tmp_path)}, lookup_deadline="1s")
    assert_finding(found["remote engine"], "warning", "passed through", "file and mooncake and nixl")


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
