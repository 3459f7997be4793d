"""Real servers that share nothing but an engine: the second one answers from what the first one computed.

By SGLang's `file` engine, which needs nothing installed; with `mooncake` over TCP where its wheel is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.commands.demo.store import LocalStore
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.mooncake import skip_without_library
from support.servers import (
    START_SECONDS,
    Site,
    call,
    child_of,
    children_of,
    generate,
    prompt,
    shared_store,
    snapshot,
    wait_written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(900)]

PATIENCE = 120.0
TOKENS = 700
#: In whole runs of 512.
FOUND = 512


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def tiers(site: Site, name: str, engine: str, options: dict[str, Any]) -> dict[str, Any]:
    directory = site.root / f"ssd-{name}"
    directory.mkdir()
    return {**site.tiers(directory, host="4MiB"), "remote": shared_store(engine, options)}


def remote_pages(server: Any) -> int:
    return int(snapshot(server)["links"]["host-remote"]["pages"])


@pytest.fixture
def mooncake(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The options of a store of one node."""
    skip_without_library()
    with LocalStore(tmp_path, 256 << 20) as store:
        yield store.options


def check_two_servers(site: Site, engine: str, options: dict[str, Any], plain: Any) -> None:
    prompts = [prompt(seed, TOKENS) for seed in range(12)]
    expected = plain.answers(prompts)
    pages = ("--page-size", "16")
    name = f"{engine}-first"
    with site.server(name, *pages, tiers=tiers(site, name, engine, options)) as first:
        first.start()
        first.wait_ready(START_SECONDS)
        assert wait_for(lambda: engine_ready(first) or None, PATIENCE), "the child is never ready"
        for one, answer in zip(prompts, expected, strict=True):
            assert generate(first, one)[0] == answer
        wait_written(first)
        assert wait_for(lambda: remote_pages(first) >= len(prompts) * FOUND // 16 or None, PATIENCE), snapshot(first)[
            "tiers"
        ]["remote"]
        first.signal_all(signal.SIGKILL)
    name = f"{engine}-second"
    with site.server(name, *pages, tiers=tiers(site, name, engine, options)) as second:
        second.start()
        second.wait_ready(START_SECONDS)
        assert wait_for(lambda: engine_ready(second) or None, PATIENCE), "the child is never ready"
        tokens, details = generate(second, prompts[0])
        assert tokens == expected[0]
        assert details["remote"] == FOUND
        child = child_of(second)
        os.kill(child, signal.SIGSEGV)
        assert generate(second, prompts[1])[0] == expected[1], "its child is dead"
        assert wait_for(lambda: (engine_ready(second) and child_of(second) != child) or None, PATIENCE), "no new child"
        for one, answer in zip(prompts[2:], expected[2:], strict=True):  # a busy machine may answer late
            tokens, details = generate(second, one)
            assert tokens == answer
            if details.get("remote") == FOUND:
                break
        else:
            raise AssertionError(f"nothing is found there any more: {snapshot(second)}")
        os.kill(child_of(second), signal.SIGSTOP)
        assert generate(second, prompt(9, TOKENS))[0] == plain.answers([prompt(9, TOKENS)])[0], "its child hangs"
        state = snapshot(second)
        assert state["tiers"]["remote"]["checksum_failures"] == 0
        assert state["restores"]["failed_loads"] == 0


def engine_ready(server: Any) -> bool:
    return snapshot(server)["remote_engine"] == "asked" and bool(child_of(server))


def test_the_second_server_answers_from_what_the_first_computed(site: Site, plain: Any) -> None:
    directory = site.root / "shared"
    directory.mkdir()
    check_two_servers(site, "file", {"file_storage_path": str(directory)}, plain)


def test_the_same_with_mooncake(site: Site, plain: Any, mooncake: dict[str, Any]) -> None:
    check_two_servers(site, "mooncake", mooncake, plain)


def test_the_same_with_nixl(site: Site, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nixl", reason="pip install nixl")
    directory = site.root / "nixl"
    directory.mkdir()
    monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", str(directory))
    options = {
        "plugin": {"posix": {"active": True}},
        "l3_cleaner_enabled": False,
    }  # it empties disks that are rather full
    check_two_servers(site, "nixl", options, plain)


def test_two_ranks_have_one_child_and_find_what_each_has_written(
    site: Site, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it dies, both have a new one, and again one."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    directory = site.root / "ranks-shared"
    directory.mkdir()
    config = tiers(site, "ranks", "file", {"file_storage_path": str(directory)})
    del config["ssd"]  # which a flush leaves
    prompts = [prompt(seed, TOKENS) for seed in range(2)]
    with site.server("ranks", "--page-size", "16", "--tp-size", "2", tiers=config) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        assert wait_for(lambda: engine_ready(server) or None, PATIENCE), "the child is never ready"
        expected = [generate(server, one)[0] for one in prompts]
        wait_written(server)
        assert wait_for(lambda: remote_pages(server) >= 2 * FOUND // 16 or None, PATIENCE)
        (child,) = children_of(server)
        # The second rank may write later than the first one, which is looked at.
        assert wait_for(lambda: found_there(server, prompts[0], expected[0]) or None, PATIENCE), "a rank has none"
        os.kill(child, signal.SIGKILL)
        assert wait_for(lambda: (engine_ready(server) and child_of(server) != child) or None, PATIENCE), "no new child"
        assert len(children_of(server)) == 1
        assert wait_for(lambda: found_there(server, prompts[1], expected[1]) or None, PATIENCE), "a rank has none"
        assert snapshot(server)["restores"]["failed_loads"] == 0


def found_there(server: Any, question: list[int], expected: list[int]) -> bool:
    """Both ranks have to find it, or none does."""
    call(server, "/flush_cache", {})
    tokens, details = generate(server, question)
    assert tokens == expected
    return bool(details.get("remote") == FOUND)
