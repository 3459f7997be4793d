"""The demo from its first step to its exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from swift_tiers.radix_tiering.bus.contract.views import RankState

from ...base.arguments import check_between
from ...base.errors import FAILURE, USAGE, CommandError
from ...base.interruptible import terminable
from ...base.model import demo_model
from ...base.new_file import check_new_file, write_new_file
from ...base.progress import note, progress
from .bus import SHOWN_LINES, DemoBus, Tried
from .replay import ReplayError, TurnAnswer, ask
from .report import (
    DemoReport,
    TurnReport,
    add_devices,
    add_tiers,
    judge,
    make_turn,
    show,
    summarise,
)
from .servers import LOG_LINES, Server, free_ports, log_tail
from .workload import DemoSizes, DemoTurn, TurnPlan, choose_sizes, load_sessions, make_plan, read_shape
from .workload import token_counter as make_token_counter

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds that both servers take to start on two quiet cores: only the bar's length depends on it.
USUAL_START = 50.0
#: How long a restore may take before the tokens are recomputed.
RESTORE_DEADLINE = "10s"
#: Asked of each server after each start: a server's first request pays for allocations that later ones do not.
WARM_UP = "Hello. " * 60


class DemoReplay(NamedTuple):
    """What came out of asking all turns."""

    turns: list[TurnReport]
    lives: list[RankState]  # what the bus said at the end of each life of the server with tiers
    stop_seconds: float
    restart_seconds: float


def run_demo(options: argparse.Namespace) -> int:
    """See the package; `options` are its arguments. Returns the exit code. Raises CommandError, ModelError."""
    from ...base.terminal import Terminal

    started = time.monotonic()
    check_between("--devices", options.devices, 1, 16)
    if options.max_tokens < 1:
        raise CommandError(f"--max-tokens: {options.max_tokens} is not above 0", USAGE)
    check_new_file("--json", options.json)
    check_keep(options.keep)
    sessions = load_sessions(options.sessions, options.turns)
    model = find_model(options.model_path)
    count_tokens = make_token_counter(model)
    counts = [[count_tokens(text) for text in session] for session in sessions]
    sizes = choose_sizes(counts, read_shape(model), options.devices, options.max_tokens)
    plan = make_plan(sessions)
    with terminable(), work_directory(options.keep) as work, contextlib.ExitStack() as children:
        ports = free_ports(2)
        common = common_arguments(model, options.dtype, sizes, options.server_arguments)
        bus = children.enter_context(DemoBus())
        config = tiers_config(work, sizes, bus.settings)
        tiers_log, plain_log = work / "server-with-tiers.log", work / "server-without-tiers.log"
        with_tiers = [*common, "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)]
        tiers = children.enter_context(Server("with tiers", with_tiers, ports[0], tiers_log))
        plain = children.enter_context(Server("without tiers", common, ports[1], plain_log))
        starting = time.monotonic()
        wait_started("starting two servers, with tiers and without", [tiers, plain], options.start_timeout)
        start_seconds = time.monotonic() - starting
        replay = replay_plan(plan, tiers, plain, bus, options.max_tokens, options.start_timeout)
        tried = bus.try_lines(request_name(replay.turns[-1].number))
        if not options.stay:
            with progress("ending the servers"):
                children.close()
        report = make_report(replay, model.name, sizes, start_seconds, time.monotonic() - started)
        console = Terminal(markup=True)
        show(report, console)
        show_lines(tried, console)
        write_report(report, options.json)
        if options.stay:
            stay(bus, tiers, console)
    return conclude(report)


def show_lines(tried: list[Tried], console: Console) -> None:
    """Three lines for redis-cli, with the beginning of what each printed."""
    console.print("\nThe tables were read from the bus; redis-cli alone shows it (docs/bus.md has every key).")
    console.print("With --stay the server and its bus stay up, and these three lines can be tried:")
    for line, output in tried:
        console.print(f"\n  {line}", style="bold", markup=False, soft_wrap=True)
        for text in output[:SHOWN_LINES]:
            console.print(f"    {text}", markup=False, overflow="ellipsis", no_wrap=True)
        if len(output) > SHOWN_LINES:
            console.print(f"    ... {len(output) - SHOWN_LINES} more lines")


def stay(bus: DemoBus, tiers: Server, console: Console) -> None:
    """Keep the server with tiers and its bus until Ctrl-C."""
    console.print(
        f"\nThe server stays at http://127.0.0.1:{tiers.port}, its bus at {bus.socket}. Ctrl-C ends both.",
        soft_wrap=True,
    )
    try:
        while True:
            tiers.check_alive()
            bus.keep_up()
            time.sleep(1)
    except KeyboardInterrupt:
        console.print()


def conclude(report: DemoReport) -> int:
    """0, or one line on stderr and 1."""
    if report.ok:
        return 0
    problems = "; ".join(verdict.problem for verdict in report.verdicts if not verdict.holds)
    print(f"swift-tiers: error: demo: {problems}", file=sys.stderr)
    return FAILURE


def find_model(path: Path | None) -> Path:
    """The directory of the model to serve."""
    if path is not None:
        if not path.is_dir():
            raise CommandError(f"--model-path: {path} is not a directory", USAGE)
        return path.resolve()
    with progress("preparing the model SmolLM2-135M-Instruct") as bar:
        return demo_model(progress=lambda text: bar.update(0, text=text))


def common_arguments(model: Path, dtype: str, sizes: DemoSizes, more: list[str]) -> list[str]:
    """The flags of both servers."""
    return [
        "--model-path", str(model),
        "--dtype", dtype,
        "--max-total-tokens", str(sizes.device_tokens),
        # Cached tokens in the usage of a streamed answer.
        "--enable-cache-report",
        # An idle scheduler would take a core away from the server whose turn it is.
        "--sleep-on-idle",
        *more,
    ]  # fmt: skip


def tiers_config(work: Path, sizes: DemoSizes, bus: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """The configuration of the server with tiers; makes the directories that act as SSDs."""
    directories = [work / f"ssd{number}" for number in range(1, sizes.ssd_devices + 1)]
    for directory in directories:
        directory.mkdir()
    return {
        "host": {"size": sizes.host_bytes},
        "ssd": {
            "directories": [str(one) for one in directories],
            "size_per_device": sizes.ssd_bytes_per_device,
            "stripe_unit": sizes.stripe_unit_bytes,
        },
        # The demo shows where tokens come from; on a machine with much else to do the default would rather recompute.
        "policy": {"restore_deadline": RESTORE_DEADLINE},
        "bus": bus,
    }


def replay_plan(
    plan: TurnPlan, tiers: Server, plain: Server, bus: DemoBus, max_tokens: int, start_timeout: float
) -> DemoReplay:
    """Ask every turn of both servers, and restart the one with tiers in between."""
    turns: list[TurnReport] = []
    warm_up(tiers, plain)
    with progress("asking", total=len(plan.turns), unit=" turns") as bar:
        for turn in plan.before:
            turns.append(ask_both(len(turns) + 1, turn, tiers, plain, bus, max_tokens, after_restart=False))
            bar.update(len(turns), text=f"asked {_last(turns)}")
    first_life = bus.settled()
    started = time.monotonic()
    with progress("ending the server with tiers"):
        stop_seconds = tiers.stop()
    wait_started("starting it again on the same directories", [tiers], start_timeout)
    restart_seconds = time.monotonic() - started
    tiers.wait_found(start_timeout)
    warm_up(tiers)
    with progress("asking", total=len(plan.turns), unit=" turns") as bar:
        for turn in plan.after:
            turns.append(ask_both(len(turns) + 1, turn, tiers, plain, bus, max_tokens, after_restart=True))
            bar.update(len(turns), text=f"asked {_last(turns)}")
    return DemoReplay(turns, [first_life, bus.settled()], stop_seconds, restart_seconds)


def ask_both(
    number: int, turn: DemoTurn, tiers: Server, plain: Server, bus: DemoBus, max_tokens: int, *, after_restart: bool
) -> TurnReport:
    """Ask one turn of one server, then of the other.

    Who is first changes by the parity of the number's bits: simply alternating would have the same server first in
    every turn of one kind, since a plan repeats itself every four turns.
    """
    answers: dict[str, TurnAnswer] = {}
    servers = {"tiers": tiers, "plain": plain}
    order = ["tiers", "plain"] if number.bit_count() % 2 else ["plain", "tiers"]
    for name in order:
        try:
            answers[name] = ask(servers[name].port, turn.text, max_tokens, request_name(number))
        except ReplayError as error:
            servers[name].check_alive()
            problem = f"turn {number}, server {servers[name].name}: {error}; its log: {servers[name].log}"
            raise ReplayError(problem, detail=log_tail(servers[name].log, LOG_LINES)) from error
        if name == "tiers":
            bus.settled()
    return make_turn(
        number,
        turn,
        after_restart=after_restart,
        asked_first=order[0],
        tiers=answers["tiers"],
        seen=bus.request(request_name(number)),
        plain=answers["plain"],
    )


def request_name(number: int) -> str:
    """What the request of a turn is called on the bus."""
    return f"turn-{number}"


def warm_up(*servers: Server) -> None:
    for server in servers:
        ask(server.port, WARM_UP, 4)


def make_report(replay: DemoReplay, model: str, sizes: DemoSizes, start_seconds: float, seconds: float) -> DemoReport:
    verdicts = judge(replay.turns)
    last = replay.lives[-1].rank
    assert last is not None, "a life is kept only with its rank"
    return DemoReport(
        ok=all(verdict.holds for verdict in verdicts),
        verdicts=verdicts,
        model=model,
        versions={name: version(name) for name in ("swift-tiers", "sglang", "torch")},
        sizes=sizes,
        io_engine=last.io_engine,
        page_bytes=last.page_bytes or 0,
        tokens_per_page=last.page_tokens or 0,
        turns=tuple(replay.turns),
        with_reuse=summarise(replay.turns),
        tiers=add_tiers(replay.lives),
        devices=add_devices(replay.lives),
        start_seconds=start_seconds,
        restart_seconds=replay.restart_seconds,
        stop_seconds=replay.stop_seconds,
        seconds=seconds,
    )


def _last(turns: list[TurnReport]) -> str:
    turn = turns[-1]
    return f"session {turn.session} turn {turn.turn} ({turn.prompt_tokens} tokens)"


def wait_started(text: str, servers: list[Server], timeout: float) -> None:
    """Start them, all at once, and wait until they serve. Raises ServerError."""
    for server in servers:
        server.start()
    started = time.monotonic()
    with progress(text, total=USUAL_START, unit=" s") as bar:

        def tick() -> None:
            for server in servers:
                server.check_alive()
            elapsed = time.monotonic() - started
            bar.update(elapsed, max(elapsed, USUAL_START))

        for server in servers:
            server.wait_ready(timeout, tick)


def check_keep(keep: Path | None) -> None:
    """Before anything is fetched: see `work_directory`. Raises CommandError."""
    if keep is not None and os.path.lexists(keep):
        raise CommandError(f"--keep: {keep} is there already; name a directory that is not there yet", USAGE)


def write_report(report: msgspec.Struct, path: Path | None) -> None:
    """For `--json`, if it is given. Raises CommandError."""
    if path is not None:
        write_new_file("--json", path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


@contextlib.contextmanager
def work_directory(keep: Path | None) -> Iterator[Path]:
    """Where device files and logs go. A temporary one is removed, but for the logs after a failure."""
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            raise CommandError(
                f"--keep: {keep}: {error.strerror}; name a directory that is not there yet", USAGE
            ) from None
        yield keep.resolve()
        return
    work = Path(tempfile.mkdtemp(prefix="swift-tiers-demo-"))
    try:
        yield work
    except CommandError:
        # The message names a log; the device files are large and of no use without it.
        for directory in work.glob("**/ssd*"):
            shutil.rmtree(directory, ignore_errors=True)
        note(f"the servers' logs are kept in {work}")
        raise
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
