"""A donor's memory handed out over a real socket, pages stored there, and what is refused, ignored and given up."""

from __future__ import annotations

import errno
import gc
import os
import random
import select
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.lending import leases as leases_module
from swift_tiers.radix_tiering.lending.donation import arena_client, arena_server, pace
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_client import ArenaClient
from swift_tiers.radix_tiering.lending.donation.arena_guest import MAX_WAITING
from swift_tiers.radix_tiering.lending.donation.arena_messages import (
    MAX_PACKET_BYTES,
    MAX_STORES,
    VERSION,
    Attach,
    Refused,
    Store,
    Stored,
    Stores,
    decode_donors,
    encode,
)
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.arena_socket import arena_path, packet_socket, receive, send
from swift_tiers.radix_tiering.lending.donation.extents import CutRun
from swift_tiers.radix_tiering.lending.leases import Extent, Party, ipc_address
from swift_tiers.radix_tiering.lending.leases.runs import HeldRun
from swift_tiers.radix_tiering.lending.leases.service import LeaseService

from support.redis import wait_for
from support.threads import WatchedLock

PAGE = 8192
PAGES = 16
OWN = 0xDD
BORROWER = Party("b", 7)
#: Of the run of lease 0; those of others follow.
RUN_NUMBER = 40
#: The run of lease 1: four pages, in pieces that are no pages.
RUN = (Extent(0, 3 * PAGE, PAGE // 2), Extent(0, 8 * PAGE, 3 * PAGE), Extent(0, 5 * PAGE, PAGE // 2))


class Donor:
    """A server with one arena, and what it has lent to whom."""

    def __init__(self, directory: Path, kind: type[ArenaServer] = ArenaServer, **options: Any) -> None:
        self.address = ipc_address(directory, "d")
        path = arena_path(self.address)
        assert path is not None
        self.path = path
        self.arena = SharedArena(PAGES * PAGE)
        self.arena.array[:] = OWN
        self.lent: dict[tuple[Party, int], tuple[Extent, ...]] = {(BORROWER, 1): RUN}
        self.server = kind(self.address, Party("d", 1), self.arena, self._lent_to, **options)

    def _lent_to(self, party: Party, lease: int) -> HeldRun | None:
        extents = self.lent.get((party, lease))
        return HeldRun(RUN_NUMBER + lease, extents) if extents else None

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.server.counters)

    def close(self) -> None:
        self.server.close()
        unmap(self.arena)


class Caller:
    """A client and its staging memory; waits, as no server may."""

    def __init__(self, donor: Donor, party: Party = BORROWER) -> None:
        self.staging = SharedArena(4 * PAGE)
        self.client = ArenaClient(donor.path, "d", party, PAGE, self.staging)
        self.answers: list[Stored] = []
        wait_for(lambda: self.handle() and (self.client.arena is not None or self.client.ended), "the donor's answer")

    def handle(self) -> bool:
        """Take what comes within a moment."""
        poll = select.poll()
        if not self.client.ended:
            poll.register(self.client.descriptor, self.client.interest)
            if poll.poll(5):
                self.answers += self.client.handle()
        return True

    def stage(self, place: int, value: int) -> None:
        self.staging.array[place * PAGE : (place + 1) * PAGE] = value

    def ask(self, *stores: Store) -> list[bool]:
        """What became of each."""
        self.client.store(list(stores))
        wait_for(lambda: self.handle() and len(self.answers) >= len(stores), "the answers")
        answers, self.answers = self.answers, []
        assert [answer.number for answer in answers] == [store.number for store in stores]
        return [answer.ok for answer in answers]

    def read(self, slot: int) -> list[int]:
        """The different bytes of a page of lease 1."""
        into = np.zeros(PAGE, np.uint8)
        self.client.copy(CutRun(RUN, PAGE), slot, into)
        return sorted(set(into.tolist()))

    def close(self) -> None:
        self.client.end("closed")
        unmap(self.staging)


def unmap(arena: SharedArena) -> None:
    """A mapping has a descriptor of its own, and stays while its array is referred to."""
    arena.close()
    arena.array = np.empty(0, np.uint8)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="swift-arena-") as name:
        yield Path(name)


@pytest.fixture
def open_things() -> Iterator[list[Any]]:
    """What is closed after the test, last first; nothing may be left then."""
    gc.collect()  # mappings of former tests
    before = len(os.listdir("/proc/self/fd"))
    opened: list[Any] = []
    yield opened
    for thing in reversed(opened):
        thing.close()
    opened.clear()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "swift-arena"]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def donor(directory: Path, open_things: list[Any]) -> Donor:
    made = Donor(directory)
    open_things.append(made)
    return made


