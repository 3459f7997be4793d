"""What a map of the device costs the scheduler's thread: 100,000 pages of SGLang's own allocator and radix tree.

Half of them are in the tree, a tenth is held by 64 requests, which have locked a part of the tree, the rest is free.
Beside it: what completing and writing it takes the publisher's thread, what a walk through the tree would take, the
largest subtrees, and a map of host memory.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ...commands.bench.report import Figure, finish, parser, spread

PAGES, PAGE = 100_000, 16
#: Sequences in the tree, pages of each, and pages of its own that each request has.
SEQUENCES, LONG, REQUESTS, OWN = 1_000, 50, 64, 150
BOUND_MILLISECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("maps", __doc__, rounds=31).parse_args(argv)
    scheduler, linker, shape = _scheduler()
    from swift_tiers.radix_tiering.base.page import PageGeometry
    from swift_tiers.radix_tiering.bus.contract.records import map_record
    from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
    from swift_tiers.sglang_ext.tell.device_map import capture, completed
    from swift_tiers.sglang_ext.tell.tree_nodes import largest_subtrees

    captured = capture(scheduler, linker)
    found = completed(captured)
    assert len(found.states) == PAGES
    core = scheduler.tree_cache.tree_core
    tree = shape.copy()
    host = HostTier(PageGeometry(layers=1, planes=1, tokens=1, row_bytes=4096), PAGES * 4096)
    work: dict[str, Callable[[], Any]] = {
        "scheduler: the device's map": lambda: capture(scheduler, linker),
        "scheduler: a copy of the tree": shape.copy,
        "publisher: completed": lambda: completed(captured),
        "publisher: in words": lambda: map_record(found),
        "publisher: largest subtrees": lambda: largest_subtrees(tree, (), 1000, 0.0),
        "publisher: host memory": host.states,
        "a walk instead": lambda: (core.all_values_flatten(), core.walk_for_kv_canary(True, False)),
    }
    times = {name: _milliseconds(one, options.rounds) for name, one in work.items()}
    print(f"{PAGES} pages, {len(tree.nodes)} nodes, {REQUESTS} requests, {options.rounds} rounds")
    for name, values in times.items():
        print(spread(name, values, "ms"))
    figures = [
        Figure(
            "scheduler_thread",
            statistics.median(times["scheduler: the device's map"]),
            "ms",
            at_most=BOUND_MILLISECONDS,
        ),
        Figure("tree_copy", statistics.median(times["scheduler: a copy of the tree"]), "ms"),
        Figure("walk", statistics.median(times["a walk instead"]), "ms"),
    ]
    return finish("maps", figures, {"milliseconds": times}, options.json)


def _milliseconds(work: Callable[[], Any], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - started))
    return found[1:]


def _scheduler() -> tuple[Any, Any, Any]:
    """What `capture` looks at: SGLang's allocator, tree and rows, and as much of a scheduler as is needed."""
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    from swift_tiers.radix_tiering.base.page import PageGeometry
    from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator
    from swift_tiers.sglang_ext.tell.tree_shape import TreeSummer

    allocator: Any = PagedLendingAllocator(PAGES * PAGE, PAGE, torch.float32, "cpu", None, False)
    core = RustUnifiedTreeCore(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
    )
    shape = TreeSummer(core)
    rows = torch.zeros((REQUESTS + 1, (LONG + OWN) * PAGE), dtype=torch.int32)
    requests = []
    locked = 0
    for number in range(SEQUENCES):
        slots = allocator.alloc(LONG * PAGE)
        tokens = array("q", [(7919 * position + 31 * number) % 50_000 for position in range(LONG * PAGE)])
        step = core.begin_insert(InsertParams(key=RadixKey(tokens, None), value=slots.to(torch.int64)))
        core.end_insert()
        node = step.result.last_device_node
        shape.note(node)
        if number < REQUESTS:
            core.inc_lock_ref(node)
            own = allocator.alloc(OWN * PAGE)
            rows[number + 1, : LONG * PAGE], rows[number + 1, LONG * PAGE :] = slots, own
            kv = SimpleNamespace(
                holds_kv=True,
                req_pool_idx=number + 1,
                cache_protected_len=LONG * PAGE,
                kv_allocated_len=(LONG + OWN) * PAGE,
            )
            requests.append(SimpleNamespace(rid=str(number), kv=kv, last_node=node))
            locked += LONG * PAGE
    while not shape.sample().complete:
        pass
    cache = SimpleNamespace(
        token_to_kv_pool_allocator=allocator,
        tree_core=core,
        page_size=PAGE,
        full_evictable_size=core.full_evictable_size,
        full_protected_size=core.full_protected_size,
        session_records=dict,
        linker=SimpleNamespace(on_course=lambda req: None, pending_offloads=[]),
        node_of=lambda req: req.last_node,
    )
    scheduler = SimpleNamespace(
        tree_cache=cache,
        last_batch=SimpleNamespace(reqs=requests),
        running_batch=None,
        chunked_req=None,
        req_to_token_pool=SimpleNamespace(req_to_token=rows),
    )
    geometry = PageGeometry(layers=1, planes=1, tokens=1, row_bytes=4096)
    linker = SimpleNamespace(
        loader=SimpleNamespace(rows_under_way=list), pool=SimpleNamespace(geometry=geometry, page_size=PAGE)
    )
    assert core.full_protected_size() == locked
    return scheduler, linker, shape


if __name__ == "__main__":
    raise SystemExit(main())
