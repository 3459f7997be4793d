"""Everything that the command line can do, once and as small as it gets: that it runs to its end, and that what it
prints can be read.

The tables here are held against the commands' own: what is added to one of those fails a test until it is run here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.base.errors import FOUND
from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.commands import inspect, lease_command
from swift_tiers.ops.commands.bench.report import MISSED
from swift_tiers.ops.commands.bench_command import all_benches
from swift_tiers.ops.commands.doctor.command import families
from swift_tiers.radix_tiering.base.read_config import load_config
from swift_tiers.radix_tiering.bus.contract.commands import COMMANDS
from swift_tiers.radix_tiering.bus.contract.schema import TIERS
from swift_tiers.radix_tiering.bus.hear.command_words import name_of

from support.bus import PAGE, RID, HandWritten
from support.command_line import run_command
from support.finite import figures_of, finite_json
from support.redis import RealRedis

Run = Callable[..., str]

#: Where each command runs: here, or in the test that runs the whole of it.
COVERED = {
    "demo": "tests/e2e/test_demo.py",
    "doctor": "here",
    "console": "here",
    "replay": "here",
    "inspect": "here",
    "control": "here",
    "lease": "here",
    "profile": "tests/e2e/test_profile.py",
    "bench": "here",
    "swiftkv": "tests/ops/test_swiftkv_making.py",
    "gpu-proof": "tests/ops/gpu_proof/test_proof.py",
    "simulate": "tests/ops/simulate/test_command.py",
    "torture": "tests/ops/torture/test_command.py",
    "monitoring": "tests/ops/test_monitoring.py",
    "fsck": "tests/ops/test_fsck_command.py",
    "config": "here",
}

ONE_ROUND = ["--rounds", "1"]
#: Benches within this process.
BENCHES = {
    "attention": [*ONE_ROUND, "--layers", "1"],
    "borrow": ONE_ROUND,
    "console": ["--seconds", "0.2", "--servers", "2", "--pages", "460", "--views", "overview"],
    "host": ONE_ROUND,
    "identity": [*ONE_ROUND, "--mib", "1"],
    "launch": ONE_ROUND,
    "lookup": ONE_ROUND,
    "index": [*ONE_ROUND, "--pages", "5000"],
    "maps": ONE_ROUND,
    "pool_layout": [*ONE_ROUND, "--layers", "1"],
    "resize": ONE_ROUND,
    "restart": ["--pages", "5000"],
    "ssd": [*ONE_ROUND, "--size", "64"],
    "writes": ONE_ROUND,
    "ssd_raw": [*ONE_ROUND, "--size", "16", "--seconds", "0.1", "--without-fio"],
}
ONE_PROMPT = [*ONE_ROUND, "--prompts", "1", "--tokens", "64", "--new-tokens", "2"]
#: Benches that start servers, over a tiny model.
SERVER_BENCHES = {
    "bus": ONE_PROMPT,
    "interference": ONE_PROMPT,
    "multiturn": ["--quick", "--agents", "1", "--turns", "2", "--rates", "1"],
    "overhead": ONE_PROMPT,
    "restore": [*ONE_ROUND, "--lengths", "1024"],
    "swiftkv": [*ONE_ROUND, "--tokens", "200"],
}
#: Benches with a smoke test of their own.
ELSEWHERE = {
    "beside": "tests/ops/test_bench_beside.py",
    "codec": "tests/ops/test_bench_codec.py",
    "donor": "tests/e2e/test_bench_donor.py",
    "interpreter": "tests/ops/test_bench_interpreter.py",
    "remote": "tests/e2e/test_mooncake.py",
}

VIEWS = {
    **dict.fromkeys(("servers", "tiers", "devices", "links", "leases", "tree", "requests", "events"), ""),
    "request": RID,
    "restore": RID,
    "page": PAGE,
    "prefix": PAGE,
    "map": "host",
    "nodes": "",
}
ORDERS = {
    "flush": [],
    "drain-device": ["0"],
    "readmit-device": ["0"],
    "add-device": ["/ssd9/kv"],
    "pin": [PAGE],
    "unpin": [PAGE],
    "drop": [PAGE],
    "set-policy": ["eviction", "lfu"],
    "cap-tier": ["host", "8GiB"],
    "order-tier": ["ssd", "drain", "0"],
    "recall-leases": ["all"],
    "pin-lease": ["12"],
    "unpin-lease": ["12"],
    "cap-lending": ["8GiB"],
}
ACTIONS = {
    "list": [],
    "recall": ["alpha", "all"],
    "pin": ["alpha", "12"],
    "unpin": ["alpha", "12"],
    "cap": ["alpha", "8GiB"],
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command to its end; what it prints."""

    def run(*words: str, may_end_in: tuple[int, ...] = (0,)) -> str:
        code, out, error = run_command(capsys, *words)
        assert code in may_end_in, f"{' '.join(words)} ended with {code}: {error}"
        assert "Traceback" not in error
        return out

    return run


