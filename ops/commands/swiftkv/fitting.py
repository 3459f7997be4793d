"""Later layers' keys and values by least squares: the projection of an earlier layer's output that comes nearest to
what the original model has, over text.

Sums over tokens are all that is kept of the text: of the d values that are read (and a one, where there is a bias) with
each other, `[d, d]`, and with those that are wanted, `[d, 2 * h * D]` for each leading layer.
"""

from __future__ import annotations

import torch

from .network import TeacherAndPupil, Tensors, new_names

#: Of the diagonal's mean: how strongly the fit stays with the original weights where text says little.
RIDGE = 1e-3


def rewired_weights(network: TeacherAndPupil) -> Tensors:
    """A SwiftKV model's own tensors as the original has them, float32: keys and values of the later layers are
    projected by unchanged weights, but for each layer's own norm, which goes into them."""
    weights, later = network.weights, network.later
    new = {name: weights[old].float().clone() for name, old in new_names(later, weights)}
    shared = new["model.norm_swiftkv.weight"]
    # Where it is nearly zero, nothing can be put right.
    safe = torch.where(shared.abs() < 1e-3, torch.full_like(shared, 1e-3), shared)
    for layer in later.leaders:
        own = weights[f"model.layers.{layer}.input_layernorm.weight"].float()
        for part in "kv":
            new[f"model.layers.{layer}.self_attn.{part}_proj_swiftkv.weight"] *= own / safe
    return new


class KeyValueFit:
    """The sums over the windows that were read so far."""

    def __init__(self, network: TeacherAndPupil) -> None:
        self._network = network
        self._new = rewired_weights(network)
        self._biased = any(name.endswith("_proj_swiftkv.bias") for name in self._new)
        size = network.config.hidden_size + self._biased
        self._square = torch.zeros(size, size, dtype=torch.float64, device=network.ranks.device)
        self._wanted = {layer: torch.zeros(size, 0, dtype=torch.float64) for layer in network.later.leaders}
        self.tokens = 0

    @torch.no_grad()
    def add(self, ids: torch.Tensor) -> None:
        """Windows `[B, T]`."""
        network, later = self._network, self._network.later
        front = network.front(ids)
        stopped = network.stopped(front, self._new)
        rows = stopped.flatten(0, 1).float()
        if self._biased:
            rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self._square += (rows.T @ rows).double()

        def seen(layer: int, read: torch.Tensor) -> None:
            leader = later.leaders[later.leader_of(layer)]
            members = min(later.group, later.layers - leader)
            pair = [network.projected(network.weights, layer, part, read) for part in "kv"]
            wanted = torch.cat([part.transpose(1, 2).flatten(0, 1).flatten(1) for part in pair], -1).float()
            sums = (rows.T @ wanted).double() / members
            known = self._wanted[leader]
            self._wanted[leader] = known + sums if known.shape[1] else sums

        network.original(front, seen)
        self.tokens += len(rows)

    def solve(self) -> Tensors:
        """A SwiftKV model's own tensors, float32. Layers that share get what is nearest to all of them."""
        new = dict(self._new)
        ridge = RIDGE * self._square.diagonal().mean()
        square = self._square + ridge * torch.eye(len(self._square), dtype=torch.float64, device=self._square.device)
        factor = torch.linalg.cholesky(square)
        for layer, wanted in self._wanted.items():
            names = [f"model.layers.{layer}.self_attn.{part}_proj_swiftkv" for part in "kv"]
            begun = torch.cat([_with_bias(new, name) if self._biased else new[f"{name}.weight"] for name in names])
            found = torch.cholesky_solve(wanted + ridge * begun.T.double(), factor).T.float()
            for name, rows in zip(names, found.chunk(2), strict=True):
                new[f"{name}.weight"] = rows[:, : self._network.config.hidden_size].contiguous()
                if self._biased:
                    new[f"{name}.bias"] = rows[:, -1].contiguous()
        return new


def _with_bias(new: Tensors, name: str) -> torch.Tensor:
    """`[outputs, d + 1]`."""
    return torch.cat((new[f"{name}.weight"], new[f"{name}.bias"][:, None]), 1)
