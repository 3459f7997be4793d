"""SGLang's real scheduler as a donor that keeps the prefixes it uses, with a real borrower that wants all it can get.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests call them there.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.tiers.peer import PeerTier

from support import prompts
from support.redis import wait_for
from support.scheduler_process import SchedulerProcess

pytestmark = pytest.mark.timeout(600)

PAGE = 16
DEVICE_TOKENS = 4096
#: Of a conversation, in whole pages.
TOKENS = 640
CONVERSATIONS = [1, 2, 3]


def prompt(seed: int, tokens: int = TOKENS) -> list[int]:
    return prompts.prompt(seed, tokens)


# ---- in the scheduler's process ----


def facts(s) -> dict[str, Any]:
    side = s.linker.peer_side
    return {
        "name": side.name,
        "address": side.address,
        "page_bytes": s.linker.pool.geometry.page_bytes,
        "lent_tokens": side.donation.lender.lent_pages * PAGE,
        "evictable_tokens": s.cache.evictable_size(),
    }


def rounds(s, seconds: float) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        s.step()
        time.sleep(0.001)
    return facts(s)


def ask(s, seeds: list[int], tokens: int) -> list[tuple[list[int], int]]:
    """The answers, and how much of each prompt was on the device."""
    found = []
    for seed in seeds:
        req = s.add(prompt(seed, tokens), 4)
        s.run()
        found.append((list(req.output_ids), s.details(req).get("device", 0)))
    assert s.linker.wait_offloads(60)
    s.step()
    return found


def busy(s, seed: int) -> tuple[int, int, int]:
    """A crowd of requests that share prefixes, some of which are aborted, in a pool that is too small for them. After
    each step all that can be evicted is kept. How many requests were retracted, how many aborted, and how many leaves
    were evicted."""
    from sglang.srt.managers.io_struct import AbortReq

    generator, kept = random.Random(seed), s.cache.kept
    reqs, aborted, evicted = [], 0, s.cache.device_evictions
    for _ in range(30):
        if generator.random() < 0.7:
            start = prompt(generator.choice([11, 12]), 16 * generator.randrange(1, 60))
            reqs.append(s.add(start + prompt(generator.randrange(1000), 200), generator.randrange(1, 30)))
        if generator.random() < 0.2:
            running = [req for req in reqs if not req.finished()]
            if running:
                s.scheduler.abort_request(AbortReq(rid=generator.choice(running).rid))
                aborted += 1
        for _ in range(generator.randrange(1, 8)):
            s.step()
            assert kept.tokens() == s.cache.evictable_size()
    s.run()
    assert s.linker.wait_offloads(60)
    s.step()
    assert kept.tokens() == s.cache.evictable_size() > 0
    retracted = sum(req.retracted_stain for req in reqs)
    assert s.scheduler.flush_cache()
    s.step()
    assert kept.tokens() == s.cache.evictable_size() == 0
    return retracted, aborted, s.cache.device_evictions - evicted


def reckoned_while_its_conversation_comes_back(s, seed: int) -> tuple[int, int]:
    """What is reckoned to be needed, and what is kept, while a request waits whose prefix is cached."""
    demand = s.linker.peer_side.donation._demand
    limit = time.monotonic() + 60
    while demand():
        assert time.monotonic() < limit, "something is held for ever"
        s.step()
    req = s.add(prompt(seed) + prompt(99, 32), 4)
    found = demand(), s.cache.kept.tokens()
    s.run()
    assert req.finished()
    return found


def cost_of_a_match(s, seed: int) -> tuple[float, float]:
    """Seconds of the cheapest of many matches: as it is, and if nothing were kept."""
    from array import array

    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    params = MatchPrefixParams(key=RadixKey(array("q", prompt(seed))))
    kept, cheapest = s.cache.kept, []
    for one in (kept, None):
        s.cache.kept, times = one, []
        for _ in range(300):
            began = time.perf_counter()
            s.cache.match_prefix(params)
            times.append(time.perf_counter() - began)
        cheapest.append(min(times))
    s.cache.kept = kept
    return cheapest[0], cheapest[1]


def close(s) -> None:
    s.linker.close()


# ---- the tests ----


def start(tmp_path_factory, keep: str, prepare: str = "") -> SchedulerProcess:
    from swift_tiers.ops.base.model import tiny_model

    bus = tmp_path_factory.mktemp("bus")
    bus.chmod(0o700)
    config = {
        "host": {"size": "1MiB"},
        "bus": {"directory": str(bus), "server": "donor"},
        "peer": {"donate": True, "window": "300ms", "keep": keep},
    }
    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    return SchedulerProcess(arguments, prepare=prepare)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory) -> Iterator[SchedulerProcess]:
    with start(tmp_path_factory, "1h", prepare="support.retracting.install") as process:
        yield process
        process(close)


def while_somebody_borrows(scheduler: SchedulerProcess) -> list[int]:
    """Of each conversation, what is still on the device when all has been lent that is to be had."""
    known = scheduler(facts)
    first = scheduler(ask, CONVERSATIONS, TOKENS)
    tier = PeerTier("borrower", known["page_bytes"], PeerConfig(borrow=True))
    try:
        tier.want(2**40)
        tier.neighbours({known["name"]: known["address"]})
        wait_for(lambda: scheduler(rounds, 0.2)["lent_tokens"] >= 0.3 * DEVICE_TOKENS)
        lent = 0
        while (
            now := scheduler(rounds, 3.0)["lent_tokens"]
        ) > lent:  # longer than the lender rests after it found little
            lent = now
        again = scheduler(ask, CONVERSATIONS, TOKENS)
    finally:
        tier.close()
    assert [answer for answer, _ in again] == [answer for answer, _ in first]
    return [device for _, device in again]


def test_a_donor_keeps_the_prefixes_it_uses(scheduler) -> None:
    # The last token is always computed, and with it its page.
    assert while_somebody_borrows(scheduler) == [TOKENS - PAGE] * len(CONVERSATIONS)


def test_one_that_keeps_nothing_gives_them_away(tmp_path_factory) -> None:
    with start(tmp_path_factory, "0s") as process:
        assert sum(while_somebody_borrows(process)) < len(CONVERSATIONS) * (TOKENS - PAGE)
        process(close)


def test_what_waits_for_a_prefix_that_is_kept_is_not_counted_twice(scheduler) -> None:
    scheduler(ask, [5], TOKENS)
    needed, kept = scheduler(reckoned_while_its_conversation_comes_back, 5)
    assert kept >= TOKENS
    assert needed <= 32 + 4 + 3 * PAGE


def test_nothing_that_can_be_evicted_is_forgotten_or_counted_twice(scheduler) -> None:
    retracted, aborted, evicted = scheduler(busy, 1)
    assert min(retracted, aborted, evicted) > 0, "this tests too little"


def test_to_count_costs_less_than_to_match(scheduler) -> None:
    scheduler(ask, [7], TOKENS)
    kept, plain = scheduler(cost_of_a_match, 7)
    assert kept < 3 * plain
