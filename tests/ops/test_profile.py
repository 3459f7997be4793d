"""`swift-tiers profile`: what it starts, what it asks, and what it makes of the answers. Real servers: tests/e2e."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from swift_tiers.ops import cli
from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.profile.measure import Measurement
from swift_tiers.ops.commands.profile.procedure import check_out, make_profile
from swift_tiers.ops.commands.profile.report import show
from swift_tiers.ops.commands.profile.session import PromptTiming, ServedModel
from swift_tiers.ops.commands.profile.setting import LONGEST_PREFIX, Setting, model_directory, prepare
from swift_tiers.radix_tiering.base.config import SsdConfig
from swift_tiers.radix_tiering.base.read_config import load_config, parse_config
from swift_tiers.radix_tiering.bus.contract.commands import CapTier, Flush
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.profiles import ModelIdentity, load_profile, save_profile

from support.command_line import run_command

PAGE, CHUNK = 16, 128
COMPUTE = ComputeCost(fixed_seconds=0.02, token_seconds=1e-4, pair_seconds=2e-8)
COPY = SourceCost(latency_seconds=0.0005, bytes_per_second=8e9)
SOURCES = {
    "ssd": SourceCost(latency_seconds=0.003, bytes_per_second=5e8),
    "peer": SourceCost(latency_seconds=0.001, bytes_per_second=2e9),
}
SERVED = ServedModel(
    model=ModelIdentity(
        model="m", dtype="float32", quantization="", tensor_size=1, layers=4, page_tokens=PAGE, page_bytes=PAGE * 46080
    ),
    hardware="NVIDIA H200",
    vocabulary=512,
    context=8192,
)


class ModelServer:
    """What `Session` is to a measurement: a server of known costs with tiers that hold pages of known prompts."""

    def __init__(self, *, forward: int = 512, room: int = 4096, lends: bool = False, loses: str = "") -> None:
        """`loses`: a tier that never has anything."""
        self.forward, self._room, self.lends, self.loses = forward, room, lends, loses
        self.held: dict[str, set[tuple[int, ...]]] = {tier: set() for tier in ("device", "host", "peer", "ssd")}
        self.copied = 0.0
        self.asked: list[PromptTiming] = []
        self.restored: dict[str, float] = {}
        self.longest_prompt = 0
        self.host_bytes = 2**30

    def served(self) -> ServedModel:
        return SERVED

    def chunk(self) -> int:
        return self.forward

    def room(self) -> int:
        return self._room

    def ask(self, prompt: list[int]) -> PromptTiming:
        self.longest_prompt = max(self.longest_prompt, len(prompt))
        tiers, at = dict.fromkeys(self.held, 0), 0
        while at + PAGE < len(prompt):
            page = tuple(prompt[: at + PAGE])
            tier = next((tier for tier, pages in self.held.items() if page in pages), None)
            if tier is None:
                break
            tiers[tier] += PAGE
            at += PAGE
        seconds = 0.0
        for start in range(at, len(prompt), self.forward):
            seconds += COMPUTE.seconds(start, min(start + self.forward, len(prompt)))
        answer = PromptTiming(f"rid-{len(self.asked)}", tiers, len(prompt) - at, seconds)
        self.restored[answer.rid] = (
            sum(SOURCES[tier].seconds(tiers[tier] * 46080) for tier in SOURCES) or 1e-11 * tiers["host"] * 46080
        )  # verified
        below = at - tiers["device"]
        self.copied += COPY.seconds(below * 46080)
        for end in range(PAGE, len(prompt) + 1, PAGE):
            for tier, pages in self.held.items():
                if tier != self.loses and (tier != "peer" or self.lends):
                    pages.add(tuple(prompt[:end]))
        self.asked.append(answer)
        return answer

    def restore_seconds(self, answer: PromptTiming) -> float:
        return self.restored[answer.rid]

    def copy_seconds(self) -> float:
        return self.copied

    def tiers(self) -> dict[str, Any]:
        peer = {"peer": {"pages": len(self.held["peer"])}} if self.lends else {}
        return {"tiers": {"host": {"capacity_bytes": self.host_bytes}, **peer}}

    def flush_device(self) -> None:
        self.held["device"].clear()

    def order(self, command: Flush | CapTier) -> None:
        if isinstance(command, Flush):
            for tier in ("host", "peer", "ssd") if command.tiers == "all" else ("host", "peer"):
                self.held[tier].clear()
        elif command.limit is not None:
            self.held["host"].clear()

    def settle(self) -> None:
        pass


def measure(server: ModelServer, *sources: str, longest: int = 2048, seconds: float = 60.0) -> Measurement:
    measurement = Measurement(server, longest=longest, chunk=CHUNK, sources=sources, seed=7)  # type: ignore[arg-type]
    measurement.run(seconds, lambda spent: None)
    return measurement


# ---- measuring ----


def test_the_costs_of_the_server_are_found() -> None:
    server = ModelServer(lends=True)
    profile = make_profile("model", SERVED, CHUNK, measure(server, "host", "peer", "ssd"))
    found = profile.costs
    for span in ((0, 64), (0, 2048), (1024, 1152), (4000, 4100)):
        assert found.compute.seconds(*span) == pytest.approx(COMPUTE.seconds(*span), rel=1e-3)
    nbytes = 1500 * 46080
    assert found.sources["ssd"].seconds(nbytes) == pytest.approx(SOURCES["ssd"].seconds(nbytes), rel=1e-3)
    assert found.sources["peer"].seconds(nbytes) == pytest.approx(SOURCES["peer"].seconds(nbytes), rel=1e-3)
    # Copied, and verified before.
    assert found.sources["host"].seconds(nbytes) == pytest.approx(COPY.seconds(nbytes) + 1e-11 * nbytes, rel=1e-3)
    assert max(off.worst for off in profile.residuals.values()) < 1e-3
    assert profile.residuals["compute"].samples == len(profile.compute_samples)


def test_attention_is_seen_short_and_long_prompts_and_pieces_behind_prefixes() -> None:
    measurement = measure(ModelServer(forward=512), "host")
    spans = {(one.start, one.end - one.start) for one in measurement.compute}
    assert {(0, CHUNK // 8), (0, CHUNK), (1024, CHUNK // 2), (2048 - CHUNK, CHUNK), (0, 512)} <= spans
    assert all(one.forwards == 1 for one in measurement.compute)
    assert len({(one.start, one.end) for one in measurement.compute}) < len(measurement.compute)  # several rounds


def test_forwards_are_counted_where_the_servers_are_shorter_than_a_chunk() -> None:
    profile = make_profile("model", SERVED, CHUNK, measure(ModelServer(forward=64), "host"))
    assert max(one.forwards for one in profile.compute_samples) == 2
    assert profile.costs.compute.fixed_seconds == pytest.approx(COMPUTE.fixed_seconds, rel=1e-3)


def test_a_source_that_has_nothing_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_tiers.ops.commands.profile.measure.LENDING_SECONDS", 0.0)
    measurement = measure(ModelServer(lends=False, loses="ssd"), "host", "peer", "ssd")
    assert set(measurement.left_out) == {"ssd", "peer"}
    assert "lends" in measurement.left_out["peer"]
    profile = make_profile("model", SERVED, CHUNK, measurement)
    assert set(profile.costs.sources) == {"host"}


def test_a_slow_machine_measures_shorter_prefixes() -> None:
    server = ModelServer()
    measurement = measure(server, "host", seconds=1e-6)
    assert measurement.longest == 2 * CHUNK
    assert measurement.loads["host"]
    assert max(one.nbytes for one in measurement.loads["host"]) == 2 * CHUNK * 46080


def test_loads_fit_host_memory() -> None:
    server = ModelServer()
    server.host_bytes = 1000 * 46080
    measurement = measure(server, "host", "ssd")
    for samples in measurement.loads.values():
        assert {one.nbytes // 46080 for one in samples} == {128, 256, 512, 896}
    assert max(one.end for one in measurement.compute) == 2048
    server = ModelServer()
    server.host_bytes = 100 * 46080
    measurement = measure(server, "host", "ssd")
    assert "host.size" in measurement.left_out["host"]
    assert "host.size" in measurement.left_out["ssd"]


def test_prompts_fit_the_device() -> None:
    server = ModelServer(room=1000)
    measure(server, "host", "ssd")
    assert CHUNK * 6 <= server.longest_prompt <= 1000 - 2 * PAGE
    with pytest.raises(CommandError, match="max-total-tokens"):
        measure(ModelServer(room=3 * PAGE + 2 * CHUNK), "host")


# ---- what is started ----


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
    (directory / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 8192}))
    return directory


def given(setting: Setting) -> Any:
    """The tiers' configuration as the server reads it."""
    words = setting.arguments
    return load_config(words[words.index("--swift-tiers-config") + 1])


