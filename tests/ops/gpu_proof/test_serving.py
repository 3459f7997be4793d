"""What the served model is asked with, and what is made of the answers. The servers themselves need a GPU."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.bench import multiturn_replay
from swift_tiers.ops.commands.bench.multiturn_replay import Replayed, TurnOutcome
from swift_tiers.ops.commands.bench.multiturn_workload import BenchTurn
from swift_tiers.ops.commands.demo import entry_points, replay, servers
from swift_tiers.ops.commands.demo.servers import Server
from swift_tiers.ops.commands.gpu_proof import asked_server, serving
from swift_tiers.ops.commands.gpu_proof.asked_server import HITS, ServerAnswer, ServingLoad, pool_tokens
from swift_tiers.ops.commands.gpu_proof.figures import LeftOutError, ProofCheck, ProofFigure
from swift_tiers.ops.commands.gpu_proof.layouts import LAYOUTS
from swift_tiers.ops.commands.gpu_proof.serving import HICACHE, OFF, SYSTEMS, TIERS, arguments, summary

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
    flags = {system: arguments(system, tmp_path, QWEN, load) for system in SYSTEMS}
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
    from swift_tiers.radix_tiering.base.read_config import parse_config

    config = json.loads(arguments(TIERS, tmp_path, QWEN, ServingLoad())[-1])
    assert parse_config(config).host.size == config["host"]["size"]


@pytest.mark.parametrize(("other", "seconds", "holds"), [(OFF, 0.3, True), (OFF, 0.2, False), (HICACHE, 0.048, True)])
def test_hits_have_bounds(other: str, seconds: float, holds: bool) -> None:
    found = {
        other: ServerAnswer([1.0], 0, [(1,)], {160: [0.01], 8192: [seconds]}),
        TIERS: ServerAnswer([1.0], 0, [(1,)], {160: [0.02], 8192: [0.05]}),
    }
    figures = {figure.name: figure for figure in summary(found)}
    assert figures[f"first token, swift-tiers over {other}, 8192 tokens found"].holds is holds
    assert figures[f"first token, swift-tiers over {other}, 160 tokens found"].holds is None


def test_ratios_and_what_they_are_of() -> None:
    found = {
        OFF: ServerAnswer([1.0] * 99 + [3.0], 10, [(1,), (2,)], {160: [0.2, 0.1, 0.4]}),
        TIERS: ServerAnswer([0.25] * 99 + [1.5], 30, [(1,), (9,)], {160: [0.1, 0.1, 0.1], 2048: [0.3]}),
    }
    figures = {figure.name: figure for figure in summary(found)}
    assert figures["first token, swift-tiers over off, P50"].value == 0.25
    assert figures["first token, swift-tiers, P50"].value == 250.0
    assert "1 of 2 answers as without tiers" in figures["first token, swift-tiers, P50"].note
    assert not [name for name in figures if HICACHE in name]
    assert figures["first token, off, 160 tokens found"].value == 200.0
    assert figures["first token, swift-tiers over off, 160 tokens found"].value == 0.5
    assert "first token, swift-tiers over off, 2048 tokens found" not in figures, "there is nothing to compare it with"


def answered(monkeypatch: pytest.MonkeyPatch, **wrong: CommandError) -> list[list[serving.ServerPlan]]:
    """Servers answer at once, or what went wrong with them is said; which were asked beside each other."""
    groups: list[list[serving.ServerPlan]] = []

    def ask(plans: list[serving.ServerPlan], load: object, seconds: float) -> dict[str, ServerAnswer | CommandError]:
        groups.append(plans)
        return {plan.system: wrong.get(plan.system) or ServerAnswer([1.0], 0, [(1,)]) for plan in plans}

    monkeypatch.setattr(serving, "ask", ask)
    return groups


def test_a_server_that_does_not_start_is_told_and_the_others_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, HiCache=CommandError("the server HiCache ended by itself", detail="no such flag"))
    found = list(serving.serving())
    checks = [one for one in found if isinstance(one, ProofCheck)]
    assert [(check.name, bool(check.failure)) for check in checks] == [
        ("server, off", False), ("server, swift-tiers", False), ("server, HiCache", True),
    ]  # fmt: skip
    assert "no such flag" in checks[2].failure
    assert "first token, swift-tiers over off, P99" in [one.name for one in found if isinstance(one, ProofFigure)]


def test_servers_run_beside_each_other_where_the_device_has_memory_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = answered(monkeypatch)
    h100 = 79 * 2**30
    assert 20e9 < serving.server_bytes(QWEN, ServingLoad()) < h100 / 3
    list(serving.serving(free_bytes=h100))
    list(serving.serving(free_bytes=h100 / 2))
    assert [[plan.system for plan in plans] for plans in groups] == [list(SYSTEMS), *([system] for system in SYSTEMS)]
    assert all("--mem-fraction-static" in plan.flags for plan in groups[0]), "SGLang takes what is free for its own"
    assert all("--mem-fraction-static" not in plan.flags for (plan,) in groups[1:])


def test_servers_that_there_is_no_time_for_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now, left = 0.0, []

    def ask(plans: list[serving.ServerPlan], load: object, seconds: float) -> dict[str, ServerAnswer]:
        nonlocal now
        left.append(seconds)
        now += 200.0
        return {plans[0].system: ServerAnswer([1.0], 0, [(1,)])}

    monkeypatch.setattr(serving, "ask", ask)
    found: list[ProofCheck | ProofFigure] = []
    with pytest.raises(LeftOutError, match=r"no time was left for HiCache$"):
        found.extend(serving.serving(until=450.0, clock=lambda: now, free_bytes=0))
    assert left == [450.0, 250.0]
    assert not [one for one in found if isinstance(one, ProofCheck) and one.failure]
    assert "first token, swift-tiers over off, P50" in [one.name for one in found if isinstance(one, ProofFigure)]


class ModelServer(Server):
    """Answers of itself at once; one named "hangs" never becomes ready, and one named "fails" ends."""

    ended: list[str] = []  # noqa: RUF012 - cleared by the fixture
    killed = False

    def start(self) -> None:
        self.killed = False

    def wait_ready(self, timeout: float, tick: object = None) -> None:
        if self.name == "fails":
            raise CommandError("it ended by itself")
        while self.name == "hangs" and not self.killed:
            time.sleep(0.01)
        if self.killed:
            raise CommandError("it was killed")

    def signal_all(self, number: int) -> None:
        self.killed = True

    def end(self) -> None:
        self.ended.append(self.name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Whoever is asked: (port, tokens), in order. Each prompt's answer is its length."""
    order: list[tuple[int, int]] = []

    def outcome(port: int, turn: BenchTurn, new_tokens: int) -> TurnOutcome:
        order.append((port, len(turn.prompt)))
        tokens = len(turn.prompt)
        return TurnOutcome(
            agent=turn.agent, turn=turn.turn, ttft_seconds=1.0, prompt_tokens=tokens, device=0, host=tokens - 1, disk=0,
            token_ids=(tokens,),
        )  # fmt: skip

    def replayed(port: int, turns: list[BenchTurn], together: int, new_tokens: int) -> Replayed:
        return Replayed(seconds=1.0, answers=tuple(outcome(port, turn, new_tokens) for turn in turns))

    ModelServer.ended.clear()
    monkeypatch.setattr(servers, "Server", ModelServer)
    monkeypatch.setattr(multiturn_replay, "ask", outcome)
    monkeypatch.setattr(multiturn_replay, "replay", replayed)
    return order


