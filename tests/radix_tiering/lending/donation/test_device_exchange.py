"""A donor's device memory handed out over a real socket, to borrowers in this process and in others."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift_tiers.radix_tiering.lending.donation.arena import SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_client import ArenaClient
from swift_tiers.radix_tiering.lending.donation.arena_messages import OutgoingOffer, Store, Stored, encode
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.arena_socket import arena_path, send
from swift_tiers.radix_tiering.lending.donation.device_arena import AttachedDevice, DeviceArena
from swift_tiers.radix_tiering.lending.donation.extents import CutRun
from swift_tiers.radix_tiering.lending.leases import Extent, Party, ipc_address
from swift_tiers.radix_tiering.lending.leases.runs import HeldRun

from support.fake_device import GRANULE, FakeDeviceMemory
from support.redis import wait_for

PAGE = 8192
SIZE = 16 * PAGE
OWN = 0xDD
BORROWER = Party("b", 7)
RUN_NUMBER = 41
#: The run of lease 1: four pages, in pieces that are no pages.
RUN = (Extent(0, 3 * PAGE, PAGE // 2), Extent(0, 8 * PAGE, 3 * PAGE), Extent(0, 5 * PAGE, PAGE // 2))


class Donor:
    """A server over a device's memory, with one run lent."""

    def __init__(self, directory: Path, device: FakeDeviceMemory, size: int | None = None) -> None:
        self.address = ipc_address(directory, "d")
        self.device = device
        self.arena = DeviceArena(device, SIZE)
        self.arena.memory[:] = OWN
        self.lent = {(BORROWER, 1): HeldRun(RUN_NUMBER, RUN)}
        if size is not None:
            self.arena.size = size  # what it says of it
        self.server = ArenaServer(
            self.address, Party("d", 1), self.arena, lambda party, lease: self.lent.get((party, lease))
        )

    def close(self) -> None:
        self.server.close()
        self.arena.close()
        assert self.device.mapped == 0
        assert not self.device.locked


class Caller:
    """A client with its staging memory; waits, as no server may."""

    def __init__(self, address: str, device: FakeDeviceMemory | None, outgoing: DeviceArena | None = None) -> None:
        self.device = device
        self.outgoing = outgoing
        self.staging = SharedArena(4 * PAGE)
        path = arena_path(address)
        assert path is not None
        self.client = ArenaClient(path, "d", BORROWER, PAGE, self.staging, device, outgoing=outgoing)
        self.answers: list[Stored] = []
        wait_for(lambda: self.handle() and (self.client.arena is not None or self.client.ended), "the donor's answer")

    def handle(self) -> bool:
        """Take what comes within a moment."""
        if not self.client.ended:
            poll = select.poll()
            poll.register(self.client.descriptor, self.client.interest)
            if poll.poll(5):
                self.answers += self.client.handle()
        return True

    def store(self, *slots: int) -> list[bool]:
        """Put a page there that is full of 10 + its slot; what became of each."""
        self.begin(*slots)
        wait_for(lambda: self.handle() and len(self.answers) == len(slots), "the answers")
        return [answer.ok for answer in self.answers]

    def begin(self, *slots: int) -> None:
        self.answers = []
        for place, slot in enumerate(slots):
            self.staging.array[place * PAGE : (place + 1) * PAGE] = 10 + slot
        self.client.store([Store(place, 1, slot, place * PAGE) for place, slot in enumerate(slots)])

    def pull(self, *slots: int) -> list[bool]:
        """The same, of outgoing memory."""
        assert self.outgoing is not None
        self.answers = []
        for place, slot in enumerate(slots):
            self.outgoing.memory[place * PAGE : (place + 1) * PAGE] = 10 + slot
        self.client.store([Store(place, 1, slot, place * PAGE, outgoing=True) for place, slot in enumerate(slots)])
        wait_for(lambda: self.handle() and len(self.answers) == len(slots), "the answers")
        return [answer.ok for answer in self.answers]

    def read(self, slot: int) -> list[int]:
        """The different bytes of a page of lease 1."""
        into = np.zeros(PAGE, np.uint8)
        self.client.copy(CutRun(RUN, PAGE), slot, into)
        return sorted(set(into.tolist()))

    def close(self) -> None:
        self.client.end("closed")
        self.staging.close()
        if self.outgoing is not None:
            self.outgoing.close()
        assert self.device is None or self.device.mapped == 0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="swift-arena-") as name:
        yield Path(name)


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """What is closed after the test, last first."""
    things: list[Any] = []
    yield things
    for thing in reversed(things):
        thing.close()


@pytest.fixture
def donor(directory: Path, opened: list[Any]) -> Donor:
    made = Donor(directory, FakeDeviceMemory("GPU-a"))
    opened.append(made)
    return made