@pytest.fixture
def caller(donor: Donor, open_things: list[Any]) -> Caller:
    made = Caller(donor)
    open_things.append(made)
    return made


def test_pages_are_stored_by_the_donor_and_read_straight_from_its_memory(donor: Donor, caller: Caller) -> None:
    assert caller.client.party == Party("d", 1)
    assert caller.client.bandwidth is None
    for place in range(4):
        caller.stage(place, 10 + place)
    assert caller.ask(*(Store(place, 1, 3 - place, place * PAGE) for place in range(4))) == [True] * 4
    assert [caller.read(slot) for slot in range(4)] == [[13], [12], [11], [10]]
    mine = np.ones(PAGES * PAGE, bool)
    for extent in RUN:
        mine[extent.offset : extent.offset + extent.length] = False
    assert (donor.arena.array[mine] == OWN).all(), "something else than the run was written to"


def test_only_whole_pages_of_leases_that_are_held_are_stored(donor: Donor, caller: Caller) -> None:
    caller.stage(0, 1)
    refused = [
        Store(1, 2, 0, 0),  # no such lease
        Store(2, 1, 4, 0),  # a slot too far
        Store(3, 1, 0, 3 * PAGE + 1),  # beyond the staging memory
        Store(4, 1, 0, 2**62),
    ]
    assert caller.ask(*refused) == [False] * 4
    donor.lent[Party("b", 8), 3] = RUN  # another life's
    donor.lent[BORROWER, 4] = (Extent(0, 0, PAGE - 1),)  # holds no page of ours
    assert caller.ask(Store(5, 3, 0, 0), Store(6, 4, 0, 0)) == [False] * 2
    assert (donor.arena.array == OWN).all()
    assert caller.ask(Store(7, 1, 0, 0)) == [True]
    assert donor.counters == {"attached": 1, "refused": 6, "stored": 1}


def test_a_run_outside_of_the_donors_memory_is_told(donor: Donor, caller: Caller) -> None:
    assert caller.client.has(CutRun(RUN, PAGE))
    assert not caller.client.has(CutRun((Extent(1, 0, PAGE),), PAGE))
    assert not caller.client.has(CutRun((Extent(0, (PAGES - 1) * PAGE + 1, PAGE),), PAGE))


