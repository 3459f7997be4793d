"""Servers, and ranks of one, that start at once take their host memory one after the other."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from swift_tiers.radix_tiering.base import starter
from swift_tiers.radix_tiering.base.config import BusConfig, HostConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.base.starter import Starter
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.sglang_ext.build import assembly
from swift_tiers.sglang_ext.build.host_size import Coming, rank_host_size
from swift_tiers.sglang_ext.build.memory_turn import TURN_SECONDS, MemoryTurn

from support.cgroups import GIB, MachineTree, pod
from support.engine import namespace

FILE = "host-memory.lock"


class TurnClock(ThreadRunner):
    """Time goes on by what is slept; `slept` is set when somebody has."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 1000.0
        self.slept = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.set()


class WaitingClock(TurnClock):
    """Whoever sleeps does so for as long as it really takes, and no time goes by."""

    def sleep(self, seconds: float) -> None:
        self.slept.set()
        threading.Event().wait(seconds)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "run").mkdir(0o700)
    return str(tmp_path / "run")


class FreeMemory:
    """What a machine has free, of which starts take 40 %."""

    def __init__(self, free: int) -> None:
        self.free = free

    def share(self, ranks: int) -> Callable[[Coming], int]:
        def measure(coming: Coming) -> int:
            others = sum(claim.size for claim in coming.others)
            return int((self.free - others) * 0.4) // ranks if coming.found is None else coming.found

        return measure

    def take(self, turn: MemoryTurn, ranks: int = 1) -> int:
        """A rank's turn, from its first measure to its last page."""
        with turn:
            size = turn.size(self.share(ranks))
            self.free -= size
        return size


def test_the_second_server_measures_when_the_first_has_taken_its_share(directory: str) -> None:
    memory, clock = FreeMemory(1000), WaitingClock()
    sizes: list[int] = []
    second = threading.Thread(
        target=lambda: sizes.append(memory.take(MemoryTurn(directory, "beta", 1, clock))), daemon=True
    )
    with MemoryTurn(directory, "alpha", 1, clock) as turn:
        size = turn.size(memory.share(1))
        second.start()
        assert clock.slept.wait(60)
        assert not sizes
        memory.free -= size
    second.join(60)
    assert (size, sizes) == (400, [240])


def test_ranks_of_one_server_take_alike(directory: str) -> None:
    memory, clock = FreeMemory(1000), TurnClock()
    turns = [MemoryTurn(directory, "alpha", 4, clock) for _ in range(4)]
    assert [memory.take(turn, 4) for turn in turns] == [100] * 4
    again = [MemoryTurn(directory, "alpha", 4, clock) for _ in range(4)]
    assert [memory.take(turn, 4) for turn in again] == [60] * 4, "a start after that measures anew"


def test_what_other_ranks_of_a_server_have_yet_to_take_is_left_to_them(directory: str) -> None:
    memory, clock = FreeMemory(1000), TurnClock()
    alpha = [MemoryTurn(directory, "alpha", 2, clock) for _ in range(2)]
    beta = [MemoryTurn(directory, "beta", 2, clock) for _ in range(2)]
    assert memory.take(alpha[0], 2) == 200
    assert memory.take(beta[0], 2) == 120, "40 % of what alpha leaves, by two"
    assert memory.take(alpha[1], 2) == 200
    assert memory.take(beta[1], 2) == 120


@pytest.mark.parametrize("later", [10_000.0, -10_000.0])
def test_what_ranks_never_took_is_free_again(directory: str, later: float) -> None:
    """They were killed; or the machine was, and its clock begins anew."""
    memory, clock = FreeMemory(1000), TurnClock()
    clock.now = 20_000.0
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock), 2) == 200
    clock.now += later
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock), 2) == 160
    clock.now += later / 10
    assert memory.take(MemoryTurn(directory, "beta", 1, clock)) == 256


