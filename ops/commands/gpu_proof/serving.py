"""(e) A served model: agents that take turns, asked of SGLang without tiers, with HiCache, and with swift-tiers.

The model has the shape of Qwen3-8B and dummy weights: what a first token takes does not depend on them. Each server has
the same device pool, too small for all agents together, and those with a host tier the same host memory. One server at
a time; each is asked the same prompts in the same order. Needs SGLang and what swift-tiers itself needs.
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...base.errors import CommandError
from ..demo.entry_points import announce_own
from .figures import LeftOutError, ProofCheck, ProofFigure
from .layouts import LAYOUTS, Layout

if TYPE_CHECKING:
    from ..bench.multiturn_replay import TurnOutcome

#: What is imported by servers with tiers and no bus, and by who asks them.
NEEDED = ("sglang", "transformers", "msgspec", "xxhash", "psutil", "numba", "zmq")
OFF, HICACHE, TIERS = "off", "HiCache", "swift-tiers"
#: In their order: what there is no time for is what is missed least.
SYSTEMS = (OFF, TIERS, HICACHE)
#: A server that is not ready by then is an error, seconds: the first on a machine compiles kernels of SGLang's by nvcc.
START_SECONDS = 300.0
#: With less than that left, seconds, no server is begun.
_FEWEST_SECONDS = 60.0
NEW_TOKENS = 8
VOCABULARY = 151_936
_PAGE = 16


def can_serve() -> bool:
    """Whether what servers need is installed, as far as that is known without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


class ServingLoad(NamedTuple):
    """What is asked, and of what memory."""

    agents: int = 8
    turns: int = 4
    longest: int = 12_000  # tokens of a prompt, at most
    together: int = 2  # requests at a time
    device_share: float = 0.4  # of all agents' tokens, in the device pool
    host_share: float = 1.5  # likewise, in host memory


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


def arguments(system: str, model: Path, layout: Layout, tokens: int, load: ServingLoad) -> list[str]:
    """The flags of one server; `tokens`: of all agents at their longest."""
    device = -(-int(max(tokens * load.device_share, load.together * (load.longest + 64))) // _PAGE) * _PAGE
    host = int(tokens * load.host_share)
    common = [
        "--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init",
        "--dtype", "bfloat16", "--max-total-tokens", str(device), "--page-size", str(_PAGE),
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
        config = {"host": {"size": host // _PAGE * layout.page_bytes}, "bus": {"enabled": False}}
        return [*common, "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)]
    return common


class ServerAnswer(NamedTuple):
    """What one server answered in the round that counts."""

    seconds: list[float]  # to the first token, of turns with a history
    cached_tokens: int  # that were not computed
    answers: list[tuple[int, ...]]


def serving(
    layout: Layout = LAYOUTS[0],
    load: ServingLoad | None = None,
    systems: Sequence[str] = SYSTEMS,
    more: Sequence[str] = (),
    until: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ProofCheck | ProofFigure]:
    """Whether each server answers, then the time to the first token of turns that have a history. `more`: flags of
    every server. `until`: by `clock`; what is not done by then is given up. Raises ImportError where something is not
    installed, LeftOutError for servers that there was no time for."""
    for name in NEEDED:
        importlib.import_module(name)
    load = load or ServingLoad()
    found: dict[str, ServerAnswer] = {}
    late: list[str] = []
    with tempfile.TemporaryDirectory(prefix="swift-tiers-proof-") as folder:
        model = model_directory(Path(folder), layout)
        # From a source tree, which nothing has installed, SGLang would not find them.
        plugins = announce_own(Path(folder) / "plugins")
        for system in systems:
            if until - clock() < _FEWEST_SECONDS:
                late.append(system)
                continue
            flags = [*arguments(system, model, layout, load.agents * load.longest, load), *more]
            try:
                log, environment = Path(folder) / f"{system}.log", plugins if system == TIERS else {}
                found[system] = ask(system, flags, load, log, until - clock(), environment)
            except TooLateError:
                late.append(system)
            except CommandError as error:
                yield ProofCheck(f"server, {system}", 1, f"{error} {error.detail}".strip())
            else:
                yield ProofCheck(f"server, {system}", len(found[system].answers))
    yield from summary(found)
    if late:
        raise LeftOutError(f"no time was left for {', '.join(late)}")


class TooLateError(Exception):
    """A server's time is over, and nothing is known to be wrong with it."""


def ask(
    system: str,
    flags: Sequence[str],
    load: ServingLoad,
    log: Path,
    seconds: float = math.inf,
    environment: Mapping[str, str] | None = None,
) -> ServerAnswer:
    """Start a server, with environment variables of its own, ask it two rounds, end it. Raises CommandError, and after
    so many seconds TooLateError."""
    from ..bench.multiturn_replay import replay
    from ..bench.multiturn_workload import RoundShape, make_round
    from ..demo.servers import Server, free_ports

    shape = RoundShape(load.agents, load.turns, load.longest)
    (port,) = free_ports(1)
    answers: tuple[TurnOutcome, ...] = ()
    with Server(system, flags, port, log, environment) as server:
        over = threading.Event()

        def end() -> None:
            over.set()
            with suppress(CommandError, ProcessLookupError):  # it has ended by itself
                server.signal_all(signal.SIGKILL)

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        server.start()
        timer.start()
        try:
            server.wait_ready(START_SECONDS)
            # Another round first: kernels are compiled at their first use.
            for seed in (0, 1):
                answers = replay(port, make_round(shape, VOCABULARY, seed), load.together, NEW_TOKENS).answers
        except CommandError:
            if over.is_set():
                raise TooLateError from None
            raise
        finally:
            timer.cancel()
    return ServerAnswer(
        [answer.ttft_seconds for answer in answers if answer.turn],
        sum(answer.prompt_tokens - answer.computed for answer in answers),
        [answer.token_ids for answer in answers],
    )


def summary(found: Mapping[str, ServerAnswer]) -> Iterator[ProofFigure]:
    """Seconds by system, P50 and P99, then the ratios of swift-tiers to the others."""
    figure = partial(ProofFigure, "serving")
    for system, asked in found.items():
        note = f"{asked.cached_tokens} tokens not computed"
        if OFF in found:
            same = sum(one == other for one, other in zip(asked.answers, found[OFF].answers, strict=True))
            note += f", {same} of {len(asked.answers)} answers as without tiers"
        for percent in (50, 99):
            seconds = float(np.percentile(asked.seconds, percent))
            yield figure(f"first token, {system}, P{percent}", seconds * 1e3, "ms", note=note if percent == 50 else "")
    for other in (OFF, HICACHE):
        if TIERS not in found or other not in found:
            continue
        for percent in (50, 99):
            ratio = np.percentile(found[TIERS].seconds, percent) / np.percentile(found[other].seconds, percent)
            yield figure(f"first token, {TIERS} over {other}, P{percent}", float(ratio), "")