class SlowServer(ArenaServer):
    """Stops before each copy, after it has asked whether the lease is held."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        super().__init__(*arguments, **options)

    def _copy(self, *arguments: Any) -> None:
        self.begun.release()
        assert self.go_on.acquire(timeout=60)
        super()._copy(*arguments)


@pytest.fixture
def slow(directory: Path, open_things: list[Any]) -> tuple[Donor, SlowServer, Caller]:
    donor = Donor(directory, SlowServer)
    open_things.append(donor)
    assert isinstance(donor.server, SlowServer)
    caller = Caller(donor)
    open_things.append(caller)
    caller.stage(0, 1)
    return donor, donor.server, caller


def test_memory_that_came_back_changes_no_more_once_the_copy_under_way_has_ended(
    slow: tuple[Donor, SlowServer, Caller],
) -> None:
    donor, server, caller = slow
    assert not server.copying()
    assert server.copying_seconds == 0.0
    caller.client.store([Store(number, 1, number, 0) for number in range(4)])
    assert server.begun.acquire(timeout=60)
    donor.lent.clear()  # while it copies
    assert server.copying() == {RUN_NUMBER + 1}, "the others are the donor's already"
    assert server.copying_seconds > 0.0
    server.go_on.release(4)
    wait_for(lambda: not server.copying(), "the copy under way to end")
    # The memory is the donor's own again, whatever the borrower has asked for before.
    donor.arena.array[:] = OWN
    wait_for(lambda: caller.handle() and len(caller.answers) == 4)
    assert [answer.ok for answer in caller.answers] == [True, False, False, False]
    assert (donor.arena.array == OWN).all()


def test_the_copy_under_way_is_over_whatever_is_copied_next(slow: tuple[Donor, SlowServer, Caller]) -> None:
    donor, server, caller = slow
    donor.lent[BORROWER, 2] = (Extent(0, 0, PAGE),)
    caller.client.store([Store(1, 1, 0, 0), Store(2, 2, 0, 0)])
    assert server.begun.acquire(timeout=60)
    assert server.copying() == {RUN_NUMBER + 1}
    server.go_on.release()
    assert server.begun.acquire(timeout=60)
    assert server.copying() == {RUN_NUMBER + 2}
    assert not caller.answers
    server.go_on.release()


def test_a_new_connection_of_the_same_party_ends_the_former_one(directory: Path, open_things: list[Any]) -> None:
    donor = Donor(directory, bandwidth=1.0)  # one page, and then no more for hours
    open_things.append(donor)
    former = Caller(donor)
    open_things.append(former)
    former.stage(0, 1)
    former.client.store([Store(1, 1, 0, 0), Store(2, 1, 1, 0)])
    wait_for(lambda: former.handle() and former.answers)
    latter = Caller(donor)
    open_things.append(latter)
    latter.stage(0, 2)
    assert latter.ask(Store(1, 1, 1, 0)) == [True]
    wait_for(lambda: former.handle() and former.client.ended)
    assert latter.read(1) == [2]
    assert donor.counters["stored"] == 2
    assert donor.server.guests == [BORROWER]


def test_each_borrower_is_kept_to_the_bandwidth_on_its_own(directory: Path, open_things: list[Any]) -> None:
    donor = Donor(directory, bandwidth=1.0)
    open_things.append(donor)
    others = [Party(name, 1) for name in ("x", "y")]
    for other in others:
        donor.lent[other, 1] = RUN
    greedy = Caller(donor, others[0])
    open_things.append(greedy)
    assert greedy.client.bandwidth == 1.0
    greedy.client.store([Store(1, 1, 0, 0), Store(2, 1, 1, 0)])
    wait_for(lambda: greedy.handle() and greedy.answers)
    modest = Caller(donor, others[1])
    open_things.append(modest)
    assert modest.ask(Store(1, 1, 2, 0)) == [True]
    greedy.handle()
    assert [answer.number for answer in greedy.answers] == [1]


def test_while_the_donor_computes_all_borrowers_share_a_part_of_the_time(
    directory: Path, open_things: list[Any]
) -> None:
    donor = Donor(directory, interference=0.08)
    open_things.append(donor)
    first = Caller(donor, Party("x", 1))
    open_things.append(first)
    assert first.client.share is None
    donor.server.computing(True)
    # As much again is left for what the donor does for them.
    wait_for(lambda: first.handle() and first.client.share == 0.04, "the word for it")
    second = Caller(donor, Party("y", 1))
    open_things.append(second)
    for caller in (first, second):
        wait_for(lambda caller=caller: caller.handle() and caller.client.share == 0.02, "each one's part")
    second.client.end("goes")
    wait_for(lambda: first.handle() and first.client.share == 0.04, "the whole part")
    donor.server.computing(False)
    wait_for(lambda: first.handle() and first.client.share is None, "the end of it")
    assert first.client.counters == {}


def test_what_stores_cost_the_donor_is_kept_to_its_part_too(
    directory: Path, open_things: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "REST_SECONDS", 1e6)
    donor = Donor(directory, interference=1e-9)  # one page, and then no more for hours
    open_things.append(donor)
    caller = Caller(donor)
    open_things.append(caller)
    donor.server.computing(True)
    wait_for(lambda: caller.handle() and caller.client.share, "the word for it")
    caller.client.store([Store(number, 1, number, 0) for number in range(4)])
    wait_for(lambda: caller.handle() and caller.answers, "the first")
    caller.handle()
    assert donor.counters["stored"] == 1
    donor.server.computing(False)
    wait_for(lambda: caller.handle() and len(caller.answers) == 4, "the others")


def test_without_a_bound_nobody_is_told_of_what_the_donor_computes(donor: Donor, caller: Caller) -> None:
    donor.server.computing(True)
    assert caller.ask(Store(1, 1, 0, 0)) == [True]
    assert caller.client.share is None


def test_who_takes_no_answers_gets_no_more_stored(donor: Donor, open_things: list[Any]) -> None:
    donor.lent[Party("deaf", 1), 1] = RUN
    deaf = Caller(donor, Party("deaf", 1))
    open_things.append(deaf)
    # More than there is room for in the socket, which takes a batch of answers as one packet.
    total = 40 * MAX_STORES
    others = 0
    deaf.client.store([Store(number, 1, 0, 0) for number in range(total)])

    def is_stuck() -> bool:
        """Nothing has been stored for a while, with requests left."""
        nonlocal others
        before = donor.counters.get("stored", 0)
        polite = Caller(donor)
        assert polite.ask(*(Store(number, 1, 0, 0) for number in range(MAX_STORES))) == [True] * MAX_STORES
        others += MAX_STORES
        polite.close()
        wait_for(lambda: len(donor.server.guests) == 1)
        return donor.counters["stored"] == before + MAX_STORES

    wait_for(is_stuck, "the donor to stop")
    assert donor.counters["stored"] - others < total
    (guest,) = donor.server._guests.values()
    assert len(guest.stores) < MAX_WAITING + MAX_STORES, "more was taken in than may wait"
    assert len(guest.answers) == MAX_WAITING
    # When it listens, it gets all the rest.
    wait_for(lambda: deaf.handle() and len(deaf.answers) == total, "all answers")
    assert [answer.number for answer in deaf.answers] == list(range(total))


def raw_connection(donor: Donor, open_things: list[Any]) -> Any:
    connection = packet_socket()
    open_things.append(connection)
    connection.connect(str(donor.path))
    return connection


def hear(connection: Any) -> bytes:
    def packet() -> list[bytes]:
        try:
            return [receive(connection).data]
        except BlockingIOError:
            return []

    return wait_for(packet)[0]


def test_garbage_is_counted_and_ignored(donor: Donor, caller: Caller, open_things: list[Any]) -> None:
    connection = raw_connection(donor, open_things)
    attach = encode(Attach(Party("g", 1), PAGE, PAGE))
    garbage = [
        b"\x00",
        b"GET / HTTP/1.1",
        attach[:-1],
        attach,  # without a descriptor
        encode(Refused("what donors say")),
        encode(Stores((Store(1, 1, 0, 0),))),  # before it has said who it is
        msgspec.msgpack.encode([VERSION, {"type": "attach", "party": ["g", 0], "page_bytes": 1, "staging_bytes": 1}]),
        msgspec.msgpack.encode([VERSION, {"type": "stores", "stores": [[1, 1, 0, -1]]}]),
    ]
    for packet in garbage:
        send(connection, packet)
    wait_for(lambda: donor.counters.get("garbled") == len(garbage))
    send(connection, b"x", caller.staging.fd)  # its descriptor is closed: the fixture counts
    wait_for(lambda: donor.counters.get("garbled") == len(garbage) + 1)
    send(connection, bytes(MAX_PACKET_BYTES + 1))
    wait_for(lambda: donor.counters.get("oversized") == 1)
    send(connection, encode(Attach(Party("g", 1), PAGE, 4 * PAGE)), caller.staging.fd)
    wait_for(lambda: donor.counters["attached"] == 2)
    send(connection, encode(Attach(Party("b", 7), PAGE, 4 * PAGE)), caller.staging.fd)  # it is somebody already
    wait_for(lambda: donor.counters.get("garbled") == len(garbage) + 2)
    # Nobody else has noticed.
    caller.stage(0, 3)
    assert caller.ask(Store(1, 1, 0, 0)) == [True]
    assert caller.read(0) == [3]
    assert "faults" not in donor.counters


def test_who_is_in_is_served_while_nobody_else_can_come_in(
    donor: Donor, caller: Caller, open_things: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """As where a process has no descriptors left."""
    monkeypatch.setattr(arena_server, "CLOSED_SECONDS", 0.05)
    listener, refusals = donor.server._listener, iter(range(3))

    class Exhausted:
        def accept(self) -> Any:
            if next(refusals, None) is not None:
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    donor.server._listener = Exhausted()
    raw_connection(donor, open_things)
    caller.stage(0, 3)
    while donor.counters.get("faults", 0) < 3:
        assert caller.ask(Store(1, 1, 0, 0)) == [True]
    late = Caller(donor, Party("c", 9))
    open_things.append(late)
    assert late.client.arena is not None, "it came in once there was room"
    assert [record.message for record in caplog.records if "nobody new" in record.message] == [
        "swift-tiers: arena socket: nobody new can come in"
    ]


def test_staging_memory_that_could_be_taken_away_is_refused(donor: Donor, open_things: list[Any]) -> None:
    connection = raw_connection(donor, open_things)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, PAGE)
    send(connection, encode(Attach(BORROWER, PAGE, PAGE)), unsealed)
    os.close(unsealed)
    answer = decode_donors(hear(connection))
    assert isinstance(answer, Refused)
    assert "sealed memfd" in answer.reason
    assert hear(connection) == b"", "the connection goes on"


def test_another_version_is_told_so_on_both_sides(donor: Donor, open_things: list[Any]) -> None:
    connection = raw_connection(donor, open_things)
    send(connection, msgspec.msgpack.encode([VERSION + 1, {"type": "attach", "colour": "blue"}]))
    answer = decode_donors(hear(connection))
    assert isinstance(answer, Refused)
    assert "same release" in answer.reason
    wait_for(lambda: donor.counters.get("other version") == 1)


def test_another_user_is_a_stranger_to_either_side(
    donor: Donor, caller: Caller, open_things: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says who is there. That it is another user is played by being another one ourselves."""
    monkeypatch.setattr(arena_server, "is_own_user", lambda connection: False)
    assert hear(raw_connection(donor, open_things)) == b""
    assert donor.counters["strangers"] == 1
    monkeypatch.setattr(arena_client, "is_own_user", lambda connection: False)
    with pytest.raises(ArenaError, match="another user"):
        ArenaClient(donor.path, "d", BORROWER, PAGE, caller.staging)
    monkeypatch.undo()
    user = os.geteuid()
    connection = raw_connection(donor, open_things)
    assert arena_server.is_own_user(connection)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert not arena_server.is_own_user(connection)