def test_one_that_hangs_delays_a_start_by_a_minute(directory: str, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks of its own server take as it did, all the same."""
    memory, clock = FreeMemory(1000), TurnClock()
    with MemoryTurn(directory, "alpha", 2, clock) as hanging:
        assert hanging.size(memory.share(2)) == 200
        before = clock.now
        assert memory.take(MemoryTurn(directory, "beta", 1, clock)) == 320
        assert clock.now - before == pytest.approx(TURN_SECONDS, abs=1)
        assert "going on beside them" in caplog.text
        assert memory.take(MemoryTurn(directory, "alpha", 2, clock), 2) == 200
        with pytest.raises(BlockingIOError):
            lock(Path(directory))


def test_on_a_file_system_without_locks_it_goes_on(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fails)
    monkeypatch.setattr(fcntl, "lockf", fails)
    assert FreeMemory(1000).take(MemoryTurn(directory, "alpha", 1, TurnClock())) == 400


def test_one_that_fails_lets_others_go_on(directory: str) -> None:
    def refuse(coming: Coming) -> int:
        raise MemoryError

    with pytest.raises(MemoryError), MemoryTurn(directory, "alpha", 1) as turn:
        turn.size(refuse)
    lock(Path(directory))


def test_a_process_that_was_forked_meanwhile_keeps_nothing(directory: str) -> None:
    with MemoryTurn(directory, "alpha", 1) as turn:
        assert turn._file is not None
        inherited = os.dup(turn._file)  # as a child has it
    lock(Path(directory))
    os.close(inherited)


@pytest.mark.parametrize("content", [b"", b"{", b'[{"server": 1}]', b"\xff", b"null"])
def test_what_cannot_be_read_is_measured(directory: str, content: bytes) -> None:
    (Path(directory) / FILE).write_bytes(content)
    memory = FreeMemory(1000)
    assert memory.take(MemoryTurn(directory, "alpha", 2), 2) == 200
    assert memory.take(MemoryTurn(directory, "alpha", 2), 2) == 200


@pytest.fixture
def unusable(tmp_path: Path) -> Iterator[list[str]]:
    """No directories of this user alone, for each of the reasons that there are."""
    (tmp_path / "open").mkdir(0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").mkdir(0o700)
    (tmp_path / "link" / FILE).symlink_to(tmp_path / "elsewhere")
    names = [str(tmp_path / name) for name in ("open", "file", "missing/below", "link", "long" * 40)]
    yield names
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_directory_it_goes_on_without_a_lock(unusable: list[str]) -> None:
    for directory in unusable:
        memory = FreeMemory(1000)
        assert memory.take(MemoryTurn(directory, "alpha", 1)) == 400


class Machine:
    """One on which servers take what they find, by the rule of a start; each may be in a container of its own."""

    def __init__(self, root: Path, available: int) -> None:
        self.root, self.available = root, available
        self.used: dict[str, int] = {}

    def start(
        self, server: str, ranks: int, size: int | None, limit: int | None = None, starter: Starter | None = None
    ) -> Server:
        return Server(self, server, ranks, HostConfig(size=None if size is None else Size(size)), limit, starter)


class Server:
    """Whose ranks come in turn."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        ranks: int,
        config: HostConfig,
        limit: int | None,
        starter: Starter | None,
    ) -> None:
        self.machine, self.name, self.ranks, self.config = machine, name, ranks, config
        self.limit, self.starter = limit, starter

    def root(self) -> Path:
        """What is free by now."""
        root = self.machine.root / self.name
        if self.limit is not None:
            pod(root, self.limit, self.machine.used.get(self.name, 0))
        MachineTree(root, self.machine.available)
        return root

    def take(self, directory: str, clock: TurnClock, taking: Callable[[], None] = lambda: None) -> int:
        """A rank's part; `taking` happens after it was found, before it is taken."""
        root = self.root()
        with MemoryTurn(directory, self.name, self.ranks, clock, starter=self.starter, root=root) as turn:
            size = turn.size(lambda coming: rank_host_size(self.config, self.ranks, 1 << 20, coming, self.root()))
            taking()
            self.machine.available -= size
            self.machine.used[self.name] = self.machine.used.get(self.name, 0) + size
        return size


