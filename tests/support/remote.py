"""Tier stacks that share one store in memory, as servers on several machines share an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift_tiers.radix_tiering.base.config import RemoteConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.base.units import Duration, Size
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.remote.objects import ObjectShape
from swift_tiers.radix_tiering.tiers.remote.remote_tier import RemoteTier
from swift_tiers.radix_tiering.tiers.testing.model_engine import ModelStore

from support.engine import GEOMETRY, chain, make_stack, wait_until

#: Objects of two pages, runs of two objects.
SHAPE = ObjectShape(GEOMETRY.page_bytes, 2, 4)
RUN = SHAPE.run


def remote_config(**changes: Any) -> RemoteConfig:
    fields: dict[str, Any] = {
        "engine": "model",
        "admission": "always",
        "min_tokens": 1,
        "lookup_deadline": Duration(0.02),
        "memory": Size(16 * SHAPE.stride),
    }
    return RemoteConfig(**{**fields, **changes})


def remote_tier(store: ModelStore, *, runner: Runner = THREADS, slots: int = 8, **options: Any) -> RemoteTier:
    config = {name: options.pop(name) for name in list(options) if name in RemoteConfig.__struct_fields__}
    options.setdefault("read_seconds", 2.0)
    return RemoteTier(
        options.pop("shape", SHAPE),
        remote_config(**config),
        store.open(slots, SHAPE.stride),
        page_tokens=GEOMETRY.tokens,
        runner=runner,
        **options,
    )


def remote_stack(
    store: ModelStore, host_pages: int = 32, *, runner: Runner = THREADS, ssd: Any = None, sections: Any = None,
    **options: Any,
) -> TierStack:  # fmt: skip
    """A server. `options`: of its remote tier; `sections`: of its configuration."""
    events = EventLog(runner.time, runner=runner)
    if ssd is not None:
        options.setdefault("fingerprint", ssd.fingerprint)
    tier = remote_tier(store, runner=runner, events=events, **options)
    stack = make_stack(host_pages, ssd, runner=runner, others=[tier], events=events, **(sections or {}))
    wait_until(lambda: tier.snapshot().ready, "the engine is never ready", stack)
    return stack


def snapshot(stack: TierStack) -> Any:
    """Of its remote tier."""
    return stack.tiers["remote"].snapshot()  # type: ignore[attr-defined]


def run_of(name: str, runs: int = 2, more: int = 0) -> Sequence[bytes]:
    """Keys of so many whole runs of a sequence, and of some pages more."""
    return chain(name, *range(runs * RUN + more - 1))


def wait_sent(stack: TierStack) -> None:
    """Until nothing is being written any more."""
    stack.restorer.flush()
    with stack.table.lock:
        assert stack.movers["remote"].wait_idle(60.0)
