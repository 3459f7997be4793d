"""A real server whose clients, operators and devices do anything at any time: each answer is right, or an error.

Conversations branch, so that requests share prefixes of every length. Clients ask many at once, leave, abort, ask for
log probabilities and for several answers; operators flush, cap tiers and change policies in between; bytes of device
files change; and the server is stopped or killed, and begun anew over its files. What happens is drawn from a seed;
when it meets what is the server's own affair. A server without tiers says what the answers are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from swift_tiers.ops.base.model import tiny_model

from support import states_on_cpu
from support.any_life import Conversation, Life, LifeBesideADonor, LifeBesideAStore, conversations, tiers_of_a_life
from support.models import tiny_gemma, tiny_hybrid, tiny_mla
from support.servers import START_SECONDS, Plain, Site, shared_store

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


class Kind(NamedTuple):
    """Of pages, devices and models: small ones, so that everything is evicted; and what lies beside the server."""

    tiers: dict[str, Any]  # sections, in place of or over the usual ones; None: without it
    options: dict[str, str]
    model: Callable[[Path], Path] = tiny_model
    prepare: str = ""
    environment: Mapping[str, str] = MappingProxyType({})
    life: type[Life] = Life
    source: tuple[str, ...] = ("host", "ssd")  # something comes from there


def _windowed(directory: Path) -> Path:
    return tiny_gemma(directory, own_pool=True)


KINDS = {
    "loads": Kind({}, {"--page-size": "16"}),
    "single tokens, computed from the front": Kind(
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "3MiB"}},
        {"--page-size": "1"},
    ),
    "written back, least often used": Kind(
        {"policy": {"write": "back", "eviction": "lfu"}, "host": {"verify": "beside"}},
        {"--page-size": "16"},
    ),
    "layers": Kind(
        {"restore": {"strategy": "layer-wise"}, "ssd": {"throttle": "3MiB"}},
        {"--page-size": "8"},
    ),
    "chunks of all": Kind(
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "6MiB"}},
        {"--page-size": "4", "--chunked-prefill-size": "128", "--schedule-policy": "lpm"},
    ),
    "latent": Kind(
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "3MiB"}},
        {"--page-size": "16"},
        model=tiny_mla,
    ),
    "windows": Kind(
        {},
        {"--page-size": "16", "--chunked-prefill-size": "256"},
        model=_windowed,
        prepare="support.windowed_models.register",
    ),
    "states": Kind(
        {},
        {
            "--page-size": "16", "--chunked-prefill-size": "256", "--mamba-radix-cache-strategy": "extra_buffer",
            "--max-mamba-cache-size": "48", "--mamba-track-interval": "64",
        },
        model=tiny_hybrid,
        prepare="support.states_on_cpu.with_states_of_pages",
        environment=states_on_cpu.ENVIRONMENT,
    ),
    "two ranks": Kind(
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "3MiB"}},
        {"--page-size": "16", "--tp-size": "2"},
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
    ),
    "a donor": Kind(
        {"peer": {"borrow": True, "term": "3s"}},
        {"--page-size": "16"},
        life=LifeBesideADonor,
        source=("peer",),
    ),
    "a store": Kind(
        {"ssd": None},
        {"--page-size": "16"},
        life=LifeBesideAStore,
        source=("remote",),
    ),
}  # fmt: skip


def tiers_of(kind: Kind, site: Site) -> dict[str, Any]:
    tiers = tiers_of_a_life(site)
    for section, fields in kind.tiers.items():
        tiers[section] = {**tiers.get(section, {}), **(fields or {})}
        if fields is None:
            del tiers[section]
    if kind.life is LifeBesideAStore:
        (store := site.root / "store").mkdir()
        tiers["remote"] = shared_store("file", {"file_storage_path": str(store)})
    return tiers


@contextmanager
def begun(site: Site, said: list[Conversation], draw: random.Random, kind: Kind) -> Iterator[Life]:
    tiers = tiers_of(kind, site)
    with site.server("life", tiers=tiers, **{"--max-total-tokens": "2560", **kind.options}) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        with kind.life(site, server, said, draw, tiers) as life:
            yield life


def said_by(kind: Kind, plain: Plain, site: Site, draw: random.Random) -> list[Conversation]:
    if kind.model is tiny_model:
        return conversations(plain, draw)
    with ExitStack() as running:
        return conversations(Plain(site, running, **kind.options), draw)


@pytest.mark.parametrize("name", KINDS)
def test_whatever_happens_answers_are_right(
    plain: Plain, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, draw = KINDS[name], random.Random(name)
    for variable, value in kind.environment.items():
        monkeypatch.setenv(variable, value)
    site = Site(tmp_path_factory.mktemp("life"), kind.model, kind.prepare)
    with begun(site, said_by(kind, plain, site, draw), draw, kind) as life:
        life.live(kind.source)