def test_the_ssds_in_service_are_not_touched(model: Path, tmp_path: Path) -> None:
    places = [tmp_path / "ssd0", tmp_path / "ssd1"]
    for place in places:
        place.mkdir()
        (place / "swift-tiers-dp0-tp0.stripe").write_bytes(b"in service")
    source = json.dumps({"ssd": {"directories": [str(place) for place in places], "stripe_unit": "128KiB"}})
    with prepare(str(model), source, []) as setting:
        used = [Path(one) for one in given(setting).ssd.directories]
        assert [one.parent for one in used] == places
        assert all(one.is_dir() and not any(one.iterdir()) for one in used)
        assert given(setting).ssd.stripe_unit == 128 * 2**10
        assert setting.sources == ("host", "ssd")
        (used[0] / "swift-tiers-dp0-tp0.stripe").write_bytes(b"scratch")
    for place in places:
        assert [path.name for path in place.iterdir()] == ["swift-tiers-dp0-tp0.stripe"]
        assert (place / "swift-tiers-dp0-tp0.stripe").read_bytes() == b"in service"


def test_tiers_have_room_for_a_prefix_whatever_is_configured(model: Path, tmp_path: Path) -> None:
    prefix = 7680 * 46080  # as long as 8192 tokens of context allow
    with prepare(str(model), json.dumps({"ssd": {"directories": [str(tmp_path)]}}), []) as setting:
        config = given(setting)
        assert setting.longest == 7680 < LONGEST_PREFIX
        assert prefix <= config.host.size <= 3 * prefix
        assert prefix <= config.ssd.size_per_device <= 3 * prefix
    small = {"host": {"size": "64MiB"}, "ssd": {"directories": [str(tmp_path)], "size_per_device": "40MiB"}}
    with prepare(str(model), json.dumps(small), []) as setting:
        assert given(setting).host.size == 64 * 2**20
        assert given(setting).ssd.size_per_device == 40 * 2**20


