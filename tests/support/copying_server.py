"""A server on the CPU whose copies to the device take as long as a test says, and are known to take long.

The functions that take a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support import slow_link
from support.slow_link import Copies

PAGE, CHUNK = 16, 64


def arguments(folders: Any, tokens: int = 4096) -> list[str]:
    """SGLang's, for a tiny model. `folders`: pytest's `tmp_path_factory`; `tokens`: of the device's pool. Pages are
    verified as on GPUs."""
    config = {"restore": {"chunk": CHUNK, "strategy": "load"}, "host": {"size": "8MiB", "verify": "beside"}}
    return slow_link.tiny_server(folders, config, page=PAGE, tokens=tokens)


class SlowCopying:
    """Copying takes long, and computing longer, so that pages are copied."""

    together = 1.0

    def __init__(self, page_bytes: int) -> None:
        from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost

        self.compute = self.compute_at_worst = ComputeCost(fixed_seconds=1e-3, token_seconds=1e-2, pair_seconds=0.0)
        self.sources = {"host": SourceCost(latency_seconds=0.0, bytes_per_second=page_bytes / 0.1)}


@contextmanager
def copies(s: Any) -> Iterator[type[Copies]]:
    """Copies begin, and wait as long as they are `held`; so many `fails`; each page takes so long."""
    pool, planner = s.linker.pool, s.linker.stack.planner
    original, costs = pool._copy_in, planner.costs
    Copies.clear()

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, after: Any) -> None:
        Copies.begins(slots)
        original(pages, slab, slots, layer_done, after)

    pool._copy_in, planner.costs = copy_in, SlowCopying(pool.geometry.page_bytes)
    try:
        yield Copies
    finally:
        Copies.held = False
        pool._copy_in, planner.costs = original, costs
