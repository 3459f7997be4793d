"""What SwiftKV saves of a prompt: real servers of a model as it is, and with a quarter and a half of its layers later.

All serve SmolLM2-135M in float32 on the CPU. Later layers are rewired and not fitted: no prompt's time depends on that.
In each round each server is given a prompt that nobody has seen, for one token; the figures are the medians over the
rounds of the ratios to the model as it is. Servers stand still while it is not their turn.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ...base.arguments import path_argument
from ...base.model import demo_model
from ...commands.bench.report import Figure, finish, parser, ratio, spread, take_turns
from ...commands.bench.two_servers import START_SECONDS, BenchServer, call
from ...commands.demo.servers import free_ports
from ...commands.swiftkv.convert import run_convert

#: Later layers, and what of the time may be left.
SHARES = {"25%": 0.82, "50%": 0.62}
BASE = "as it is"


def main(argv: Sequence[str] | None = None) -> int:
    form = parser("swiftkv", __doc__, rounds=9)
    form.add_argument("--model-path", type=path_argument, help="a Llama's or Qwen's directory (default: the demo's)")
    form.add_argument("--tokens", type=int, default=2000, help="tokens of a prompt (%(default)s)")
    options = form.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-") as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    model = options.model_path or demo_model()
    models = {BASE: model, **{share: _converted(model, share, folder) for share in SHARES}}
    generator = random.Random(0)
    with ExitStack() as children:
        servers: dict[str, BenchServer] = {}
        for (name, place), port in zip(models.items(), free_ports(len(models)), strict=True):
            words = ["--model-path", str(place), "--dtype", "float32", "--max-total-tokens", "8192"]
            server = BenchServer(name, [*words, "--chunked-prefill-size", "1024"], port, folder / f"{port}.log")
            children.enter_context(server)
            server.start()
            servers[name] = server
        for server in servers.values():
            server.wait_ready(START_SECONDS)
        cases: dict[str, Callable[[], float]] = {
            name: partial(_seconds, server, generator, options.tokens) for name, server in servers.items()
        }
        for server in servers.values():
            children.enter_context(server.asleep())
        seconds = take_turns(cases, options.rounds)
    print(f"time to the first token of {options.tokens} tokens, {options.rounds} rounds:")
    for name, values in seconds.items():
        print(spread(name, values, "s"))
    figures = [
        Figure(f"later_{share.removesuffix('%')}", ratio(seconds[share], seconds[BASE]), at_most=bound)
        for share, bound in SHARES.items()
    ]
    smaller = options.model_path is not None or options.tokens < 2000
    return finish("swiftkv", figures, {"tokens": options.tokens, "seconds": seconds}, options.json, smaller=smaller)


def _converted(model: Path, share: str, folder: Path) -> Path:
    place = folder / f"later-{share.removesuffix('%')}"
    run_convert(
        argparse.Namespace(
            model=model, out=place, layers=share, across=1, fit_tokens=0, dtype="float32", device="cpu", text=None
        )
    )
    return place


def _seconds(server: BenchServer, generator: random.Random, tokens: int) -> float:
    """To the first token of a new prompt."""
    words = {
        "input_ids": [generator.randrange(1, 256) for _ in range(tokens)],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
    }
    with server.awake():
        began = time.perf_counter()
        call(server.port, "/generate", words)
        return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
