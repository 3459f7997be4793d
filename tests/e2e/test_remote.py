"""Real servers that share nothing but an engine: the second one answers from what the first one computed.

By SGLang's `file` engine, which needs nothing installed; with `mooncake` over TCP where its wheel is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swift_tiers.ops.commands.demo.servers import free_ports
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.servers import START_SECONDS, Site, generate, prompt, snapshot, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(900)]

PATIENCE = 120.0
CHILD = "swift_tiers.radix_tiering.tiers.remote.child"
TOKENS = 700
#: In whole runs of 512.
FOUND = 512


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def tiers(site: Site, name: str, engine: str, options: dict[str, Any]) -> dict[str, Any]:
    directory = site.root / f"ssd-{name}"
    directory.mkdir()
    remote = {"engine": engine, "options": options, "admission": "always", "memory": "64MiB", "lookup_deadline": "1s"}
    return {**site.tiers(directory, host="4MiB"), "remote": remote}


def remote_pages(server: Any) -> int:
    return int(snapshot(server)["links"]["host-remote"]["pages"])


@pytest.fixture
def mooncake(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A master and a store node; its options."""
    trial = subprocess.run([sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True)
    if trial.returncode:
        reason = trial.stderr.strip().splitlines()[-1:] or ["it cannot be imported"]
        pytest.skip(f"mooncake: {reason[0]}: pip install 'swift-tiers[remote]', apt-get install libibverbs1")
    master, metrics, http = free_ports(3)
    here = Path(sys.executable).parent
    address = f"127.0.0.1:{master}"
    said = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "master_server_address": address,
    }
    config = tmp_path / "node.json"
    config.write_text(json.dumps({**said, "global_segment_size": "256mb", "local_buffer_size": "16mb"}))
    node = [sys.executable, "-m", "mooncake.mooncake_store_service", "--port", str(http), "--config", str(config)]
    keeper = [str(here / "mooncake_master"), f"--rpc_port={master}", f"--metrics_port={metrics}"]
    with open(tmp_path / "mooncake.log", "w") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log) for command in (keeper, node)]
        try:
            yield {**said, "global_segment_size": 0, "check_server": False}
        finally:
            for one in running[::-1]:
                one.kill()
                one.wait()


def check_two_servers(site: Site, engine: str, options: dict[str, Any], plain: Any) -> None:
    prompts = [prompt(seed, TOKENS) for seed in range(3)]
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
        assert wait_for(lambda: remote_pages(first) >= 3 * FOUND // 16 or None, PATIENCE), snapshot(first)["tiers"][
            "remote"
        ]
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
        tokens, details = generate(second, prompts[2])
        assert tokens == expected[2]
        assert details["remote"] == FOUND
        os.kill(child_of(second), signal.SIGSTOP)
        assert generate(second, prompt(9, TOKENS))[0] == plain.answers([prompt(9, TOKENS)])[0], "its child hangs"
        state = snapshot(second)
        assert state["tiers"]["remote"]["checksum_failures"] == 0
        assert state["restores"]["failed_loads"] == 0


def engine_ready(server: Any) -> bool:
    return snapshot(server)["remote_engine"] == "asked" and bool(child_of(server))


def child_of(server: Any) -> int:
    """The process that the engine lives in; 0 where there is none."""
    found = psutil.Process(server._process.pid).children(recursive=True)
    return next((one.pid for one in found if one.status() != psutil.STATUS_ZOMBIE and CHILD in one.cmdline()), 0)


def test_the_second_server_answers_from_what_the_first_computed(site: Site, plain: Any) -> None:
    directory = site.root / "shared"
    directory.mkdir()
    check_two_servers(site, "file", {"file_storage_path": str(directory)}, plain)


def test_the_same_with_mooncake(site: Site, plain: Any, mooncake: dict[str, Any]) -> None:
    check_two_servers(site, "mooncake", mooncake, plain)
