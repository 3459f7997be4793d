"""What the tiers cost a server that gets nothing from them: two real servers, by turns, prompts that never repeat.

Both serve SmolLM2-135M in float32 with equal flags; one has a host and an SSD tier, which take in every page and never
give one back. In each round each server gets the same number of fresh prompts, several at a time; the figure is the
median over the rounds of the ratio of their throughputs. Only one of them works at any time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...commands.bench.report import Figure, finish, ratio
from ...commands.bench.two_servers import arguments, get, measure, show

BOUND = 0.97


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("overhead", __doc__, rounds=12).parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-") as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    tiers = {
        "host": {"size": "512MiB"},
        "ssd": {"directories": [str(folder)], "size_per_device": "2GiB"},
        "bus": {"enabled": False},  # has a bench of its own
    }

    def look(ports: Mapping[str, int]) -> Any:
        return get(ports["on"], "/server_info")["internal_states"][0]["swift_tiers"]

    measured = measure(folder, options, {"off": None, "on": tiers}, look)
    seconds, snapshot = measured.seconds, measured.after
    show("tiers", options, seconds)
    host = snapshot["tiers"]["host"]
    print(f"  the tiers took in {host['bytes_written'] / 1e6:.0f} MB and served {host['hits']} pages")
    figures = [Figure("throughput", ratio(seconds["off"], seconds["on"]), " of off", at_least=BOUND)]
    return finish("overhead", figures, {"seconds": seconds, "tiers": snapshot}, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
