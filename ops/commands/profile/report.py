"""What a profile says, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.restore.plan import Prefix, RestorePlan, Run, Strategy, plan_restore
from swift_tiers.radix_tiering.restore.planner import HERE, Planner
from swift_tiers.radix_tiering.restore.profiles import Profile

if TYPE_CHECKING:
    from rich.console import Console

#: What stands behind the time of a plan that is not to load everything.
MARKS = {Strategy.LOAD: "", Strategy.TOKEN_WISE: " *", Strategy.RECOMPUTE: " °"}
#: Prefixes that the second table is about, tokens.
SHOWN_PREFIXES = (512, 1024, 2048, 4096, 8192)
#: Tokens behind a prefix where it is asked what a server would do.
NEW_TOKENS = 64


def show(profile: Profile, left_out: Mapping[str, str], console: Console) -> None:
    """Print the costs, how well they fit, and what they come to."""
    console.print(f"{profile.name} on {profile.hardware}", style="bold", markup=False, soft_wrap=True)
    _show_costs(profile, console)
    for source, why in left_out.items():
        console.print(f"{source}: left out, {why}; its cost is learned from requests", markup=False)
    console.print()
    _show_prefixes(profile, console)
    for source in profile.costs.sources:
        console.print(f"restored layer by layer from {source}: {_by_layers(profile, source)}", markup=False)
    console.print(
        "Computing was timed by the server's scheduler, from forming a batch to the end of its forward; loading by its "
        "tiers, from asking for pages until they were verified in host memory (host: until they were on the device).",
        markup=False,
    )


def _show_costs(profile: Profile, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "cost"):
        table.add_column(name, no_wrap=True)
    for name in ("samples", "off by", "worst"):
        table.add_column(name, justify="right", no_wrap=True)
    compute = profile.costs.compute
    costs = {
        "compute": f"{_seconds(compute.fixed_seconds)} + {_seconds(compute.token_seconds)}/token "
        f"+ {_seconds(compute.pair_seconds)}/pair",
        **{
            source: f"{_seconds(cost.latency_seconds)} + {format_size(round(cost.bytes_per_second))}/s"
            for source, cost in profile.costs.sources.items()
        },
    }
    for name, cost in costs.items():
        off = profile.residuals[name]
        table.add_row(name, cost, str(off.samples), f"{off.median:.0%}", f"{off.worst:.0%}")
        if name == "compute" and compute.least_seconds:
            table.add_row("a forward", f"at least {_seconds(compute.least_seconds)}")
    console.print(table)


def _show_prefixes(profile: Profile, console: Console) -> None:
    """What restoring prefixes of several lengths takes under the model: computed, loaded, and by the best plan."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("tokens", "recompute"):
        table.add_column(name, justify="right")
    for source in profile.costs.sources:
        table.add_column(f"load from {source}", justify="right")
        table.add_column("at best", no_wrap=True)
    token_bytes = profile.model.page_bytes // profile.model.page_tokens
    for tokens in SHOWN_PREFIXES:
        cells = [_seconds(_best_plan(profile, tokens, None).seconds)]
        for source, cost in profile.costs.sources.items():
            best = _best_plan(profile, tokens, source)
            cells += [_seconds(cost.seconds(tokens * token_bytes)), _seconds(best.seconds) + MARKS[best.strategy]]
        table.add_row(str(tokens), *cells)
    console.print(table)
    console.print("* recomputed from the front while loading from the back   ° recomputed", markup=False)


def _best_plan(profile: Profile, tokens: int, source: str | None) -> RestorePlan:
    """The best plan for a prefix that is in one source, or in none."""
    token_bytes = profile.model.page_bytes // profile.model.page_tokens
    prefix = Prefix(start=0, runs=(Run(tokens, source),), token_bytes=token_bytes, layers=profile.model.layers)
    return plan_restore(prefix, profile.costs, chunk_tokens=profile.chunk_tokens)


def _by_layers(profile: Profile, source: str) -> str:
    """Which prefixes in one source a server's planner would restore layer by layer, in words."""
    model, step = profile.model, max(1, profile.chunk_tokens // 2)
    planner = Planner(
        profile.costs,
        page_tokens=model.page_tokens,
        page_bytes=model.page_bytes,
        layers=model.layers,
        chunk_tokens=profile.chunk_tokens,
    )
    chosen = []
    for tokens in range(step, SHOWN_PREFIXES[-1] + 1, step):
        pages: list[str | None] = [source] * max(1, tokens // model.page_tokens)
        front = len(pages) if source == HERE else 0
        decision = planner.decide(front, pages[front:], NEW_TOKENS)
        if planner.by_layers(decision, 0, pages, NEW_TOKENS, "").strategy is Strategy.LAYER_WISE:
            chosen.append(tokens)
    return f"prefixes of {chosen[0]} to {chosen[-1]} tokens" if chosen else "no prefix"


def _seconds(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    if seconds == 0:
        return "0 s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