@pytest.fixture
def caller(donor: Donor, opened: list[Any]) -> Caller:
    made = Caller(donor.address, FakeDeviceMemory("GPU-b"))
    opened.append(made)
    return made


def test_pages_are_stored_by_the_donor_and_read_straight_from_its_device(donor: Donor, caller: Caller) -> None:
    assert caller.store(0, 1, 2, 3) == [True] * 4
    assert len(donor.device.locked) == 1, "what comes from the borrower is staged a second time, by the driver"
    assert [caller.read(slot) for slot in range(4)] == [[10], [11], [12], [13]]
    mine = np.ones(SIZE, bool)
    for extent in RUN:
        mine[extent.offset : extent.offset + extent.length] = False
    assert (donor.arena.memory.numpy()[mine] == OWN).all(), "something else than the run was written to"
    memory = caller.client.memory
    assert memory is not None
    assert memory.shape == (SIZE,)
    assert memory[8 * PAGE].item() == donor.arena.memory[8 * PAGE].item()
    assert memory.data_ptr() != donor.arena.memory.data_ptr()


def test_the_pieces_of_a_page_are_what_a_queued_copy_takes(donor: Donor, caller: Caller) -> None:
    assert caller.store(0, 1, 2, 3) == [True] * 4
    run, target = CutRun(RUN, PAGE), np.zeros(4 * PAGE, np.uint8)
    pieces = np.concatenate([run.pieces_of(slot, at) for slot, at in ((3, 0), (0, PAGE), (2, 2 * PAGE))])
    assert isinstance(caller.client.arena, AttachedDevice)
    with caller.client.arena.use() as memory:
        for start, at, length in pieces.tolist():
            target[at : at + length] = memory[start : start + length].numpy()
    assert [sorted(set(page.tolist())) for page in target.reshape(4, PAGE)] == [[13], [10], [12], [0]]


def test_a_borrower_without_a_device_is_told_so(donor: Donor, opened: list[Any]) -> None:
    caller = Caller(donor.address, None)
    opened.append(caller)
    assert caller.client.arena is None
    assert caller.client.memory is None
    assert "memory of GPU-a" in caller.client.ended
    assert "has none to map it for; borrow with a server" in caller.client.ended


def test_a_borrower_with_a_device_uses_a_donors_host_memory_as_ever(directory: Path, opened: list[Any]) -> None:
    arena = SharedArena(SIZE)
    server = ArenaServer(
        ipc_address(directory, "d"), Party("d", 1), arena, lambda party, lease: HeldRun(RUN_NUMBER, RUN)
    )
    opened.append(server)
    device = FakeDeviceMemory("GPU-b")
    caller = Caller(ipc_address(directory, "d"), device)
    opened.append(caller)
    assert caller.client.memory is None
    assert caller.store(1) == [True]
    assert caller.read(1) == [11]
    assert not device.calls
    arena.close()


def test_a_device_out_of_reach_is_said_with_both_names(donor: Donor, opened: list[Any]) -> None:
    far = FakeDeviceMemory("GPU-far", reaches=set())
    caller = Caller(donor.address, far)
    opened.append(caller)
    assert caller.client.ended.startswith("its memory on GPU-a cannot be mapped for GPU-far: ")
    assert far.mapped == 0


def test_memory_that_is_smaller_than_said_is_refused(directory: Path, opened: list[Any]) -> None:
    opened.append(Donor(directory, FakeDeviceMemory("GPU-a"), size=SIZE + GRANULE))
    caller = Caller(ipc_address(directory, "d"), FakeDeviceMemory("GPU-b"))
    opened.append(caller)
    assert "smaller than" in caller.client.ended
    assert caller.client.memory is None


def test_memory_that_came_back_changes_no_more_once_the_copy_under_way_has_ended(donor: Donor, caller: Caller) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(what: str) -> None:
        begun.set()
        assert go_on.wait(60)

    donor.device.on_copy = wait
    caller.begin(0, 1, 2)
    assert begun.wait(60)
    donor.lent.clear()  # while it copies
    assert donor.server.copying() == {RUN_NUMBER}
    go_on.set()
    wait_for(lambda: not donor.server.copying(), "the copy under way to end")
    donor.arena.memory[:] = OWN
    wait_for(lambda: caller.handle() and len(caller.answers) == 3)
    assert [answer.ok for answer in caller.answers] == [True, False, False]
    assert (donor.arena.memory == OWN).all()


def test_a_device_that_fails_in_a_store_ends_that_connection_alone(donor: Donor, caller: Caller) -> None:
    donor.device.faults["write"] = "cuMemcpyHtoDAsync: the bus is down"
    caller.begin(0)
    wait_for(lambda: caller.handle() and caller.client.ended)
    assert not caller.answers
    assert donor.server.counters["faults"] == 1
    wait_for(lambda: not donor.server.copying())
    donor.device.faults.clear()
    again = Caller(donor.address, FakeDeviceMemory("GPU-b"))
    assert again.store(0) == [True]
    again.close()


