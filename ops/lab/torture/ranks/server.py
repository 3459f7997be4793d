"""Worlds of whole servers: a scheduler is made once in a process, and each rank of each world is forked from that."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..plan import RANKS, WINDOWED, Plan, ranks_of
from .lockstep import Over, lead
from .rank import RankWorld
from .scheduler import StepScheduler

#: SGLang's own sizes, in tokens: small ones, so that the device is full and prompts are computed in chunks.
PAGE, POOL, CHUNK = 4, 200, 32
#: Tokens of a window: pages, and a part of one.
WINDOW = 10


def arguments(folder: Path, kind: str = RANKS) -> list[str]:
    """Of a scheduler from which ranks of worlds of this kind can be forked."""
    from swift_tiers.ops.base.model import tiny_model

    model = tiny_model(folder / "model")
    if kind == WINDOWED:
        # Every other layer; no forward is made, so that only the pools have to know of it.
        file = model / "config.json"
        known = json.loads(file.read_text())
        pattern = [number % 2 for number in range(known["num_hidden_layers"])]
        known |= {"is_hybrid_swa": True, "hybrid_layer_pattern": pattern}
        known |= {"use_sliding_window": True, "sliding_window": WINDOW}
        file.write_text(json.dumps(known))
    config = {"host": {"size": "1MiB"}, "bus": {"enabled": False}}
    return [
        "--model-path", str(model), "--dtype", "float32", "--page-size", str(PAGE),
        "--max-total-tokens", str(POOL), "--max-running-requests", "8", "--chunked-prefill-size", str(CHUNK),
        "--disable-overlap-schedule", "--schedule-conservativeness", "0.1",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


class Servers:
    """Lets worlds of servers happen. One in a process: SGLang publishes its configuration once."""

    def __init__(self, kind: str) -> None:
        with tempfile.TemporaryDirectory(prefix="swift-torture-") as folder:
            self._steps = StepScheduler(arguments(Path(folder), kind))
        self._prepare()

    @classmethod
    def over(cls, steps: StepScheduler) -> Servers:
        """With a scheduler that was made with these `arguments`."""
        servers = cls.__new__(cls)
        servers._steps = steps
        servers._prepare()
        return servers

    def _prepare(self) -> None:
        """Leave nothing that a forked process could not go on with: threads, and sockets."""
        self._steps.linker.close()
        channels = self._steps.scheduler.ipc_channels
        for sender in (channels.send_to_tokenizer, channels.send_to_detokenizer):
            sender.socket = None  # as on every rank but the first
        torch.set_num_threads(1)  # OpenMP's others are not there in a forked process, and waited for
        gc.collect()
        gc.freeze()

    def live(self, plan: Plan, history: list[str]) -> tuple[int, Counter[str]]:
        """One world to its end: steps of all ranks' schedules, and what happened; `history` takes what was done. Raises
        AssertionError where something is wrong."""
        ours: list[Connection] = []
        children: list[int] = []
        try:
            for number in range(ranks_of(plan)):
                mine, theirs = multiprocessing.Pipe()
                ours.append(mine)
                children.append(self._fork(plan, number, theirs, ours))
                theirs.close()
            over = lead(ours, history)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            for mine in ours:
                mine.close()
        happened = sum((Counter(one.happened) for one in over), Counter[str]())
        return sum(one.steps for one in over), happened

    def _fork(self, plan: Plan, number: int, theirs: Connection, ours: list[Connection]) -> int:
        child = os.fork()
        if child:
            return child
        try:
            for mine in ours:
                mine.close()
            theirs.send(_live(lambda: RankWorld(plan, number, self._steps, theirs)))
        finally:
            os._exit(0)  # nothing of the scheduler's is to be cleaned up here


def _live(make: Callable[[], RankWorld]) -> Over:
    """The end of one rank."""
    rank: Any = None
    try:
        rank = make()
        rank.run()
    except BaseException as error:  # noqa: BLE001 - told to the others
        cause = error.__cause__ or error
        history = rank.state.history if rank is not None else []
        return Over(0, {}, history, f"{type(cause).__name__}: {cause}", traceback.format_exc())
    return Over(rank.runner.steps, dict(rank.state.happened), rank.state.history)
