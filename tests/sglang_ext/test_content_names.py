"""Content names: read once, remembered for this user alone, and forgotten by whoever touches a file."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest

from swift_tiers.sglang_ext.build import content_names
from swift_tiers.sglang_ext.build.content_names import ContentNames, FileChangedError, hub_name

from support.clocks import file_clock_moved

LATER = 2e10  # seconds since the epoch: long after the files of a test were written


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "swift-tiers" / "names"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights" * 1000)
    return path


def names_in(directory: Path | None, clock: float = LATER) -> ContentNames:
    return ContentNames(directory, clock=lambda: clock)


def test_who_has_no_home_reads_weights_at_every_start(
    homeless: None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert content_names.cache_directory() is None
    assert "set XDG_CACHE_HOME" in caplog.text
    names = ContentNames(content_names.cache_directory())
    assert [names.of(path) for _ in range(2)] == [sha256(path)] * 2
    assert names.bytes_read == 2 * path.stat().st_size


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_once_by_all_servers_of_a_user(directory: Path, path: Path) -> None:
    first, second = names_in(directory), names_in(directory)
    assert first.of(path) == second.of(path) == sha256(path)
    assert (first.bytes_read, second.bytes_read) == (7000, 0)
    link = path.parent / "link"
    link.symlink_to(path)
    assert second.of(link) == sha256(path)
    assert second.bytes_read == 0


def test_what_is_remembered_is_for_this_user_alone(directory: Path, path: Path) -> None:
    old = os.umask(0)
    try:
        names_in(directory).of(path)
    finally:
        os.umask(old)
    (entry,) = directory.iterdir()
    assert (entry.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("call", ["flock", "pread", "utime", "ftruncate", "pwrite"])
def test_a_file_is_known_although_its_name_cannot_be_remembered(
    directory: Path, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """As on a full disk, or on a file system without locks."""

    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "utime":
        names_in(directory).of(path)
    with monkeypatch.context() as broken:
        broken.setattr(fcntl if call == "flock" else os, call, fails)
        names = names_in(directory)
        assert [names.of(path) for _ in range(3)] == [sha256(path)] * 3
    assert len(caplog.records) == (call != "utime"), "one line, however many files there are"
    assert names_in(directory).of(path) == sha256(path)


def test_a_directory_that_was_handed_to_a_group_is_made_private_again(directory: Path, path: Path) -> None:
    """Kubernetes does that to all of a volume with `fsGroup`, whenever it is mounted."""
    names_in(directory).of(path)
    (entry,) = directory.iterdir()
    entry.chmod(0o660)
    directory.chmod(0o2770)
    names = names_in(directory)
    assert (names.of(path), names.bytes_read) == (sha256(path), 0)
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o2777)
    names = names_in(directory)
    assert (names.of(path), names.bytes_read) == (sha256(path), 7000), "everybody could have written there"


@pytest.mark.parametrize("touch", ["write", "utime", "chmod", "rename"])
def test_whoever_touches_a_file_has_it_read_again(directory: Path, path: Path, touch: str) -> None:
    names = names_in(directory)
    names.of(path)
    file_clock_moved(path)
    before = path.stat()
    if touch == "write":
        path.write_bytes(b"WEIGHTS" * 1000)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif touch == "utime":
        os.utime(path, ns=(1, 1))
    elif touch == "chmod":
        path.chmod(0o600)
    else:
        (path.parent / "new").write_bytes(b"WEIGHTS" * 1000)
        os.utime(path.parent / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (path.parent / "new").rename(path)
    assert names.of(path) == sha256(path)
    assert names.bytes_read == 14_000


def test_a_file_that_was_written_just_now_is_not_remembered(directory: Path, path: Path) -> None:
    """It may be written again within what its clock calls the same time."""
    names = names_in(directory, path.stat().st_ctime + 1)
    names.of(path)
    names.of(path)
    assert names.bytes_read == 14_000


def test_what_a_killed_process_wrote_in_part_is_not_believed(directory: Path, path: Path) -> None:
    names = names_in(directory)
    names.of(path)
    (entry,) = directory.iterdir()
    for left in (b"", entry.read_bytes()[:-10], b"x" * 100_000):
        entry.write_bytes(left)
        assert names.of(path) == sha256(path)
    assert names.bytes_read == 28_000
    names.of(path)
    assert names.bytes_read == 28_000


def test_a_directory_of_somebody_else_is_not_used(directory: Path, path: Path, monkeypatch, caplog) -> None:
    names_in(directory).of(path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    names = names_in(directory)
    assert names.of(path) == names.of(path) == sha256(path)
    assert names.bytes_read == 14_000
    (line,) = [record.getMessage() for record in caplog.records]
    assert "weights are read at every start" in line
    assert "belongs to uid" in line


def test_a_place_that_cannot_be_written_costs_time_only(tmp_path: Path, path: Path) -> None:
    names = names_in(path / "no" / "folder")
    assert names.of(path) == sha256(path)


def test_two_readers_of_one_file_take_turns(directory: Path, path: Path, monkeypatch) -> None:
    """The second one waits for the first and then remembers."""
    names_in(directory, 0).of(path)  # makes the entry, remembers nothing
    (entry,) = directory.iterdir()
    names = names_in(directory)
    waits = threading.Event()
    real = fcntl.flock

    def flock(file, how):
        waits.set()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with open(entry) as held:
        real(held, fcntl.LOCK_EX)
        second = threading.Thread(target=names.of, args=(path,))
        second.start()
        assert waits.wait(60)
        assert names.bytes_read == 0
    second.join(60)
    assert names.bytes_read == 7000


def test_a_file_that_changes_while_it_is_read_has_no_name(directory: Path, path: Path, monkeypatch) -> None:
    real = hashlib.file_digest

    file_clock_moved(path)

    def slow(file, kind):
        path.write_bytes(b"WEIGHTS" * 1000)
        return real(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    with pytest.raises(FileChangedError, match="changed while it was read"):
        names_in(directory).of(path)
    monkeypatch.undo()
    assert names_in(directory).of(path) == sha256(path)


def test_names_do_not_pile_up(directory: Path, path: Path, monkeypatch) -> None:
    monkeypatch.setattr(content_names, "MOST_REMEMBERED", 4)
    names = names_in(directory)
    for number in range(10):
        other = path.with_name(str(number))
        other.write_bytes(b"x")
        names.of(other)
        assert len(list(directory.iterdir())) <= 4


def test_a_blob_that_was_written_through_its_link_is_not_believed_in_a_copy_of_the_cache_either(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "x").mkdir(parents=True)
    blob, link = hub / "blobs" / ("a" * 64), hub / "snapshots" / "x" / "model.safetensors"
    blob.write_bytes(b"weights")
    file_clock_moved(blob)
    link.symlink_to(f"../../blobs/{blob.name}")

    def copied(name: str) -> str | None:
        for part in ("blobs", "snapshots"):  # as `cp` and `tar` go
            shutil.copytree(hub / part, tmp_path / name / part, symlinks=True)
        return hub_name(tmp_path / name / "snapshots" / "x" / link.name)

    assert hub_name(link) == copied("before") == blob.name
    file_clock_moved(link)
    link.write_bytes(b"WEIGHTS")
    assert hub_name(link) is copied("after") is None


@pytest.mark.parametrize("name", ["a" * 40, "A" * 64, "a" * 63])
def test_only_a_blob_that_is_called_by_its_content_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / name).touch()
    link = tmp_path / "link"
    link.symlink_to(f"blobs/{name}")
    assert hub_name(link) is None
    assert hub_name(tmp_path / "missing") is None
