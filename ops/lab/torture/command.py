"""Runs world after world, counts what happens in them, and tells of those that fail."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...base.errors import FAILURE, USAGE, CommandError
from .many import MANY_HAPPENINGS, MILLION
from .outcome import HAPPENINGS, KINDS, RANK_HAPPENINGS, Outcome, live
from .plan import SERVERS, WORLDS, Plan, from_words, make_plan
from .scenarios import SCENARIOS, SEED_ALONE
from .shrink import shrink

#: How long it runs where neither a number of seeds nor a time is given, minutes.
MINUTES = 1.0
#: Seconds between two lines that say how far it has come.
TELL_SECONDS = 10.0
#: Of the history of a world that failed, the lines that are printed at most.
HISTORY_LINES = 120


def run(options: argparse.Namespace) -> int:
    if not __debug__:
        raise CommandError("torture: worlds are judged by assertions, which Python leaves out with -O", USAGE)
    plans = _plans(options)
    minutes = options.minutes if options.minutes is not None or options.seeds else MINUTES
    began = told = time.monotonic()
    summary = Tally(options.seed)
    for plan in plans:
        now = time.monotonic()
        if minutes is not None and now - began >= minutes * 60:
            break
        outcome = live(plan)
        summary.add(outcome)
        if outcome.error is not None:
            if not options.as_it_is:
                _say(f"FAILED: {outcome.plan.kind}, seed {outcome.plan.seed}; now it is shrunk", options)
                outcome = shrink(outcome)
            summary.failures.append(outcome)
            _say(_story(outcome), options)
            if not options.go_on:
                break
        if now - told >= TELL_SECONDS:
            told = now
            _say(summary.line(now - began), options)
    seconds = time.monotonic() - began
    print(json.dumps(summary.as_json(seconds), indent=1) if options.json else summary.as_text(seconds))
    return FAILURE if summary.failures else 0


class Tally:
    """What many worlds have come to."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.worlds = self.steps = 0
        self.happened: Counter[str] = Counter(dict.fromkeys((*HAPPENINGS, *RANK_HAPPENINGS, *MANY_HAPPENINGS), 0))
        self.failures: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.last = outcome.plan.seed
        self.worlds += 1
        self.steps += outcome.steps
        self.happened.update(outcome.happened)

    def line(self, seconds: float) -> str:
        """How far it has come."""
        return (
            f"{self.worlds} worlds of seeds {self.first} to {self.last} in {seconds:.1f} s: {self.steps} steps, "
            f"{self.steps / max(seconds, 1e-9):.0f} a second; {len(self.failures)} failed"
        )

    def as_text(self, seconds: float) -> str:
        reached = {name: count for name, count in self.happened.items() if count}
        never = [name for name, count in self.happened.items() if not count]
        width = max(map(len, reached), default=0)
        lines = [f"  {name:<{width}}  {count}" for name, count in sorted(reached.items())]
        lines += [f"never reached: {', '.join(never)}"] if never else []
        lines += [f"failed: {one.complaint}\n  {one.replay}" for one in self.failures]
        return "\n".join([*lines, self.line(seconds)])

    def as_json(self, seconds: float) -> Mapping[str, Any]:
        return {
            "first_seed": self.first,
            "last_seed": self.last,
            "worlds": self.worlds,
            "steps": self.steps,
            "seconds": seconds,
            "steps_per_second": self.steps / max(seconds, 1e-9),
            "happened": dict(self.happened),
            "failures": [
                {"kind": one.plan.kind, "seed": one.plan.seed, "complaint": one.complaint, "replay": one.replay}
                for one in self.failures
            ],
        }


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    """The worlds that are asked for, seed by seed. Raises CommandError for what does not fit together."""
    fine = (*WORLDS, *SCENARIOS)
    kinds = options.kind or (fine if options.fine else [kind for kind in KINDS if kind != MILLION])
    if options.fine and not set(kinds) <= set(fine):
        raise CommandError(f"torture: --fine is for {', '.join(fine)}", USAGE)
    if options.keep is not None or options.schedule is not None:
        if len(kinds) != 1 or options.seeds != 1 or kinds[0] in SEED_ALONE:
            raise CommandError(
                f"torture: --keep and --schedule need --seeds 1 and one --kind of {', '.join((*WORLDS, *SERVERS))}",
                USAGE,
            )
        plan = make_plan(kinds[0], options.seed, steps=options.steps, schedule=options.schedule, fine=options.fine)
        return iter([_kept(plan, options)])
    seeds = itertools.islice(itertools.count(options.seed), options.seeds)
    return (make_plan(kind, seed, steps=options.steps, fine=options.fine) for seed in seeds for kind in kinds)


def _kept(plan: Plan, options: argparse.Namespace) -> Plan:
    if options.keep is None:
        return plan
    try:
        kept = from_words(options.keep)
    except ValueError as error:
        raise CommandError(f"torture: --keep: {error}", USAGE) from error
    known = plan.kept()
    if strange := [name for name, numbers in kept.items() if not numbers <= set(known.get(name, ()))]:
        raise CommandError(f"torture: --keep: this world has no such actions of {', '.join(strange)[:80]}", USAGE)
    return plan.keeping(kept)


def _story(outcome: Outcome) -> str:
    """A failure for people: what was said, what was done until then, and how to see it again."""
    history = list(outcome.history[-HISTORY_LINES:])
    if len(outcome.history) > len(history):
        history.insert(0, f"  ({len(outcome.history) - len(history)} actions before these)")
    return "\n".join(
        [
            f"FAILED: {outcome.plan.kind}, seed {outcome.plan.seed}: {outcome.complaint}",
            str(outcome.error),
            "history, virtual seconds:",
            *history,
            f"again: {outcome.replay}",
            "",
        ]
    )


def _say(text: str, options: argparse.Namespace) -> None:
    """Nothing but the summary is printed where a program reads it."""
    if not options.json:
        print(text, flush=True)
