"""Processes that train one model together, each with its part of every frozen weight: fully sharded, data parallel.

As in FSDP, a weight is whole only while it is used, also in the backward pass, for which later layers are computed once
more (`TeacherAndPupil.rewired`). It is not torch's own: that gathers what modules are made of when they are called, and
here there are no modules. What is trained is small and whole on each rank.

Every rank calls the same collectives in the same order: what depends on time is decided by rank 0 (`Ranks.told`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...base.errors import USAGE, CommandError


class Ranks:
    """The processes that `torchrun` has started, or this one alone."""

    def __init__(self, device: torch.device, rank: int = 0, number: int = 1) -> None:
        self.device, self.rank, self.number = device, rank, number

    @property
    def is_first(self) -> bool:
        """Whether this one writes files, and says what it does."""
        return self.rank == 0

    def weights(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
        """The same on this rank's device; of several ranks, each keeps a part of each."""
        if self.number == 1:
            return {name: tensor.to(self.device, dtype) for name, tensor in tensors.items()}
        return ShardedTensors(tensors, dtype, self)

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Each becomes, on all ranks, the sum over them."""
        if self.number > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def sum(self, value: float) -> float:
        """Over all ranks, on each of them."""
        if self.number == 1:
            return value
        whole = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(whole)
        return float(whole.item())

    def told(self, value: float) -> float:
        """What rank 0 has for it."""
        if self.number == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def wait(self) -> None:
        """Until all are here."""
        if self.number > 1:
            dist.barrier()


class ShardedTensors(Mapping[str, torch.Tensor]):
    """Frozen tensors of which each rank keeps its part; whoever asks for one gets a whole one, and lets it go."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, ranks: Ranks) -> None:
        self._ranks = ranks
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._parts = {name: self._part(tensor.to(dtype)).to(ranks.device) for name, tensor in tensors.items()}

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        """`[ceil(values / ranks)]`: the last rank's is filled up."""
        flat = tensor.flatten()
        each = -(-len(flat) // self._ranks.number)
        part = flat[self._ranks.rank * each : (self._ranks.rank + 1) * each]
        return torch.nn.functional.pad(part, (0, each - len(part))).clone()

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        """A collective: all ranks ask for the same."""
        part, shape = self._parts[name], self._shapes[name]
        whole = part.new_empty(len(part) * self._ranks.number)
        dist.all_gather_into_tensor(whole, part)
        return whole[: shape.numel()].view(shape)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """This process among those that train together; `device`: "cpu" or "cuda". Raises CommandError."""
    if device == "cuda" and not torch.cuda.is_available():
        raise CommandError("swiftkv: --device: cuda: torch finds no GPU here; leave it out", USAGE)
    number, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    where = torch.device(device, local) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(where)
    if number == 1:
        yield Ranks(where)
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Ranks(where, dist.get_rank(), number)
    finally:
        dist.destroy_process_group()


def alone(device: str, command: str) -> Ranks:
    """For a command that one process does. Raises CommandError."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CommandError(f"swiftkv {command}: one process does it; start it without torchrun", USAGE)
    with joined(device) as ranks:
        return ranks
