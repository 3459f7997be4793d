"""As `test_any_life`, of what SGLang offers beside: sessions, adapters, salts, pauses, and weights that change."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.adapters_on_cpu import WITH_ADAPTERS, WITHOUT_CUDA, named, write_adapter
from support.any_life import conversations, tiers_of_a_life
from support.featured_life import FeaturedLife, LifeOfAdapters, LifeOfWeights, Truth
from support.redis import wait_for
from support.router import BENEATH, GPU, Subscriber
from support.servers import START_SECONDS, Site, free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


class Kind(NamedTuple):
    life: type[FeaturedLife]
    options: dict[str, str]
    flags: tuple[str, ...] = ()
    models: int = 1
    adapters: int = 0


KINDS = {
    "weights": Kind(LifeOfWeights, {"--page-size": "16"}, models=2),
    "weights, single tokens": Kind(
        LifeOfWeights, {"--page-size": "1", "--chunked-prefill-size": "128"}, ("--enable-mixed-chunk",), models=2
    ),
    "adapters": Kind(LifeOfAdapters, {"--page-size": "16", **WITH_ADAPTERS}, adapters=3),
    "adapters, each turn at once": Kind(
        LifeOfAdapters, {"--page-size": "4", **WITH_ADAPTERS}, ("--disable-overlap-schedule",), adapters=3
    ),
    "preempted": Kind(
        FeaturedLife, {"--page-size": "8", "--max-running-requests": "4"}, ("--enable-priority-scheduling",)
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_whatever_is_asked_for_answers_are_right(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    kind, draw = KINDS[name], random.Random(name)
    site = Site(tmp_path_factory.mktemp("life"), prepare=WITHOUT_CUDA if kind.adapters else "")
    models = [site.model, *(tiny_model(site.root / f"model{seed}", seed=seed) for seed in range(1, kind.models))]
    adapters = [write_adapter(site.root / f"adapter{seed}", site.model, seed=seed) for seed in range(kind.adapters)]
    tiers = tiers_of_a_life(site)
    with ExitStack() as running:
        truth = Truth(site, running, models, adapters, **(WITH_ADAPTERS if adapters else {}))
        said = conversations(truth, draw)
        heard = running.enter_context(Subscriber(*free_ports(1)))
        flags = ["--enable-streaming-session", *kind.flags, *named(adapters), *heard.arguments]
        server = site.server("life", *flags, tiers=tiers, **{"--max-total-tokens": "2560", **kind.options})
        running.enter_context(server)
        server.start()
        server.wait_ready(START_SECONDS)
        life = kind.life(site, server, said, draw, tiers, truth=truth)
        life.live(("host", "ssd"))
        assert heard.ever[BENEATH], "a router heard nothing of what is beneath the device"
        wait_for(life.flush_cache)  # requests that were left may run yet
        wait_for(lambda: not (heard.knows(GPU) or heard.knows(BENEATH)))