def test_who_does_not_say_who_it_is_has_to_go(
    donor: Donor, open_things: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_server, "ATTACH_SECONDS", 0.0)
    assert hear(raw_connection(donor, open_things)) == b""


def test_the_donors_end_is_noticed_and_its_memory_unmapped(donor: Donor, caller: Caller) -> None:
    caller.stage(0, 9)
    assert caller.ask(Store(1, 1, 0, 0)) == [True]
    arena = caller.client.arena
    assert arena is not None
    reading = arena.array[3 * PAGE : 3 * PAGE + 8]
    donor.close()
    wait_for(lambda: caller.handle() and caller.client.ended)
    assert len(arena.array) == 0
    assert reading.tolist() == [9] * 8, "a read under way lost its memory"
    caller.client.store([Store(2, 1, 0, 0)])
    with pytest.raises(ArenaError, match="cannot be reached"):
        ArenaClient(donor.path, "d", BORROWER, PAGE, caller.staging)


def test_a_socket_that_was_left_behind_is_taken_over(directory: Path, open_things: list[Any]) -> None:
    left = packet_socket()
    path = arena_path(ipc_address(directory, "d"))
    left.bind(str(path))
    left.close()
    donor = Donor(directory)
    open_things.append(donor)
    open_things.append(Caller(donor))
    assert stat.S_IMODE(donor.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("address", ["ipc:///", "ipc:///x/\ud800"])
def test_an_address_that_names_no_socket_is_an_error_of_its_own(address: str) -> None:
    """It ended the round in which it was heard, and with it all neighbours behind it."""
    with pytest.raises(ConfigError):
        arena_path(address)


def test_places_that_are_not_private_or_not_local_are_refused(directory: Path) -> None:
    arena = SharedArena(PAGE)
    with pytest.raises(ConfigError, match="one machine only"):
        ArenaServer("tcp://127.0.0.1:5000", Party("d", 1), arena, lambda party, lease: None)
    os.chmod(directory, 0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        ArenaServer(ipc_address(directory, "d"), Party("d", 1), arena, lambda party, lease: None)
    with pytest.raises(ConfigError, match="chmod 700"):
        ArenaClient(directory / "d.arena", "d", BORROWER, PAGE, arena)
    arena.close()


def test_nothing_is_copied_while_a_donor_is_to_be_still(donor: Donor, caller: Caller) -> None:
    """As while its scheduler captures graphs of its device, whatever neighbours ask for."""
    rounds: Any = WatchedLock(donor.server._rounds)
    donor.server._rounds = rounds
    caller.stage(0, 7)
    before = donor.arena.array.copy()
    with donor.server.still():
        caller.client.store([Store(1, 1, 0, 0)])
        assert rounds.awaited.wait(60)
        assert np.array_equal(donor.arena.array, before)
    wait_for(lambda: caller.handle() and caller.answers)
    assert caller.answers == [Stored(1, True)]
    assert caller.read(0) == [7]


def test_a_life_that_ends_leaves_the_socket_of_the_next_one_alone(directory: Path) -> None:
    """The next one of the name listens as soon as the lease address is free; the arena's thread may be in a copy."""
    address = ipc_address(directory, "d")

    def leases() -> LeaseService:
        return LeaseService(donor=leases_module.Donor("d", PAGE, random.Random(1)), listen=address)

    old, service = Donor(directory), leases()
    service.close()
    assert not old.path.exists(), "nobody lends any more"
    service, new = leases(), Donor(directory)
    old.close()
    assert new.path.exists()
    service.close()
    new.close()
    assert not list(directory.glob("d.*"))


def test_who_listens_under_another_name_is_not_believed(donor: Donor, caller: Caller) -> None:
    client = ArenaClient(donor.path, "e", BORROWER, PAGE, caller.staging)
    wait_for(lambda: client.handle() or client.ended)
    assert "d listens where e should" in client.ended
    assert client.arena is None
    client.end("closed")
    assert "d listens" in client.ended
