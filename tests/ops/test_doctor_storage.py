"""`swift-tiers doctor` on directories, block devices and device files."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swift_tiers.ops.commands.doctor import storage, stripe_sets
from swift_tiers.ops.commands.doctor.finding import Check, Finding, ok
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.ops.commands.doctor.places import Disk, Mount, RealPlace, disks_of, mount_of, place_of, read_mounts
from swift_tiers.ops.commands.doctor.stripe_sets import device_files, read_content, stripe_set
from swift_tiers.radix_tiering.base.config import SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.tiers.ssd import StripeSet
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array
from swift_tiers.radix_tiering.tiers.ssd.fsck import check, repair

from support.doctor import assert_finding

NOBODY = 65534
MIB, GIB = 2**20, 2**30
NAME = "swift-tiers-dp0-tp0.stripe"
UNIT = 8192
SSD, OTHER, HDD = Disk("nvme0n1", False, True), Disk("nvme1n1", False, True), Disk("sda", True, False)


def as_user(look: Callable[[], Finding]) -> Finding:
    """`look` as a user for whom modes count, in a process of its own."""

    def run() -> Finding:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return look()

    (finding,) = run_checks([Check("as a user", run, 30.0)])
    return finding


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user can reach, other than pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="swift-doctor-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def place(path: str, kind: str, device: int = 1, disks: tuple[Disk, ...] = ()) -> RealPlace:
    return RealPlace(path, Mount("/", kind, "/dev/some", frozenset()), device, disks)


# ---- directories ----


def test_a_good_directory(tmp_path: Path) -> None:
    assert storage.directory(str(tmp_path)) == ok("writable")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_finding(storage.directory(str(tmp_path / "none")), "wrong", "No such file", "mkdir -p")
    assert_finding(storage.directory(str(tmp_path / "file")), "wrong", "not a directory", "ssd.devices")


def test_a_directory_that_is_not_writable(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    assert_finding(as_user(lambda: storage.directory(str(open_folder))), "wrong", "Permission denied", "chown")


def test_direct_io_leaves_nothing_behind(tmp_path: Path) -> None:
    finding = storage.direct_io(str(tmp_path))
    assert finding == ok("direct I/O works")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.EINVAL, "warning", ["refused", "page cache"]),
        (errno.EIO, "wrong", ["Input/output error", "check the device"]),
    ],
)
def test_direct_io_that_does_not_work(number: int, status: str, words: list[str], tmp_path: Path) -> None:
    def refuse(path: str, flags: int) -> int:
        assert flags & os.O_DIRECT
        raise OSError(number, os.strerror(number))

    assert_finding(storage.direct_io(str(tmp_path), refuse), status, *words)
    assert not list(tmp_path.iterdir())


def test_a_block_that_comes_back_changed(tmp_path: Path) -> None:
    """The file behind the handle is another than the one written: one that only swallows."""

    def open_zeros(path: str, flags: int) -> int:
        return os.open("/dev/zero", os.O_RDWR)

    assert_finding(storage.direct_io(str(tmp_path), open_zeros), "wrong", "came back other than")


@pytest.mark.parametrize(
    ("kind", "disks", "status", "words"),
    [
        ("ext4", (SSD,), "ok", ["ext4", "nvme0n1"]),
        ("xfs", (), "ok", ["xfs"]),
        ("ext4", (HDD,), "warning", ["rotating"]),
        ("ext4", (Disk("vda", True, True),), "note", ["virtual"]),
        ("nfs4", (), "warning", ["network"]),
        ("fuse.sshfs", (), "warning", ["network"]),
        ("tmpfs", (), "warning", ["memory", "lost at a restart"]),
        ("overlay", (), "warning", ["container", "volume"]),
        ("btrfs", (SSD,), "note", ["copies on write"]),
    ],
)
def test_file_systems(kind: str, disks: tuple[Disk, ...], status: str, words: list[str]) -> None:
    assert_finding(storage.file_system(place("/ssd0", kind, disks=disks)), status, *words)


def test_a_directory_in_memory() -> None:
    """/dev/shm is a tmpfs on every Linux, with or without direct I/O."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (check, *_) = storage.checks(
            TiersConfig(ssd=SsdConfig(directories=(folder,), size_per_device=Size(16 * MIB))), 1
        )
        assert_finding(check.run(), "warning", "tmpfs", "use a local SSD", "1 new device file of 16MiB")


def test_space() -> None:
    assert_finding(storage.space(2, GIB, 4 * GIB), "ok", "2 new device files of 1GiB, 4GiB free")
    assert_finding(storage.space(0, GIB, MIB), "ok", "are there")
    assert_finding(storage.space(2, 3 * GIB, 4 * GIB), "wrong", "size_per_device to at most 2GiB")
    assert_finding(storage.space(1, MIB, 4 * GIB), "wrong", "at least 16MiB")


