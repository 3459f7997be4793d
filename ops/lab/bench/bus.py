"""What the bus costs a server: two real servers with equal tiers, by turns, one of which publishes.

Both serve SmolLM2-135M in float32 with a host tier; one says all that there is to say on an embedded Redis of this
bench, as often as by default. In each round each server gets the same number of fresh prompts, several at a time; the
figure is the median over the rounds of the ratio of their throughputs. A server stands still, with all its threads,
while it is not its turn. What the publisher's thread takes of a core, and sampling of the scheduler's thread, is what
the server itself says on the bus.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.contract.views import RankView
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from ...base.errors import CommandError
from ...commands.bench.report import Figure, finish, ratio
from ...commands.bench.two_servers import arguments, measure, show

BOUND = 0.99
#: How long the server may take to say something, seconds: it does so twice a second.
PATIENCE_SECONDS = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("bus", __doc__, rounds=30).parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-bench-") as folder:  # short: a socket's name is below it
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    place = str(folder / "bus")

    def look(ports: Mapping[str, int]) -> RankView:
        return _said(place)

    host = {"size": "512MiB"}
    sides: dict[str, dict[str, Any]] = {
        "off": {"host": host, "bus": {"enabled": False}},
        "on": {"host": host, "bus": {"directory": place}},
    }
    seconds, worked, before, after = measure(folder, options, sides, look, alone=True)
    show("bus", options, seconds)
    print(f"  {_grown(before, after, 'publishes')} publishings in {worked['on']:.0f} s of work")
    figures = [
        Figure("throughput", ratio(seconds["off"], seconds["on"]), " of off", at_least=BOUND),
        Figure("one_publishing", 1e3 * (after.publish_seconds or 0.0), "ms"),
        Figure("publisher", 100 * _grown(before, after, "publish_cpu_seconds") / worked["on"], "% of a core"),
        Figure("sampling", 100 * _grown(before, after, "sample_seconds") / worked["on"], "% of the scheduler"),
    ]
    details = {"seconds": seconds, "rank": msgspec.to_builtins(after)}
    return finish("bus", figures, details, options.json)


def _said(place: str) -> RankView:
    """What the one rank on the bus says about itself, as soon as it says something."""
    with BusReader.open(BusConfig(directory=place), "bench") as reader:
        ranks = wait_for(lambda: reader.ranks() or None, PATIENCE_SECONDS)
    if ranks is None:
        raise CommandError(f"the server said nothing on the bus within {PATIENCE_SECONDS:g} s")
    return ranks[0]


def _grown(before: RankView, after: RankView, counter: str) -> float:
    grown: float = (getattr(after, counter) or 0) - (getattr(before, counter) or 0)
    return grown


if __name__ == "__main__":
    raise SystemExit(main())
