"""(e) A served model: SGLang without tiers, with HiCache, and with swift-tiers, asked for prompts that the device has
had and lost, of several lengths, and by agents that take turns.

The model has the shape of Qwen3-8B and dummy weights: what a first token takes does not depend on them. Each server has
the same device pool, too small for all agents together, and those with a host tier the same host memory. Where the
device has the memory for all of them they run beside each other and are asked by turns, else one after the other; each
is asked the same prompts in the same order. Needs SGLang and what swift-tiers itself needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import CommandError
from ..demo.entry_points import announce_own
from .asked_server import (
    BESIDE,
    DECODED_AT_LEAST,
    HITS,
    PAGE_TOKENS,
    ROUNDS,
    VOCABULARY,
    AskedServer,
    ServerAnswer,
    ServingLoad,
    pool_tokens,
)
from .figures import LeftOutError, ProofCheck, ProofFigure
from .layouts import LAYOUTS, Layout

#: What is imported by servers with tiers and no bus, and by who asks them.
NEEDED = ("sglang", "transformers", "msgspec", "xxhash", "psutil", "numba", "zmq")
OFF, HICACHE, TIERS = "off", "HiCache", "swift-tiers"
#: In their order: what there is no time for is what is missed least.
SYSTEMS = (OFF, TIERS, HICACHE)
#: A server that is not ready by then is an error, seconds: the first on a machine compiles kernels of SGLang's by nvcc.
START_SECONDS = 300.0
#: What a first token takes at most, of another system's, where so many tokens are found.
HITS_AT_MOST = {(OFF, 8192): 0.2, (HICACHE, 8192): 1.1}
#: With less than that left, seconds, no server is begun.
_FEWEST_SECONDS = 60.0
#: Where all run beside each other SGLang keeps this share of what is free when it starts, rather than of the device;
#: and what a server takes of the device beside weights and pool, about, bytes.
_SHARE_BESIDE, _BESIDES = "0.95", 3 * 2**30


def can_serve() -> bool:
    """Whether what servers need is installed, as far as that is known without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


