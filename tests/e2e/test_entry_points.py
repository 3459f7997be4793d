"""The same flag by SGLang's other doors: `sglang.Engine(...)` and `sglang serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.commands.demo.servers import Server, free_ports

from support import forked
from support.servers import START_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ENGINE = """
import json, random, sys
import sglang

def prompt(seed):
    return random.Random(seed).choices(range(1, 250), k=700)

def ask(engine, seed):
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    answer = engine.generate(input_ids=prompt(seed), sampling_params=sampling)
    return answer["output_ids"], answer["meta_info"].get("cached_tokens_details")

if __name__ == "__main__":
    engine = sglang.Engine(
        model_path=sys.argv[1], dtype="float32", max_total_tokens=2048,
        enable_swift_tiers=True, swift_tiers_config={"host": {"size": "16MiB"}},
    )
    answers = [ask(engine, seed) for seed in range(6)]
    again = ask(engine, 0)
    engine.shutdown()
    print("RESULT" + json.dumps([answers[0], again]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def run(how: str, code: str, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    if how == FORKED:
        return forked.run(code, str(model), timeout=1500)
    script = folder / "engine.py"
    script.write_text(code)
    return subprocess.run([sys.executable, str(script), str(model)], capture_output=True, text=True, timeout=1500)


FORKED = "with processes that are forked"
HOW = pytest.mark.parametrize("how", [FORKED, pytest.param("as users type it", marks=pytest.mark.exhaustive)])


@HOW
def test_engine(how, model, tmp_path):
    done = run(how, ENGINE, model, tmp_path)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results, done.stderr[-3000:]
    (cold, none), (tokens, details) = json.loads(results[0].removeprefix("RESULT"))
    assert none is None
    assert tokens == cold
    assert details["host"] == 688


@HOW
def test_engine_raises_what_the_command_line_says(how, model, tmp_path):
    done = run(how, ENGINE.replace('"size"', '"sise"'), model, tmp_path)
    assert done.returncode == 1
    assert "ConfigError: host.sise: unknown field" in done.stderr


class Serve(Server):
    """`sglang serve` in place of `python -m sglang.launch_server`."""

    @property
    def command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "sglang"), "serve", *self._arguments]


def test_serve(model, tmp_path):
    config = tmp_path / "tiers.toml"
    config.write_text('[host]\nsize = "16MiB"\n')
    arguments = [
        "--model-path", str(model), "--dtype", "float32", "--max-total-tokens", "2048", "--log-level", "warning",
        "--enable-swift-tiers", "--swift-tiers-config", f"@{config}",
    ]  # fmt: skip
    (port,) = free_ports(1)
    with Serve("serve", arguments, port, tmp_path / "serve.log") as server:
        server.start()
        server.wait_ready(START_SECONDS)
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{port}/server_info", timeout=60) as response:
            info = json.load(response)
    assert info["enable_swift_tiers"] is True
    assert info["swift_tiers_config"] == {"host": {"size": "16MiB"}}
    assert info["internal_states"][0]["swift_tiers"]["tiers"]["host"]["capacity_bytes"] == 16 * 2**20
