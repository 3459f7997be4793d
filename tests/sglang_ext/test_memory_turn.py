"""Servers, and ranks of one, that start at once take their host memory one after the other."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from swift_tiers.radix_tiering.base.config import BusConfig, TiersConfig
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.sglang_ext.build import assembly
from swift_tiers.sglang_ext.build.host_size import automatic_host_size, rank_host_size
from swift_tiers.sglang_ext.build.memory_turn import TURN_SECONDS, MemoryTurn

from support.cgroups import GIB, MachineTree
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

    def share(self, ranks: int) -> Callable[[int], int]:
        return lambda others: int((self.free - others) * 0.4) // ranks

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


def test_one_that_fails_lets_others_go_on(directory: str) -> None:
    def refuse(others: int) -> int:
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


def test_what_is_others_counts_as_taken(tmp_path: Path) -> None:
    root = MachineTree(tmp_path, available=100 * GIB).root
    assert automatic_host_size(50 * GIB, root) == 20 * GIB
    assert rank_host_size(TiersConfig().host, 2, 1 << 20, 50 * GIB, root) == 10 * GIB


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
