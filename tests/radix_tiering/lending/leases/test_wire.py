"""Letters over real sockets: who may send, what is ignored and counted, and what a place to listen must be like."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import zmq
import zmq.auth

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.lending.leases import (
    Borrower,
    Donor,
    Extent,
    LeaseService,
    Letter,
    Party,
    RunState,
    Timing,
    ipc_address,
)
from swift_tiers.radix_tiering.lending.leases.effects import (
    DonorJoined,
    DonorLeft,
    DonorRefused,
    LeaseBegan,
    LeaseEnded,
    Reclaimed,
    Send,
)
from swift_tiers.radix_tiering.lending.leases.messages import (
    MAX_LETTER_BYTES,
    VERSION,
    Heartbeat,
    Hello,
    Reason,
    Refuse,
    Return,
    VersionError,
    decode,
    encode,
)
from swift_tiers.radix_tiering.lending.leases.wire import FromBorrower
from swift_tiers.radix_tiering.lending.leases.zmq_wire import MAX_FRAME_BYTES, MAX_ROUTES, QUEUED_LETTERS, ZmqWire

from support.redis import wait_for

PAGE = 4096
#: On either side so long that no lease ends, and no request is given up, because a machine is slow.
TIMING = Timing(term=300.0)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="swift-lease-") as name:
        yield Path(name)


class Servers:
    """Services that end with the test, and what they were told."""

    def __init__(self) -> None:
        self.running: list[LeaseService] = []
        self.heard: dict[str, deque[Any]] = {}

    def donor(self, address: str, *, runs: int = 1, name: str = "d") -> LeaseService:
        donor = Donor(name, PAGE, Random(os.urandom(8)), timing=TIMING)
        heard = self.heard.setdefault(name, deque())
        service = LeaseService(donor=donor, listen=address, on_donor=heard.append)
        self.running.append(service)
        for run in range(1, runs + 1):
            service.stock(run, [Extent(0, run * PAGE, PAGE)])
            service.fenced(run)
        return service

    def borrower(self, address: str, *, name: str = "b") -> LeaseService:
        borrower = Borrower(name, PAGE, Random(os.urandom(8)), timing=TIMING)
        heard = self.heard.setdefault(name, deque())
        service = LeaseService(borrower=borrower, on_borrower=heard.append)
        self.running.append(service)
        service.connect("d", address)
        return service

    def told(self, name: str, kind: type) -> list[Any]:
        return [effect for effect in list(self.heard[name]) if isinstance(effect, kind)]


@pytest.fixture
def servers() -> Iterator[Servers]:
    opened = Servers()
    yield opened
    for service in opened.running:
        service.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "swift-lease"]


class Stranger:
    """Somebody of the same user who knows ZeroMQ and the address, and has no manners."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 1000
        self.socket.connect(address)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.context.term()

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def hear(self) -> bytes:
        assert self.socket.poll(60_000), "nobody answers"
        return self.socket.recv()


def count(service: LeaseService, name: str) -> Callable[[], int]:
    return lambda: service.counters.get(name, 0)


def test_two_services_in_one_process(directory: Path, servers: Servers) -> None:
    address = ipc_address(directory, "d")
    donor = servers.donor(address, runs=2)
    borrower = servers.borrower(address)
    borrower.want(2 * PAGE)
    wait_for(lambda: len(servers.told("b", LeaseBegan)) == 2)
    key = servers.told("b", LeaseBegan)[0].key
    ticket = borrower.check_before(key)
    assert ticket is not None
    assert borrower.check_after(ticket)
    assert donor.holds(donor.leases()[0].borrower, key.lease)
    borrower.release(key)
    wait_for(lambda: donor.bytes_in(RunState.LENT) == PAGE)
    borrower.disconnect("d")
    wait_for(lambda: donor.bytes_in(RunState.LENT) == 0)
    assert borrower.check_before(key) is None
    wait_for(lambda: servers.told("b", DonorLeft))  # the donor has its memory before it can have said so
    borrower.connect("d", address)
    wait_for(lambda: len(servers.told("b", DonorJoined)) == 2)


def test_a_recalled_lease_is_returned_long_before_its_term_ends(directory: Path, servers: Servers) -> None:
    """By the borrower's own clock, though nobody there does anything about it. How soon, the simulated world says."""
    address = ipc_address(directory, "d")
    donor = servers.donor(address)
    servers.borrower(address).want(PAGE)
    wait_for(lambda: servers.told("b", LeaseBegan))
    donor.withdraw(PAGE)
    wait_for(lambda: donor.bytes_in(RunState.LENT, RunState.RECALLED) == 0)
    assert [effect.back.value for effect in servers.told("d", Reclaimed)] == ["returned"]
    assert [effect.ended.value for effect in servers.told("b", LeaseEnded)] == ["recalled"]


