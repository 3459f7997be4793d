"""The demo of a store that servers share: what one has computed, and sent there, serves another, and outlives it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.config import RemoteConfig
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.tiers.remote import ObjectShape
from swift_tiers.radix_tiering.tiers.remote.remote_tier import RUN_TOKENS

from ...base.errors import FAILURE, USAGE, CommandError
from ...base.interruptible import terminable
from ...base.new_file import check_new_file
from ...base.progress import progress
from .bus import DemoBus
from .procedure import (
    WARM_UP,
    check_keep,
    common_arguments,
    find_model,
    tiers_config,
    wait_started,
    work_directory,
    write_report,
)
from .replay import ReplayError, stream
from .servers import Server, free_ports
from .store import LocalStore, check_library
from .workload import PAGE_TOKENS, DemoSizes, choose_sizes, load_sessions, read_shape, token_counter

if TYPE_CHECKING:
    from rich.console import Console

#: Objects that one prompt's pages, at most, are several times as many as.
NODE_BYTES = 1 << 30
#: How long a question may take here, where two servers and a store share a machine.
LOOKUP_DEADLINE = "500ms"
#: How long a child may take to open the store, and what was computed to be sent there, seconds.
PATIENCE_SECONDS = 300.0
#: What SGLang says of tokens from below the device beside the tiers' own names: the same ones, and by whom.
SGLANG_WORDS = ("storage", "storage_backend")
#: So long after the last byte nothing more is to be sent.
QUIET_SECONDS = 2.0
#: What the two servers are called.
NAMES = ("first", "second")


class RemoteTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. own + remote + recomputed == prompt_tokens, of the second server."""

    session: int  # from 1
    prompt_tokens: int
    own: int  # that it had itself, of the beginning of a prompt before
    remote: int
    recomputed: int
    ttft_computed_seconds: float  # of the first server
    ttft_loaded_seconds: float
    token_ids_computed: tuple[int, ...]
    token_ids_loaded: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return self.token_ids_computed == self.token_ids_loaded

    run_tokens: int

    @property
    def whole_runs(self) -> int:
        """Tokens that can have come: the last one of a prompt is computed in any case."""
        return (self.prompt_tokens - 1) // self.run_tokens * self.run_tokens


class RemoteReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    ok: bool
    problems: tuple[str, ...]
    turns: tuple[RemoteTurn, ...]
    sent_bytes: int
    sent_seconds: float  # beside computing, until all was there
    seconds: float


class StreamedAnswer(NamedTuple):
    """Of one server to one prompt."""

    ttft_seconds: float
    prompt_tokens: int
    cached: Mapping[str, int]  # tokens, by tier
    token_ids: tuple[int, ...]


def run_remote_demo(options: argparse.Namespace) -> int:
    """See the package; `options` are its arguments. Returns the exit code. Raises CommandError, ModelError."""
    from ...base.terminal import Terminal

    started = time.monotonic()
    if options.stay:
        raise CommandError("--stay keeps a server with its bus; leave it out with --remote", USAGE)
    check_new_file("--json", options.json)
    check_keep(options.keep)
    check_library()
    sessions = load_sessions(options.sessions, options.turns)
    model = find_model(options.model_path)
    count_tokens = token_counter(model)
    counts = [[count_tokens(text) for text in session] for session in sessions]
    sizes = choose_sizes(counts, read_shape(model), options.devices, options.max_tokens)
    prompts = [session[-1] for session in sessions]
    if min(count[-1] for count in counts) <= RUN_TOKENS:
        raise CommandError(f"a prompt has {RUN_TOKENS} tokens or fewer, which is not sent: ask for more --turns", USAGE)
    with terminable(), work_directory(options.keep) as work, LocalStore(work, NODE_BYTES) as store, DemoBus() as bus:
        common = common_arguments(model, options.dtype, sizes, options.server_arguments)
        ports = free_ports(2)
        first, second = (
            make_server(name, common, port, work, sizes, store, bus) for name, port in zip(NAMES, ports, strict=True)
        )
        with first, second:
            wait_started("starting two servers, and the store", [first, second], options.start_timeout)
            for server in (first, second):
                wait_engine(server)
                ask(server, WARM_UP, 4)
            computed = []
            with progress("the first server computes", total=len(prompts), unit=" prompts") as bar:
                for prompt in prompts:
                    computed.append(ask(first, prompt, options.max_tokens))
                    bar.update(len(computed))
            sent_bytes, sent_seconds = wait_sent(first, computed)
            first.signal_all(signal.SIGKILL)
            loaded = []
            with progress("the first server was killed; the second one loads", total=len(prompts)) as bar:
                for prompt in prompts:
                    loaded.append(ask(second, prompt, options.max_tokens))
                    bar.update(len(loaded))
            (state,) = second.states()
    shape = ObjectShape.of(state["page_bytes"], PAGE_TOKENS, int(RemoteConfig().object), RUN_TOKENS)
    report = make_report(
        computed,
        loaded,
        shape.run * PAGE_TOKENS,
        state["tiers"]["remote"]["checksum_failures"],
        sent_bytes,
        sent_seconds,
        time.monotonic() - started,
    )
    show(report, Terminal(markup=True))
    write_report(report, options.json)
    if report.ok:
        return 0
    print(f"swift-tiers: error: demo: {'; '.join(report.problems)}", file=sys.stderr)
    return FAILURE


