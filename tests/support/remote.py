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
from swift_tiers.radix_tiering.tiers.testing.model_engine import EngineFault, ModelStore

from support.engine import GEOMETRY, chain, check, close, in_virtual_time, make_stack, put, wait_until

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
    shape = options.pop("shape", SHAPE)
    return RemoteTier(
        shape,
        remote_config(**config),
        store.open(slots, shape.stride),
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
    stack.restorer.wait_idle()
    with stack.table.lock:
        assert stack.movers["remote"].wait_idle(60.0)


class Machines:
    """Servers over one store, in virtual time."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.store = ModelStore(runner=runner, seconds=0.001)
        self.stacks: list[TierStack] = []

    def server(self, **options: object) -> TierStack:
        stack = remote_stack(self.store, runner=self.runner, **options)  # type: ignore[arg-type]
        self.stacks.append(stack)
        return stack

    def sent(self, runs: int = 2, more: int = 0, **options: object) -> tuple[TierStack, TierStack, Sequence[bytes]]:
        """Two servers, and a chain of so many runs and some pages more that the first one has computed and sent.
        `options`: of the second one."""
        first, second, keys = self.server(), self.server(**options), run_of("a", runs, more)
        put(first, keys)
        wait_sent(first)
        return first, second, keys

    def end(self) -> None:
        for stack in self.stacks:
            check(stack)
            close(stack)

    def asked(self, verb: str) -> int:
        return sum(job.verb == verb for job in self.store.jobs)

    def fail(self, verb: str, fault: EngineFault) -> None:
        self.store.fault = lambda job: fault if job.verb == verb else EngineFault.NONE


on_machines = in_virtual_time(Machines, Machines.end, seeds=3, most_seconds=3600.0)


def told(stack: TierStack, kind: str) -> list[dict[str, object]]:
    return [event.fields for event in stack.events.since() if event.kind == kind]
