"""Data-parallel attention on the portable CPU platform: groups of ranks with requests of their own, which compute the
other layers together, and so take every step together.

SGLang asks there for page-locked memory, and for operations that it has registered for GPUs; the same is done without.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

#: Of every rank.
ENVIRONMENT = {"TRITON_INTERPRET": "1"}


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    from sglang.srt import server_args
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from swift_tiers.ops.lab.torture.ranks.scheduler import StepScheduler

    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    for name in ("tensor", "empty", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    TorchNativeAttnBackend.get_cuda_graph_seq_len_fill_value = lambda self: 1
    GroupCoordinator.all_gather_into_tensor = GroupCoordinator._all_gather_into_tensor
    GroupCoordinator.reduce_scatter_tensor = GroupCoordinator._reduce_scatter_tensor
    # Each process chooses ports as the one that starts a server would for all of them: the first has taken them.
    server_args.wait_port_available = lambda *_, **__: True

    StepScheduler.run = run_together(lambda self: not self.scheduler.waiting_queue)  # type: ignore[method-assign]


def run_together(rests: Callable[[Any], bool]) -> Callable[..., None]:
    """`StepScheduler.run`, as long as any rank has something to do: a step of one is one of all. `rests`: whether
    nobody waits on this one."""
    from swift_tiers.ops.lab.torture.ranks.scheduler import RUN_SECONDS

    def run(self: Any, until: Callable[[], bool] | None = None) -> None:
        limit = time.monotonic() + RUN_SECONDS
        while time.monotonic() < limit:
            batch = self.step()
            done = until() if until is not None else _idle(batch) and rests(self)
            if _all(bool(done) and self.scheduler.chunked_req is None):
                return
        raise AssertionError(f"not done after {RUN_SECONDS:g} s")

    return run


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **more: Any) -> Any:
        return make(*args, **more)

    return made


def _idle(batch: Any) -> bool:
    """Whether a rank computes nothing of its own: beside others it has a batch without requests."""
    return batch is None or batch.is_empty()


def _all(mine: bool) -> bool:
    """Whether it is so on every rank."""
    from sglang.srt.runtime_context import get_parallel

    said = torch.tensor([int(mine)])
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MIN, group=get_parallel().tp_group.cpu_group)
    return bool(said.item())
