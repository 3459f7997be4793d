"""What `swift-tiers bench multiturn` makes of its answers: rows of a table, comparisons, and figures with bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import msgspec

from .multiturn_hicache import DiskBytes
from .multiturn_replay import Replayed
from .multiturn_systems import HICACHE, OFF, SYSTEMS, TIERS
from .report import Figure

#: Medians and slowest answers that swift-tiers may take, of HiCache's: with a disk, and where host memory holds all.
DISK_BOUNDS, HOST_BOUNDS = (0.8, 0.7), (0.95, 0.95)
#: What it may take where tiers have nothing to find, of a server without them.
NOTHING_FOUND_BOUND = 1.03
#: Different answers that are shown.
SHOWN = 5


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one system, with what its disk did until it was at rest again."""

    rate: float  # of the disk, over the rate at which recomputing makes KV; 0: there is none
    number: int
    system: str
    replayed: Replayed
    disk: DiskBytes
    disk_seconds: float


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One system at one disk rate, over all its rounds."""

    rate: float
    system: str
    requests: int
    p50: float  # seconds to the first token
    p90: float
    p99: float
    device: float  # shares of the prompt tokens
    host: float
    disk: float
    computed: float
    tokens_per_second: float  # of prompts
    read_rate: float  # bytes per second, over all the time in which the disk may have been at work
    write_rate: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (above 0, up to 1) of all do not exceed: one that was measured."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def make_row(rounds: Sequence[Round]) -> SystemRow:
    """Of rounds of one system at one rate; at least one."""
    answers = [answer for one in rounds for answer in one.replayed.answers]
    ttfts = [answer.ttft_seconds for answer in answers]
    prompts = sum(answer.prompt_tokens for answer in answers)
    disk_seconds = sum(one.disk_seconds for one in rounds)
    return SystemRow(
        rate=rounds[0].rate,
        system=rounds[0].system,
        requests=len(answers),
        p50=percentile(ttfts, 0.5),
        p90=percentile(ttfts, 0.9),
        p99=percentile(ttfts, 0.99),
        device=sum(answer.device for answer in answers) / prompts,
        host=sum(answer.host for answer in answers) / prompts,
        disk=sum(answer.disk for answer in answers) / prompts,
        computed=sum(answer.computed for answer in answers) / prompts,
        tokens_per_second=prompts / sum(one.replayed.seconds for one in rounds),
        read_rate=sum(one.disk.read for one in rounds) / disk_seconds,
        write_rate=sum(one.disk.written for one in rounds) / disk_seconds,
    )


def make_rows(rounds: Sequence[Round]) -> list[SystemRow]:
    """By rate, in their order; a system that was not asked at a rate has no row there."""
    keys = sorted({one.rate for one in rounds})
    groups = [[one for one in rounds if one.rate == rate and one.system == name] for rate in keys for name in SYSTEMS]
    return [make_row(group) for group in groups if group]


def different_answers(rounds: Sequence[Round]) -> list[str]:
    """One line for each turn that was not answered with the same tokens by everybody."""
    lines = []
    for rate, number in sorted({(one.rate, one.number) for one in rounds}):
        asked = [one for one in rounds if (one.rate, one.number) == (rate, number)]
        for answers in zip_longest(*(one.replayed.answers for one in asked)):
            if len({answer and answer.token_ids for answer in answers}) > 1:
                said = ", ".join(
                    f"{one.system} {list(answer.token_ids) if answer else None}"
                    for one, answer in zip(asked, answers, strict=True)
                )
                about = next(answer for answer in answers if answer)
                lines.append(f"rate {rate:g}, round {number}, agent {about.agent}, turn {about.turn}: {said}")
    return lines


def figures(rounds: Sequence[Round], workload: str, different: int) -> list[Figure]:
    """The bounds, by rate, of the medians of the rounds' ratios; and everybody says the same."""
    result = []
    for rate in sorted({one.rate for one in rounds}):
        here = {(one.system, one.number): one for one in rounds if one.rate == rate}
        where = f"at_{rate:g}" if rate else "on_host"
        if workload == "agents":
            most_p50, most_p99 = DISK_BOUNDS if rate else HOST_BOUNDS
            result += [
                _of(here, HICACHE, f"p50_{where}", _p50, most_p50),
                _of(here, HICACHE, f"p99_{where}", _p99, most_p99),
            ]
            if 0 < rate <= 1:
                result.append(_of(here, OFF, f"time_{where}", _seconds, 1.0))
        else:
            result += [
                _of(here, OFF, f"{workload}_p50_{where}", _p50, NOTHING_FOUND_BOUND),
                _of(here, OFF, f"{workload}_time_{where}", _seconds, NOTHING_FOUND_BOUND),
            ]
    return [*result, Figure("different_answers", different, at_most=0)]


def _of(
    rounds: Mapping[tuple[str, int], Round], other: str, name: str, measure: Callable[[Round], float], most: float
) -> Figure:
    """What swift-tiers takes over what another system does, in the rounds that both took part in."""
    both = [number for system, number in rounds if system == other and (TIERS, number) in rounds]
    ratios = [measure(rounds[TIERS, number]) / measure(rounds[other, number]) for number in both]
    unit = " of hicache" if other == HICACHE else " of without tiers"
    return Figure(name, statistics.median(ratios) if ratios else None, unit, at_most=most)


def _p50(one: Round) -> float:
    return percentile([answer.ttft_seconds for answer in one.replayed.answers], 0.5)


def _p99(one: Round) -> float:
    return percentile([answer.ttft_seconds for answer in one.replayed.answers], 0.99)


def _seconds(one: Round) -> float:
    return one.replayed.seconds


def show(rows: Sequence[SystemRow], bytes_per_second: float) -> None:
    """The table of one rate, of which all rows are. Times are seconds to the first token."""
    rate, limit = rows[0].rate, bytes_per_second
    where = f"disk at {limit / 1e6:.1f} MB/s, {rate:g} of what recomputing makes" if rate else "no disk"
    hicache = next(row for row in rows if row.system == HICACHE)
    print(f"\n{where}")
    print(
        f"  {'':<12}{'n':>4}{'P50':>8}{'P90':>8}{'P99':>8}{'to hicache':>12}"
        f"   {'device':>7}{'host':>7}{'disk':>7}{'computed':>10}{'input tok/s':>13}   disk MB/s"
    )
    for row in rows:
        moved = "-" if row.system == OFF or not rate else _moved(row, limit)
        print(
            f"  {row.system:<12}{row.requests:>4}{row.p50:>8.3f}{row.p90:>8.3f}{row.p99:>8.3f}"
            f"{row.p99 / hicache.p99 - 1:>+12.0%}   {row.device:>7.0%}{row.host:>7.0%}{row.disk:>7.0%}"
            f"{row.computed:>10.0%}{row.tokens_per_second:>13.0f}   {moved}"
        )


def show_different(different: Sequence[str]) -> None:
    """Answers that are not as they should be; nothing where all are."""
    if different:
        print(f"\n{len(different)} turns were not answered with the same tokens by everybody:")
        for line in different[:SHOWN]:
            print(f"  {line}")
        if len(different) > SHOWN:
            print(f"  ... {len(different) - SHOWN} more")


def _moved(row: SystemRow, limit: float) -> str:
    total = row.read_rate + row.write_rate
    return f"{row.read_rate / 1e6:.1f} read + {row.write_rate / 1e6:.1f} written = {total / limit:.0%}"
