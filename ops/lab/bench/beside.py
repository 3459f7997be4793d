"""What those who decode are kept waiting for while a long prefix is copied from host memory to the device.

SGLang's real scheduler over a tiny model: eight requests decode, and one comes whose prefix is in host memory. A copy
takes as long as `--copy` says, a layer after the other, and no processor, as a GPU's copies do. By turns the prefix is
copied beside the forward that needs it, layer by layer, and before that forward is launched: tokens of the eight, of
what they get alone in as long, and the time to the first token of the one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ...commands.bench.report import Figure, finish, parser, ratio, spread, take_turns
from .interpreter import REQUESTS, keep_busy
from .interpreter import arguments as small_batch

PAGE_TOKENS = 16
#: How a prefix is copied: figures and cases.
BESIDE, FIRST = "beside its forward", "before its forward"


class MeasuredHit(NamedTuple):
    """One request, and those who decoded meanwhile."""

    first_token: float  # seconds
    others: float  # tokens a second


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("beside", __doc__, rounds=7)
    asked.add_argument("--tokens", type=int, default=1600, help="of the prefix (%(default)s)")
    asked.add_argument("--copy", type=float, default=0.09, help="seconds of a copy of it (%(default)s)")
    options = asked.parse_args(argv)
    os.environ.update(
        dict.fromkeys(("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "SGLANG_CHECK_KV_PAGE_INVARIANTS"), "0")
    )
    from ..torture.ranks.scheduler import StepScheduler

    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-") as folder:
        return measure(StepScheduler(arguments(Path(folder))), options)


def arguments(folder: Path) -> list[str]:
    """Of the scheduler."""
    config = (
        '{"host": {"size": "64MiB", "verify": "beside"}, "bus": {"enabled": false}, "restore": {"strategy": "load"}}'
    )
    with_tiers = [one for one in small_batch(folder) if one != "--disable-radix-cache"]
    return [
        *with_tiers,
        "--max-running-requests",
        str(REQUESTS + 1),
        "--enable-swift-tiers",
        "--swift-tiers-config",
        config,
    ]


def measure(steps: Any, options: argparse.Namespace) -> int:
    """With a `StepScheduler` of these `arguments`; the exit code."""
    _copies_take(steps.linker.pool, options.copy)
    prompt = [(11 * at) % 250 for at in range(options.tokens + PAGE_TOKENS // 2)]
    steps.generate(prompt, 1)
    cases: dict[str, Callable[[], MeasuredHit]] = {
        how: partial(_turn, steps, prompt, first=how == FIRST) for how in (BESIDE, FIRST)
    }
    turns = take_turns({"alone": lambda: _alone(steps, options.copy), **cases}, options.rounds)
    alone = [one.others for one in turns.pop("alone")]
    print(f"{REQUESTS} requests decode; one comes, {options.tokens} tokens of which are copied in {options.copy:g} s")
    print(spread("alone: tokens of the others", alone, "a second"))
    for how, rounds in turns.items():
        print(spread(f"{how}: of the others", [one.others for one in rounds], "a second"))
        print(spread(f"{how}: its first token", [1e3 * one.first_token for one in rounds], "ms"))
    figures = [
        Figure("others, copied beside", ratio([one.others for one in turns[BESIDE]], alone), " of alone"),
        Figure("others, copied first", ratio([one.others for one in turns[FIRST]], alone), " of alone", at_least=0.7),
        Figure(
            "first token, copied first",
            median(one.first_token for one in turns[FIRST]) / median(one.first_token for one in turns[BESIDE]),
            " of beside",
            at_most=1.3,
        ),
    ]
    return finish("beside", figures, {"alone": alone, "turns": turns}, options.json)


def _copies_take(pool: Any, seconds: float) -> None:
    """A copy to the device takes so long, by waiting."""
    original, each = pool._copy_in, seconds / pool.geometry.layers

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Callable[..., None], after: Any) -> None:
        def late(layer: int, mark: Any) -> None:
            time.sleep(each)
            layer_done(layer, mark)

        original(pages, slab, slots, late, after)

    pool._copy_in = copy_in


def _alone(steps: Any, seconds: float) -> MeasuredHit:
    """Those who decode, for about as long as a turn takes."""
    keep_busy(steps)
    began, tokens = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < 1.5 * seconds:
        steps.step()
        tokens += REQUESTS
    return MeasuredHit(took, tokens / took)


def _turn(steps: Any, prompt: list[int], *, first: bool) -> MeasuredHit:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    keep_busy(steps)
    assert steps.linker.wait_offloads(60)
    steps.step()  # SGLang hears of it, and unlocks what it has locked
    steps.cache.evict(EvictParams(num_tokens=len(prompt)))
    steps.linker.stack.planner.copied_first = lambda start, pages: first
    running = steps.scheduler.running_batch.reqs
    before, began = sum(len(req.output_ids) for req in running), time.perf_counter()
    one = steps.add(prompt, 1)
    while not one.finished():
        steps.step()
    took = time.perf_counter() - began
    assert one.cached_tokens >= len(prompt) - 2 * PAGE_TOKENS, "it was not found in host memory"
    return MeasuredHit(took, (sum(len(req.output_ids) for req in running) - before) / took)


if __name__ == "__main__":
    raise SystemExit(main())