def test_space_that_directories_share() -> None:
    places = [place("/a", "ext4", 1), place("/b", "ext4", 1), place("/c", "ext4", 2)]
    free = {"/a": 5 * GIB, "/b": 5 * GIB, "/c": 3 * GIB}
    assert storage.shared_space(places, lambda path: 2 * GIB, free.__getitem__).status == "ok"
    tight = storage.shared_space(places, lambda path: 3 * GIB, free.__getitem__)
    assert_finding(tight, "wrong", "/a, /b need 6GiB together, 5GiB free")


def test_too_much_for_one_file_system(tmp_path: Path) -> None:
    names = tuple(str(tmp_path / name) for name in ("a", "b"))
    for name in names:
        os.mkdir(name)
    size = Size(shutil.disk_usage(tmp_path).free * 2 // 3)
    found = {
        check.name: check.run() for check in storage.checks(TiersConfig(ssd=SsdConfig(names, size_per_device=size)), 1)
    }
    assert found[f"directory {names[0]}"].status != "wrong"  # each alone would fit
    assert_finding(found["striping"], "wrong", "together")


def test_without_directories_the_tier_is_off() -> None:
    (check,) = storage.checks(TiersConfig(), 1)
    assert_finding(check.run(), "note", "off", "directories")


# ---- striping ----


def test_striping() -> None:
    own = [place("/a", "ext4", 1, (SSD,)), place("/b", "ext4", 2, (OTHER,))]
    assert storage.striping(own, False).status == "ok"
    same = [place("/a", "ext4", 1, (SSD,)), place("/b", "ext4", 2, (SSD,))]
    assert_finding(storage.striping(same, False), "warning", "/a and /b", "one directory on each SSD")
    assert_finding(storage.striping(same, True), "note", "/a and /b", "ssd.throttle")
    raid = [place("/a", "ext4", 1, (SSD, OTHER)), place("/b", "ext4", 2, (OTHER,))]
    assert storage.striping(raid, False).status == "warning"
    assert storage.striping([place("/a", "tmpfs", 7), place("/b", "tmpfs", 7)], False).status == "warning"
    assert storage.striping([place("/a", "nfs", 7), place("/b", "nfs", 8)], False).status == "ok"


def test_a_directory_named_twice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    places = [place_of(str(tmp_path)), place_of(str(tmp_path / "link"))]
    assert_finding(storage.striping(places, True), "wrong", "named twice", str(tmp_path))


# ---- what lies beneath ----

MOUNTINFO = """\
22 27 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
30 22 0:40 / /data rw - nfs4 store:/export rw,vers=4.2
31 22 0:41 / /data rw - btrfs /dev/null ro
32 22 8:1 /sub /with\\040space rw master:1 - xfs /dev/sda1 rw
"""


def test_mounts() -> None:
    mounts = read_mounts(MOUNTINFO)
    assert mount_of("/home/me", mounts).kind == "ext4"
    assert "discard" in mount_of("/", mounts).options
    assert mount_of("/data/ssd0", mounts).kind == "btrfs", "the later mount hides the one before"
    assert mount_of("/database", mounts).kind == "ext4", "only whole names count"
    assert mount_of("/with space/x", mounts).source == "/dev/sda1"
    assert mounts[1].network
    assert not mounts[0].network


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A /sys with a partition (259:2) of an SSD, and a RAID (9:0) over that partition and a rotating disk."""
    devices = tmp_path / "devices"
    for name, rotational, discard in (("nvme0n1", 0, 4096), ("sda", 1, 0)):
        (devices / name / "queue").mkdir(parents=True)
        (devices / name / "queue" / "rotational").write_text(f"{rotational}\n")
        (devices / name / "queue" / "discard_max_bytes").write_text(f"{discard}\n")
    (devices / "nvme0n1" / "nvme0n1p2").mkdir()
    (devices / "nvme0n1" / "nvme0n1p2" / "partition").write_text("2\n")
    (devices / "md0" / "slaves").mkdir(parents=True)
    (devices / "md0" / "slaves" / "nvme0n1p2").symlink_to(devices / "nvme0n1" / "nvme0n1p2")
    (devices / "md0" / "slaves" / "sda").symlink_to(devices / "sda")
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / "259:2").symlink_to(devices / "nvme0n1" / "nvme0n1p2")
    (tmp_path / "dev" / "block" / "9:0").symlink_to(devices / "md0")
    return tmp_path


def test_disks_are_found_through_partitions_and_raid(system: Path) -> None:
    assert disks_of(os.makedev(259, 2), system) == (SSD,)
    assert disks_of(os.makedev(9, 0), system) == (SSD, HDD)
    assert disks_of(os.makedev(0, 40), system) == ()


def test_the_place_of_a_real_directory(tmp_path: Path) -> None:
    found = place_of(str(tmp_path))
    assert found.device == os.stat(tmp_path).st_dev
    assert found.mount.kind != "unknown"
    with pytest.raises(OSError, match="No such file"):
        place_of(str(tmp_path / "none"))


# ---- block devices ----


def test_what_is_no_block_device(tmp_path: Path) -> None:
    assert_finding(storage.block_device("/dev/null", 1), "wrong", "not a block device")
    assert_finding(storage.block_device(str(tmp_path / "none"), 1), "wrong", "No such file")


def block_nodes() -> list[str]:
    with os.scandir("/sys/block") as found:
        return [f"/dev/{entry.name}" for entry in found if Path(f"/dev/{entry.name}").is_block_device()]


def test_a_block_device_for_several_ranks() -> None:
    nodes = block_nodes()
    assert nodes, "every machine has one"
    assert_finding(storage.block_device(nodes[0], 2), "wrong", "shared by 2 ranks", "file system")


def test_a_block_device_of_somebody_else() -> None:
    for node in block_nodes():
        finding = as_user(lambda node=node: storage.block_device(node, 1))  # type: ignore[misc]
        assert finding.status in ("note", "wrong"), "another user may not have it"
        assert finding.remedy


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[str]:
    """A block device of 32 MiB; taken down again."""
    if os.geteuid() != 0 or shutil.which("losetup") is None or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, losetup and loop devices")
    with open(tmp_path / "image", "wb") as image:
        image.truncate(32 * MIB)
    command = ["losetup", "--find", "--show", str(tmp_path / "image")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if made.returncode != 0:
        pytest.skip(f"no loop device can be made: {made.stderr.strip()}")
    device = made.stdout.strip()
    yield device
    subprocess.run(["losetup", "--detach", device], check=True, timeout=20)


def test_a_file_system_whose_beginning_is_blank_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start refuses it."""
    device = tmp_path / "nvme0n1"
    device.write_bytes(bytes(0x10040) + b"_BHRfS_M" + bytes(MIB))
    monkeypatch.setattr(Path, "is_block_device", lambda path: path == device)
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, how, *more, **options: real(path, how & ~os.O_EXCL, *more, **options))
    finding = device_files(SsdConfig(devices=(str(device),)))
    assert_finding(finding, "wrong", "holds a btrfs file system")
    device.write_bytes(bytes(MIB))
    assert_finding(device_files(SsdConfig(devices=(str(device),))), "ok", "still empty")


