"""One reader for several threads: who opens it, who gives it up, and who closes it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swift_tiers.console.feeds.common_reader import CommonReader
from swift_tiers.console.feeds.feed import ViewQuestion
from swift_tiers.console.feeds.live import LiveFeed
from swift_tiers.radix_tiering.base.errors import BusError, RedisFaultError, RedisRefusedError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.commands import Flush
from swift_tiers.radix_tiering.bus.contract.views import CommandView, Snapshot
from swift_tiers.radix_tiering.bus.hear.reader import BusReader

from support.bus import HandWritten
from support.redis import PATIENCE, RealRedis, wait_for


class Reader:
    """Looks fail as they are told to; a command waits until it is let go on."""

    def __init__(self) -> None:
        self.fault: BusError | None = None
        self.closed = False
        self.commanded, self.go_on = threading.Event(), threading.Event()

    def snapshot(self, **_: object) -> Snapshot:
        if self.fault is not None:
            raise self.fault
        return Snapshot(time=1.0, servers=())

    def newest_entries(self, servers: object) -> dict[str, str]:
        return {}

    def command(self, *_: object) -> CommandView:
        self.commanded.set()
        assert self.go_on.wait(PATIENCE)
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return CommandView(server="alpha", id="c-1", state="done")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """Those that were opened, oldest first."""
    opened: list[Reader] = []

    def open_reader(*_: object) -> Reader:
        opened.append(Reader())
        return opened[-1]

    monkeypatch.setattr(BusReader, "open", open_reader)
    return opened


def live() -> LiveFeed:
    return LiveFeed(parse_config({"bus": {"url": "redis://none"}}).bus, "ann@box", steers=True)


def test_a_command_keeps_its_reader_while_a_look_finds_that_redis_has_failed(readers: list[Reader]) -> None:
    feed = live()
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(feed.command, "alpha", Flush())
        first = wait_for(lambda: readers and readers[0])
        assert first.commanded.wait(PATIENCE)
        first.fault = RedisFaultError("no answer within 1 s")
        with pytest.raises(RedisFaultError):
            feed.look()
        assert feed.look().snapshot.time == 1.0, "by another one"
        assert len(readers) == 2
        assert not first.closed, "the command still waits"
        first.go_on.set()
        assert command.result(PATIENCE).state == "done"
    assert first.closed
    assert not readers[1].closed
    feed.close()
    assert readers[1].closed


def test_what_a_server_cannot_answer_is_no_fault_of_redis(readers: list[Reader]) -> None:
    feed = live()
    feed.look()
    readers[0].fault = BusError("server beta: is gone; alive are: alpha")
    with pytest.raises(BusError):
        feed.look()
    readers[0].fault = None
    feed.look()
    assert len(readers) == 1
    assert not readers[0].closed


@pytest.mark.parametrize("fault", [RedisFaultError("gone"), RedisRefusedError("is a replica")])
def test_after_a_fault_the_next_one_is_opened_and_the_former_closed(readers: list[Reader], fault: BusError) -> None:
    common = CommonReader(lambda: BusReader.open(parse_config({}).bus))
    with pytest.raises(RedisFaultError), common.use():
        raise fault
    assert readers[0].closed
    with common.use() as second:
        assert second is readers[1]
        common.close()
        assert not readers[1].closed, "it is used"
    assert readers[1].closed


def test_a_question_to_a_server_that_is_gone_leaves_the_connection_alone() -> None:
    with RealRedis() as server:
        HandWritten(server.client(), "alpha").write()
        feed = LiveFeed(parse_config({"bus": {"url": server.url}}).bus, "ann@box", steers=True)

        def connections() -> set[str]:
            clients: list[dict[str, str]] = server.admin.client_list()  # type: ignore[assignment]
            return {client["id"] for client in clients if client["name"] == "swift-tiers:console"}

        feed.look()
        before = connections()
        with pytest.raises(BusError, match="server beta: is not known here"):
            feed.ask(ViewQuestion("map", "host", "beta"))
        feed.look()
        assert connections() == before != set()
        server.kill()
        with pytest.raises(RedisFaultError):
            feed.look()
        feed.close()