def test_a_use_outlives_the_connection_and_the_mapping_ends_with_it(donor: Donor, caller: Caller) -> None:
    assert caller.store(0) == [True]
    arena, device = caller.client.arena, caller.device
    assert isinstance(arena, AttachedDevice)
    assert device is not None
    with arena.use() as memory:
        donor.server.close()
        wait_for(lambda: caller.handle() and caller.client.ended)
        assert caller.client.memory is None
        assert memory[3 * PAGE].item() == 10, "a use under way lost its memory"
        assert device.mapped == 1
    assert device.mapped == 0


def offering(donor: Donor, opened: list[Any], device: FakeDeviceMemory | None = None, size: int = 4 * PAGE) -> Caller:
    """A caller that has offered outgoing memory, and been answered."""
    device = device or FakeDeviceMemory("GPU-b")
    caller = Caller(donor.address, device, DeviceArena(device, size))
    opened.append(caller)
    wait_for(lambda: caller.handle() and (caller.client.pulls or donor.server.counters["garbled"]), "an answer")
    return caller


def test_pages_go_from_device_to_device_in_one_copy(donor: Donor, opened: list[Any]) -> None:
    caller = offering(donor, opened)
    assert caller.pull(0, 1, 2, 3) == [True] * 4
    assert [caller.read(slot) for slot in range(4)] == [[10], [11], [12], [13]]
    assert donor.device.calls["pull"] == 1, "as many as were asked for together go together"
    assert donor.device.calls["write"] == 0, "a page went through the host"
    mine = np.ones(SIZE, bool)
    for extent in RUN:
        mine[extent.offset : extent.offset + extent.length] = False
    assert (donor.arena.memory.numpy()[mine] == OWN).all(), "something else than the run was written to"
    # Those that are staged in the host go on being stored, too.
    assert caller.store(2, 3) == [True] * 2
    assert donor.device.calls["write"] == 2


def test_what_is_beyond_what_was_offered_or_not_lent_is_not_copied(donor: Donor, opened: list[Any]) -> None:
    caller = offering(donor, opened)
    caller.answers = []
    caller.outgoing.memory[:] = 77
    caller.client.store(
        [
            Store(1, 1, 0, 3 * PAGE + 1, outgoing=True),
            Store(2, 1, 0, 2**62, outgoing=True),
            Store(3, 2, 0, 0, outgoing=True),  # no such lease
            Store(4, 1, 4, 0, outgoing=True),  # a slot too far
            Store(5, 1, 1, PAGE, outgoing=True),
        ]
    )
    wait_for(lambda: caller.handle() and len(caller.answers) == 5, "the answers")
    assert [answer.ok for answer in caller.answers] == [False] * 4 + [True]
    assert [caller.read(slot) for slot in range(4)] == [[OWN], [77], [OWN], [OWN]]
    assert donor.server.counters["refused"] == 4
    donor.lent.clear()
    assert caller.pull(1, 2) == [False] * 2
    assert caller.read(1) == [77]