def test_garbage_is_counted_and_disturbs_nobody(directory: Path, servers: Servers) -> None:
    address = ipc_address(directory, "d")
    donor = servers.donor(address)
    borrower = servers.borrower(address)
    borrower.want(PAGE)
    wait_for(lambda: servers.told("b", LeaseBegan))
    with Stranger(address) as stranger:
        for garbage in (b"", b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000)):
            stranger.say(garbage)
        stranger.say(b"one", b"two")
        wait_for(lambda: count(donor, "garbled")() == 5)
        stranger.say(bytes(MAX_LETTER_BYTES + 1))
        wait_for(lambda: count(donor, "oversized")() == 1)
        # More than a frame may have: ZeroMQ ends the connection.
        stranger.say(bytes(MAX_FRAME_BYTES + 1))
    with Stranger(address) as another:
        another.say(b"\xc1")
        wait_for(lambda: count(donor, "garbled")() == 6)
    assert count(donor, "oversized")() == 1
    (view,) = donor.leases()
    assert view.state == "lent"
    key = servers.told("b", LeaseBegan)[0].key
    ticket = borrower.check_before(key)
    assert ticket is not None
    assert borrower.check_after(ticket)
    assert count(donor, "faults")() == 0


def test_nobody_speaks_in_another_process_name(directory: Path, servers: Servers) -> None:
    """A stranger that knows party, epoch and lease cannot return it."""
    address = ipc_address(directory, "d")
    donor = servers.donor(address)
    servers.borrower(address).want(PAGE)
    wait_for(lambda: servers.told("b", LeaseBegan))
    (view,) = donor.leases()
    forged = encode(Letter(view.borrower, view.donor.epoch, Return((view.lease,))))
    program = (
        "import sys, zmq\ncontext = zmq.Context()\nsocket = context.socket(zmq.DEALER)\n"
        "socket.connect(sys.argv[1])\nsocket.send(bytes.fromhex(sys.argv[2]))\nsocket.close(60000)\ncontext.term()\n"
    )
    subprocess.run([sys.executable, "-c", program, address, forged.hex()], check=True)
    wait_for(lambda: count(donor, "strangers")() == 1)
    assert donor.bytes_in(RunState.LENT) == PAGE


