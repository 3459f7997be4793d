"""What every bench shares: measuring things by turns, bounds, and the closing line `NAME: figure=value (bound) …`."""

from __future__ import annotations

import json
import platform
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...base.arguments import check_between, path_argument
from ...base.errors import USAGE, CommandError
from ...base.new_file import check_new_file, write_new_file
from ...base.parser import Parser

#: Exit code of a bench that ran and missed a bound.
MISSED = 3

Name = TypeVar("Name", bound=Hashable)
Measured = TypeVar("Measured")


class Figure(msgspec.Struct, frozen=True):
    """One number with its bound, if it has one."""

    name: str
    value: float | None  # None: it could not be measured, which meets no bound
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def __str__(self) -> str:
        bound = ""
        if self.at_least is not None:
            bound = f" (>= {self.at_least:g}{'' if self.holds else ' MISSED'})"
        if self.at_most is not None:
            bound = f" (<= {self.at_most:g}{'' if self.holds else ' MISSED'})"
        value = "unmeasured" if self.value is None else f"{self.value:.4g}{self.unit}"
        return f"{self.name}={value}{bound}"


def take_turns(cases: Mapping[Name, Callable[[], Measured]], rounds: int) -> dict[Name, list[Measured]]:
    """What each case returns in each round. Every round runs every case once, in alternating order, so that whatever
    else the machine does falls on all of them. One round before the first is not counted."""
    results: dict[Name, list[Measured]] = {name: [] for name in cases}
    order = list(cases)
    for number in range(rounds + 1):
        for name in order if number % 2 else reversed(order):
            result = cases[name]()
            if number:
                results[name].append(result)
    return results


def by_turns(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round; see `take_turns`."""
    return take_turns({name: partial(_seconds, case) for name, case in cases.items()}, rounds)


def _seconds(case: Callable[[], object]) -> float:
    started = time.perf_counter()
    case()
    return time.perf_counter() - started


def thread_seconds(name: str) -> float:
    """What the one thread of this process that is called so has had of a core, the kernel's part included."""
    (found,) = (one for one in threading.enumerate() if one.name == name)
    assert found.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(found.ident))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median of the rounds' ratios: what is slow in one round is slow for both."""
    return statistics.median(above / below for above, below in zip(numerator, denominator, strict=True))


def spread(name: str, values: Sequence[float], unit: str) -> str:
    """One line: median, and the range over the rounds."""
    return f"  {name:<34} {statistics.median(values):10.3f} {unit}   ({min(values):.3f} to {max(values):.3f})"


#: Options of a bench that count something, none of which means anything from 0 down.
_COUNTS = (
    "rounds", "size", "agents", "turns", "prompts", "tokens", "new_tokens", "together", "windows", "context", "read",
    "payload", "depth",
)  # fmt: skip
#: Those that name what has to be there, and whether it is a directory.
_PLACES = {"directory": True, "folder": True, "model_path": True, "text": False}


class BenchParser(Parser):
    """Refuses what a bench would only stumble over when it has fetched a model, started servers or measured."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = super().parse_known_args(args, namespace)
        for name in _COUNTS:
            check_between(_option(name), getattr(options, name, None), 1, 2**31 - 1)
        for name, is_directory in _PLACES.items():
            place = getattr(options, name, None)
            if place is not None and not (Path(place).is_dir() if is_directory else Path(place).is_file()):
                raise CommandError(f"{_option(name)}: {place} is no {'directory' if is_directory else 'file'}", USAGE)
        check_new_file("--json", options.json)
        return options, rest


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parser(name: str, description: str | None, rounds: int) -> BenchParser:
    result = BenchParser(prog=f"swift-tiers bench {name}", description=description)
    result.add_argument("--json", metavar="FILE", type=path_argument, help="write the figures and all rounds as JSON")
    result.add_argument("--rounds", type=int, default=rounds, help="how often everything is measured (%(default)s)")
    return result


def finish(
    name: str, figures: Sequence[Figure], details: Mapping[str, Any], file: Path | None, *, smaller: bool = False
) -> int:
    """Print the closing line, write `file`; the exit code. What was `smaller` than the bounds are for is held against
    none of them, and says so."""
    if smaller:
        print(f"{name}: smaller than its bounds are for; they are not applied")
        figures = [msgspec.structs.replace(figure, at_least=None, at_most=None) for figure in figures]
    if file is not None:
        content = {
            "bench": name,
            "smaller": smaller,
            "machine": platform.processor() or platform.machine(),
            "figures": [{**msgspec.to_builtins(figure), "holds": figure.holds} for figure in figures],
            **details,
        }
        write_new_file("--json", file, json.dumps(content, indent=1).encode() + b"\n")
    print(f"{name}: {' '.join(str(figure) for figure in figures)}")
    return 0 if smaller or all(figure.holds for figure in figures) else MISSED