def model_directory(folder: Path, layout: Layout) -> Path:
    """A model's directory with a configuration and no weights, for `--load-format dummy`."""
    heads = layout.hidden // layout.head_dim
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": layout.head_dim,
        "hidden_act": "silu",
        "hidden_size": layout.hidden,
        "intermediate_size": layout.inner,
        "max_position_embeddings": 40_960,
        "num_attention_heads": heads,
        "num_hidden_layers": layout.layers,
        "num_key_value_heads": layout.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def arguments(system: str, model: Path, layout: Layout, load: ServingLoad) -> list[str]:
    """The flags of one server."""
    device = pool_tokens(load)
    host = int(load.agents * load.longest * load.host_share)
    common = [
        "--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init",
        "--dtype", "bfloat16", "--max-total-tokens", str(device), "--page-size", str(PAGE_TOKENS),
        "--attention-backend", "triton", "--sampling-backend", "pytorch", "--enable-cache-report",
        # No more graphs than these requests need: to capture them all would take a server most of its start.
        "--cuda-graph-max-bs-decode", str(max(8, load.together)), "--disable-prefill-cuda-graph",
    ]  # fmt: skip
    if system == HICACHE:
        ratio = str(round(host / device, 3))
        return [
            *common,
            "--enable-hierarchical-cache",
            "--hicache-ratio",
            ratio,
            "--hicache-write-policy",
            "write_through",
        ]
    if system == TIERS:
        config = {"host": {"size": host // PAGE_TOKENS * layout.page_bytes}, "bus": {"enabled": False}}
        return [*common, "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)]
    return common


def serving(
    layout: Layout = LAYOUTS[0],
    load: ServingLoad | None = None,
    systems: Sequence[str] = SYSTEMS,
    more: Sequence[str] = (),
    until: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    free_bytes: float = math.inf,
) -> Iterator[ProofCheck | ProofFigure]:
    """Whether each server answers, then the time to the first token of hits and of turns that have a history. `more`:
    flags of every server. `until`: by `clock`; what is not done by then is given up. `free_bytes`: of the device.
    Raises ImportError where something is not installed, LeftOutError for servers that there was no time for."""
    for name in NEEDED:
        importlib.import_module(name)
    load = load or ServingLoad()
    found: dict[str, ServerAnswer] = {}
    late: list[str] = []
    beside = len(systems) * server_bytes(layout, load) <= free_bytes
    with tempfile.TemporaryDirectory(prefix="swift-tiers-proof-") as folder:
        model = model_directory(Path(folder), layout)
        # From a source tree, which nothing has installed, SGLang would not find them.
        plugins = announce_own(Path(folder) / "plugins")
        share = ("--mem-fraction-static", _SHARE_BESIDE) if beside else ()
        for group in [systems] if beside else [[system] for system in systems]:
            if until - clock() < _FEWEST_SECONDS:
                late += group
                continue
            plans = [
                ServerPlan(
                    system,
                    [*arguments(system, model, layout, load), *share, *more],
                    Path(folder) / f"{system}.log",
                    plugins if system == TIERS else {},
                )
                for system in group
            ]
            for system, answer in ask(plans, load, until - clock()).items():
                if isinstance(answer, ServerAnswer):
                    found[system] = answer
                    yield ProofCheck(f"server, {system}", len(answer.answers))
                elif isinstance(answer, TooLateError):
                    late.append(system)
                else:
                    yield ProofCheck(f"server, {system}", 1, f"{answer} {answer.detail}".strip())
    yield from summary(found)
    if late:
        raise LeftOutError(f"no time was left for {', '.join(late)}")


def server_bytes(layout: Layout, load: ServingLoad) -> int:
    """What one server takes of a device, about: weights, its pool, and what else a process and a forward need."""
    heads = layout.hidden + 2 * layout.kv_heads * layout.head_dim
    layer = layout.hidden * (heads + layout.hidden + 3 * layout.inner)
    weights = 2 * (layout.layers * layer + 2 * VOCABULARY * layout.hidden)
    return weights + pool_tokens(load) // PAGE_TOKENS * layout.page_bytes + _BESIDES


class TooLateError(CommandError):
    """A server's time is over, and nothing is known to be wrong with it."""

    def __init__(self) -> None:
        super().__init__("its time is over")


class ServerPlan(NamedTuple):
    """A server that is yet to be started."""

    system: str
    flags: Sequence[str]
    log: Path
    environment: Mapping[str, str]


def ask(
    plans: Sequence[ServerPlan], load: ServingLoad, seconds: float = math.inf
) -> dict[str, ServerAnswer | CommandError]:
    """Start the servers, ask them by turns, end them. What each has answered, or what went wrong with it: TooLateError
    after so many seconds."""
    from ..demo.servers import Server, free_ports

    answers: dict[str, ServerAnswer | CommandError] = {}
    asked: dict[str, AskedServer] = {}
    with ExitStack() as stack:
        over = threading.Event()
        servers = {}
        for plan, port in zip(plans, free_ports(len(plans)), strict=True):
            server = Server(plan.system, plan.flags, port, plan.log, plan.environment)
            servers[plan.system] = stack.enter_context(server)
            asked[plan.system] = AskedServer(port, load)

        def end() -> None:
            over.set()
            for server in servers.values():
                with suppress(CommandError, ProcessLookupError):  # it has ended by itself
                    server.signal_all(signal.SIGKILL)

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        timer.daemon = True

        def each(work: Callable[[str], object]) -> None:
            """Of those that nothing has gone wrong with."""
            for system in [system for system in servers if system not in answers]:
                try:
                    work(system)
                except CommandError as error:
                    enough = over.is_set() and asked[system].was_asked
                    answers[system] = asked[system].answer if enough else TooLateError() if over.is_set() else error
                    servers[system].end()

        try:
            each(lambda system: servers[system].start())
            timer.start()
            each(lambda system: servers[system].wait_ready(START_SECONDS))
            # Another round first: kernels are compiled at their first use.
            for seed in ROUNDS:
                each(lambda system, seed=seed: asked[system].round(seed))  # type: ignore[misc]
            for hits in HITS:
                each(lambda system, hits=hits: asked[system].hits(hits))  # type: ignore[misc]
            each(lambda system: asked[system].decoded_beside(BESIDE))
        finally:
            timer.cancel()
    return {system: answers.get(system, one.answer) for system, one in asked.items()}


def summary(found: Mapping[str, ServerAnswer]) -> Iterator[ProofFigure]:
    """Seconds by system, P50 and P99, then the ratios of swift-tiers to the others."""
    figure = partial(ProofFigure, "serving")
    for system, asked in found.items():
        note = f"{asked.cached_tokens} tokens not computed"
        if OFF in found:
            pairs = list(zip(asked.answers, found[OFF].answers, strict=False))  # where time was over, fewer of one
            same = sum(one == other for one, other in pairs)
            note += f", {same} of {len(pairs)} answers as without tiers"
        for percent in (50, 99):
            seconds = float(np.percentile(asked.seconds, percent))
            yield figure(f"first token, {system}, P{percent}", seconds * 1e3, "ms", note=note if percent == 50 else "")
        for length, times in asked.hits.items():
            milliseconds = float(np.median(times)) * 1e3
            yield figure(f"first token, {system}, {length} tokens found", milliseconds, "ms", note=f"of {len(times)}")
        if asked.decoded:
            yield figure(
                f"others decode, {system}, {BESIDE.length} tokens found",
                float(np.median(asked.decoded)),
                "of alone",
                at_least=DECODED_AT_LEAST if system == TIERS else None,
                note=f"until the first token of {len(asked.decoded)}",
            )
    for other in (OFF, HICACHE):
        if TIERS not in found or other not in found:
            continue
        for percent in (50, 99):
            ratio = np.percentile(found[TIERS].seconds, percent) / np.percentile(found[other].seconds, percent)
            yield figure(f"first token, {TIERS} over {other}, P{percent}", float(ratio), "")
        for length, times in found[TIERS].hits.items():
            if length in found[other].hits:
                ratio = np.median(times) / np.median(found[other].hits[length])
                name = f"first token, {TIERS} over {other}, {length} tokens found"
                yield figure(name, float(ratio), "", at_most=HITS_AT_MOST.get((other, length)))
