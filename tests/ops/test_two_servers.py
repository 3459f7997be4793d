"""The machinery of benches with two servers: one stands still while the other works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_tiers.ops.commands.bench.two_servers import BenchServer
from swift_tiers.ops.commands.demo.servers import ServerError

from support.redis import wait_for


class Busy(BenchServer):
    """Not a server: two processes that do nothing but be there."""

    @property
    def command(self) -> list[str]:
        child = "import time; time.sleep(600)"
        parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
        return [sys.executable, "-c", parent]

    def states(self) -> str:
        """Of all its processes, one letter each, as the kernel calls them."""
        assert self._process is not None
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[2]) == self._process.pid:
                found.append(fields[0])
        return "".join(found)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Busy]:
    with Busy("busy", [], 1, tmp_path / "log") as server:
        server.start()
        # A process that is stopped while it starts another cannot be stopped before that one goes on (vfork).
        wait_for(lambda: server.states() == "SS", "both processes, at rest")
        yield server


def test_all_its_processes_stand_still_but_when_awake(server: Busy) -> None:
    with server.asleep():
        wait_for(lambda: server.states() == "TT", "both to stop")
        with server.awake():
            wait_for(lambda: "T" not in server.states(), "both to go on")
        wait_for(lambda: server.states() == "TT", "both to stop again")
    wait_for(lambda: "T" not in server.states(), "both to go on for good")


def test_it_goes_on_after_a_failure(server: Busy) -> None:
    with pytest.raises(ValueError, match="while asleep"), server.asleep(), server.awake():
        raise ValueError("while asleep")
    wait_for(lambda: "T" not in server.states(), "both to go on")


def test_one_that_has_ended_is_an_error(server: Busy) -> None:
    server.stop()
    with pytest.raises(ServerError, match="ended by itself"), server.asleep():
        pass