def test_what_does_not_fit_is_refused_by_the_first_rank(directory: str, tmp_path: Path) -> None:
    """And by each that comes after it, and nothing is noted of it."""
    machine, clock = Machine(tmp_path, 60 * GIB), TurnClock()
    alpha = machine.start("alpha", 4, 64 * GIB)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^host.size: 64GiB for 4 of 4 rank.s. is more than the 60GiB"):
            alpha.take(directory, clock)
    assert machine.start("beta", 1, 60 * GIB).take(directory, clock) == 60 * GIB


@pytest.mark.parametrize("size", [64 * GIB, None])
def test_what_fits_is_refused_to_no_rank(directory: str, tmp_path: Path, size: int | None) -> None:
    """Each finds less free than the one before, by what that has taken."""
    machine, clock = Machine(tmp_path, 64 * GIB), TurnClock()
    alpha = machine.start("alpha", 4, size)
    found = [alpha.take(directory, clock) for _ in range(4)]
    assert found == [16 * GIB if size else int(64 * GIB * 0.4) // 4] * 4


def test_what_fits_is_refused_to_no_rank_where_they_take_it_together(directory: str, tmp_path: Path) -> None:
    """The turn of one that takes long is not waited for: what is noted is right all the same."""
    machine, clock = Machine(tmp_path, 64 * GIB), TurnClock()
    alpha = machine.start("alpha", 4, 64 * GIB)

    def beside() -> None:
        second.append(alpha.take(directory, clock))
        second.append(alpha.take(directory, clock, lambda: second.append(alpha.take(directory, clock))))

    second: list[int] = []
    assert alpha.take(directory, clock, beside) == 16 * GIB
    assert second == [16 * GIB] * 3
    assert machine.available == 0


def test_a_rank_that_comes_late_has_its_part_all_the_same(directory: str, tmp_path: Path) -> None:
    """Its replica's model took longer to load than others leave it memory for."""
    machine, clock = Machine(tmp_path, 64 * GIB), TurnClock()
    alpha = machine.start("alpha", 2, 64 * GIB)
    assert alpha.take(directory, clock) == 32 * GIB
    clock.now += 600
    assert alpha.take(directory, clock) == 32 * GIB


def test_what_was_taken_meanwhile_is_told_by_the_rank_that_lacks_it(directory: str, tmp_path: Path) -> None:
    machine, clock = Machine(tmp_path, 64 * GIB), TurnClock()
    alpha = machine.start("alpha", 2, 64 * GIB)
    assert alpha.take(directory, clock) == 32 * GIB
    machine.available -= 1 * GIB
    with pytest.raises(ConfigError, match=r"^host.size: 32GiB for 1 of 2 rank.s. is more than the 31GiB"):
        alpha.take(directory, clock)


def test_without_notes_each_rank_answers_for_its_own_part(
    unusable: list[str], directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know who came before it. A disk that is full takes no notes either."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for number, place in enumerate([*unusable, directory]):
        machine, clock = Machine(tmp_path / f"machine{number}", 64 * GIB), TurnClock()
        alpha = machine.start("alpha", 2, 64 * GIB)
        assert [alpha.take(place, clock) for _ in range(2)] == [32 * GIB] * 2
        with pytest.raises(ConfigError, match=r"^host.size: 32GiB for 1 of 2"):
            alpha.take(place, clock)


def test_another_pod_that_starts_takes_nothing_of_this_ones_room(directory: str, tmp_path: Path) -> None:
    """Where both have the directory from the host."""
    machine, clock = Machine(tmp_path, 200 * GIB), TurnClock()
    alpha, beta = (machine.start(name, 2, 60 * GIB, limit=64 * GIB) for name in ("alpha", "beta"))
    found = [server.take(directory, clock) for server in (alpha, beta, alpha, beta)]
    assert found == [30 * GIB] * 4
    machine.available = 90 * GIB
    assert machine.start("gamma", 2, 60 * GIB, limit=64 * GIB).take(directory, clock) == 30 * GIB
    with pytest.raises(ConfigError, match=r"60GiB for 1 .* 30GiB that are free beside what other servers that start"):
        machine.start("delta", 1, 60 * GIB, limit=64 * GIB).take(directory, clock)


def test_a_server_in_the_same_container_does(directory: str, tmp_path: Path) -> None:
    machine, clock = Machine(tmp_path, 200 * GIB), TurnClock()
    alpha = machine.start("alpha", 2, 40 * GIB, limit=64 * GIB)
    assert alpha.take(directory, clock) == 20 * GIB
    beside = machine.start("alpha", 1, 30 * GIB, limit=64 * GIB, starter=Starter(1, 2, 3))
    with pytest.raises(ConfigError, match=r"30GiB for 1 of 1 .* 24GiB that are free in this container beside what"):
        beside.take(directory, clock)


def test_a_server_in_its_next_container_measures_anew(directory: str) -> None:
    """It has the same name and its parent the same number; rank 0 of the old one was killed when it had its part."""
    memory, clock = FreeMemory(1000), TurnClock()
    old, new = Starter(1, 7, 100), Starter(1, 7, 2500)
    taken = MemoryTurn(directory, "alpha", 2, clock, starter=old)
    assert memory.take(taken, 2) == 200
    memory.free = 500
    found = [memory.take(MemoryTurn(directory, "alpha", 2, clock, starter=new), 2) for _ in range(2)]
    assert found == [60, 60], "40 % of what is free but for what the old one's other rank may yet take"


@pytest.mark.parametrize("change", [{"started": 1}, {"process": 1 << 30}])
def test_what_a_start_noted_that_has_ended_is_free(directory: str, change: dict[str, int]) -> None:
    """Where that can be seen: its parent is no more, or another process has its number."""
    memory, clock = FreeMemory(1000), TurnClock()
    mine = Starter.of_this_process()
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock, starter=mine._replace(**change)), 2) == 200
    memory.free = 1000
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock, starter=mine), 2) == 200


