"""A profile of a real server: what it measures is what that server would look for."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import psutil
import pytest

from swift_tiers.ops.base.errors import INTERRUPTED
from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.cli import main
from swift_tiers.ops.commands.profile import measure, procedure
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.restore.profiles import Profile, find_profile, load_profile
from swift_tiers.sglang_ext.build.hardware import hardware_name

from support.forked import ForkedServer
from support.servers import START_SECONDS, Site
from support.swiftkv_models import tiny_swiftkv

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def profile(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swift_tiers.ops", "profile", "--model-path", str(place / "model"), *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
    return subprocess.run(command, capture_output=True, text=True, timeout=1700, env=environment)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    tiny_model(folder / "model", context=4096)
    (folder / "ssd").mkdir()
    return folder


FORKED = "with a server that is forked"


def profile_here(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in this process; its server is the real one, but for its imports."""
    told, complained = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(complained):
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setattr(procedure, "Server", ForkedServer)
        patch.setattr(measure, "WALK_SHARE", 1e3)  # every length, however slow the machine is just now
        code = main(["profile", "--model-path", str(place / "model"), *words])
    return subprocess.CompletedProcess(words, code, told.getvalue(), complained.getvalue())


@pytest.fixture(scope="module", params=[FORKED, pytest.param("as users type it", marks=pytest.mark.exhaustive)])
def made(request: pytest.FixtureRequest, place: Path) -> Profile:
    config = {"ssd": {"directories": [str(place / "ssd")], "stripe_unit": "4KiB"}}
    words = ["--dtype", "float32", "--max-total-tokens", "4096", "--chunked-prefill-size", "1024"]
    words += ["--seconds", "5" if request.param == FORKED else "30"]
    command = profile_here if request.param == FORKED else profile
    shutil.rmtree(place / "cache", ignore_errors=True)
    result = command(place, *words, "--swift-tiers-config", json.dumps(config))
    assert result.returncode == 0, result.stderr
    (path,) = (place / "cache" / "swift-tiers" / "profiles").iterdir()
    assert f"saved: {path}" in result.stdout
    found = load_profile(path)
    for source in ("compute", "host", "ssd"):
        assert f"\n{source} " in result.stdout
        assert found.residuals[source].samples >= 2
    return found


def test_it_is_of_the_model_that_was_served(made: Profile) -> None:
    assert made.name == "model"
    assert made.model.layers == 4
    assert made.model.page_tokens == 16
    assert made.model.page_bytes == 4 * 2 * 16 * 2 * 16 * 4
    assert made.model.tensor_size == 1
    assert "float32" in made.model.dtype


def test_a_server_here_would_find_it(made: Profile, place: Path) -> None:
    directory = place / "cache" / "swift-tiers" / "profiles"
    assert find_profile(made.model, hardware_name(), directory) == made
    assert find_profile(msgspec.structs.replace(made.model, page_tokens=32), hardware_name(), directory) is None


def test_every_length_was_seen_and_every_source_loaded(made: Profile) -> None:
    token_bytes = made.model.page_bytes // made.model.page_tokens
    starts = {one.start for one in made.compute_samples}
    assert {0, 512, 1024, 2048} <= starts
    assert {one.end - one.start for one in made.compute_samples if one.start == 1024} >= {64, 512}
    assert {one.forwards for one in made.compute_samples} == {1}
    for source in ("host", "ssd"):
        assert {one.nbytes // token_bytes for one in made.source_samples[source]} >= {512, 1024, 2048}
    assert set(made.costs.sources) == {"host", "ssd"}


def test_nothing_is_left_behind(made: Profile, place: Path) -> None:
    assert not any((place / "ssd").iterdir())


@pytest.mark.exhaustive
def test_a_server_that_does_not_start_is_one_line_and_its_log(place: Path) -> None:
    result = profile(place, "--no-such-option-of-a-server", "1")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("swift-tiers: error: the server to profile ended by itself")
    assert "no-such-option-of-a-server" in result.stderr
    assert result.stdout == ""


@pytest.mark.exhaustive
def test_a_peer_is_measured_where_one_lends(tmp_path: Path) -> None:
    site = Site(tmp_path)
    bus = {"directory": str(site.bus)}
    lending = {"host": {"size": "1MiB"}, "bus": {**bus, "server": "donor"}, "peer": {"donate": True, "window": "1s"}}
    # Room for more than the whole prefix.
    with site.server("donor", tiers=lending, **{"--max-total-tokens": "32768", "--page-size": "16"}) as donor:
        donor.start()
        donor.wait_ready(START_SECONDS)
        config = {**site.tiers(host="16MiB"), "peer": {"borrow": True}}
        words = ["--dtype", "float32", "--max-total-tokens", "4096", "--seconds", "5", "--out", str(tmp_path / "out")]
        result = profile(tmp_path, *words, "--swift-tiers-config", json.dumps(config))
        assert result.returncode == 0, result.stderr
        found = load_profile(tmp_path / "out")
    assert set(found.costs.sources) == {"host", "ssd", "peer"}, result.stdout
    token_bytes = found.model.page_bytes // found.model.page_tokens
    for source in ("host", "ssd", "peer"):
        assert {one.nbytes // token_bytes for one in found.source_samples[source]} >= {512, 1024, 2048}
    assert "left out" not in result.stdout


@pytest.mark.exhaustive
def test_one_that_is_ended_leaves_nothing(place: Path) -> None:
    ssd = place / "ssd"
    config = {"ssd": {"directories": [str(ssd)]}}
    command = [sys.executable, "-m", "swift_tiers.ops", "profile", "--model-path", str(place / "model")]
    command += ["--dtype", "float32", "--swift-tiers-config", json.dumps(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        # Within the server's start: what it holds of the device is there.
        assert wait_for(lambda: list(ssd.glob("*/*")) or None, 240)
        children = psutil.Process(running.pid).children(recursive=True)
        running.terminate()
        out, error = running.communicate(timeout=600)
    assert running.returncode == INTERRUPTED
    assert error.splitlines()[-1] == "swift-tiers: error: interrupted"
    assert out == ""
    assert not any(ssd.iterdir())
    assert children
    assert not psutil.wait_procs(children, timeout=60)[1]


@pytest.mark.exhaustive
def test_a_swiftkv_model_has_a_profile_of_its_own(tmp_path: Path) -> None:
    """Beside the others of this file, which are of a model whose prompts go through all layers."""
    tiny_swiftkv(tmp_path / "model", "qwen3", group=2)
    (tmp_path / "ssd").mkdir()
    config = {"ssd": {"directories": [str(tmp_path / "ssd")], "stripe_unit": "4KiB"}}
    words = ["--dtype", "float32", "--max-total-tokens", "4096", "--chunked-prefill-size", "1024", "--seconds", "5"]
    result = profile_here(tmp_path, *words, "--swift-tiers-config", json.dumps(config))
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "cache" / "swift-tiers" / "profiles").iterdir()
    found = load_profile(path)
    assert found.model.layers == 6, "those that are stored"
    assert found.costs.compute.token_seconds + found.costs.compute.pair_seconds > 0
    assert {"host", "ssd"} <= set(found.costs.sources)
