"""What the served model is asked with, and what is made of the answers. The servers themselves need a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.demo import entry_points, servers
from swift_tiers.ops.commands.demo.servers import Server
from swift_tiers.ops.commands.gpu_proof import serving
from swift_tiers.ops.commands.gpu_proof.figures import LeftOutError, ProofCheck, ProofFigure
from swift_tiers.ops.commands.gpu_proof.layouts import LAYOUTS
from swift_tiers.ops.commands.gpu_proof.serving import (
    HICACHE,
    OFF,
    SYSTEMS,
    TIERS,
    ServerAnswer,
    ServingLoad,
    arguments,
    summary,
)

QWEN = LAYOUTS[0]


def test_the_configuration_is_one_that_transformers_reads(tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(serving.model_directory(tmp_path, QWEN))
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (36, 8, 128)
    assert config.num_attention_heads == 32
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"], "no weights are needed"


def test_all_servers_get_the_same_memory(tmp_path: Path) -> None:
    load = ServingLoad()
    flags = {system: arguments(system, tmp_path, QWEN, load.agents * load.longest, load) for system in SYSTEMS}
    common = flags[OFF]
    assert all(one[: len(common)] == common for one in flags.values())
    device = int(common[common.index("--max-total-tokens") + 1])
    assert load.together * load.longest < device < load.agents * load.longest / 2, "histories must leave the device"
    config = json.loads(flags[TIERS][-1])
    host_tokens = config["host"]["size"] // QWEN.page_bytes * 16
    ratio = float(flags[HICACHE][flags[HICACHE].index("--hicache-ratio") + 1])
    assert ratio * device == pytest.approx(host_tokens, rel=0.01)
    assert "throttle" not in json.dumps(config)


def test_the_tiers_configuration_is_a_valid_one(tmp_path: Path) -> None:
    from swift_tiers.radix_tiering.base.config import parse_config

    config = json.loads(arguments(TIERS, tmp_path, QWEN, 1000, ServingLoad())[-1])
    assert parse_config(config).host.size == config["host"]["size"]


def test_ratios_and_what_they_are_of() -> None:
    found = {
        OFF: ServerAnswer([1.0] * 99 + [3.0], 10, [(1,), (2,)]),
        TIERS: ServerAnswer([0.25] * 99 + [1.5], 30, [(1,), (9,)]),
    }
    figures = {figure.name: figure for figure in summary(found)}
    assert figures["first token, swift-tiers over off, P50"].value == 0.25
    assert figures["first token, swift-tiers, P50"].value == 250.0
    assert "1 of 2 answers as without tiers" in figures["first token, swift-tiers, P50"].note
    assert not [name for name in figures if HICACHE in name]


def test_a_server_that_does_not_start_is_told_and_the_others_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(system: str, *_: object) -> ServerAnswer:
        if system == HICACHE:
            raise CommandError("the server HiCache ended by itself", detail="no such flag")
        return ServerAnswer([1.0], 0, [(1,)])

    monkeypatch.setattr(serving, "ask", ask)
    found = list(serving.serving())
    checks = [one for one in found if isinstance(one, ProofCheck)]
    assert [(check.name, bool(check.failure)) for check in checks] == [
        ("server, off", False), ("server, swift-tiers", False), ("server, HiCache", True),
    ]  # fmt: skip
    assert "no such flag" in checks[2].failure
    assert "first token, swift-tiers over off, P99" in [one.name for one in found if isinstance(one, ProofFigure)]


def test_servers_that_there_is_no_time_for_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now, left = 0.0, []

    def ask(system: str, flags: object, load: object, log: object, seconds: float, environment: object) -> ServerAnswer:
        nonlocal now
        left.append(seconds)
        now += 200.0
        return ServerAnswer([1.0], 0, [(1,)])

    monkeypatch.setattr(serving, "ask", ask)
    found: list[ProofCheck | ProofFigure] = []
    with pytest.raises(LeftOutError, match=r"no time was left for HiCache$"):
        found.extend(serving.serving(until=450.0, clock=lambda: now))
    assert left == [450.0, 250.0]
    assert not [one for one in found if isinstance(one, ProofCheck) and one.failure]
    assert "first token, swift-tiers over off, P50" in [one.name for one in found if isinstance(one, ProofFigure)]


def test_a_server_that_hangs_is_ended_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Hanging(Server):
        @property
        def command(self) -> list[str]:
            return [sys.executable, "-c", "import time; print('there', flush=True); time.sleep(600)"]

    monkeypatch.setattr(servers, "Server", Hanging)
    with pytest.raises(serving.TooLateError):
        serving.ask(OFF, [], ServingLoad(), tmp_path / "log", seconds=1.0)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "NEEDED", ("torch", "json"))
    assert serving.can_serve()
    monkeypatch.setattr(serving, "NEEDED", ("torch", "no_such_module"))
    assert not serving.can_serve(), "then no time is kept for it"
    with pytest.raises(ImportError) as caught:
        list(serving.serving())
    assert caught.value.name == "no_such_module"


@pytest.fixture(scope="module")
def nothing_installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python in which neither swift-tiers nor redis is installed, and all else is."""
    site = tmp_path_factory.mktemp("site")
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not re.match(r"_?swift_tiers|redis(lite)?\b", path.name):
            (site / path.name).symlink_to(path)
    root = Path(__file__).parents[3] / ".importroot"
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(site)))}


def run_without_site(code: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-S", "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


ANNOUNCE = """
import json, pathlib
from swift_tiers.ops.commands.demo.entry_points import announce_own
print(json.dumps(announce_own(pathlib.Path("%s"))))
"""


def test_servers_of_a_source_tree_know_the_flag_without_redis(
    nothing_installed: dict[str, str], tmp_path: Path
) -> None:
    environment = json.loads(run_without_site(ANNOUNCE % (tmp_path / "plugins"), nothing_installed))
    parse = (
        "from sglang.srt.plugins import load_plugins; load_plugins()\n"
        "import argparse; from sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser(); ServerArgs.add_cli_args(parser)\n"
        "known, unknown = parser.parse_known_args(['--model-path', 'm', '--enable-swift-tiers'])\n"
        "import swift_tiers.sglang_ext.way.linker, swift_tiers.sglang_ext.build.reporting\n"
        "import sys; print(unknown, 'redis' in sys.modules)\n"
    )
    printed = run_without_site(parse, nothing_installed | environment)
    assert printed.splitlines()[-1] == "[] False"


def test_where_it_is_installed_nothing_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert entry_points.announce_own(tmp_path / "first") == {}
    monkeypatch.setattr(entry_points, "are_installed", lambda: False)
    (path,) = entry_points.announce_own(tmp_path / "second").values()
    found = {
        (point.group, point.value)
        for one in distributions(path=path.split(os.pathsep)[:1])
        for point in one.entry_points
    }
    assert ("sglang.srt.plugins", "swift_tiers.sglang_ext.plugin:load") in found


def test_only_the_server_with_tiers_is_told_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}

    def ask(system: str, *others: object) -> ServerAnswer:
        told[system] = others[-1]
        return ServerAnswer([1.0], 0, [(1,)])

    monkeypatch.setattr(serving, "ask", ask)
    monkeypatch.setattr(serving, "announce_own", lambda folder: {"PYTHONPATH": "there"})
    list(serving.serving())
    assert told == {OFF: {}, TIERS: {"PYTHONPATH": "there"}, HICACHE: {}}