def test_another_user_is_a_stranger(directory: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who sends. That it is another user is played by being another one ourselves."""
    address = ipc_address(directory, "d")
    donor = servers.donor(address)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with Stranger(address) as stranger:
        stranger.say(encode(Letter(Party("b", 5), 0, Hello(1, PAGE))))
        wait_for(lambda: count(donor, "strangers")() == 1)
    assert count(donor, "received")() == 0
    monkeypatch.undo()


def test_another_version_is_refused_by_name(directory: Path, servers: Servers) -> None:
    address = ipc_address(directory, "d")
    donor = servers.donor(address)
    newer = msgspec.msgpack.encode([VERSION + 1, "b", 5, 0, {"type": "hello", "and": "more"}])
    with Stranger(address) as stranger:
        stranger.say(newer)
        answer = decode(stranger.hear())
    assert answer.body == Refuse(0, Reason.VERSION)
    assert answer.sender.name == "d"
    assert count(donor, "other version")() == 1


def test_a_donor_of_another_version_is_named(directory: Path, servers: Servers) -> None:
    address = ipc_address(directory, "d")
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(address)
    try:
        servers.borrower(address)
        identity, hello = router.recv_multipart()
        assert isinstance(decode(hello).body, Hello)
        newer = msgspec.msgpack.encode([VERSION + 1, "d", 5, 0, {"type": "refuse", "nonce": 0, "reason": "version"}])
        router.send_multipart([identity, newer])
        wait_for(lambda: servers.told("b", DonorRefused))
        (refused,) = servers.told("b", DonorRefused)
        assert "d speaks version 2 of the lease protocol, this server version 1; run the same release" in refused.reason
        with pytest.raises(VersionError):
            decode(newer)
    finally:
        router.close(0)
        context.term()


def test_letters_to_who_does_not_read_are_dropped_not_kept(directory: Path) -> None:
    wire = ZmqWire()
    context = zmq.Context()
    silent = context.socket(zmq.DEALER)
    silent.rcvhwm = 1
    try:
        donor, borrower = Party("d", 1), Party("b", 2)
        wire.listen(ipc_address(directory, "d"), donor)
        letter = Letter(donor, 2, Heartbeat(0))
        wire.send(Send(borrower, letter))
        wire.send(Send("nobody", letter))
        assert wire.counters["dropped"] == 2, "there is no way to them"
        silent.connect(ipc_address(directory, "d"))
        silent.send(encode(Letter(borrower, 0, Hello(1, PAGE))))
        assert wait_for(lambda: wire.wait(0.1))
        start = time.monotonic()
        big = Letter(donor, 2, Return(tuple(range(2**60, 2**60 + 1000))))
        for _ in range(200 * QUEUED_LETTERS):
            wire.send(Send(borrower, big))
        assert wire.counters["dropped"] > 100 * QUEUED_LETTERS
        assert time.monotonic() - start < 20, "sending waits for nobody"
    finally:
        silent.close(0)
        context.term()
        wire.close()


def test_ways_to_borrowers_are_bounded(directory: Path) -> None:
    wire = ZmqWire()
    try:
        wire.listen(ipc_address(directory, "d"), Party("d", 1))
        events: list[Any] = []
        with Stranger(ipc_address(directory, "d")) as stranger:
            for number in range(1, MAX_ROUTES + 50):
                stranger.say(encode(Letter(Party("b", number), 0, Hello(1, PAGE))))
                wait_for(lambda: events.extend(wire.wait(0.1)) or len(events) == number)  # noqa: B023
            assert all(isinstance(event, FromBorrower) for event in events)
            wire.send(Send(Party("b", 1), Letter(Party("d", 1), 1, Heartbeat(0))))
            assert wire.counters["dropped"] == 1, "the way to the first is forgotten"
            wire.send(Send(Party("b", MAX_ROUTES), Letter(Party("d", 1), MAX_ROUTES, Heartbeat(0))))
            assert decode(stranger.hear()).receiver_epoch == MAX_ROUTES
    finally:
        wire.close()


def test_the_socket_is_the_users_alone(directory: Path, servers: Servers) -> None:
    servers.donor(ipc_address(directory / "new", "d"))
    assert stat.S_IMODE((directory / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "new" / "d.lease").stat().st_mode) == 0o600
    servers.running.pop().close()
    assert not (directory / "new" / "d.lease").exists()


def test_a_directory_that_others_can_reach_is_refused(directory: Path) -> None:
    directory.chmod(0o755)
    address = ipc_address(directory, "d")
    with pytest.raises(ConfigError, match=r"open to others \(mode 0755\); run `chmod 700`"):
        LeaseService(donor=Donor("d", PAGE, Random(1)), listen=address)
    borrower = LeaseService(borrower=Borrower("b", PAGE, Random(1)))
    try:
        with pytest.raises(ConfigError, match="chmod 700"):
            borrower.connect("d", address)
    finally:
        borrower.close()
    directory.chmod(0o700)
    (directory / "link").symlink_to(directory)
    with pytest.raises(ConfigError, match="is not a directory"):
        LeaseService(donor=Donor("d", PAGE, Random(1)), listen=ipc_address(directory / "link", "d"))


def test_two_donors_cannot_share_an_address(directory: Path, servers: Servers) -> None:
    address = ipc_address(directory, "d")
    servers.donor(address)
    with pytest.raises(ConfigError, match="another server listens"):
        servers.donor(address)
    servers.running.pop().close()
    servers.donor(address)


@pytest.mark.parametrize(
    ("name", "message"), [("a/b", "cannot name a socket"), ("", "cannot name"), ("x" * 120, "too long for a socket")]
)
def test_names_that_cannot_be_sockets(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ipc_address("/tmp", name)


@pytest.mark.parametrize("address", ["ipc://relative", "tcp://127.0.0.1:5555", "udp://1.2.3.4:5", "tcp://host", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="is not ipc:///PATH"):
        LeaseService(donor=Donor("d", PAGE, Random(1)), listen=address)


def test_a_step_that_fails_ends_nothing(directory: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ipc_address(directory, "d")
    donor = servers.donor(address, runs=2)
    borrower = servers.borrower(address)
    borrower.want(PAGE)
    wait_for(lambda: servers.told("b", LeaseBegan))

    def broken(self: Donor, letter: Letter, now: float) -> list[Any]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Donor, "receive", broken)
        wait_for(lambda: count(donor, "faults")() > 0)
    borrower.want(2 * PAGE)
    wait_for(lambda: len(servers.told("b", LeaseBegan)) == 2)


def test_what_a_server_does_not_do(directory: Path, servers: Servers) -> None:
    donor = servers.donor(ipc_address(directory, "d"))
    borrower = servers.borrower(ipc_address(directory, "d"))
    with pytest.raises(ValueError, match="does not lend"):
        borrower.withdraw(1)
    with pytest.raises(ValueError, match="does not borrow"):
        donor.want(1)
    with pytest.raises(ValueError, match="connected already"):
        borrower.connect("d", ipc_address(directory, "d"))
    with pytest.raises(ValueError, match="nothing to do"):
        LeaseService()
    assert donor.close()
    assert donor.close()
    donor.withdraw(1)
    assert borrower.close()
    with pytest.raises(ValueError, match="any more"):
        borrower.connect("e", ipc_address(directory, "e"))


def test_closing_ends_a_way_to_a_donor_that_no_round_has_come_to(directory: Path) -> None:
    class Broken(ZmqWire):
        def wait(self, seconds: float) -> list[Any]:
            raise RuntimeError("planted")

    service = LeaseService(borrower=Borrower("b", PAGE, Random(1)), wire=Broken())
    service.connect("d", ipc_address(directory, "d"))
    closing = threading.Thread(target=service.close, daemon=True)
    closing.start()
    wait_for(lambda: not closing.is_alive(), "the service to end")


def test_a_round_that_fails_is_followed_by_another(
    directory: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = servers.donor(ipc_address(directory, "d"))

    def broken(self: ZmqWire, seconds: float) -> list[Any]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(ZmqWire, "wait", broken)
        donor.set_limit(None)
        wait_for(lambda: count(donor, "faults")() > 0)
    servers.borrower(ipc_address(directory, "d")).want(PAGE)
    wait_for(lambda: servers.told("b", LeaseBegan))
