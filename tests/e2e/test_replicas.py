"""A real server of two replicas (`--dp-size`): each has tiers of its own; they share what lies beyond the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.commands.demo.remote import wait_engine
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.command_line import run_command
from support.scrapes import scrape
from support.servers import (
    START_SECONDS,
    Server,
    Site,
    call,
    generate,
    prompt,
    shared_store,
    wait_memory_empty,
    wait_written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

NAME = "replicas"
RANKS = ["dp0-tp0", "dp1-tp0"]
PATIENCE = 120.0
PAGE, TOKENS = 16, 700
#: Whole pages of a prompt; and runs of 512 tokens, of which the remote tier is made.
IN_PAGES, IN_RUNS = 688, 512
SEEDS = range(6)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def answers(plain: Any) -> list[list[int]]:
    found: list[list[int]] = plain.answers([prompt(seed, TOKENS) for seed in SEEDS])
    return found


@pytest.fixture(scope="module", autouse=True)
def a_core_each() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
        yield


def replicas(site: Site, name: str, *directories: Path, **more: Any) -> Server:
    tiers = {**site.tiers(*directories, host="8MiB"), **more}
    tiers["bus"] |= {"server": name, "control": True, "interval": "100ms"}
    return site.server(name, "--dp-size", "2", "--page-size", str(PAGE), "--enable-metrics", tiers=tiers)


@pytest.fixture(scope="module")
def server(site: Site, answers: list[list[int]]) -> Iterator[Server]:
    with replicas(site, NAME) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield server


def ask(server: Server, replica: int, answers: list[list[int]]) -> list[int]:
    """Tokens of each prompt that came from below the device."""
    below = []
    for seed in SEEDS:
        tokens, details = generate(server, prompt(seed, TOKENS), routed_dp_rank=replica)
        assert tokens == answers[seed]
        below.append(sum(details.values()) - details.get("device", 0))
        wait_written(server)
    return below


def test_each_replica_has_tiers_of_its_own(site: Site, server: Server, answers: list[list[int]]) -> None:
    assert ask(server, 0, answers) == [0] * len(SEEDS)
    assert ask(server, 1, answers) == [0] * len(SEEDS), "what the first replica has is not the second one's"
    for replica in (0, 1):
        assert set(ask(server, replica, answers)) == {IN_PAGES}
    assert sorted(state["rank"] for state in server.states()) == RANKS
    assert len({state["namespace"] for state in server.states()}) == 1, "their pages are the same"
    for directory in site.directories:
        assert sorted(path.name for path in directory.iterdir()) == [f"swift-tiers-{rank}.stripe" for rank in RANKS]


def test_a_scrape_tells_them_apart(server: Server) -> None:
    def as_they_say() -> bool:
        found = {}
        for sample in scrape(server)["swift_tiers_hits_total"]:
            found[f"dp{sample.labels['dp_rank']}-tp0", sample.labels["tier"]] = sample.value
        said = {
            (state["rank"], name): tier["hits"] for state in server.states() for name, tier in state["tiers"].items()
        }
        return found == said and all(any(found[rank, tier] for tier in ("host", "ssd")) for rank in RANKS)

    assert wait_for(lambda: as_they_say() or None, PATIENCE)


def test_operators_see_and_steer_both(
    site: Site, server: Server, answers: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    bus = ("--directory", str(site.bus))
    for words in (("inspect", "tiers"), ("inspect", "devices")):
        code, out, error = run_command(capsys, *words, *bus)
        assert code == 0, out + error
        assert all(rank in out for rank in RANKS)
    code, out, error = run_command(capsys, "control", NAME, "flush", "all", *bus)
    assert code == 0, out + error
    assert all(rank in out for rank in RANKS)
    assert [state["directory"]["pages"] for state in server.states()] == [0, 0]


def test_flush_cache_empties_the_memory_of_both(server: Server, answers: list[list[int]]) -> None:
    for replica in (0, 1):
        ask(server, replica, answers)
    assert all(state["tiers"]["host"]["pages"] for state in server.states())
    call(server, "/flush_cache", {})
    wait_memory_empty(server)
    for replica in (0, 1):
        assert set(ask(server, replica, answers)) == {IN_PAGES}, "it is on ssd"


def test_each_finds_its_own_files_after_a_crash(server: Server, answers: list[list[int]]) -> None:
    server.signal_all(signal.SIGKILL)
    server.end()
    server.start()
    server.wait_ready(START_SECONDS)
    server.wait_found(START_SECONDS)
    for replica in (0, 1):
        assert set(ask(server, replica, answers)) == {IN_PAGES}
    assert [state["restores"]["failed_loads"] for state in server.states()] == [0, 0]


def test_one_finds_in_the_remote_tier_what_the_other_has_computed(site: Site, answers: list[list[int]]) -> None:
    shared, empty = site.root / "shared", site.root / "empty"
    shared.mkdir()
    empty.mkdir()
    remote = shared_store("file", {"file_storage_path": str(shared)})
    with replicas(site, "sharing", empty, remote=remote) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        wait_engine(server)

        def sent() -> bool:
            (first,) = [state for state in server.states() if state["rank"] == RANKS[0]]
            return bool(first["links"]["host-remote"]["pages"] >= len(SEEDS) * IN_RUNS // PAGE)

        assert ask(server, 0, answers) == [0] * len(SEEDS)
        assert wait_for(lambda: sent() or None, PATIENCE)
        assert ask(server, 1, answers) == [IN_RUNS] * len(SEEDS)