def test_a_donor_that_does_not_reach_it_says_so_and_is_stored_to_through_the_host(
    directory: Path, opened: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    donor = Donor(directory, FakeDeviceMemory("GPU-a", reaches=set()))
    opened.append(donor)
    device = FakeDeviceMemory("GPU-b")
    caller = Caller(donor.address, device, DeviceArena(device, PAGE))
    opened.append(caller)
    wait_for(lambda: caller.handle() and "the one device does not reach" in caplog.text, "the refusal")
    assert "what d stores goes through host memory" in caplog.text
    assert not caller.client.pulls
    assert caller.store(1) == [True]
    assert donor.server.counters["offers"] == 0


def test_less_memory_than_was_offered_is_refused(donor: Donor, opened: list[Any]) -> None:
    device = FakeDeviceMemory("GPU-b")
    arena = DeviceArena(device, PAGE)
    arena.size = PAGE + GRANULE  # what it says of it
    caller = Caller(donor.address, device, arena)
    opened.append(caller)
    assert caller.store(1) == [True]
    assert not caller.client.pulls


def test_a_store_that_names_what_was_never_offered_is_refused(donor: Donor, caller: Caller) -> None:
    caller.client.store([Store(1, 1, 0, 0, outgoing=True)])
    wait_for(lambda: caller.handle() and len(caller.answers) == 1, "the answer")
    assert not caller.answers[0].ok
    assert caller.read(0) == [OWN]


def test_only_one_offer_of_a_connection_is_taken(donor: Donor, opened: list[Any]) -> None:
    caller = offering(donor, opened)
    before = donor.device.mapped
    send(caller.client._connection, encode(OutgoingOffer(PAGE)), caller.outgoing.fd)
    wait_for(lambda: caller.handle() and not caller.client.pulls, "the refusal")
    assert donor.device.mapped == before
    assert caller.pull(0) == [True], "what was offered first is there"


def test_a_donor_in_host_memory_is_offered_nothing(directory: Path, opened: list[Any]) -> None:
    arena = SharedArena(SIZE)
    server = ArenaServer(
        ipc_address(directory, "d"), Party("d", 1), arena, lambda party, lease: HeldRun(RUN_NUMBER, RUN)
    )
    opened.append(server)
    device = FakeDeviceMemory("GPU-b")
    caller = Caller(ipc_address(directory, "d"), device, DeviceArena(device, PAGE))
    opened.append(caller)
    assert caller.store(1) == [True]
    assert not caller.client.pulls
    # One that offers it all the same is not taken up on it.
    send(caller.client._connection, encode(OutgoingOffer(PAGE)), caller.outgoing.fd)
    assert caller.store(2) == [True]
    assert not caller.client.pulls
    arena.close()


def test_outgoing_memory_is_unmapped_with_the_connection(donor: Donor, opened: list[Any]) -> None:
    caller = offering(donor, opened)
    assert caller.pull(1) == [True]
    caller.client.end("enough")
    wait_for(lambda: donor.device.mapped == 1, "the donor to give it up")
    assert not caller.client.pulls


def test_after_a_pull_that_fails_pages_go_through_the_host(donor: Donor, opened: list[Any]) -> None:
    """The leases stay: who ended them would meet the same failure with the next ones, again and again."""
    caller = offering(donor, opened)
    donor.device.faults["pull"] = "cuMemcpyDtoDAsync: not permitted"
    assert caller.pull(0, 1) == [False] * 2
    wait_for(lambda: caller.handle() and not caller.client.pulls, "the refusal")
    assert not caller.client.ended
    assert donor.device.mapped == 1, "the donor keeps what it cannot copy from"
    wait_for(lambda: not donor.server.copying())
    assert caller.store(1) == [True]
    assert caller.pull(0) == [False]
    donor.device.faults.clear()
    assert offering(donor, opened).pull(0) == [True], "one that comes later tries it anew"


DONOR = textwrap.dedent(
    """
    import sys, json
    sys.path[0] = sys.argv[1]
    from pathlib import Path
    from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
    from swift_tiers.radix_tiering.lending.donation.device_arena import DeviceArena
    from swift_tiers.radix_tiering.lending.leases import Extent, Party, ipc_address
    from swift_tiers.radix_tiering.lending.leases.runs import HeldRun
    from support.fake_device import FakeDeviceMemory
    size, run = json.loads(sys.argv[3])
    device = FakeDeviceMemory("GPU-a")
    arena = DeviceArena(device, size)
    arena.memory[:] = 0xDD
    copies = 0
    def on_copy(what):
        global copies
        copies += 1
        if copies == 3:
            print("copying", flush=True)
            sys.stdin.read()
    device.on_copy = on_copy
    run = HeldRun(1, tuple(Extent(*one) for one in run))
    server = ArenaServer(ipc_address(Path(sys.argv[2]), "d"), Party("d", 1), arena, lambda party, lease: run)
    print("ready", flush=True)
    sys.stdin.read()
    """
)


@pytest.fixture
def other_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A donor that stops in the middle of its third copy."""
    support = str(Path(__file__).parents[3])
    shape = json.dumps([SIZE, [(one.buffer, one.offset, one.length) for one in RUN]])
    arguments = [sys.executable, "-c", DONOR, support, str(directory), shape]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_a_donor_killed_in_the_middle_of_a_copy_leaves_its_borrower_alive_and_nothing_mapped(
    other_process: subprocess.Popen[str], directory: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    device = FakeDeviceMemory("GPU-b")
    caller = Caller(ipc_address(directory, "d"), device)
    caller.begin(0, 1)
    wait_for(lambda: caller.handle() and len(caller.answers) == 2)
    caller.begin(2)
    assert other_process.stdout is not None
    assert other_process.stdout.readline() == "copying\n"
    arena = caller.client.arena
    assert isinstance(arena, AttachedDevice)
    assert [caller.read(slot) for slot in range(3)] == [[10], [11], [OWN]]
    with arena.use() as memory:
        other_process.kill()
        other_process.wait()
        wait_for(lambda: caller.handle() and caller.client.ended)
        assert memory[3 * PAGE].item() == 10, "what is mapped went with its donor"
        assert device.mapped == 1
    caller.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the staging memory's mapping
