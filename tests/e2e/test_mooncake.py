"""The remote tier over a real Mooncake Store by TCP, of which one part after the other dies, hangs and comes back.

Whatever becomes of it: no byte that is promised is wrong (`get` compares all of them), no answer comes later than its
deadline and 20 ms, and what is written when all is well again is found. Whole servers: `test_remote.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from swift_tiers.ops.base.remote_engine import WaitedEngine
from swift_tiers.ops.commands.bench import remote
from swift_tiers.ops.commands.bench.report import MISSED
from swift_tiers.ops.commands.demo.store import LocalStore
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.engine import check, close, get, put
from support.forked import run
from support.mooncake import START_SECONDS, StoreServer, Timers, local_store, skip_without_library
from support.remote import RUN, SHAPE, run_of, wait_sent

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

#: How long anything may take that has to happen: a guard, not a measure.
PATIENCE = 120.0
PAGES = 2 * RUN
COMPOSE = Path(__file__).parents[2] / "docs" / "compose"
FILLER = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    skip_without_library()


class Machines(NamedTuple):
    """Two servers that share nothing but a store."""

    store: LocalStore
    first: StoreServer
    second: StoreServer

    def sent(self, name: str, server: StoreServer | None = None) -> Sequence[bytes]:
        """A chain that a server, the first one, has computed and sent."""
        keys, stack = run_of(name), (server or self.first).stack
        put(stack, keys)
        wait_sent(stack)
        assert self.second.tier.shape == SHAPE
        return keys

    def found(self, keys: Sequence[bytes]) -> bool:
        """By the second server, sooner or later: on a busy machine an answer may be too late, and that is a miss."""
        return bool(wait_for(lambda: get(self.second.stack, keys) == PAGES or None, PATIENCE))

    def refused(self, keys: Sequence[bytes]) -> bool:
        """By the second server, as absent or bad, sooner or later. Nothing of it is ever promised."""
        before = self.second.counts.bad + self.second.counts.absent

        def counted() -> bool | None:
            assert get(self.second.stack, keys) == 0
            return self.second.counts.bad + self.second.counts.absent > before or None

        return bool(wait_for(counted, PATIENCE))

    def heals(self, name: str) -> None:
        """When all is well again, what is sent from then on is found."""
        numbers = iter(range(1000))

        def found() -> bool | None:
            for server in (self.first, self.second):
                server.wait_asked()
            keys = self.sent(f"{name} {next(numbers)}")
            return get(self.second.stack, keys) == PAGES or None

        assert wait_for(found, PATIENCE), "nothing is ever found again"
        for server in (self.first, self.second):
            check(server.stack)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with local_store(tmp_path_factory.mktemp("store")) as store:
        made = Machines(store, StoreServer(store), StoreServer(store))
        for server in (made.first, made.second):
            server.wait_ready()
        yield made
        for server in (made.first, made.second):
            close(server.stack)


@pytest.fixture
def in_time(machines: Machines) -> Iterator[None]:
    """No answer is late in this test."""
    servers = [machines.first, machines.second]
    for server in servers:
        server.tier.lateness.clear()  # those of the tests before were late by other timers
    with Timers() as timers:
        yield
    timers.allow(servers)


DRIVES = """
import sys
import numpy as np
from swift_tiers.sglang_ext.remote_driver import open_backend
memory = np.zeros((6, 8192), np.uint8)
memory[:2] = np.random.default_rng(1).integers(0, 256, (2, 8192), np.uint8)
driver = open_backend("mooncake", eval(sys.argv[1]), memory)
assert driver.put(["st1-a", "st1-b"], [0, 1]) == [True, True]
assert driver.exists(["st1-a", "st1-b", "st1-c"]) == 2
assert driver.exists(["st1-c", "st1-a"]) == 0
assert driver.get(["st1-b", "st1-c", "st1-a"], [3, 4, 5]) == [True, False, True]
assert np.array_equal(memory[[3, 5]], memory[[1, 0]])
print("driven", flush=True)
import os
os._exit(0)
"""


def test_the_driver_and_a_store(tmp_path: Path) -> None:
    """What SGLang's driver does with objects, with the real engine."""
    with local_store(tmp_path, nodes=1) as store:
        done = run(DRIVES, repr(store.options))
    assert "driven" in done.stdout, done.stderr


