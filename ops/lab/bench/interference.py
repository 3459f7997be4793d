"""What lending costs a donor: a real server that lends, with and without a borrower that is busy, by turns.

The donor serves SmolLM2-135M in float32 and has lent idle memory of its pool. The borrower is a process that does what
the peer tier of another server does, as fast as the donor's `peer.interference` and `peer.bandwidth` allow, and nothing
else: it reads pages from the donor's memory, verifies them, and has new ones stored there. (A second model server would
take the cores of this machine whether it borrows or not.) In each round the donor answers prompts one after the other,
once while the borrower rests and once while it works; the figures are the medians over the rounds of the ratios of time
to first token and of time per further token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...base.arguments import path_argument
from ...commands.bench.report import Figure, finish, parser, ratio, spread, take_turns
from ...commands.bench.two_servers import START_SECONDS
from ...commands.demo.servers import Server, free_ports
from .busy_borrower import BusyBorrower

SLOWER = 1.10
PAGE_TOKENS = 16


class Latency(NamedTuple):
    """Medians over the prompts of a round, seconds."""

    first: float
    further: float


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("interference", __doc__, rounds=12)
    arguments.add_argument("--model-path", type=path_argument, help="a model's directory (default: the demo's)")
    arguments.add_argument("--prompts", type=int, default=4, help="prompts in one round (%(default)s)")
    arguments.add_argument("--tokens", type=int, default=384, help="tokens of a prompt (%(default)s)")
    arguments.add_argument("--new-tokens", type=int, default=16, help="tokens of an answer (%(default)s)")
    arguments.add_argument("--bandwidth", help="the donor's peer.bandwidth (default: none)")
    arguments.add_argument("--interference", type=float, help="the donor's peer.interference (default: its own)")
    options = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-bench-") as folder:  # short: a socket's name is below it
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    from ...base.model import demo_model

    place = folder / "bus"
    config = {
        "host": {"size": "256MiB"},
        "bus": {"directory": str(place), "server": "donor"},
        "peer": {
            "donate": True,
            "window": "1s",
            **{name: value for name in ("bandwidth", "interference") if (value := getattr(options, name)) is not None},
        },
    }
    (port,) = free_ports(1)
    flags = {
        "--model-path": str(options.model_path or demo_model()), "--dtype": "float32", "--max-total-tokens": "16384",
        "--page-size": str(PAGE_TOKENS), "--swift-tiers-config": json.dumps(config),
    }  # fmt: skip
    generator = random.Random(0)
    with ExitStack() as children:
        words = [word for pair in flags.items() for word in pair]
        server = Server("donor", [*words, "--enable-swift-tiers"], port, folder / "donor.log")
        children.enter_context(server)
        server.start()
        server.wait_ready(START_SECONDS)
        borrower = children.enter_context(BusyBorrower(str(place)))

        def work(busy: bool) -> Latency:
            if busy:
                borrower.work()
            try:
                latencies = []
                for _ in range(options.prompts):
                    prompt = generator.choices(range(1000, 40_000), k=options.tokens)
                    latencies.append(_ask(port, prompt, options.new_tokens))
                return Latency(*(statistics.median(part) for part in zip(*latencies, strict=True)))
            finally:
                if busy:
                    borrower.rest()

        rounds = take_turns({"resting": partial(work, False), "busy": partial(work, True)}, options.rounds)
        moved = borrower.moved
    figures = []
    print(f"{options.rounds} rounds of {options.prompts} prompts of {options.tokens} + {options.new_tokens} tokens")
    for part, name in (("first", "ttft"), ("further", "tpot")):
        seconds = {side: [getattr(latency, part) for latency in latencies] for side, latencies in rounds.items()}
        for side, values in seconds.items():
            print(spread(f"{name}, borrower {side}", [1e3 * value for value in values], "ms"))
        figures.append(Figure(name, ratio(seconds["busy"], seconds["resting"]), " of alone", at_most=SLOWER))
    figures.append(Figure("borrowed", moved.lent_bytes / 2**20, "MiB"))
    figures.append(Figure("moved", moved.bytes / moved.seconds / 1e9, "GB/s"))
    figures.append(Figure("borrower_cpu", 100 * moved.cpu_seconds / moved.seconds, "% of a core"))
    details = {"latency": {side: [list(one) for one in latencies] for side, latencies in rounds.items()}}
    return finish("interference", figures, details, options.json)


def _ask(port: int, prompt: list[int], tokens: int) -> Latency:
    """One streamed answer: until its first token, and per token after that."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:
        response.readline()
        first = time.perf_counter() - started
        response.read()
    return Latency(first, (time.perf_counter() - started - first) / (tokens - 1))


if __name__ == "__main__":
    raise SystemExit(main())
