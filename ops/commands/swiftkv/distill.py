"""`swiftkv distill`: the later layers' queries, keys and values learn to answer as the original does.

One frozen copy of all weights is teacher and, but for those projections, pupil; what comes before the later layers is
computed once for both. Its state is kept now and then beside the model that is to come, in `.NAME.training`; the same
command goes on from there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import kl_div, log_softmax

from ...base.errors import USAGE, CommandError
from ...base.interruptible import terminable
from ...base.progress import progress
from .checkpoint import ModelDirectory, write
from .convert import network_of
from .evaluate import Distance, distances, own_tensors, recovered, unchanged
from .network import TeacherAndPupil, Tensors
from .text import windows_of

#: Windows of text held out that the curve is measured on.
CURVE_WINDOWS = 8


class Recipe(NamedTuple):
    """What decides a training's outcome; a training that was begun goes on only with the same."""

    learning_rate: float
    weight_decay: float
    warm_up: float  # share of the training
    temperature: float
    batch: int  # windows
    accumulate: int  # batches of a step
    epochs: float
    minutes: float | None
    seed: int
    length: int
    windows: int

    @classmethod
    def of(cls, options: argparse.Namespace, windows: int) -> Recipe:
        """Raises CommandError for what makes no sense."""
        named = {name: getattr(options, name) for name in cls._fields if name != "windows"}
        for name in ("learning_rate", "temperature", "batch", "accumulate", "epochs", "minutes"):
            if named[name] is not None and named[name] <= 0:
                raise CommandError(f"swiftkv distill: --{name.replace('_', '-')}: {named[name]} is not above 0", USAGE)
        if not 0 <= named["warm_up"] < 1:
            raise CommandError(f"swiftkv distill: --warm-up: {named['warm_up']} is no share of a training", USAGE)
        return cls(**named, windows=windows)

    @property
    def steps(self) -> int:
        return max(1, round(self.epochs * self.windows / (self.batch * self.accumulate)))

    def done(self, steps: int, seconds: float) -> float:
        """Share of the training: of its steps, or of its time if that is over sooner."""
        by_time = seconds / (60 * self.minutes) if self.minutes is not None else 0.0
        return min(1.0, max(steps / self.steps, by_time))

    def rate(self, done: float) -> float:
        """The learning rate: linear up through the warm-up, linear down to nothing at the end."""
        if done < self.warm_up:
            return self.learning_rate * done / self.warm_up
        return self.learning_rate * (1 - done) / (1 - self.warm_up)

    def order(self, batch: int) -> torch.Tensor:
        """The windows of the batch of that number, int64 `[batch]`: every epoch in another order."""
        numbers = range(batch * self.batch, (batch + 1) * self.batch)
        return torch.stack([self._shuffled(number // self.windows)[number % self.windows] for number in numbers])

    def _shuffled(self, epoch: int) -> torch.Tensor:
        return torch.randperm(self.windows, generator=torch.Generator().manual_seed(self.seed + epoch))


class Training:
    """The projections in training, and how far it has come."""

    def __init__(self, network: TeacherAndPupil, new: Tensors, recipe: Recipe) -> None:
        """`new`: where it begins, float32; those of queries, keys and values are trained, norms stay."""
        self.network, self.recipe = network, recipe
        self.new = {name: tensor.requires_grad_("_proj_swiftkv" in name) for name, tensor in new.items()}
        self.trained = {name: tensor for name, tensor in self.new.items() if tensor.requires_grad}
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.steps, self.seconds = 0, 0.0
        #: (tokens read, loss of the text held out, share of the gap closed)
        self.curve: list[tuple[int, float, float]] = []

    @property
    def done(self) -> float:
        return self.recipe.done(self.steps, self.seconds)

    @property
    def tokens(self) -> int:
        recipe = self.recipe
        return self.steps * recipe.batch * recipe.accumulate * recipe.length

    def step(self, windows: torch.Tensor) -> float:
        """One step on its share of `windows`; the distillation loss before it, nats a token."""
        began, total = time.monotonic(), 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.recipe.done(self.steps + 1, self.seconds))
        self.optimizer.zero_grad()
        for number in range(self.recipe.accumulate):
            batch = windows[self.recipe.order(self.steps * self.recipe.accumulate + number)]
            total += self._learn_from(batch, 1 / self.recipe.accumulate)
        self.optimizer.step()
        self.steps += 1
        self.seconds += time.monotonic() - began
        return total

    def _learn_from(self, ids: torch.Tensor, weight: float) -> float:
        """Add the gradients of one batch, times `weight`; its loss, times `weight`."""
        network, warmth = self.network, self.recipe.temperature
        with torch.no_grad():
            front = network.front(ids)
            taught = network.original(front)
        learnt = network.rewired(front, self.new)
        # Window by window, and not all at once: a row of logits is as long as the vocabulary.
        at_hand = learnt.detach().requires_grad_()
        total = 0.0
        for wanted, found in zip(taught, at_hand, strict=True):
            with torch.no_grad():
                expected = log_softmax(network.logits(wanted).float() / warmth, -1)
            logits = log_softmax(network.logits(found).float() / warmth, -1)
            loss = kl_div(logits, expected, reduction="sum", log_target=True) * warmth**2 * weight / ids.numel()
            loss.backward()
            total += loss.item()
        learnt.backward(at_hand.grad)
        return total

    def look(self, held_out: torch.Tensor) -> Distance:
        """Measure it on text held out, and note that in the curve."""
        new = {name: tensor.detach() for name, tensor in self.new.items()}
        found = distances(self.network, {"rewired": unchanged(self.network), "this": new}, held_out)
        self.curve.append((self.tokens, found["this"].loss, recovered(found, "this")))
        return found["this"]

    # ---- kept ----

    def save(self, directory: Path) -> None:
        """Whole or not at all, into a directory that is there."""
        state = {
            "recipe": self.recipe._asdict(),
            "steps": self.steps,
            "seconds": self.seconds,
            "curve": self.curve,
            "trained": {name: tensor.detach() for name, tensor in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, directory / "new.pt")
        os.replace(directory / "new.pt", directory / "state.pt")

    def resume(self, directory: Path) -> None:
        """Go on from what `save` left there. Raises CommandError if that was another training."""
        state: dict[str, Any] = torch.load(directory / "state.pt", weights_only=True)
        other = [name for name, value in self.recipe._asdict().items() if state["recipe"].get(name) != value]
        if other or state["trained"].keys() != self.trained.keys():
            raise CommandError(
                f"swiftkv distill: {directory} is of a training with another {other[0] if other else 'model'}; "
                "go on with the same arguments, or take it away",
                USAGE,
            )
        with torch.no_grad():
            for name, tensor in self.trained.items():
                tensor.copy_(state["trained"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.seconds = state["steps"], state["seconds"]
        self.curve = [(int(tokens), float(loss), float(share)) for tokens, loss, share in state["curve"]]


def run_distill(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    source = ModelDirectory(options.model)
    later = source.later_for("distill")
    if options.out.exists():
        raise CommandError(f"swiftkv distill: {options.out} is there already; name another, or take it away", USAGE)
    windows = windows_of(options, options.model)
    recipe = Recipe.of(options, len(windows.read))
    tensors = dict(source.tensors())
    network = network_of(source, tensors, later, options.dtype)
    training = Training(network, own_tensors(network, tensors, options.model), recipe)
    kept = options.out.with_name(f".{options.out.name}.training")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with terminable(), _alone(kept):
        if (kept / "state.pt").exists():
            training.resume(kept)
        _train(training, windows.read, windows.held_out[:CURVE_WINDOWS], kept, 60 * options.save_every)
        training.save(kept)
    made = {name: tensor.detach().to(tensors[name].dtype) for name, tensor in training.new.items()}
    write(source, options.out, later, {**tensors, **made}.items())
    (options.out / "training.json").write_text(
        json.dumps({"recipe": recipe._asdict(), "steps": training.steps, "curve": training.curve}, indent=1)
    )
    shutil.rmtree(kept, ignore_errors=True)
    for tokens, loss, share in training.curve:
        print(f"{tokens:>12,} tokens: loss {loss:.4f} on text held out, {share:.1%} of the gap closed")
    print(f"made: {options.out} in {training.seconds / 60:.1f} minutes, {training.steps} steps")
    return 0


@contextmanager
def _alone(kept: Path) -> Iterator[None]:
    """Raises CommandError where another process trains the same."""
    kept.mkdir(exist_ok=True)
    with open(kept / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(
                f"swiftkv distill: another process trains what {kept} is kept for; wait for it"
            ) from None
        yield


def _train(training: Training, windows: torch.Tensor, held_out: torch.Tensor, kept: Path, save_seconds: float) -> None:
    """To its end; every `save_seconds` of training, its state is kept."""
    saved = training.seconds
    with progress("distilling", total=100.0, unit=" %") as bar:
        if not training.curve:
            training.look(held_out)
        for loss in _losses(training, windows):
            bar.update(100 * training.done, text=_told(training, loss))
            if training.seconds - saved >= save_seconds:
                training.look(held_out)
                training.save(kept)
                saved = training.seconds
    if training.curve[-1][0] != training.tokens:
        training.look(held_out)


def _losses(training: Training, windows: torch.Tensor) -> Iterator[float]:
    while training.done < 1:
        yield training.step(windows)


def _told(training: Training, loss: float) -> str:
    left = training.seconds * (1 / training.done - 1) if training.done else 0.0
    closed = f", {training.curve[-1][2]:.0%} of the gap closed" if training.curve else ""
    return f"distilling: step {training.steps}, loss {loss:.3f}{closed}, {left / 60:.0f} minutes left"
