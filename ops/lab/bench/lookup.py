"""What a long prompt costs the scheduler's thread: 32,768 tokens, 2,048 pages, all of them in host memory.

Measured is everything that SGLang waits for: hashing the pages, `arrive`, every `lookup` (SGLang repeats it in each
round while a request cannot be admitted), `load` and `start_layer_wise_loading`. Not measured is what other threads do
meanwhile (bringing pages up, copying them), except in so far as they compete for the interpreter.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Sequence
from typing import Any

from ...commands.bench.report import Figure, finish, parser, spread

TOKENS, PAGE = 32_768, 16
PAGES = TOKENS // PAGE
REPEATS = 200
BOUND_MILLISECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("lookup", __doc__, rounds=21).parse_args(argv)
    linker = _linker()
    _hash_as_servers_do()
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    tokens = array("q", [(7919 * position) % 50_000 for position in range(TOKENS)])
    hashes: list[str] = list(get_storage_hash_str(tokens, None, page_size=PAGE))
    _fill(linker, hashes)
    rounds = [_round(linker, tokens, f"request{number}") for number in range(options.rounds + 1)][1:]
    linker.close()
    steps = {name: [1e3 * one[name] for one in rounds] for name in rounds[0]}
    total = [sum(one[name] for name in one if name != "each further lookup") * 1e3 for one in rounds]
    print(f"{TOKENS} tokens, {PAGES} pages, {options.rounds} rounds")
    for name, values in steps.items():
        print(spread(name, values, "ms"))
    print(spread("all, with one lookup", total, "ms"))
    figures = [
        Figure("scheduler_thread", statistics.median(total), "ms", at_most=BOUND_MILLISECONDS),
        Figure("further_lookup", statistics.median(steps["each further lookup"]), "ms"),
    ]
    return finish("lookup", figures, {"milliseconds": {**steps, "total": total}}, options.json)


def _linker() -> Any:
    import torch

    from swift_tiers.radix_tiering.base.page import Namespace
    from swift_tiers.radix_tiering.base.read_config import parse_config
    from swift_tiers.radix_tiering.stack import TierStack
    from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
    from swift_tiers.sglang_ext.pools.device_pool import HostMemoryPool
    from swift_tiers.sglang_ext.way.linker import SwiftLinker

    # Small pages: their size does not matter to the scheduler's thread, their number does.
    shape = (TOKENS + PAGE, 1, 8)
    pool = HostMemoryPool([[torch.zeros(shape), torch.zeros(shape)] for _ in range(2)], PAGE)
    namespace = Namespace("bench", "bench", "float32", pool.geometry, 0, 1, 8, "tp0/1")
    host = HostTier(pool.geometry, (PAGES + 16) * pool.geometry.stride_bytes)
    return SwiftLinker.over(pool, TierStack(namespace, parse_config({}), host))


def _hash_as_servers_do() -> None:
    """By SGLang's compiled hash, or by ours where there is no compiler."""
    from swift_tiers.sglang_ext.build.page_hash import around_native_hash
    from swift_tiers.sglang_ext.hooks import apply_hooks, scheduler_hooks

    apply_hooks(hook for hook in scheduler_hooks() if hook.function is around_native_hash)


def _fill(linker: Any, hashes: list[str]) -> None:
    import torch
    from sglang.srt.mem_cache.hicache_storage import PoolName

    from swift_tiers.sglang_ext.way.linker import NodeTransfer

    linker.offload([NodeTransfer(name=PoolName.KV, keys=hashes, device_indices=torch.arange(TOKENS))])
    while not linker.num_completed_offloads():
        time.sleep(0.001)
    assert linker.pop_completed_offload()


def _transfer(hashes: list[str], rows: Any = None) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    return PoolTransfer(name=PoolName.KV, keys=hashes, device_indices=rows)


def _round(linker: Any, tokens: array[int], rid: str) -> dict[str, float]:
    """Seconds of the scheduler's thread in each step of one request."""
    import torch
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    from swift_tiers.radix_tiering.way.request_restore import Readiness
    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
    from swift_tiers.sglang_ext.way.request import TieredRequest

    seconds = {}
    rows = torch.arange(TOKENS)

    def timed(name: str, function: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        seconds[name] = time.perf_counter() - started
        return result

    hashes = timed("hash", lambda: list(get_storage_hash_str(tokens, None, page_size=PAGE)))
    request = TieredRequest(rid, linker.stack, linker.requests, RequestFacts())
    request.facts.whole = "it is loaded whole here"
    timed("arrive", request.begin, hashes)
    while request.readiness() is not Readiness.READY:
        time.sleep(0.001)
    lengths = timed("lookup", linker.lookup, rid, [_transfer(hashes)])
    assert lengths[-1] == PAGES
    started = time.perf_counter()
    for _ in range(REPEATS):
        linker.lookup(rid, [_transfer(hashes)])
    seconds["each further lookup"] = (time.perf_counter() - started) / REPEATS
    timed("load", linker.load, rid, [_transfer(hashes, rows)])
    index = timed("start", linker.start_layer_wise_loading)
    linker.layer_done_counter.set_consumer(index)
    linker.layer_done_counter.wait_until(0)  # as a forward does
    assert linker.finish_layer_wise_loading(index)
    request.end()
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
