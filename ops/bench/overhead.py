"""What the tiers cost a server that gets nothing from them: two real servers, by turns, prompts that never repeat.

Both serve SmolLM2-135M in float32 with equal flags; one has a host and an SSD tier, which take in every page and never
give one back. In each round each server gets the same number of fresh prompts, several at a time; the figure is the
median over the rounds of the ratio of their throughputs. Only one of them works at any time.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from swift_tiers.ops.bench.report import Figure, finish, parser, ratio, spread

BOUND = 0.97
START_SECONDS = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("overhead", __doc__, rounds=12)
    arguments.add_argument("--model-path", type=Path, help="a model's directory (default: the demo's)")
    arguments.add_argument("--prompts", type=int, default=6, help="prompts in one round (%(default)s)")
    arguments.add_argument("--tokens", type=int, default=512, help="tokens of a prompt (%(default)s)")
    arguments.add_argument("--new-tokens", type=int, default=24, help="tokens of an answer (%(default)s)")
    options = arguments.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="swift-tiers-bench-"))
    try:
        return _measure(folder, options)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, options: Any) -> int:
    from swift_tiers.ops.demo.servers import Server, free_ports
    from swift_tiers.ops.model import demo_model

    model = options.model_path or demo_model()
    tiers = {"host": {"size": "512MiB"}, "ssd": {"directories": [str(folder)], "size_per_device": "2GiB"}}
    common = ["--model-path", str(model), "--dtype", "float32", "--max-total-tokens", "8192", "--page-size", "16"]
    ours = [*common, "--enable-swift-tiers", "--swift-tiers-config", json.dumps(tiers)]
    ports = free_ports(2)
    generator = random.Random(0)
    with (
        Server("off", common, ports[0], folder / "off.log") as off,
        Server("on", ours, ports[1], folder / "on.log") as on,
        ThreadPoolExecutor(4) as pool,
    ):
        for server in (off, on):
            server.start()
        for server in (off, on):
            server.wait_ready(START_SECONDS)

        def work(server: Server) -> float:
            prompts = [generator.choices(range(1000, 40_000), k=options.tokens) for _ in range(options.prompts)]
            started = time.perf_counter()
            list(pool.map(lambda prompt: _generate(server.port, prompt, options.new_tokens), prompts))
            return time.perf_counter() - started

        seconds: dict[str, list[float]] = {"off": [], "on": []}
        for number in range(options.rounds + 1):
            for server in (off, on) if number % 2 else (on, off):
                spent = work(server)
                if number:
                    seconds[server.name].append(spent)
        snapshot = _get(on.port, "/server_info")["internal_states"][0]["swift_tiers"]
    tokens = options.prompts * (options.tokens + options.new_tokens)
    print(f"{options.rounds} rounds of {options.prompts} prompts of {options.tokens} + {options.new_tokens} tokens")
    for name, values in seconds.items():
        print(spread(f"tiers {name}", [tokens / value for value in values], "tokens/s"))
    host = snapshot["tiers"]["host"]
    print(f"  the tiers took in {host['bytes_written'] / 1e6:.0f} MB and served {host['hits']} pages")
    figures = [Figure("throughput", ratio(seconds["off"], seconds["on"]), " of off", at_least=BOUND)]
    return finish("overhead", figures, {"seconds": seconds, "tiers": snapshot}, options.json)


def _generate(port: int, prompt: list[int], tokens: int) -> None:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        data=json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        response.read()


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return json.load(response)


if __name__ == "__main__":
    raise SystemExit(main())
