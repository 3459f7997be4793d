"""The demo's view of its own bus, against a real Redis and a server's hand-written words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.demo import bus as module
from swift_tiers.ops.commands.demo.bus import RANK, SERVER, DemoBus
from swift_tiers.radix_tiering.bus.contract.schema import SCHEMA_VERSION, Keys

KEYS = Keys("swift")


class Writer:
    """What a server says, as far as the demo reads it."""

    def __init__(self, bus: DemoBus) -> None:
        self.client = redis.Redis(unix_socket_path=str(bus.socket), decode_responses=True)
        self.client.set(KEYS.of("schema"), str(SCHEMA_VERSION))
        self.client.zadd(KEYS.of("servers"), {SERVER: time.time()})
        self.client.hset(KEYS.of("info", server=SERVER), mapping={"time": time.time(), "ranks": RANK})

    def state(self, queued: int, when: float) -> None:
        self.client.hset(KEYS.of("rank", server=SERVER, rank=RANK), mapping={"time": when, "write_queue_pages": queued})
        self.client.hset(
            KEYS.of("tier", server=SERVER, rank=RANK, tier="host"), mapping={"time": when, "bytes_read": 7}
        )

    def request(self, rid: str, **fields: object) -> None:
        self.client.zadd(KEYS.of("requests", server=SERVER, rank=RANK), {rid: time.time()})
        self.client.hset(KEYS.of("request", server=SERVER, rank=RANK, rid=rid), mapping=fields)  # type: ignore[arg-type]


@pytest.fixture
def bus() -> Iterator[DemoBus]:
    with DemoBus() as one:
        yield one


def test_settling_waits_for_a_state_of_now_without_writes_under_way(bus: DemoBus) -> None:
    writer = Writer(bus)
    writer.state(queued=0, when=time.time() - 5)  # from before: says nothing about now
    said: list[int] = []

    def write() -> None:
        for queued in (3, 1, 0):
            time.sleep(0.1)
            writer.state(queued, time.time() + 60)
            said.append(queued)

    thread = threading.Thread(target=write)
    thread.start()
    state = bus.settled()
    assert said[:2] == [3, 1]
    assert state.rank is not None
    assert state.rank.write_queue_pages == 0
    assert [tier.bytes_read for tier in state.tiers] == [7]
    thread.join()


def test_a_server_that_says_nothing_is_an_error_and_one_that_is_busy_is_taken_as_it_is(
    bus: DemoBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(CommandError, match="says nothing"):
        bus.settled()
    writer = Writer(bus)
    writer.state(queued=3, when=time.time() + 60)
    state = bus.settled()
    assert state.rank is not None
    assert state.rank.write_queue_pages == 3
    writer.request("turn-1", state="running")
    with pytest.raises(CommandError, match="how request turn-1 ended"):
        bus.request("turn-1")


def test_a_request_is_waited_for_until_it_has_ended(bus: DemoBus) -> None:
    writer = Writer(bus)
    writer.request("turn-1", state="running", host_tokens=0)
    timer = threading.Timer(
        0.2, writer.request, ("turn-1",), {"state": "finished", "host_tokens": 64, "ended": time.time()}
    )
    timer.start()
    view = bus.request("turn-1")
    assert (view.state, view.host_tokens) == ("finished", 64)
    timer.join()


def test_the_lines_to_try_print_what_the_bus_says(bus: DemoBus) -> None:
    writer = Writer(bus)
    writer.request("turn-1", state="finished", host_tokens=64, ended=1)
    tried = bus.try_lines("turn-1")
    assert len(tried) == 3
    assert tried[0].output == ["turn-1"]
    assert "host_tokens 64" in tried[1].output
    for one in tried:
        assert str(bus.socket) in one.line


def test_nothing_of_it_is_left() -> None:
    with DemoBus() as bus:
        folder = Path(bus.settings["directory"])
        assert bus.socket.exists()
    assert not folder.exists()
