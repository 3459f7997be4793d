"""`swiftkv eval`: how far a SwiftKV model is from the one that it was made from, on text that neither fit nor training
has seen."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from ...base.errors import USAGE, CommandError
from ...base.progress import progress
from .checkpoint import ModelDirectory
from .convert import network_of
from .fitting import rewired_weights
from .network import TeacherAndPupil, Tensors, new_names
from .text import windows_of


class Distance(NamedTuple):
    """Means over every token that a next one follows."""

    loss: float  # nats of the text
    kl: float  # nats, from what the original expects
    agreement: float  # share of places at which the greedy next token is the original's

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


def run_eval(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    source = ModelDirectory(options.model)
    later = source.later_for("eval")
    windows = windows_of(options, options.model).held_out[: max(1, options.windows)]
    tensors = dict(source.tensors())
    network = network_of(source, tensors, later, options.dtype)
    kinds = {
        "rewired": unchanged(network),
        "own norms": rewired_weights(network),
        "this one": own_tensors(network, tensors, options.model),
    }
    with progress("reading", total=windows.numel(), unit=" tokens") as bar:
        found = distances(network, kinds, windows, bar.update)
    lines = {
        name: {**one._asdict(), "perplexity": one.perplexity, "recovered": recovered(found, name)}
        for name, one in found.items()
    }
    if options.json:
        print(json.dumps({"tokens": windows.numel(), "later": later._asdict(), "kinds": lines}))
        return 0
    print(f"{windows.numel():,} tokens held out, {later.layers - later.first} of {later.layers} layers later")
    print(f"{'':<12}{'loss':>9}{'perplexity':>12}{'KL':>9}{'agrees':>9}{'gap closed':>12}")
    for name, line in lines.items():
        print(
            f"{name:<12}{line['loss']:>9.4f}{line['perplexity']:>12.3f}{line['kl']:>9.4f}{line['agreement']:>9.1%}"
            f"{line['recovered']:>12.1%}"
        )
    return 0


def unchanged(network: TeacherAndPupil) -> Tensors:
    """What rewiring alone makes: projections as they are, on the output of an earlier layer under one norm."""
    return {name: network.weights[old].float() for name, old in new_names(network.later, network.weights)}


def own_tensors(network: TeacherAndPupil, tensors: Tensors, place: object) -> Tensors:
    """A checkpoint's own tensors, float32. Raises CommandError where some are missing, or the original's are."""
    names = [name for name, _ in new_names(network.later, network.weights)]
    missing = [name for name in names if name not in tensors]
    last = f"model.layers.{network.later.layers - 1}.self_attn.k_proj.weight"
    if last not in network.weights:
        missing.append(last)
    if missing:
        raise CommandError(
            f"swiftkv: {place} lacks {missing[0]}; a checkpoint that `swift-tiers swiftkv convert` has made has its "
            "own projections and the original's",
            USAGE,
        )
    return {name: tensors[name].float() for name in names}


@torch.no_grad()
def distances(
    network: TeacherAndPupil,
    kinds: dict[str, Tensors],
    windows: torch.Tensor,
    done: Callable[[float], None] = lambda tokens: None,
) -> dict[str, Distance]:
    """Of the original ("original"), and of each set of a SwiftKV model's own tensors, over windows `[windows, T]`."""
    sums = {name: torch.zeros(3, dtype=torch.float64) for name in ("original", *kinds)}
    for number, ids in enumerate(windows.split(1)):
        front = network.front(ids)
        expected = log_softmax(network.logits(network.original(front))[0, :-1].float(), -1)
        follows = ids[0, 1:]
        for name, total in sums.items():
            if name == "original":
                logits = expected
            else:
                logits = log_softmax(network.logits(network.rewired(front, kinds[name]))[0, :-1].float(), -1)
            total += torch.stack(
                (
                    cross_entropy(logits, follows, reduction="sum"),
                    kl_div(logits, expected, reduction="sum", log_target=True),
                    (logits.argmax(-1) == expected.argmax(-1)).sum(),
                )
            )
        done((number + 1) * windows.shape[1])
    places = len(windows) * (windows.shape[1] - 1)
    return {name: Distance(*(total / places).tolist()) for name, total in sums.items()}


def recovered(found: dict[str, Distance], name: str) -> float:
    """Share of the loss that rewiring alone adds which this kind does not add."""
    gap = found["rewired"].loss - found["original"].loss
    return (found["rewired"].loss - found[name].loss) / gap if gap else 1.0
