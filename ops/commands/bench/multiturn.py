"""Agents that take turns, on real servers without tiers, with SGLang's HiCache, and with swift-tiers, by turns.

All serve the same model with the same flags. HiCache (host memory and `file` storage, write-through, its own prefetch
policy) and swift-tiers (host memory and ssd tier, write-through, its defaults) have the same host memory, and a disk
each of the same rate: both pass every page, read or written, through the same token bucket (`ssd.throttle` here, a
bench-only plugin there, see `multiturn_hicache`). HiCache's files are read through the page cache, the ssd tier's with
direct I/O; both are faster than the throttle, so it is the throttle that either waits for. The table says what each
disk moved, as a share of what it could have.

The rates are multiples of the rate at which recomputing makes KV, which is measured first: at 1, loading a page takes
as long as computing it. In each round every system is asked the same prompts, in alternating order, and only one of
them runs at any time; the others stand still. No disk concerns the server without tiers: it takes part in the first
round of each rate, and in all where what it takes is a bound. All answers must be equal, token by token.

`--rates none` is a run without disks, in which host memory holds everything that is asked in a round. `--workload
short` and `fresh` ask what no tier can help with, prompts of a few tokens and prompts without a common prefix: what do
tiers cost those who do not need them?

P99 is that of all requests at a rate: of a hundred or fewer, the slowest.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...base.arguments import path_argument
from ...base.errors import USAGE, CommandError
from ...base.interruptible import terminable
from ...base.progress import progress
from ..demo.workload import read_shape
from .multiturn_hicache import DiskBytes
from .multiturn_replay import ask, replay
from .multiturn_report import (
    Round,
    different_answers,
    figures,
    make_rows,
    show,
    show_different,
)
from .multiturn_systems import (
    HICACHE,
    OFF,
    SYSTEMS,
    TIERS,
    Sizes,
    System,
    choose_sizes,
    make_system,
)
from .multiturn_workload import WORKLOADS, BenchTurn, RoundShape, distinct_tokens, read_trace
from .report import finish, parser
from .two_servers import START_SECONDS

RATES = (0.5, 1.0, 2.0)
#: The rate of no disk.
NO_DISK = 0.0
#: Without a disk host memory holds so many times what a round makes: the one before leaves it meanwhile.
HELD_MARGIN = 1.5
#: Tokens that no prompt exceeds, unless the model takes fewer or `--longest` says otherwise.
LONGEST = 1280
#: Seconds that a disk may take to come to rest after a round, and between two looks whether it has.
REST_SECONDS, LOOK_SECONDS = 60.0, 0.5
#: Prompts that recomputing is timed with.
TIMED = 3


class RoundPlan(NamedTuple):
    """What is asked in one round."""

    rate: float  # of the disk, over that of recomputing, or NO_DISK
    number: int  # of the round at this rate, from 0
    turns: list[BenchTurn]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    folder = Path(tempfile.mkdtemp(prefix="swift-tiers-bench-"))
    # A server that stands still when the bench is ended would not hear that it should end, too.
    with terminable():
        try:
            return _measure(folder, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    result = parser("multiturn", __doc__, rounds=1)
    result.add_argument("--quick", action="store_true", help="one rate, fewer agents, fewer turns")
    result.add_argument("--model-path", type=path_argument, help="a model's directory (default: the demo's)")
    result.add_argument(
        "--rates", help="disk rates over that of recomputing, commas between, or none: no disk (default: 0.5,1,2)"
    )
    result.add_argument("--workload", choices=tuple(WORKLOADS), default="agents", help="what is asked (%(default)s)")
    result.add_argument("--agents", type=int, help="agents in one round (default: 8, or --together)")
    result.add_argument("--turns", type=int, help="turns of each (default: 4)")
    result.add_argument(
        "--longest", type=int, help=f"tokens of the longest prompt (default: {LONGEST}, or the model's)"
    )
    result.add_argument("--new-tokens", type=int, default=8, help="tokens of an answer (%(default)s)")
    result.add_argument("--together", type=int, default=2, help="requests at a time (%(default)s)")
    result.add_argument(
        "--prefetch-policy",
        choices=("timeout", "best_effort", "wait_complete"),
        default="timeout",
        help="HiCache's --hicache-storage-prefetch-policy (%(default)s, as SGLang's)",
    )
    result.add_argument(
        "--trace", type=path_argument, help="a Mooncake trace, or a directory of some, instead of drawn turns"
    )
    options = result.parse_args(argv)
    options.rates = _rates(options.rates, (1.0,) if options.quick else RATES)
    options.agents = options.agents or (5 if options.quick else max(8, options.together))
    options.turns = options.turns or (3 if options.quick else 4)
    for name in ("rounds", "agents", "turns", "new_tokens", "together"):
        if getattr(options, name) < 1:
            raise CommandError(f"--{name.replace('_', '-')}: {getattr(options, name)} is not above 0", USAGE)
    return options


def _rates(text: str | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    try:
        rates = tuple(sorted({NO_DISK if part.strip() == "none" else _rate(part) for part in text.split(",")}))
    except ValueError:
        raise CommandError(
            f"--rates: {text!r} are not numbers above 0, or none, with commas between, such as none,0.5,1", USAGE
        ) from None
    return rates


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise ValueError(text)
    return rate


def _measure(folder: Path, options: argparse.Namespace) -> int:
    from ...base.model import demo_model

    model = (options.model_path or demo_model()).resolve()
    shape = RoundShape(options.agents, options.turns, _longest(model, options))
    vocabulary = _vocabulary(model)
    plans = [
        RoundPlan(rate, number, _plan(options, shape, vocabulary, seed=place * options.rounds + number))
        for place, rate in enumerate(options.rates)
        for number in range(options.rounds)
    ]
    working_set = max(distinct_tokens(plan.turns) for plan in plans)
    held = int(working_set * HELD_MARGIN) if NO_DISK in options.rates else 0
    sizes = choose_sizes(model, shape.longest, options.together, working_set * (options.rounds + 1), held)
    _describe(options, sizes, plans[0].turns, working_set)
    rounds: list[Round] = []
    bytes_per_second: dict[float, float] = {}
    with ExitStack() as children:
        off = children.enter_context(_start([OFF], sizes, 0.0, options, folder / "off"))[OFF]
        speed = _recompute_speed(off, shape, vocabulary, options.new_tokens)
        print(f"recomputing: {speed:.0f} tokens/s, which makes {speed * sizes.token_bytes / 1e6:.1f} MB/s of KV")
        with off.server.asleep():
            for place, rate in enumerate(options.rates):
                bytes_per_second[rate] = rate * speed * sizes.token_bytes
                here = [plan for plan in plans if plan.rate == rate]
                order = SYSTEMS if place % 2 == 0 else SYSTEMS[::-1]
                now = _at_rate(here, order, off, sizes, bytes_per_second[rate], options, folder / f"rate-{rate:g}")
                show(make_rows(now), bytes_per_second[rate])
                rounds += now
    rows, different = make_rows(rounds), different_answers(rounds)
    show_different(different)
    details = {
        "sizes": sizes._asdict() | {"model": model.name},
        "bytes_per_second": {f"{rate:g}": value for rate, value in bytes_per_second.items()},
        "rows": msgspec.to_builtins(rows),
        "different_answers": different,
        "rounds": msgspec.to_builtins(rounds),
    }
    print()
    return finish("multiturn", figures(rounds, options.workload, len(different)), details, options.json)


def _longest(model: Path, options: argparse.Namespace) -> int:
    context = read_shape(model).context
    longest = options.longest or min(LONGEST, context - options.new_tokens - 1)
    if not 64 <= longest < context - options.new_tokens:
        raise CommandError(f"--longest: {longest} is not between 64 and what the model takes ({context} tokens)", USAGE)
    return longest


def _vocabulary(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    return int(config.get("text_config", config)["vocab_size"])


def _plan(options: argparse.Namespace, shape: RoundShape, vocabulary: int, seed: int) -> list[BenchTurn]:
    if options.trace is not None:
        return read_trace(options.trace, shape, vocabulary, seed)
    return WORKLOADS[options.workload](shape, vocabulary, seed)


def _describe(options: argparse.Namespace, sizes: Sizes, plan: Sequence[BenchTurn], working_set: int) -> None:
    tokens = sum(len(turn.prompt) for turn in plan)
    print(
        f"{options.rounds} rounds at each rate of {len(plan)} requests, {options.together} at a time: {tokens} tokens "
        f"of prompts, {working_set} of them different\n"
        f"{sizes.model.name} in float32: {sizes.token_bytes} bytes of KV a token; device {sizes.device_tokens} tokens, "
        f"host {sizes.host_tokens}; HiCache's prefetch policy: {options.prefetch_policy}"
    )


@contextmanager
def _start(
    names: Sequence[str], sizes: Sizes, bytes_per_second: float, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, System]]:
    """Servers side by side, each asked what it does first in a way that no later request should pay for."""
    folder.mkdir()
    with ExitStack() as children:
        systems = {name: make_system(name, sizes, bytes_per_second, options.prefetch_policy, folder) for name in names}
        with progress(f"starting {' and '.join(names)}") as bar:
            for system in systems.values():
                children.enter_context(system)
                system.server.start()
            for system in systems.values():
                system.server.wait_ready(START_SECONDS, lambda: bar.update(0))
        for system in systems.values():
            _warm_up(system, sizes, options)
        yield systems


def _warm_up(system: System, sizes: Sizes, options: argparse.Namespace) -> None:
    """Compute a prompt, and bring it back from the disk."""
    prompt = random.Random(system.name).choices(range(100, 200), k=sizes.device_tokens // options.together // 2)
    ask(system.port, BenchTurn(0, 0, prompt), options.new_tokens)
    if system.name != OFF:
        _rest(system)
        _flush(system)
        ask(system.port, BenchTurn(0, 1, prompt), options.new_tokens)
        _rest(system)


def _flush(system: System) -> None:
    """Empty device and host memory. SGLang refuses that while anything is under way."""
    request = urllib.request.Request(f"http://127.0.0.1:{system.port}/flush_cache", method="POST")
    deadline = time.monotonic() + REST_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=REST_SECONDS):
                return
        except urllib.error.HTTPError as error:
            if time.monotonic() > deadline:
                raise CommandError(f"{system.name}: /flush_cache still answers {error.code}") from None
        time.sleep(LOOK_SECONDS)


def _recompute_speed(off: System, shape: RoundShape, vocabulary: int, new_tokens: int) -> float:
    """Tokens per second, of prompts of usual length that nobody has asked yet."""
    length = shape.longest * 2 // 3
    generator = random.Random("recompute")
    speeds = []
    for number in range(TIMED):
        turn = BenchTurn(0, number, generator.choices(range(vocabulary // 16, vocabulary * 3 // 4), k=length))
        speeds.append(length / ask(off.port, turn, new_tokens).ttft_seconds)
    return statistics.median(speeds)


def _at_rate(
    plans: Sequence[RoundPlan],
    order: Sequence[str],
    off: System,
    sizes: Sizes,
    bytes_per_second: float,
    options: argparse.Namespace,
    folder: Path,
) -> list[Round]:
    """All rounds at one rate, which is that of all the plans. `order`: of the systems in the first; then it turns."""
    rounds: list[Round] = []
    with _start([HICACHE, TIERS], sizes, bytes_per_second, options, folder) as systems, ExitStack() as sleepers:
        for system in systems.values():
            sleepers.enter_context(system.server.asleep())
        systems[OFF] = off
        for plan in plans:
            names = [name for name in order if name != OFF or plan.number == 0 or _off_is_a_bound(plan, options)]
            order = order[::-1]
            where = f"disk at {plan.rate:g} of recomputing" if plan.rate else "no disk"
            with progress(f"{where}, round {plan.number + 1}", len(names)) as bar:
                for place, name in enumerate(names):
                    bar.update(place, text=f"asking {name}")
                    rounds.append(_ask_round(systems[name], plan, options))
    return rounds


def _off_is_a_bound(plan: RoundPlan, options: argparse.Namespace) -> bool:
    """Whether swift-tiers is held against the server without tiers."""
    return options.workload != "agents" or 0 < plan.rate <= 1


def _ask_round(system: System, plan: RoundPlan, options: argparse.Namespace) -> Round:
    """One round of one system, which is awake for it and until its disk rests."""
    with system.server.awake():
        before, started = system.disk(), time.perf_counter()
        replayed = replay(system.port, plan.turns, options.together, options.new_tokens)
        after = _rest(system)
        seconds = time.perf_counter() - started
    moved = DiskBytes(after.read - before.read, after.written - before.written)
    return Round(
        rate=plan.rate, number=plan.number, system=system.name, replayed=replayed, disk=moved, disk_seconds=seconds
    )


def _rest(system: System) -> DiskBytes:
    """Wait until the disk has moved nothing for a moment, or for `REST_SECONDS`; what it has moved so far."""
    deadline = time.monotonic() + REST_SECONDS
    before, now = None, system.disk()
    while now != before and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        before, now = now, system.disk()
    return now


if __name__ == "__main__":
    raise SystemExit(main())