def test_whole_devices_are_left_alone(model: Path) -> None:
    with prepare(str(model), '{"ssd": {"devices": ["/dev/nvme9n1"], "gpu_direct": "on"}}', []) as setting:
        assert given(setting).ssd == SsdConfig()
        assert setting.sources == ("host",)
        assert "block device" in setting.left_out["ssd"]


def test_its_bus_is_its_own_unless_it_borrows(model: Path, tmp_path: Path) -> None:
    shared = tmp_path / "bus"
    source = {"bus": {"directory": str(shared), "server": "web"}, "peer": {"borrow": False, "donate": True}}
    with prepare(str(model), json.dumps(source), []) as setting:
        config = given(setting)
        own = Path(config.bus.directory)
        assert own != shared
        assert config.peer.directory == str(own)
        assert config.bus.control
        assert config.bus.server != "web"
    assert not own.exists()
    source["peer"] = {"borrow": True}
    with prepare(str(model), json.dumps(source), []) as setting:
        assert given(setting).bus.directory == str(shared)
        assert given(setting).bus.server != "web"
        assert setting.sources == ("host", "peer")


def test_the_servers_options_are_passed_on(model: Path) -> None:
    options = cli.make_parser().parse_args(
        [
            "profile",
            "--model-path",
            str(model),
            "--tp-size",
            "2",
            "--seconds",
            "5",
            "--out",
            "x",
            "--dtype",
            "float32",
            "--disable-cuda-graph",
        ]
    )
    assert options.server_arguments == ["--tp-size", "2", "--dtype", "float32", "--disable-cuda-graph"]
    assert options.seconds == 5
    with prepare(str(model), None, options.server_arguments) as setting:
        assert setting.arguments[2:7] == options.server_arguments
    # An option of the server that begins like one of ours stays the server's.
    options = cli.make_parser().parse_args(["profile", "--model-path", "m", "--start", "1"])
    assert options.server_arguments == ["--start", "1"]


