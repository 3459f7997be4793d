"""`swiftkv eval`: how far a SwiftKV model is from the one that it was made from, on text that neither fit nor training
has seen."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, kl_div, linear, log_softmax

from ...base.errors import USAGE, CommandError
from ...base.progress import progress
from .checkpoint import EXIT_HEAD, ModelDirectory
from .convert import network_of
from .fitting import rewired_weights
from .network import TeacherAndPupil, Tensors, new_names
from .ranks import alone
from .text import windows_of

#: Of the paper (B.4).
EXIT_THRESHOLD = 0.95


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
    if options.lm_eval and find_spec("lm_eval") is None:
        raise CommandError(
            "swiftkv eval: --lm-eval: lm-eval is not here; pip install '.[lm-eval]' from a checkout", USAGE
        )
    if options.windows < 1:
        raise CommandError(f"swiftkv eval: --windows: {options.windows}; name 1 or more", USAGE)
    windows = windows_of(options, options.model).held_out[: options.windows]
    tensors = source.whole()
    network = network_of(source, tensors, later, options.dtype, alone(options.device, "eval"))
    kinds = {
        "rewired": unchanged(network),
        "own norms": rewired_weights(network),
        "this one": own_tensors(network, tensors, options.model),
    }
    exits = None
    if EXIT_HEAD in kinds["this one"]:
        exits = early_exits(network, kinds["this one"], windows[: max(1, options.windows // 4)])
    with progress("reading", total=windows.numel(), unit=" tokens") as bar:
        found = distances(network, kinds, windows, bar.update)
    tasks = _tasks(network, kinds["this one"], options) if options.lm_eval else {}
    lines = {
        name: {**one._asdict(), "perplexity": one.perplexity, "recovered": recovered(found, name)}
        for name, one in found.items()
    }
    if options.json:
        print(
            json.dumps(
                {
                    "tokens": windows.numel(),
                    "later": later._asdict(),
                    "kinds": lines,
                    "early_exit": exits and exits._asdict(),
                    "tasks": tasks,
                }
            )
        )
        return 0
    print(f"{windows.numel():,} tokens held out, {later.layers - later.first} of {later.layers} layers later")
    print(f"{'':<12}{'loss':>9}{'perplexity':>12}{'KL':>9}{'agrees':>9}{'gap closed':>12}")
    for name, line in lines.items():
        print(
            f"{name:<12}{line['loss']:>9.4f}{line['perplexity']:>12.3f}{line['kl']:>9.4f}{line['agreement']:>9.1%}"
            f"{line['recovered']:>12.1%}"
        )
    if exits is not None:
        print(
            f"early exit where it is surer than {EXIT_THRESHOLD}: {exits.share:.1%} of tokens; "
            f"{exits.agreement:.1%} of those as this model says at its end"
        )
    for task, metrics in tasks.items():
        for metric, (original, this) in metrics.items():
            print(f"{task}, {metric}: {original:.4f} of the original, {this:.4f} of this one")
    return 0


def _tasks(network: TeacherAndPupil, new: Tensors, options: argparse.Namespace) -> Any:
    from transformers import AutoTokenizer

    from .tasks import results

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    return results(network, new, tokenizer, options.lm_eval, options.lm_eval_tasks, options.lm_eval_limit)


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
    if EXIT_HEAD in tensors:
        names.append(EXIT_HEAD)
    return {name: tensors[name].to(network.ranks.device, torch.float32) for name in names}


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
        follows = ids[0, 1:].to(expected.device)
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
            ).cpu()
        done((number + 1) * windows.shape[1])
    places = len(windows) * (windows.shape[1] - 1)
    return {name: Distance(*(total / places).tolist()) for name, total in sums.items()}


class EarlyExits(NamedTuple):
    """Over every token."""

    share: float  # of tokens at which the second output matrix is sure enough
    agreement: float  # of those, the share at which the greedy next token is what the last layer says; 1 if none is


@torch.no_grad()
def early_exits(network: TeacherAndPupil, new: Tensors, windows: torch.Tensor) -> EarlyExits:
    """What an early exit would be worth, over windows `[windows, T]`."""
    sure = same = 0
    for ids in windows.split(1):
        front = network.front(ids)
        early = log_softmax(linear(network.stopped(front, new)[0].float(), new[EXIT_HEAD]), -1)
        best, choice = early.max(-1)
        at = best.exp() > EXIT_THRESHOLD
        final = network.logits(network.rewired(front, new))[0].argmax(-1)
        sure += int(at.sum())
        same += int((choice == final)[at].sum())
    return EarlyExits(sure / windows.numel(), same / sure if sure else 1.0)


def recovered(found: dict[str, Distance], name: str) -> float:
    """Share of the loss that rewiring alone adds which this kind does not add."""
    gap = found["rewired"].loss - found["original"].loss
    return (found["rewired"].loss - found[name].loss) / gap if gap else 1.0