@pytest.mark.exhaustive
def test_the_compose_files_node(tmp_path: Path) -> None:
    """What it runs lends memory to a master."""
    node = yaml.safe_load((COMPOSE / "mooncake-node.yaml").read_text())["services"]["node"]
    python, *code = node["command"]
    assert python == "python"
    with local_store(tmp_path, nodes=0) as store:
        told = {
            "ADDRESS": "127.0.0.1",
            "MASTER": store.master.address,
            "GIB": "0.0625",
            "PROTOCOL": "tcp",
            "DEVICE": "",
        }
        assert node["environment"].keys() == told.keys()
        command = [sys.executable, *code]
        with subprocess.Popen(command, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                assert any(line == "lends 67108864 bytes\n" for line in running.stdout)
                done = run(DRIVES, repr(store.options))
                running.terminate()
                assert running.wait(PATIENCE) == 0
            finally:
                running.kill()
    assert "driven" in done.stdout, done.stderr


@pytest.mark.exhaustive
def test_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert remote.main(["--rounds", "1", "--size", "32"]) in (0, MISSED)
    assert "get_of_client=" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.exhaustive
def test_what_one_wrote_another_reads_though_the_first_is_gone(machines: Machines, in_time: None) -> None:
    third = StoreServer(machines.store)
    third.wait_ready()
    written = third.tier.links["host-remote"].snapshot
    keys = machines.sent("of a third", third)
    assert written().pages == PAGES
    os.kill(third.children[0].pid, signal.SIGKILL)
    close(third.stack)
    assert machines.found(keys)
    assert machines.second.counts.bad == 0


@pytest.mark.exhaustive
def test_nodes_are_killed_and_come_back_empty(machines: Machines, in_time: None) -> None:
    chains = [machines.sent(f"node killed {number}") for number in range(4)]
    machines.store.nodes[0].kill()
    assert get(machines.second.stack, chains[0]) <= PAGES
    machines.store.nodes[0].start()
    assert get(machines.second.stack, chains[1]) <= PAGES
    machines.store.nodes[1].kill()
    assert get(machines.second.stack, chains[2]) == 0, "no node has what it had"
    machines.store.nodes[1].start()
    assert get(machines.second.stack, chains[3]) == 0
    machines.heals("nodes are back")


@pytest.mark.exhaustive
def test_a_node_hangs(machines: Machines, in_time: None) -> None:
    chains = [machines.sent(f"node hangs {number}") for number in range(3)]
    for node in machines.store.nodes:
        node.hang()
    try:
        assert get(machines.second.stack, chains[0]) == 0
        put(machines.first.stack, run_of("while nodes hang"))
        wait_sent(machines.first.stack)
        assert get(machines.second.stack, chains[1]) == 0
    finally:
        for node in machines.store.nodes:
            node.go_on()
    machines.heals("nodes go on")
    get(machines.second.stack, chains[2])


@pytest.mark.exhaustive
def test_the_master_is_killed_and_begins_anew(machines: Machines, in_time: None) -> None:
    chains = [machines.sent(f"master killed {number}") for number in range(3)]
    machines.store.master.kill()
    assert get(machines.second.stack, chains[0]) == 0
    assert get(machines.second.stack, chains[1]) == 0
    machines.store.master.start()
    machines.heals("a new master")
    assert get(machines.second.stack, chains[2]) == 0, "a master that was killed has forgotten everything"


@pytest.mark.exhaustive
def test_the_master_hangs(machines: Machines, in_time: None) -> None:
    chains = [machines.sent(f"master hangs {number}") for number in range(2)]
    machines.store.master.hang()
    try:
        assert get(machines.second.stack, chains[0]) == 0
        assert get(machines.second.stack, chains[1]) == 0
        assert wait_for(lambda: machines.second.counts.breaker != "closed" or None, PATIENCE)
    finally:
        machines.store.master.go_on()
    machines.heals("the master goes on")


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGSTOP])
def test_a_child_dies_or_hangs(machines: Machines, in_time: None, how: signal.Signals) -> None:
    keys = machines.sent(f"a child and {how.name}")
    second = machines.second
    lives = second.counts.lives
    os.kill(second.children[-1].pid, how)
    assert get(second.stack, keys) == 0
    # One that hangs is noticed by what it does not answer.
    assert wait_for(lambda: get(second.stack, run_of("nobody's")) or second.counts.lives > lives or None, PATIENCE), (
        "it is not replaced"
    )
    second.wait_ready()
    machines.heals(f"after {how.name}")


def raw_engine(store: LocalStore, slots: int, stride: int) -> WaitedEngine:
    config = parse_config({"remote": {"engine": "mooncake", "options": store.options}}).remote
    return WaitedEngine(config, slots, stride, START_SECONDS)


@pytest.mark.exhaustive
def test_objects_of_other_sizes(machines: Machines, in_time: None) -> None:
    """Somebody has written something shorter, or longer, under the names of ours; the first writer wins."""
    names = machines.second.tier._worker.names
    for size, what in ((SHAPE.stride // 2, "shorter"), (2 * SHAPE.stride, "longer")):
        keys = run_of(what)
        with raw_engine(machines.store, 4, size) as engine:
            engine.memory[:] = 7
            ends = keys[SHAPE.pages - 1 :: SHAPE.pages]
            objects = [names.name(machines.second.stack.digest, key) for key in ends]
            assert all(engine.ask("put", objects[::2], [0, 1]).done)
        assert machines.sent(what) == keys
        assert machines.refused(keys)
    machines.heals("sizes are right")


@pytest.mark.exhaustive
def test_more_than_fits(machines: Machines, in_time: None) -> None:
    """The engine evicts while all write and read; what is still there is right, and what is not is a miss."""
    chains = [machines.sent(f"before {number}") for number in range(6)]
    with raw_engine(machines.store, 8, FILLER) as engine:
        engine.memory[:] = np.random.default_rng(2).integers(0, 256, engine.memory.shape, np.uint8)
        numbers, taken = iter(range(10_000)), []

        def overfull() -> bool | None:  # what was asked for just now stays, and may fill the nodes for a while
            number = next(numbers)
            taken.extend(engine.ask("put", [f"filler-{number}-{slot}" for slot in range(8)], list(range(8))).done)
            if number % 4 == 0:
                get(machines.second.stack, chains[number // 4 % len(chains)])
                machines.sent(f"meanwhile {number}")
            return sum(taken) >= 96 or None  # half as much again as the nodes have

        assert wait_for(overfull, PATIENCE), "nothing is evicted"
    machines.heals("evicted")
