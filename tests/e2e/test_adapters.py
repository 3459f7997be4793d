"""LoRA adapters of real servers: loaded at a start or later, unloaded, and loaded again, by any name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.adapters_on_cpu import WITH_ADAPTERS, WITHOUT_CUDA, named, write_adapter
from support.prompts import prompt
from support.servers import START_SECONDS, Site, call, fill_device, generate

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("adapters"), prepare=WITHOUT_CUDA)


@pytest.fixture(scope="module")
def adapters(site: Site) -> list[Path]:
    return [write_adapter(site.root / f"adapter{seed}", site.model, seed=seed) for seed in range(3)]


@contextmanager
def begun(site: Site, ranks: int, *adapters: Path) -> Iterator[Any]:
    """A server that has these from its start."""
    flags = named(adapters) or ["--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "qkv_proj"]
    if ranks > 1:
        flags += ["--tp-size", str(ranks)]
    with site.server(f"adapters{ranks}", *flags, tiers=site.tiers(), **WITH_ADAPTERS) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield server


def load(server: Any, name: str, path: Path) -> None:
    assert call(server, "/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})["success"]


def unload(server: Any, name: str) -> None:
    assert call(server, "/unload_lora_adapter", {"lora_name": name})["success"]


def below(details: dict[str, int]) -> int:
    return details.get("host", 0) + details.get("ssd", 0)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_what_an_adapter_has_computed_is_found_however_it_is_named_or_loaded(
    site: Site, adapters: list[Path], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = prompt(1)
    if ranks > 1:
        monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    with begun(site, ranks, *adapters[:1]) as server:
        base, _ = generate(server, question)
        first, found = generate(server, question, lora_path=adapters[0].name)
        assert first != base
        assert not below(found)
        load(server, "late", adapters[1])
        second, found = generate(server, question, lora_path="late")
        assert second not in (base, first)
        assert not sum(found.values()), "of another adapter"
        fill_device(server, 1)
        unload(server, "late")
        load(server, "again", adapters[1])
        assert generate(server, question, lora_path="again")[0] == second
        # Another one of a name that was there, and at its place.
        unload(server, "again")
        changed = site.root / f"changed{ranks}"
        shutil.copytree(adapters[2], changed)
        load(server, "again", changed)
        third, found = generate(server, question, lora_path="again")
        assert third not in (base, first, second)
        assert not sum(found.values())
        fill_device(server, 2)
        load(server, "late", adapters[1])
        answer, found = generate(server, question, lora_path="late")
        assert answer == second
        assert below(found), "loaded once more, it is what it was"
        fill_device(server, 3)
    with begun(site, ranks) as server:
        answer, found = generate(server, question)
        assert answer == base
        assert below(found), "which adapters are given at a start is of no concern to the others"
        load(server, "first", adapters[0])
        load(server, "third", changed)
        for name, right in (("first", first), ("third", third)):
            answer, found = generate(server, question, lora_path=name)
            assert answer == right
            assert below(found), name