def plans(tmp_path: Path, *systems: str) -> list[serving.ServerPlan]:
    return [serving.ServerPlan(system, [], tmp_path / system, {}) for system in systems]


def test_servers_beside_each_other_are_asked_the_same_by_turns(asked: list[tuple[int, int]], tmp_path: Path) -> None:
    load = ServingLoad(agents=2, turns=2, longest=600)
    answers = serving.ask(plans(tmp_path, OFF, "fails", TIERS), load)
    assert str(answers["fails"]) == "it ended by itself"
    off, tiers = answers[OFF], answers[TIERS]
    assert isinstance(off, ServerAnswer)
    assert off == tiers
    assert len(off.seconds) == 2, "turns with a history"
    pool = pool_tokens(load)
    assert set(off.hits) == {hits.length for hits in HITS if hits.length + hits.new + 8 <= pool} == {160}
    assert len(off.hits[160]) == 12
    first, second = dict.fromkeys(port for port, _ in asked)
    by_server = [[tokens for port, tokens in asked if port == one] for one in (first, second)]
    assert by_server[0] == by_server[1]
    begins = [port for port, following in itertools.pairwise(port for port, _ in asked) if port != following]
    assert begins == [first, second] * 2 + [first], "round by round, then the hits, by turns"
    # What is asked between a prompt and its return is more than the device holds.
    tokens = by_server[0][-12 - (pool // 400 + 1) - 12 :]
    assert tokens[:12] == [160] * 12
    assert tokens[-12:] == [192] * 12
    assert sum(tokens[12:-12]) > pool
    assert set(ModelServer.ended) == {OFF, "fails", TIERS}


class Streams:
    """Answers that come token by token: to nobody while the device waits, and so many a second else."""

    def __init__(self, per_second: float, most: int = 10**6) -> None:
        self.per_second, self.most, self.waits = per_second, most, False
        self.under_way = 0

    def __call__(self, port: int, path: str, body: dict[str, object]) -> Iterator[dict[str, object]]:
        tokens: list[int] = []
        self.under_way += 1
        try:
            while len(tokens) < self.most:
                time.sleep(1 / self.per_second)
                if not self.waits:
                    tokens.append(1)
                    yield {"output_ids": list(tokens)}
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("waits", [False, True])
def test_those_who_decode_are_counted_until_the_first_token_of_a_hit(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    streams, answered = Streams(500.0), multiturn_replay.ask

    def ask(port: int, turn: BenchTurn, new_tokens: int) -> TurnOutcome:
        if new_tokens == 1:
            streams.waits = waits
            time.sleep(0.1)
            streams.waits = False
        return answered(port, turn, new_tokens)

    monkeypatch.setattr(replay, "stream", streams)
    monkeypatch.setattr(multiturn_replay, "ask", ask)
    monkeypatch.setattr(asked_server, "_ALONE_SECONDS", 0.1)
    server = asked_server.AskedServer(1, ServingLoad(agents=2, turns=2, longest=600))
    server.decoded_beside(asked_server.Hits(160, 32, 2))
    assert [tokens for _, tokens in asked[-2:]] == [192, 192]
    assert all(share < 0.4 if waits else share > 0.4 for share in server.answer.decoded), server.answer.decoded
    assert len(server.answer.decoded) == 2
    assert streams.under_way == 0, "somebody decodes on"


def test_those_who_have_nothing_left_to_decode_are_an_error(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "stream", Streams(500.0, most=3))
    server = asked_server.AskedServer(1, ServingLoad(agents=2, turns=2, longest=600))
    with pytest.raises(CommandError, match="too few"):
        server.decoded_beside(asked_server.Hits(160, 32, 2))


def test_what_others_decode_has_a_bound() -> None:
    found = {system: ServerAnswer([1.0], 0, [(1,)], {}, [0.5, 0.9, 0.98]) for system in (TIERS, HICACHE)}
    figures = {figure.name: figure for figure in summary(found)}
    ours, theirs = (figures[f"others decode, {system}, 30000 tokens found"] for system in (TIERS, HICACHE))
    assert (ours.value, ours.holds, theirs.holds) == (0.9, False, None)


def test_a_server_that_hangs_is_ended_when_its_time_is_over(asked: list[tuple[int, int]], tmp_path: Path) -> None:
    answers = serving.ask(plans(tmp_path, "hangs"), ServingLoad(), seconds=0.2)
    assert isinstance(answers["hangs"], serving.TooLateError)


def test_what_was_answered_when_time_was_over_is_kept(
    asked: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hits(self: asked_server.AskedServer, hits: asked_server.Hits) -> None:
        time.sleep(0.6)
        raise CommandError("it was killed")

    monkeypatch.setattr(asked_server.AskedServer, "hits", hits)
    answers = serving.ask(plans(tmp_path, OFF), ServingLoad(agents=2, turns=2, longest=600), seconds=0.5)
    answer = answers[OFF]
    assert isinstance(answer, ServerAnswer)
    assert (len(answer.seconds), dict(answer.hits)) == (2, {})


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
    groups = answered(monkeypatch)
    monkeypatch.setattr(serving, "announce_own", lambda folder: {"PYTHONPATH": "there"})
    list(serving.serving())
    (plans,) = groups
    assert {plan.system: plan.environment for plan in plans} == {OFF: {}, TIERS: {"PYTHONPATH": "there"}, HICACHE: {}}
