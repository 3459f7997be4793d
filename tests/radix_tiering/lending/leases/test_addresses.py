"""Where donors listen: one at a path, and nothing left behind by any."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.lending.leases import addresses
from swift_tiers.radix_tiering.lending.leases.addresses import ARENA, ipc_address, ipc_path, leave_path, take_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ipc_path(ipc_address(tmp_path, "alpha.dp0-tp0"))


def sockets_of(path: Path) -> None:
    """What a server makes there, beside its lock."""
    path.touch()
    path.with_suffix(ARENA).touch()


def test_one_server_listens_at_a_path_and_leaves_nothing(path: Path) -> None:
    lock = take_path(path)
    sockets_of(path)
    with pytest.raises(ConfigError, match="another server listens at"):
        take_path(path)
    leave_path(lock, path)
    assert list(path.parent.iterdir()) == []
    leave_path(take_path(path), path)


def test_what_killed_servers_have_left_goes_and_nothing_of_others(path: Path) -> None:
    killed, lives = path.with_name("killed-1.dp0-tp0.lease"), path.with_name("lives-2.dp0-tp0.lease")
    os.close(take_path(killed))  # as the kernel does
    sockets_of(killed)
    held = take_path(lives)
    sockets_of(lives)
    strangers = {path.with_name(name) for name in ("redis.lock", "host-memory.lock", "nobody.lease", "notes")}
    for stranger in strangers:
        stranger.touch()
    lock = take_path(path)
    assert set(path.parent.iterdir()) == {
        path.with_suffix(".lock"), lives, lives.with_suffix(ARENA), lives.with_suffix(".lock"), *strangers,
    }  # fmt: skip
    leave_path(lock, path)
    leave_path(held, lives)


def test_a_lock_that_its_owner_is_just_removing_is_not_taken_for_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would listen at one path."""
    first, real = take_path(path), addresses.fcntl.flock
    opened = []

    def flock(lock: int, how: int) -> None:
        if not opened:
            opened.append(os.fstat(lock).st_ino)
            leave_path(first, path)
        real(lock, how)

    monkeypatch.setattr(addresses.fcntl, "flock", flock)
    second = take_path(path)
    assert os.fstat(second).st_ino == path.with_suffix(".lock").stat().st_ino
    with pytest.raises(ConfigError):
        take_path(path)
    leave_path(second, path)


def test_a_lock_that_another_rank_has_for_a_moment_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes what it takes for a killed server's."""
    os.close(take_path(path))
    sockets_of(path)
    sweeper = os.open(path.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(sweeper, fcntl.LOCK_EX)
    slept = []

    def sleep(runner: object, seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            os.close(sweeper)

    monkeypatch.setattr(ThreadRunner, "sleep", sleep)
    leave_path(take_path(path), path)
    assert len(slept) == 3