def test_a_model_that_is_not_here_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="neither a directory nor"):
        model_directory("nobody/nothing-of-this-name")
    code, out, error = run_command(capsys, "profile", "--model-path", "nobody/nothing-of-this-name")
    assert (code, out) == (2, "")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "x"], "--seconds"),
        (["--start-timeout", "nan"], "--start-timeout"),
        (["--start-timeout", "3601"], "--start-timeout"),
        (["--out", "/nowhere/at/all.json"], "--out"),
        (["--swift-tiers-config", '{"ssd": {"directories": ["/nowhere"]}}'], "/nowhere"),
        (["--swift-tiers-config", '{"ssd": 1}'], "ssd"),
    ],
)
def test_mistakes_are_errors_in_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    code, out, error = run_command(capsys, "profile", "--model-path", str(model), *words)
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert named in error


def test_a_profile_is_written_over_profiles_alone(tmp_path: Path) -> None:
    made, mine = tmp_path / "made.json", tmp_path / "mine.json"
    save_profile(make_profile("model", SERVED, CHUNK, measure(ModelServer(), "host")), made)
    mine.write_text("{}")
    check_out(made)
    check_out(tmp_path / "new.json")
    for path in (mine, tmp_path):
        with pytest.raises(CommandError, match="is there already, and no profile; give another name"):
            check_out(path)


def test_who_has_no_home_has_to_say_where(model: Path, homeless: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    code, out, error = run_command(capsys, "profile", "--model-path", str(model))
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert "--out: this user has no home directory" in error


def test_a_model_of_short_prompts_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(content | {"max_position_embeddings": 1024}))
    code, _, error = run_command(capsys, "profile", "--model-path", str(model))
    assert code == 2
    assert "two chunks" in error


# ---- what is shown and saved ----


@pytest.fixture
def shown(tmp_path: Path) -> str:
    profile = make_profile("model", SERVED, CHUNK, measure(ModelServer(), "host", "ssd"))
    save_profile(profile, tmp_path / "made.json")
    assert load_profile(tmp_path / "made.json", SERVED.model, SERVED.hardware) == profile
    text = io.StringIO()
    show(profile, {"peer": "no server of this machine lends memory"}, Console(file=text, width=80))
    return text.getvalue()


def test_the_tables_say_costs_and_residuals(shown: str) -> None:
    assert "model on NVIDIA H200" in shown
    assert re.search(r"^compute +20 ms \+ 100 µs/token \+ 20 ns/pair +\d+ +0% +0%$", shown, re.MULTILINE)
    assert re.search(r"^a forward +at least 21\.6 ms *$", shown, re.MULTILINE), "sixteen tokens"
    assert re.search(r"^ssd +3 ms \+ 476\.\d+MiB/s ", shown, re.MULTILINE)
    assert re.search(r"^ *8192 +\S+ s ", shown, re.MULTILINE)
    assert "peer: left out, no server of this machine lends memory;" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_servers_restore_by_layers_is_what_their_planner_says() -> None:
    """They read pages whole: where reading is what takes long, copying single layers gains nothing."""
    compute = ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=0.0)
    slow = SourceCost(latency_seconds=0.0, bytes_per_second=46080 / 1e-4)  # a token as soon as it is computed
    fast = SourceCost(latency_seconds=0.0, bytes_per_second=1e12)
    said = []
    for host, ssd in ((slow, slow), (slow, fast), (fast, slow)):
        text = io.StringIO()
        profile = make_profile("model", SERVED, CHUNK, measure(ModelServer(), "host", "ssd"))
        costs = CostModel(compute=compute, sources={"host": host, "ssd": ssd})
        show(msgspec.structs.replace(profile, costs=costs), {}, Console(file=text, width=80))
        said.append(re.findall("^restored layer by layer from (?:host|ssd): (.*)", text.getvalue(), re.MULTILINE))
    # Twice as many as the 64 new tokens are copied behind the forward over these as soon as half of the layers are.
    assert said[0][0] == said[1][0] == said[1][1] == "prefixes of 192 to 8192 tokens", "the link to the device is slow"
    assert said[2] == ["no prefix", "no prefix"], "copying hides behind the next forward"


def test_the_configuration_of_a_server_to_profile_is_one(model: Path) -> None:
    with prepare(str(model), None, []) as setting:
        assert parse_config(setting.config).policy.flush_cache == "device"