@pytest.fixture(scope="module")
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    redis.admin.flushall()
    return HandWritten(redis.admin, lends=True, gpu=True).write()


# ---- nothing is left out ----


def test_every_command_runs_somewhere() -> None:
    assert COVERED.keys() == cli.COMMANDS.keys()
    root = Path(__file__).parents[2]
    assert not [
        place for place in [*COVERED.values(), *ELSEWHERE.values()] if place != "here" and not (root / place).exists()
    ]


def test_every_bench_view_command_and_action_runs_here() -> None:
    assert BENCHES.keys() | SERVER_BENCHES.keys() | ELSEWHERE.keys() == all_benches().keys()
    assert VIEWS.keys() == set(inspect.SUBJECTS)
    assert ORDERS.keys() == {name_of(kind) for kind in COMMANDS}
    assert ACTIONS.keys() == lease_command.ACTIONS.keys()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(run: Run, name: str) -> None:
    assert run(name, "--help").startswith("usage: swift-tiers")


# ---- benches ----


def assert_bench_ran(out: str, name: str) -> None:
    closing = out.splitlines()[-1]
    assert closing.startswith(f"{name}: ")
    assert figures_of(closing)


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench(run: Run, name: str) -> None:
    """A bound that is missed is none of the suite's business: the machine may be busy."""
    assert_bench_ran(run("bench", name, *BENCHES[name], may_end_in=(0, MISSED)), name)


@pytest.mark.e2e
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SERVER_BENCHES)
def test_a_bench_of_servers(run: Run, tmp_path: Path, name: str) -> None:
    model = tiny_model(tmp_path / "model", vocab=49_152, context=8192)
    words = ["bench", name, "--model-path", str(model), *SERVER_BENCHES[name]]
    assert_bench_ran(run(*words, may_end_in=(0, MISSED)), name)


# ---- what is on the bus ----


@pytest.mark.parametrize("subject", VIEWS)
def test_a_view_of_the_bus(run: Run, redis: RealRedis, alpha: HandWritten, subject: str) -> None:
    words = ["inspect", subject, *filter(None, [VIEWS[subject]]), "--url", redis.url]
    with alpha.answering():
        assert "alpha" in run(*words)
        out = run(*words, "--json")
    found = [finite_json(line) for line in out.splitlines()] if subject == "events" else finite_json(out)
    assert found


@pytest.mark.parametrize("tier", TIERS)
def test_a_map_of_every_tier(run: Run, redis: RealRedis, alpha: HandWritten, tier: str) -> None:
    with alpha.answering():
        assert finite_json(run("inspect", "map", tier, "--json", "--url", redis.url))


@pytest.mark.parametrize("order", ORDERS)
def test_a_command_to_a_server(run: Run, redis: RealRedis, alpha: HandWritten, order: str) -> None:
    with alpha.obeying():
        out = run("control", "alpha", order, *ORDERS[order], "--json", "--url", redis.url)
    assert finite_json(out)["state"] == "done"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_on_leases(run: Run, redis: RealRedis, alpha: HandWritten, action: str) -> None:
    with alpha.obeying():
        assert finite_json(run("lease", action, *ACTIONS[action], "--json", "--url", redis.url))


def test_the_console_and_a_replay(run: Run, redis: RealRedis, alpha: HandWritten, tmp_path: Path) -> None:
    assert "alpha" in run("console", "--once", "--url", redis.url)
    assert finite_json(run("console", "--once", "--json", "--url", redis.url))
    assert "usage" in run("replay", "--help")


# ---- this machine ----


def test_every_check_of_the_doctor(run: Run, tmp_path: Path) -> None:
    tiers = {"ssd": {"directories": [str(tmp_path)], "size_per_device": "32MiB"}, "bus": {"directory": str(tmp_path)}}
    config = json.dumps(tiers)
    found = finite_json(run("doctor", "--json", "--config", config, may_end_in=(0, FOUND)))
    named = [check.name for checks in families(load_config(config), 1).values() for check in checks]
    assert [line["name"] for line in found["checks"]] == named
    assert not [line for line in found["checks"] if line["found"].startswith("check failed:")]


def test_the_configuration(run: Run, tmp_path: Path) -> None:
    assert "host.size" in run("config", "--explain")
    (tmp_path / "tiers.json").write_text(run("config", "--defaults"))
    run("config", "--check", str(tmp_path / "tiers.json"))