def test_ranks_know_their_start_by_their_parent(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, clock = FreeMemory(1000), TurnClock()
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock), 2) == 200
    memory.free = 500
    started = Starter.of_this_process().started
    monkeypatch.setattr(starter, "_started", lambda proc, process: started + 1)
    assert memory.take(MemoryTurn(directory, "alpha", 2, clock), 2) == 100, "of another start"


def test_notes_that_somebody_stands_still_over_are_not_waited_for(directory: str) -> None:
    memory, clock = FreeMemory(1000), TurnClock()
    words = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    (Path(directory) / FILE).touch(0o600)
    command = [sys.executable, "-c", words, str(Path(directory) / FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = clock.now
        assert memory.take(MemoryTurn(directory, "alpha", 1, clock)) == 400
        assert 1 < clock.now - before < TURN_SECONDS
        other.communicate(b"\n")


def test_a_stack_takes_its_memory_in_its_turn(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: what ranks wait for each other in comes later."""

    class TakenError(Exception):
        """Memory was asked for."""

    def take(geometry, size):
        with pytest.raises(BlockingIOError):
            lock(Path(directory))
        raise TakenError

    monkeypatch.setattr(assembly, "HostTier", take)
    config = TiersConfig(bus=BusConfig(server="alpha", directory=directory))
    with pytest.raises(TakenError):
        assembly.open_stack(namespace(), config, assembly.Rank(0, 1, 0, 1))
    lock(Path(directory))

    def go_on(*_):
        lock(Path(directory))
        raise TakenError

    monkeypatch.setattr(assembly, "HostTier", lambda geometry, size: SimpleNamespace(slab=None))
    monkeypatch.setattr(assembly, "lock_pages", go_on)
    with pytest.raises(TakenError):
        assembly.open_stack(namespace(), config, assembly.Rank(0, 1, 0, 1))


def lock(directory: Path) -> None:
    """Take the lock for a moment. Raises BlockingIOError where somebody has it."""
    with open(directory / FILE, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
