"""One stage of a pipeline in a process of its own; `support/pipelines.py` starts it and hears what it answers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from swift_tiers.radix_tiering.pipeline import Move, StageRestore, StageState
from swift_tiers.radix_tiering.stack import TierStack

from support.pipeline import (
    CHUNK,
    FAST,
    HIDDEN,
    PAGE_TOKENS,
    PAGES,
    PATIENCE,
    RATE,
    StageModel,
    boundary_namespace,
    device_files,
    kv_namespace,
    make_prompt,
    open_stack,
    page_keys,
    store,
)


class Stage:
    """A stage's model, its prompt, and its two stacks; the first one has no boundary pages."""

    def __init__(self, directory: Path, number: int, stages: int) -> None:
        self.number, self.stages, self._directory = number, stages, directory
        self.model = StageModel(number, stages)
        self.prompt = make_prompt()
        self.keys = page_keys(self.prompt)
        self.kv = open_stack(kv_namespace(number, stages), device_files(directory, number, "kv"))
        self.boundary: TierStack | None = None
        if number:
            files = device_files(directory, number, "boundary")
            self.boundary = open_stack(boundary_namespace(number, stages), files)

    def slow_down(self, rate: float) -> None:
        """What each device of the KV's stack brings in a second, in bytes."""
        assert self.kv.tiers["ssd"].throttle(rate)

    def join(self, name: str) -> None:
        """Meet the other stages. Until then there is no way to talk to them."""
        dist.init_process_group(
            "gloo", init_method=f"file://{self._directory / name}", rank=self.number, world_size=self.stages
        )

    def compute_with_others(self, start: int) -> tuple[np.ndarray, torch.Tensor | None]:
        """Tokens `[start, end)` of the prompt chunk by chunk through all stages: what went into this one, and in the
        last one the logits behind the prompt."""
        inputs = []
        outputs = torch.empty(0)
        for first in range(start, self.prompt.shape[1], CHUNK * PAGE_TOKENS):
            tokens = self.prompt[:, first : first + CHUNK * PAGE_TOKENS]
            if self.model.first:
                chunk = self.model.embed(tokens).detach()
            else:
                chunk = torch.empty(1, tokens.shape[1], HIDDEN)
                dist.recv(chunk, self.number - 1)
            inputs.append(chunk[0].numpy())
            outputs = self.model.compute(chunk)
            if not self.model.last:
                dist.send(outputs.contiguous(), self.number + 1)
        return np.concatenate(inputs), self.model.logits(outputs) if self.model.last else None

    def close(self) -> None:
        for stack in (self.kv, self.boundary):
            if stack is not None:
                stack.close()


def store_everything(stage: Stage, out: Path) -> dict[str, Any]:
    """Compute the prompt with the others; keep each whole page's KV and input."""
    stage.join("storing")
    inputs, logits = stage.compute_with_others(0)
    dist.destroy_process_group()
    kv = stage.model.kv()
    pages = range(0, PAGES * PAGE_TOKENS, PAGE_TOKENS)
    store(stage.kv, stage.keys, [kv[:, :, at : at + PAGE_TOKENS] for at in pages])
    if stage.boundary is not None:
        store(stage.boundary, stage.keys, [inputs[at : at + PAGE_TOKENS] for at in pages])
    np.savez(out, kv=kv, inputs=inputs)
    return {"token": None if logits is None else int(logits.argmax())}


def restore_alone(stage: Stage) -> dict[str, Any]:
    """What became of it; `copied` and `computed` are pages."""
    copied: list[int] = []
    computed: list[int] = []
    geometry = stage.kv.namespace.geometry
    shape = (geometry.layers, 2, PAGE_TOKENS, -1, stage.kv.namespace.head_dim)
    stage.slow_down(RATE)
    restore = StageRestore(stage.kv, stage.boundary, stage.keys)
    limit = time.monotonic() + PATIENCE
    while restore.state is StageState.RESTORING:
        assert time.monotonic() < limit, f"no end after {restore.restored} pages"
        move = restore.next_move()
        if move is None:
            time.sleep(0.001)  # as a scheduler comes around again
            continue
        for slot in restore.kv_slots(move):
            stage.model.append(stage.kv.host.page(int(slot)).view(np.float32).reshape(shape).copy())
        if move.end > move.jump:
            stage.model.compute(_inputs(stage, restore, move))
        copied += range(move.front, move.jump)
        computed += range(move.jump, move.end)
        restore.moved(move)
    stage.slow_down(FAST)
    return {"state": restore.state.name, "restored": restore.restored, "copied": copied, "computed": computed}


def _inputs(stage: Stage, restore: StageRestore, move: Move) -> torch.Tensor:
    """What goes into the stage for the pages that are to be computed."""
    if stage.boundary is None:
        return stage.model.embed(stage.prompt[:, move.jump * PAGE_TOKENS : move.end * PAGE_TOKENS]).detach()
    pages = [stage.boundary.host.page(int(slot)).view(np.float32) for slot in restore.boundary_slots(move)]
    return torch.from_numpy(np.concatenate(pages).reshape(1, -1, HIDDEN))


def restore_and_go_on(stage: Stage, out: Path, together: bool) -> dict[str, Any]:
    told = restore_alone(stage)
    told["talked"] = dist.is_initialized()
    np.savez(out, kv=stage.model.kv() if told["restored"] else np.empty(0))
    if together:
        stage.join("going-on")
        least = torch.tensor(told["restored"])
        dist.all_reduce(least, dist.ReduceOp.MIN)
        stage.model.keep(int(least) * PAGE_TOKENS)
        _, logits = stage.compute_with_others(int(least) * PAGE_TOKENS)
        dist.destroy_process_group()
        told["recomputed_together"] = PAGES - int(least)
        told["token"] = None if logits is None else int(logits.argmax())
        told["logits"] = None if logits is None else logits.tolist()
        told["left"] = stage.model.tokens
    return told


def main() -> None:
    options = json.loads(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    directory, number = Path(options["directory"]), options["number"]
    storing = options["role"] == "store"
    stage = Stage(directory, number, options["stages"])
    out = directory / f"{options['role']}-{number}.npz"
    told = store_everything(stage, out) if storing else restore_and_go_on(stage, out, options["together"])
    stage.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
