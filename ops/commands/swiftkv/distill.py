"""`swiftkv distill`: the later layers' queries, keys and values learn to answer as the original does, and a second
output matrix, if one is wanted, learns to say the same sooner.

One frozen copy of all weights is teacher and, but for those projections, pupil; what comes before the later layers is
computed once for both. Its state is kept now and then beside the model that is to come, in `.NAME.training`; the same
command goes on from there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import kl_div, linear, log_softmax
from xxhash import xxh3_128

from ...base.errors import USAGE, CommandError
from ...base.interruptible import terminable
from ...base.progress import progress
from .checkpoint import EMBEDDING, EXIT_HEAD, ModelDirectory, Tensors, place_for, saying_what_is_full, write
from .convert import network_of
from .evaluate import Distance, distances, own_tensors, recovered, unchanged
from .network import TeacherAndPupil
from .ranks import Ranks, joined
from .text import windows_of

#: Windows of a text that the curve is measured on.
CURVE_WINDOWS = 8


class Point(NamedTuple):
    """Of a training's curve."""

    tokens: int  # read so far
    loss: float  # of text held out, nats
    closed: float  # share of the gap that rewiring opened, there
    elsewhere: float | None  # the same share of text of `--also`, none of which is trained on


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
    text: str  # digest of what is read
    model: str  # digest of what it begins with

    @classmethod
    def of(cls, options: argparse.Namespace, windows: torch.Tensor, tensors: Tensors) -> Recipe:
        """Of a training on `windows` that begins with a model's `tensors`."""
        named = {name: getattr(options, name) for name in cls._fields if hasattr(options, name)}
        return cls(**(named | {"windows": len(windows), "text": digest((windows,)), "model": digest(tensors.values())}))

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
        return torch.stack(
            [shuffled(self.windows, self.seed + number // self.windows)[number % self.windows] for number in numbers]
        )


@lru_cache(maxsize=2)  # a batch may begin in one epoch and end in the next
def shuffled(windows: int, seed: int) -> torch.Tensor:
    """Their numbers in another order, int64 `[windows]`."""
    return torch.randperm(windows, generator=torch.Generator().manual_seed(seed))


def check_recipe(options: argparse.Namespace) -> None:
    """Raises CommandError for what makes no sense, before anything is read."""
    problems = {
        name: "is no number above 0"
        for name in ("learning_rate", "temperature", "batch", "accumulate", "epochs", "minutes", "save_every")
        if (value := getattr(options, name)) is not None and not 0 < value < math.inf
    }
    if not 0 <= options.warm_up < 1:
        problems["warm_up"] = "is no share of a training; name 0.05, as in the paper"
    if not 0 <= options.weight_decay < math.inf:
        problems["weight_decay"] = "is no decay; name 0.05, as in the paper"
    if not 0 <= options.seed < 1 << 63:
        problems["seed"] = "is no seed; name 0 or more"
    for name, problem in problems.items():
        raise CommandError(f"swiftkv distill: --{name.replace('_', '-')}: {getattr(options, name)} {problem}", USAGE)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of their bytes, in hexadecimal."""
    whole = xxh3_128()
    for tensor in tensors:
        whole.update(tensor.contiguous().view(torch.uint8).numpy())
    return whole.hexdigest()


class Training:
    """The projections in training, and how far it has come."""

    def __init__(self, network: TeacherAndPupil, new: Tensors, recipe: Recipe) -> None:
        """`new`: where it begins, float32; those of queries, keys and values are trained, and a second output matrix
        where there is one; norms stay."""
        self.network, self.recipe = network, recipe
        self.new = {
            name: tensor.requires_grad_("_proj_swiftkv" in name or name == EXIT_HEAD) for name, tensor in new.items()
        }
        self.trained = {name: tensor for name, tensor in self.new.items() if tensor.requires_grad}
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.steps, self.seconds = 0, 0.0
        self.curve: list[Point] = []

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
        ranks = self.network.ranks
        for number in range(self.recipe.accumulate):
            batch = windows[self.recipe.order(self.steps * self.recipe.accumulate + number)]
            # Each rank has its windows of the batch; the sums are as if one had them all.
            total += self._learn_from(batch[ranks.rank :: ranks.number], 1 / (batch.numel() * self.recipe.accumulate))
        ranks.add_up(tensor.grad for tensor in self.trained.values() if tensor.grad is not None)
        self.optimizer.step()
        self.steps += 1
        self.seconds = ranks.told(self.seconds + time.monotonic() - began)
        return ranks.sum(total)

    def _learn_from(self, ids: torch.Tensor, weight: float) -> float:
        """Add the gradients of one batch, `weight` for each token; its loss likewise."""
        network, warmth = self.network, self.recipe.temperature
        with torch.no_grad():
            front = network.front(ids)
            taught = network.original(front)
        learnt = network.rewired(front, self.new)
        # Window by window, and not all at once: a row of logits is as long as the vocabulary.
        at_hand = learnt.detach().requires_grad_()
        total, scale, exit_head = 0.0, warmth**2 * weight, self.new.get(EXIT_HEAD)
        for wanted, found, stopped in zip(taught, at_hand, network.stopped(front, self.new), strict=True):
            with torch.no_grad():
                expected = log_softmax(network.logits(wanted).float() / warmth, -1)
            logits = log_softmax(network.logits(found).float() / warmth, -1)
            loss = kl_div(logits, expected, reduction="sum", log_target=True) * scale
            loss.backward()
            total += loss.item()
            if exit_head is not None:
                # The sum of both losses is the paper's; neither has a gradient for what the other one trains.
                early = log_softmax(linear(stopped.float(), exit_head) / warmth, -1)
                (kl_div(early, expected, reduction="sum", log_target=True) * scale).backward()
        learnt.backward(at_hand.grad)
        return total

    def look(self, held_out: Watched, also: Watched | None = None) -> Distance:
        """Measure it on text held out, and on another text, and note that in the curve."""
        new = {name: tensor.detach() for name, tensor in self.new.items()}
        found, closed = held_out.now(new)
        self.curve.append(Point(self.tokens, found.loss, closed, None if also is None else also.now(new)[1]))
        return found

    # ---- kept ----

    def save(self, directory: Path) -> None:
        """Whole or not at all, into a directory that is there. Of several ranks, the first one does it. Raises
        CommandError where there is no room."""
        if not self.network.ranks.is_first:
            return
        state = {
            "recipe": self.recipe._asdict(),
            "steps": self.steps,
            "seconds": self.seconds,
            "curve": [tuple(point) for point in self.curve],
            "trained": {name: tensor.detach() for name, tensor in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        with saying_what_is_full(directory):
            try:
                torch.save(state, directory / "new.pt")
                os.replace(directory / "new.pt", directory / "state.pt")
            finally:
                (directory / "new.pt").unlink(missing_ok=True)

    def resume(self, directory: Path) -> None:
        """Go on from what `save` left there. Raises CommandError if that was another training."""
        try:
            state: dict[str, Any] = torch.load(
                directory / "state.pt", weights_only=True, map_location=self.network.ranks.device
            )
        except Exception as error:  # noqa: BLE001 - torch has no error of its own for a file that is damaged
            raise CommandError(
                f"swiftkv distill: {directory / 'state.pt'} cannot be read ({' '.join(str(error).split())[:120]}); "
                f"take {directory} away to begin anew",
                USAGE,
            ) from None
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
        self.curve = [Point(*point) for point in state["curve"]]


class Watched:
    """Windows that a training is measured on again and again; what does not change is computed once."""

    def __init__(self, network: TeacherAndPupil, windows: torch.Tensor) -> None:
        self._network, self._windows = network, windows[:CURVE_WINDOWS]
        self._ends: dict[str, Distance] = {}

    def now(self, new: Tensors) -> tuple[Distance, float]:
        """How far the model with its own tensors `new` is from the original, and the share of the gap it closes."""
        kinds = {"this": new} if self._ends else {"rewired": unchanged(self._network), "this": new}
        found = distances(self._network, kinds, self._windows)
        self._ends = self._ends or {name: found[name] for name in ("original", "rewired")}
        return found["this"], recovered({**self._ends, "this": found["this"]}, "this")


def run_distill(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    with joined(options.device) as ranks:
        return _distil(options, ranks)


def _distil(options: argparse.Namespace, ranks: Ranks) -> int:
    source = ModelDirectory(options.model)
    later = source.later_for("distill")
    check_recipe(options)
    if options.batch % ranks.number:
        raise CommandError(
            f"swiftkv distill: --batch: {options.batch} windows are no equal parts for {ranks.number} processes; name "
            "a multiple",
            USAGE,
        )
    place_for(options.out, "distill")
    windows = windows_of(options, options.model)
    tensors = source.whole()
    recipe = Recipe.of(options, windows.read, tensors)
    network = network_of(source, tensors, later, options.dtype, ranks)
    held_out = Watched(network, windows.held_out)
    also = _also(network, options)
    new = own_tensors(network, tensors, options.model)
    if options.early_exit and EXIT_HEAD not in new:
        new[EXIT_HEAD] = network.head.float().clone()
    training = Training(network, new, recipe)
    kept = options.out.with_name(f".{options.out.name}.training")
    with terminable(), _alone(kept) if ranks.is_first else nullcontext():
        if (kept / "state.pt").exists():
            training.resume(kept)
        _train(training, windows.read, (held_out, also), kept, 60 * options.save_every)
        training.save(kept)
    if not ranks.is_first:
        return 0
    stored = tensors[EMBEDDING].dtype
    made = {name: tensor.detach().to("cpu", stored) for name, tensor in training.new.items()}
    story = {"recipe": recipe._asdict(), "steps": training.steps, "curve": training.curve}
    beside = {"training.json": json.dumps(story, indent=1)}
    write(source, options.out, later, {**tensors, **made}.items(), beside)
    shutil.rmtree(kept, ignore_errors=True)
    for point in training.curve:
        elsewhere = "" if point.elsewhere is None else f", {point.elsewhere:.1%} on --also"
        print(
            f"{point.tokens:>12,} tokens: loss {point.loss:.4f} on text held out, {point.closed:.1%} of the gap "
            f"closed{elsewhere}"
        )
    print(f"made: {options.out} in {training.seconds / 60:.1f} minutes, {training.steps} steps")
    return 0


def _also(network: TeacherAndPupil, options: argparse.Namespace) -> Watched | None:
    if not options.also:
        return None
    other = argparse.Namespace(text=options.also, length=options.length)
    return Watched(network, windows_of(other, options.model).held_out)


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


def _train(
    training: Training,
    windows: torch.Tensor,
    watched: tuple[Watched, Watched | None],
    kept: Path,
    save_seconds: float,
) -> None:
    """To its end; every `save_seconds` of training, its state is kept."""
    saved = training.seconds
    with progress("distilling", total=100.0, unit=" %") as bar:
        if not training.curve:
            training.look(*watched)
        for loss in _losses(training, windows):
            bar.update(100 * training.done, detail=_told(training, loss))
            if training.seconds - saved >= save_seconds:
                training.look(*watched)
                training.save(kept)
                saved = training.seconds
    if training.curve[-1].tokens != training.tokens:
        training.look(*watched)


def _losses(training: Training, windows: torch.Tensor) -> Iterator[float]:
    while training.done < 1:
        yield training.step(windows)


def _told(training: Training, loss: float) -> str:
    left = training.seconds * (1 / training.done - 1) if training.done else 0.0
    closed = f", {training.curve[-1].closed:.0%} of the gap closed" if training.curve else ""
    return f"step {training.steps}, loss {loss:.3f}{closed}, {left / 60:.0f} minutes left"
