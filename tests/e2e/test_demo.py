"""The demo itself, short: two real servers, a restart in between, real agent sessions on a small random model."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.cli import main
from swift_tiers.ops.commands.demo import procedure, remote
from swift_tiers.ops.commands.demo.report import DemoReport

from support.forked import ForkedServer
from support.mooncake import skip_without_library

SESSIONS, TURNS, ANSWER = 3, 3, 8

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


FORKED = "with servers that are forked"


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in this process; its servers are the real ones, but for their imports."""
    said, complained = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained):
        patch.setattr(procedure, "Server", ForkedServer)
        patch.setattr(remote, "Server", ForkedServer)
        code = main(["demo", *words])
    return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())


@pytest.fixture(scope="module", params=[FORKED, pytest.param("as users type it", marks=pytest.mark.exhaustive)])
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("demo")
    # One token a byte: the same sessions make longer prompts than with a real tokenizer, and more pages.
    model = tiny_model(folder / "model", context=32768)
    words = ["--model-path", str(model)]
    words += ["--sessions", str(SESSIONS), "--turns", str(TURNS), "--max-tokens", str(ANSWER), "--devices", "3"]
    words += ["--json", str(folder / "report.json"), "--keep", str(folder / "work")]
    if request.param == FORKED:
        return demo(*words), folder
    command = [sys.executable, "-m", "swift_tiers.ops", "demo", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=1700), folder


@pytest.fixture(scope="module")
def report(finished: tuple[subprocess.CompletedProcess[str], Path]) -> DemoReport:
    result, folder = finished
    assert (folder / "report.json").exists(), result.stderr
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=DemoReport)


def test_it_shows_what_it_claims(finished: tuple[subprocess.CompletedProcess[str], Path], report: DemoReport) -> None:
    result, _ = finished
    assert [verdict.problem for verdict in report.verdicts if not verdict.holds] == []
    assert report.ok
    assert result.returncode == 0, result.stderr
    assert "recomp." in result.stdout


def test_every_prompt_token_came_from_somewhere(report: DemoReport) -> None:
    assert len(report.turns) == SESSIONS * TURNS
    for turn in report.turns:
        assert turn.device + turn.host + turn.ssd + turn.recomputed == turn.prompt_tokens
        assert min(turn.device, turn.host, turn.ssd) >= 0
        assert turn.recomputed > 0  # the last token always is
        assert turn.ttft_tiers_seconds > 0
        assert turn.ttft_plain_seconds > 0
        assert len(turn.token_ids_tiers) == ANSWER


def test_the_engine_counted_the_same_tokens(report: DemoReport) -> None:
    served = {tier.name: tier.pages_served * report.tokens_per_page for tier in report.tiers}
    assert sum(turn.host for turn in report.turns) <= served["host"]
    assert sum(turn.ssd for turn in report.turns) <= served["ssd"]
    for tier in report.tiers:
        assert tier.bytes_written > 0
        assert tier.bytes_read >= tier.pages_served * report.page_bytes > 0
        assert tier.checksum_failures == 0


def test_the_devices_share_the_work(report: DemoReport) -> None:
    assert len(report.devices) == 3
    mean = sum(device.bytes_written for device in report.devices) / 3
    for device in report.devices:
        assert device.errors == 0
        assert device.bytes_read > 0
        assert 0.8 * mean < device.bytes_written < 1.2 * mean


def test_its_device_files_are_sound_afterwards(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = finished
    command = [sys.executable, "-m", "swift_tiers.ops", "fsck", str(folder / "work")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "in order" in result.stdout  # the server wrote its checkpoint when it ended


@pytest.mark.exhaustive
def test_two_servers_that_share_a_store(tmp_path: Path) -> None:
    skip_without_library()
    model = tiny_model(tmp_path / "model", context=32768)
    words = ["--model-path", str(model), "--sessions", "3", "--turns", "3", "--max-tokens", "6", "--devices", "2"]
    result = demo("--remote", *words, "--json", str(tmp_path / "report.json"), "--keep", str(tmp_path / "work"))
    assert result.returncode == 0, result.stderr
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=remote.RemoteReport)
    assert found.ok
    assert len(found.turns) == 3
    for turn in found.turns:
        assert turn.own + turn.remote + turn.recomputed == turn.prompt_tokens
        assert turn.remote > 0
        assert turn.equal