@pytest.mark.root
def test_a_block_device(loop_device: str) -> None:
    config = SsdConfig(devices=(loop_device,))
    free = storage.block_device(loop_device, 1)
    assert free.status in ("ok", "note")
    assert "32MiB, direct reads work" in free.found
    assert_finding(device_files(config), "ok", "still empty")
    array = open_array([loop_device])
    assert_finding(storage.block_device(loop_device, 1), "note", "in use")
    assert_finding(device_files(config), "note", "in use", loop_device)
    array.close()


# ---- device files ----


def make_set(folder: Path, devices: int = 2, name: str = NAME, *, close: bool = True) -> list[Path]:
    """A stripe set with one device in each of the folders ssd0, ssd1, ..."""
    paths = []
    for number in range(devices):
        (folder / f"ssd{number}").mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"ssd{number}" / name)
        create_device_file(paths[-1], MIB)
    array = open_array(paths, engine="threads")
    opened = StripeSet.open(array, create=UNIT)
    opened.close([] if close else None)  # without an index it is as left by a crash
    array.close()
    return paths


def config_of(paths: list[Path]) -> SsdConfig:
    return SsdConfig(directories=tuple(str(path.parent) for path in paths))


def test_no_device_files_yet(tmp_path: Path) -> None:
    assert_finding(device_files(SsdConfig(directories=(str(tmp_path),))), "ok", "none yet")


