"""The store of a world of the kind `shared`: the remote tier over a model of an engine that fails in every way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np

from swift_tiers.radix_tiering.base.config import RemoteConfig
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.units import Duration, Size
from swift_tiers.radix_tiering.tiers.remote import ObjectShape, RemoteTier
from swift_tiers.radix_tiering.tiers.remote.engine import EngineJob
from swift_tiers.radix_tiering.tiers.testing.model_engine import EngineFault, ModelStore

#: What can happen there.
STORES_FAIL = (*(fault.value for fault in EngineFault if fault is not EngineFault.NONE), "an object is removed")
#: Pages, and tokens of one, as `stacks.GEOMETRY` has them.
PAGE_BYTES, PAGE_TOKENS = 4096, 4


def unreliable_store(runner: Runner, draw: random.Random, happened: Counter[str]) -> ModelStore:
    """Objects of before are removed by somebody now and then."""
    store = ModelStore(runner=runner, seconds=draw.choice((0.0, 1e-4, 2e-3)), late_seconds=draw.choice((0.1, 3.0)))
    often = draw.choice((0.0, 0.05, 0.3))

    def fault(job: EngineJob) -> EngineFault:
        if store.objects and draw.random() < often / 4:
            del store.objects[draw.choice(list(store.objects))]
            happened["store: an object is removed"] += 1
        found = draw.choice(list(EngineFault)) if draw.random() < often else EngineFault.NONE
        if found is not EngineFault.NONE:
            happened[f"store: {found.value}"] += 1
        return found

    store.fault = fault
    return store


def shared_tier(
    store: ModelStore, runner: Runner, draw: random.Random, fingerprint: Callable[[np.ndarray], bytes]
) -> RemoteTier:
    """Runs of one or two objects of one or two pages, and few slots."""
    pages = draw.choice((1, 2))
    shape = ObjectShape(PAGE_BYTES, pages, pages * draw.choice((1, 2)))
    config = RemoteConfig(
        engine="model",
        admission=draw.choice(("always", "always", "reuse", "size")),
        min_tokens=draw.choice((1, 8)),
        lookup_deadline=Duration(draw.choice((0.005, 0.1))),
        memory=Size(0),
    )
    return RemoteTier(
        shape,
        config,
        store.open(draw.choice((4, 9)), shape.stride),
        page_tokens=PAGE_TOKENS,
        read_seconds=draw.choice((0.05, 2.0)),
        secret=draw.choice((b"", b"secret")),
        probes=draw.random() < 0.5,
        fingerprint=fingerprint,
        runner=runner,
    )