def make_server(
    name: str, common: Sequence[str], port: int, work: Path, sizes: DemoSizes, store: LocalStore, bus: DemoBus
) -> Server:
    """One with directories of its own, over the store."""
    folder = work / name
    folder.mkdir()
    config = {
        **tiers_config(folder, sizes, {**bus.settings, "server": name}),
        # What was computed once is sent: nobody is asked anything twice here.
        "remote": {
            "engine": "mooncake",
            "options": store.options,
            "admission": "always",
            "lookup_deadline": LOOKUP_DEADLINE,
            "memory": "64MiB",
        },
    }
    words = [*common, "--page-size", str(PAGE_TOKENS), "--enable-swift-tiers"]
    return Server(name, [*words, "--swift-tiers-config", json.dumps(config)], port, work / f"server-{name}.log")


def wait_engine(server: Server) -> None:
    """Until its child has opened the store; it serves before. Raises CommandError."""

    def asked() -> bool | None:
        server.check_alive()
        return all(state["remote_engine"] == "asked" for state in server.states()) or None

    with progress(f"the {server.name} server opens the store"):
        if wait_for(asked, PATIENCE_SECONDS) is None:
            raise CommandError(f"the {server.name} server does not open the store; its log: {server.log}")


def wait_sent(server: Server, answers: Sequence[StreamedAnswer]) -> tuple[int, float]:
    """Until nothing of these prompts goes to the store any more; bytes that were sent, and how long that took from now
    on. Raises CommandError."""
    began = time.monotonic()
    seen, since = 0, began

    def sent() -> int | None:
        nonlocal seen, since
        server.check_alive()
        (state,) = server.states()
        nbytes = int(state["links"]["host-remote"]["bytes"])
        if nbytes != seen:
            seen, since = nbytes, time.monotonic()
        return nbytes if nbytes and time.monotonic() - since > QUIET_SECONDS else None

    with progress("what it has computed goes to the store"):
        nbytes = wait_for(sent, PATIENCE_SECONDS)
    if nbytes is None:
        raise CommandError(f"what {len(answers)} prompts left does not come to the store; its log: {server.log}")
    return nbytes, since - began


def ask(server: Server, text: str, max_tokens: int) -> StreamedAnswer:
    """The answer to a prompt as it stands. Raises ReplayError."""
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    body = {"text": text, "sampling_params": sampling, "stream": True}
    started, first = time.perf_counter(), 0.0
    last: dict[str, Any] = {}
    for event in stream(server.port, "/generate", body):
        first = first or time.perf_counter() - started
        last = event
    try:
        said = last["meta_info"]
        details = said.get("cached_tokens_details") or {}
        cached = {tier: count for tier, count in details.items() if count and tier not in SGLANG_WORDS}
        return StreamedAnswer(first, said["prompt_tokens"], cached, tuple(last["output_ids"]))
    except KeyError as error:
        raise ReplayError(f"an answer without {error}: {sorted(last)}") from None


def make_report(
    computed: Sequence[StreamedAnswer],
    loaded: Sequence[StreamedAnswer],
    run_tokens: int,
    bad: int,
    sent_bytes: int,
    sent_seconds: float,
    seconds: float,
) -> RemoteReport:
    """What came out. `run_tokens`: only whole runs are sent; `bad`: pages that were not what they should be."""
    turns = tuple(
        RemoteTurn(
            session=number,
            prompt_tokens=one.prompt_tokens,
            own=sum(other.cached.values()) - other.cached.get("remote", 0),
            remote=other.cached.get("remote", 0),
            recomputed=one.prompt_tokens - sum(other.cached.values()),
            ttft_computed_seconds=one.ttft_seconds,
            ttft_loaded_seconds=other.ttft_seconds,
            token_ids_computed=one.token_ids,
            token_ids_loaded=other.token_ids,
            run_tokens=run_tokens,
        )
        for number, (one, other) in enumerate(zip(computed, loaded, strict=True), 1)
    )
    problems = [f"session {turn.session}: not the same tokens" for turn in turns if not turn.equal]
    problems += [
        f"session {turn.session}: {turn.remote} of {turn.whole_runs} tokens came from the store"
        for turn in turns
        if not turn.remote or turn.own + turn.remote < turn.whole_runs
    ]
    if bad:
        problems.append(f"{bad} pages were not what they should be")
    return RemoteReport(
        ok=not problems,
        problems=tuple(problems),
        turns=turns,
        sent_bytes=sent_bytes,
        sent_seconds=sent_seconds,
        seconds=seconds,
    )


def show(report: RemoteReport, console: Console) -> None:
    """Print the table; made for 80 columns and more."""
    from rich.table import Table

    from swift_tiers.radix_tiering.base.units import format_size

    table = Table(
        title="What the second server loaded from the store; seconds to the first token, beside the first",
        title_justify="left",
    )
    for name in ("session", "prompt", "remote", "recomp.", "computed", "loaded", "faster", "same"):
        table.add_column(name, justify="right", no_wrap=True)
    for turn in report.turns:
        table.add_row(
            str(turn.session),
            *map(str, (turn.prompt_tokens, turn.remote, turn.recomputed)),
            f"{turn.ttft_computed_seconds:.2f}",
            f"{turn.ttft_loaded_seconds:.2f}",
            f"[bold]{turn.ttft_computed_seconds / turn.ttft_loaded_seconds:.1f}x[/]",
            "[green]yes[/]" if turn.equal else "[bold red]NO[/]",
        )
    console.print(table)
    console.print(
        f"{format_size(report.sent_bytes)} had come to the store {max(0.0, report.sent_seconds):.1f} s after the last "
        f"answer, and the first server was killed before the second was asked. Whole demo {report.seconds:.0f} s"
    )