def test_a_whole_set(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    assert_finding(device_files(config_of(paths)), "ok", "2 device(s), closed in order")
    content = [path.read_bytes() for path in paths]
    make_set(tmp_path, name="swift-tiers-dp0-tp1.stripe")
    assert_finding(device_files(config_of(paths)), "ok", "2 stripe sets")
    assert [path.read_bytes() for path in paths] == content


def test_a_set_that_was_not_closed(tmp_path: Path) -> None:
    paths = make_set(tmp_path, close=False)
    assert_finding(device_files(config_of(paths)), "ok", "not closed in order")


def test_new_device_files_are_empty(tmp_path: Path) -> None:
    create_device_file(tmp_path / NAME, MIB)
    assert_finding(device_files(config_of([tmp_path / NAME])), "ok", "1 device(s), still empty")


def test_a_set_in_use(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    with open(paths[1], "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_finding(device_files(config_of(paths)), "note", "in use", str(paths[1]))
        assert str(paths[0]) not in device_files(config_of(paths)).found
    # Looking has taken no lock that stays.
    open_array(paths, engine="threads").close()


def test_a_missing_member(tmp_path: Path) -> None:
    paths = make_set(tmp_path, 3)
    assert_finding(device_files(config_of(paths[:2])), "note", "1 more not here", "fsck --repair --forget-missing")
    array = open_array(paths[:2], engine="threads")
    repair(array, check(array, forget_missing=True))
    array.close()
    assert_finding(device_files(config_of(paths[:2])), "ok", "2 device(s), closed in order")


def test_devices_of_two_sets(tmp_path: Path) -> None:
    one, other = make_set(tmp_path / "one", 1), make_set(tmp_path / "other", 1)
    assert_finding(device_files(config_of(one + other)), "wrong", "different stripe sets", str(one[0]), str(other[0]))


def test_a_device_and_its_copy(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    shutil.copy(paths[0], paths[1])
    assert_finding(device_files(config_of(paths)), "wrong", "copies of one device")


def test_content_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(os.urandom(MIB))
    assert_finding(device_files(config_of([path])), "wrong", "not of a stripe set", "delete it")


def test_a_damaged_device(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    with open(paths[0], "r+b") as file:
        for offset in (0, BLOCK_BYTES):
            file.seek(offset + 100)
            file.write(b"x" * 8)
    assert_finding(device_files(config_of(paths)), "warning", str(paths[0]), "fsck")
    paths[0].write_bytes(b"short")
    assert_finding(stripe_set([read_content(paths[0])]), "warning", "only 5 bytes")


def test_a_device_cut_short(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    os.truncate(paths[0], MIB // 2)
    assert_finding(device_files(config_of(paths)), "warning", "524288 bytes long, its superblock says")


def test_another_format_version(tmp_path: Path) -> None:
    from swift_tiers.radix_tiering.tiers.ssd.layout import CHECKSUM_OFFSET, LAYOUT_VERSION, seal

    (path,) = make_set(tmp_path, 1)
    with open(path, "r+b") as file:
        for offset in (0, BLOCK_BYTES):
            file.seek(offset)
            block = bytearray(file.read(CHECKSUM_OFFSET))
            at = block.index(LAYOUT_VERSION.to_bytes(4, "little"), 4)
            block[at : at + 4] = (LAYOUT_VERSION + 1).to_bytes(4, "little")
            file.seek(offset)
            file.write(seal(bytes(block)))
    assert_finding(device_files(config_of([path])), "wrong", f"format version {LAYOUT_VERSION + 1}")


def test_a_device_file_of_somebody_else(open_folder: Path) -> None:
    (path,) = make_set(open_folder, 1)
    finding = as_user(lambda: device_files(config_of([path])))
    assert_finding(finding, "wrong", "belongs to uid 0, not to", "remove it, or name another directory")


def test_a_symbolic_link_where_a_device_file_should_be(tmp_path: Path) -> None:
    (path,) = make_set(tmp_path, 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_finding(device_files(config_of([path])), "wrong", "is a symbolic link", "remove it")


def test_an_empty_device_file(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    os.truncate(paths[0], 0)
    assert_finding(device_files(config_of(paths)), "warning", "is empty, nothing of it is left", "fsck")


def test_one_bad_set_among_good_ones(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    bad = make_set(tmp_path, name="swift-tiers-dp0-tp1.stripe")
    shutil.copy(bad[0], bad[1])
    finding = device_files(config_of(paths))
    assert_finding(finding, "wrong", "copies of one device", bad[0].name)
    assert NAME not in finding.found


def test_device_files_are_the_ones_that_a_server_makes() -> None:
    from swift_tiers.radix_tiering.tiers.ssd.device_files import DeviceFiles
    from swift_tiers.sglang_ext.build.assembly import Rank

    rank = Rank(0, 1, 0, 1)
    (path,) = DeviceFiles(rank.name, rank.total, SsdConfig(directories=("/ssd0",))).paths()
    assert path.name == stripe_sets.ONLY_RANK
    assert path.match(stripe_sets.PATTERN)
