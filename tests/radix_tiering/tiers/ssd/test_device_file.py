"""Device files: whose they are, how they are made, and what a process that is killed while it makes one leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError, StripeSetBusyError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.tiers.ssd.files import (
    check_owner,
    create_device_file,
    half_made,
    is_empty_file,
    open_array,
    open_device_file,
    remove_half_made,
)

NAME = "swift-tiers-dp0-tp0.stripe"
SIZE = 10 * BLOCK_BYTES
STRANGER = 54321


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


# ---- whose it is ----


def test_a_file_of_another_user_is_refused_and_left_as_it_is(path: Path, monkeypatch) -> None:
    path.write_bytes(bytes(SIZE))
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(
        ConfigError, match=r"belongs to uid \d+, not to 54321 who runs this; remove it, or name"
    ) as error:
        open_device_file(path)
    assert "\n" not in str(error.value)
    assert mode_of(path) == 0o644
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is not locked either


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_what_lies_behind_a_symbolic_link_is_neither_taken_nor_changed(path: Path, mode: int) -> None:
    victim = path.parent / "victim"
    victim.write_bytes(bytes(SIZE))
    victim.chmod(mode)
    path.symlink_to(victim)
    for attempt in (open_device_file, lambda path: create_device_file(path, SIZE)):
        with pytest.raises(ConfigError, match=r"symbolic link|is there already"):
            attempt(path)
    assert (mode_of(victim), victim.read_bytes()) == (mode, bytes(SIZE))


@pytest.mark.parametrize("where", ["", ".new"])
def test_nothing_is_made_where_a_dangling_link_leads(path: Path, where: str) -> None:
    far = path.parent / "far"
    path.with_name(path.name + where).symlink_to(far)
    with pytest.raises(ConfigError, match="; remove "):
        create_device_file(path, SIZE)
    assert not far.exists()
    assert not path.exists()


def test_a_file_that_has_another_name_is_refused(path: Path) -> None:
    create_device_file(path, SIZE)
    path.chmod(0o644)
    os.link(path, path.parent / "other")
    with pytest.raises(ConfigError, match=r"has 2 names \(hard links\); remove the others"):
        open_device_file(path)
    assert mode_of(path) == 0o644


def test_a_file_of_this_user_that_others_may_read_becomes_private(path: Path) -> None:
    create_device_file(path, SIZE)
    path.chmod(0o644)
    open_array([path]).close()
    assert mode_of(path) == 0o600


# ---- making one ----


def test_a_new_file_is_allocated_and_private(path: Path) -> None:
    old = os.umask(0)
    try:
        create_device_file(path, SIZE)
    finally:
        os.umask(old)
    assert (mode_of(path), path.stat().st_size) == (0o600, SIZE)
    assert path.stat().st_blocks * 512 >= SIZE, "no later write may fail for want of room"
    assert os.listdir(path.parent) == [NAME]


def test_a_file_that_holds_something_is_not_made_anew(path: Path) -> None:
    path.write_bytes(b"kept")
    with pytest.raises(ConfigError, match="is there already; remove it"):
        create_device_file(path, SIZE)
    assert path.read_bytes() == b"kept"
    assert os.listdir(path.parent) == [NAME]


def test_an_empty_file_is_made_anew(path: Path) -> None:
    path.touch()
    assert is_empty_file(path)
    create_device_file(path, SIZE)
    assert path.stat().st_size == SIZE
    assert not is_empty_file(path)


def test_no_room_leaves_nothing_behind(path: Path, monkeypatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        os.write(descriptor, b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*bytes are free.*configure a smaller size"):
        create_device_file(path, SIZE)
    assert os.listdir(path.parent) == []
    with pytest.raises(ConfigError, match="cannot be created"):
        create_device_file(path.parent / "no" / "folder", SIZE)


#: Stops for ever while it allocates, having taken some room.
KILLED = """
import os, sys
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file
def allocate(descriptor, offset, length):
    os.write(descriptor, b"x" * 8192)
    print("allocating", flush=True)
    sys.stdin.read()
os.posix_fallocate = allocate
create_device_file(sys.argv[1], 1 << 20)
"""


@pytest.fixture
def maker(path: Path):
    """A process that is making a device file."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "allocating\n"
    yield process
    process.kill()
    process.communicate()


def test_a_process_killed_while_it_makes_one_stops_no_later_one(path: Path, maker) -> None:
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    assert not path.exists()
    new = path.with_name(NAME + ".new")
    assert half_made(path.parent) == [(new, new.stat().st_blocks * 512)]
    assert new.stat().st_blocks
    create_device_file(path, SIZE)
    assert os.listdir(path.parent) == [NAME]
    assert path.read_bytes() == bytes(SIZE)


def test_what_a_killed_process_left_can_be_removed(path: Path, maker) -> None:
    maker.kill()
    maker.wait()
    assert remove_half_made(path.parent) == [path.with_name(NAME + ".new")]
    assert os.listdir(path.parent) == []


def test_a_file_that_another_process_is_making_is_left_to_it(path: Path, maker) -> None:
    assert half_made(path.parent) == []
    assert remove_half_made(path.parent) == []
    with pytest.raises(StripeSetBusyError, match="another process is making it; wait"):
        create_device_file(path, SIZE)
    assert os.listdir(path.parent) == [NAME + ".new"]


def test_half_made_files_of_others_are_left_alone(path: Path, monkeypatch) -> None:
    new = path.with_name(NAME + ".new")
    new.touch()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert remove_half_made(path.parent) == []
    with pytest.raises(ConfigError, match="belongs to uid"):
        create_device_file(path, SIZE)
    assert new.exists()


# ---- block devices ----


def block_device(monkeypatch, path: Path, *, uid: int, mode: int) -> None:
    """Let `path` be a block device of this owner and mode; making a real one takes rights that tests do not have."""
    real_lstat = os.lstat

    def lstat(name: Path) -> os.stat_result:
        found = list(real_lstat(name))
        if Path(name) == path:
            found[stat.ST_MODE], found[stat.ST_UID] = stat.S_IFBLK | mode, uid
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(Path, "is_block_device", lambda self: self == path)


@pytest.mark.parametrize(("uid", "mode", "why"), [(0, 0o660, ""), (7, 0o600, "belongs to uid 7"), (0, 0o666, "o-rw")])
def test_a_block_device_is_roots_or_ours_and_nobody_elses(path: Path, monkeypatch, uid, mode, why) -> None:
    path.touch()
    link = path.parent / "nvme-by-id"
    link.symlink_to(path)
    block_device(monkeypatch, path, uid=uid, mode=mode)
    for name in (path, link):  # links of root or of this user name block devices by what does not change
        if not why:
            check_owner(name)
        else:
            with pytest.raises(ConfigError, match=why):
                check_owner(name)
