"""A server on the CPU that borrows modelled memory, with modelled landing memory: `prepare` goes before its start.

The functions that take a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from support import slow_link
from support.slow_link import Copies

PAGE, CHUNK, SLOTS, LEASE = 16, 64, 8, 2000


def arguments(folders: Any, tokens: int = 4096) -> list[str]:
    """SGLang's, for a tiny model. `folders`: pytest's `tmp_path_factory`; `tokens`: of the device's pool. Pages are
    verified as on GPUs, which alone have landing memory."""
    config = {"restore": {"chunk": CHUNK, "behind": 1000.0}, "host": {"size": "8MiB", "verify": "beside"}}
    return slow_link.tiny_server(folders, config, page=PAGE, tokens=tokens)


def prepare() -> None:
    """From now on servers of this process borrow such memory."""
    from swift_tiers.ops.lab.torture.model_peer import ModelPeer
    from swift_tiers.sglang_ext.build import assembly

    opened = assembly.open_stack

    def open_stack(namespace: Any, config: Any, rank: Any, *given: Any, **named: Any) -> Any:
        peer = ModelPeer(namespace.geometry.page_bytes, landing_slots=SLOTS)
        return opened(namespace, config, rank, lambda fingerprint, events: peer, **{**named, "landing": peer})

    assembly.open_stack = open_stack


class SlowComputing:
    """Computing takes long, and so does a way through host memory."""

    together = 1.0

    def __init__(self, page_bytes: int) -> None:
        from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost

        self.compute = self.compute_at_worst = ComputeCost(fixed_seconds=1e-3, token_seconds=1.0, pair_seconds=0.0)
        self.sources = {
            "host": SourceCost(latency_seconds=0.0, bytes_per_second=page_bytes / 20.0),
            "peer": SourceCost(latency_seconds=0.0, bytes_per_second=page_bytes / 0.1),
        }


def landing_pool(s: Any) -> Any:
    """Have the device's pool copy from landing memory, too, and costs be known; the memory that is lent."""
    from swift_tiers.ops.lab.torture.stacks import rows_at

    stack, pool = s.linker.stack, s.linker.pool
    peer = stack.tiers["peer"]
    if pool.landing is None:
        pool.landing = torch.from_numpy(peer.landed)
        original = type(pool)._copy_in

        def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, after: Any) -> None:
            Copies.begins(slots)
            original(pool, pages, rows_at(stack, slots), np.arange(len(slots)), layer_done, after)

        pool._copy_in = copy_in
        stack.planner.costs = SlowComputing(pool.geometry.page_bytes)
        peer.lend(LEASE)
        peer.settle()
    return peer


def lent_alone(s: Any, *prompts: list[int], here_too: bool = False) -> list[list[int]]:
    """The answers to these, whose pages are then in lent memory alone, or in host memory as well."""
    from swift_tiers.radix_tiering.table.tier_copies import HOST

    stack, peer = s.linker.stack, landing_pool(s)
    Copies.clear()
    answers = [s.generate(one) for one in prompts]
    s.empty_device()
    with stack.table.lock:
        assert stack.movers["peer"].wait_idle(60)
    peer.settle()
    with stack.table.lock:
        for page in reversed(stack.table.listed() if not here_too else []):
            stack.table.lose(page, HOST)
    assert here_too or stack.host.used_slots == 0
    peer.links["peer-host"].pages = 0
    peer.landings = 0
    return answers


def quiet(s: Any) -> None:
    """Nothing is kept for anybody."""
    s.settle()
    stack = s.linker.stack
    peer, table = stack.tiers["peer"], stack.table
    peer.settle()
    # What is lent anew is written to, and pages are pinned for that.
    with table.lock:
        assert stack.movers["peer"].wait_idle(60)
        assert stack.parts["peer"].wait_saved(60)
    assert stack.errands.wait_idle(60)
    # An errand has pages written there, too, when there is room again.
    limit = time.monotonic() + 60
    while table.pinned_pages and time.monotonic() < limit:
        time.sleep(0.001)
    slow_link.quiet(s)
    assert not s.linker._running, "loads leaked"
    assert peer.used_slots == 0, "landing memory leaked"
