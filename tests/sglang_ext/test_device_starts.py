"""Starts of a server with an ssd tier: what does not fit, what was killed, what others left, and what is damaged."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from swift_tiers.ops import cli
from swift_tiers.radix_tiering.base.config import BusConfig, SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError, SwiftTiersError
from swift_tiers.radix_tiering.base.read_config import parse_config, read_source
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.tiers.ssd.claiming import signature
from swift_tiers.radix_tiering.tiers.ssd.device_files import DeviceFiles, LaunchRanks
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_device_file
from swift_tiers.radix_tiering.tiers.ssd.layout import CHECKSUM_OFFSET, SUPERBLOCK_OFFSETS, seal
from swift_tiers.sglang_ext.build.assembly import Rank, check_machine, open_ssd
from swift_tiers.sglang_ext.build.start_checks import check_start

from support.engine import chain, close, get, make_stack, put

SIZE = 16 * 2**20
NAME = "swift-tiers-dp0-tp0.stripe"
RANK = Rank(0, 1, 0, 1)


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    folders = [tmp_path / f"ssd{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    return folders


def config_of(folders: list[Path], size: int | None = SIZE) -> SsdConfig:
    return SsdConfig(
        directories=tuple(map(str, folders)),
        size_per_device=None if size is None else Size(size),
        stripe_unit=Size(4096),
        engine="threads",
    )


def check(config: SsdConfig, ranks: int = 1) -> None:
    check_machine(TiersConfig(ssd=config), ranks)


def start(config: SsdConfig):
    """As a server does: what can be found out before the model is loaded, then the tier."""
    check(config)
    tier = open_ssd(config, RANK)
    assert tier is not None
    return tier


def with_free(monkeypatch, free: int) -> None:
    """Let every file system have so many bytes free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**40, 2**40 - free, free))


def test_directories_on_one_file_system_must_fit_together(folders, monkeypatch) -> None:
    with_free(monkeypatch, 3 * SIZE - 1)
    check(config_of(folders[:2]))
    with pytest.raises(ConfigError, match=r"ssd\.size_per_device: the 48MiB .* share a file system: .* smaller"):
        check(config_of(folders))
    with pytest.raises(ConfigError, match=r"ssd\.size_per_device: the 64MiB of new device files do not fit"):
        check(config_of(folders[:2]), ranks=2)
    assert not any(os.listdir(folder) for folder in folders)


def test_sizes_that_are_not_configured_fit_together(folders, monkeypatch) -> None:
    with_free(monkeypatch, 12 * SIZE)
    check(config_of(folders, None), ranks=2)


def test_sizes_are_of_each_machine(folders, monkeypatch) -> None:
    """A server on two machines has half of its ranks on each."""
    rank = Rank(0, 8, 0, 1)
    assert [rank.here(machines) for machines in (1, 2, 3)] == [8, 4, 3]
    with_free(monkeypatch, 64 * SIZE)
    tier = open_ssd(config_of(folders[:1], None), rank, 2)
    assert tier is not None
    assert os.path.getsize(tier.paths[0]) == 64 * SIZE // 2 // 4
    close(make_stack(ssd=tier))


def test_ranks_that_come_one_after_another_make_files_of_one_size(folders, monkeypatch) -> None:
    """What is free is less for each, by what those before it have made. Files of other machines' ranks are none of
    theirs, nor what is left."""
    lay(folders[0], "dp0-tp1")

    def usage(path: str):
        made = [file for folder in folders[:2] for file in folder.iterdir() if "tp1" not in file.name]
        free = 8 * SIZE - sum(os.path.getsize(file) for file in made)
        return shutil._ntuple_diskusage(2**40, 2**40 - free, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    for data in (1, 0):
        tier = open_ssd(config_of(folders[:2], None), Rank(0, 2, data, 2), 2)
        assert tier is not None
        assert [os.path.getsize(path) for path in tier.paths] == [SIZE, SIZE]
        close(make_stack(ssd=tier))


def test_a_file_beside_a_large_one_takes_half_of_what_is_free(folders, monkeypatch) -> None:
    """Of a start at which a size was configured."""
    with open(folders[0] / NAME, "wb") as file:
        file.truncate(12 * SIZE)
    with_free(monkeypatch, 4 * SIZE)
    names = ("dp0-tp0", "dp0-tp1")
    assert DeviceFiles("dp0-tp1", 2, config_of(folders[:1], None), names).size_in(folders[0]) == 2 * SIZE


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_a_rank_knows_which_others_its_machine_has(machines: int) -> None:
    share = 4 // machines
    for tensor in range(4):
        assert Rank(tensor, 4, 1, 2).names_beside(machines) == Rank(0, 4, 0, 2).names(machines, tensor // share)


# ---- of which ranks ----


def launch(tensors: int, replicas: int, machines: int = 1, machine: int = 0) -> LaunchRanks:
    rank = Rank(0, tensors, 0, replicas)
    return LaunchRanks(rank.names(machines, machine), rank.names())


def lay(folder: Path, *ranks: str) -> None:
    for rank in ranks:
        create_device_file(folder / f"swift-tiers-{rank}.stripe", SIZE)


def test_room_is_looked_for_by_the_ranks_that_need_it(folders, monkeypatch, caplog) -> None:
    """From `--tp-size 2` to `--dp-size 2`: as many files as ranks, but of the second one none."""
    lay(folders[0], "dp0-tp0", "dp0-tp1")
    config = TiersConfig(ssd=config_of(folders[:1]))
    with_free(monkeypatch, SIZE - 1)
    with pytest.raises(ConfigError, match=r"ssd\.size_per_device: the 16MiB of new device files do not fit"):
        check_machine(config, 2, launch(1, 2))
    check_machine(config, 2, launch(2, 1))
    assert not caplog.records
    with_free(monkeypatch, SIZE)
    check_machine(config, 2, launch(1, 2))
    (said,) = caplog.messages
    path = folders[0] / "swift-tiers-dp0-tp1.stripe"
    assert said.startswith(f"swift-tiers: ssd.directories: no rank of this server uses {path} (16MiB), 16MiB together")
    assert "remove them to have their room" in said


def test_a_server_says_which_ranks_it_has(folders, monkeypatch, caplog) -> None:
    lay(folders[0], "dp0-tp0", "dp0-tp1")
    config = TiersConfig(ssd=config_of(folders[:1]), bus=BusConfig(enabled=False))
    with_free(monkeypatch, SIZE - 1)
    last = Rank(0, 1, 1, 2)
    check_start(config, server="alpha", last=last, make=False)  # which are not known
    with pytest.raises(ConfigError, match="the 16MiB of new device files do not fit"):
        check_start(config, server="alpha", last=last, machine=0, make=False)


def test_files_that_ranks_on_other_machines_hold_are_theirs(folders, monkeypatch, caplog) -> None:
    """Of a directory that machines share."""
    lay(folders[0], "dp0-tp0", "dp0-tp1", "dp0-tp2")
    config = TiersConfig(ssd=config_of(folders[:1]))
    with_free(monkeypatch, SIZE - 1)
    held = [open_device_file(folders[0] / f"swift-tiers-dp0-tp{number}.stripe") for number in (0, 1, 2)]
    held.pop().close()
    with pytest.raises(ConfigError, match=r"the 16MiB of new device files do not fit .* are free; make it smaller$"):
        check_machine(config, 2, launch(4, 1, 2, 1))
    with_free(monkeypatch, SIZE)
    check_machine(config, 2, launch(4, 1, 2, 1))
    assert not caplog.records
    for file in held:
        file.close()


def test_files_of_ranks_that_this_machine_has_no_more_are_named(folders, monkeypatch, caplog) -> None:
    """It was started with another --node-rank, and what is there is of no use to it."""
    lay(folders[0], "dp0-tp0", "dp0-tp1")
    config = TiersConfig(ssd=config_of(folders[:1]))
    first, second = (folders[0] / f"swift-tiers-dp0-tp{number}.stripe" for number in (0, 1))
    with_free(monkeypatch, SIZE)
    with pytest.raises(ConfigError) as refused:
        check_machine(config, 2, launch(4, 1, 2, 1))
    assert str(refused.value) == (
        f"ssd.size_per_device: the 32MiB of new device files do not fit in '{folders[0]}': 16MiB are free; make it "
        f"smaller, or remove what no rank on this machine uses: {first} (16MiB), {second} (16MiB)"
    )
    with pytest.raises(ConfigError, match=rf"8MiB in .* takes at least 16MiB, or remove what no rank .* uses: {first}"):
        check_machine(TiersConfig(ssd=config_of(folders[:1], None)), 1, launch(3, 1, 3, 2))
    with_free(monkeypatch, 2 * SIZE)
    assert not caplog.records
    check_machine(config, 2, launch(4, 1, 2, 1))
    assert caplog.messages == [
        f"swift-tiers: ssd.directories: no rank of this server on this machine uses {first} (16MiB), {second} (16MiB), "
        "32MiB together: other machines run these ranks now; remove them to have their room, unless one of those has "
        "this directory, too"
    ]


def test_which_ranks_a_configuration_is_checked_for_may_be_unknown(folders, monkeypatch, caplog) -> None:
    """Files that are there are taken for theirs."""
    lay(folders[0], "dp0-tp0", "dp1-tp0")
    with_free(monkeypatch, SIZE)
    check(config_of(folders[:1]), ranks=2)
    check(config_of(folders[:1]), ranks=3)
    with pytest.raises(ConfigError, match="the 32MiB of new device files do not fit"):
        check(config_of(folders[:1]), ranks=4)
    assert not caplog.records


def test_an_empty_file_is_made_anew_for_a_rank_that_has_nothing_else(folders, monkeypatch) -> None:
    """Whatever other ranks have."""
    lay(folders[0], "dp0-tp0")
    (folders[0] / "swift-tiers-dp0-tp1.stripe").touch()
    with_free(monkeypatch, SIZE - 1)
    with pytest.raises(ConfigError, match="the 16MiB of new device files do not fit"):
        check(config_of(folders[:1]), ranks=2)


@pytest.mark.parametrize(
    ("flags", "found"),
    [(0, "is not writable for this user; change its owner"), (os.ST_RDONLY, "is mounted read-only; mount it for wr")],
)
def test_a_directory_that_is_mounted_for_reading_is_nobodys_fault(folders, monkeypatch, flags: int, found: str) -> None:
    details = list(os.statvfs(folders[0]))
    details[8] = flags
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(details))
    with pytest.raises(ConfigError, match=rf"ssd\.directories\[0\]: .* {found}"):
        check(config_of(folders))
    with pytest.raises(ConfigError, match=rf"directory: .* {found}"):
        DeviceFiles("dp0-tp0", 1, config_of(folders)).make(str(folders[1]), [])


def test_a_start_that_does_not_fit_leaves_nothing_and_a_smaller_one_fits(folders, monkeypatch) -> None:
    allocate, calls = os.posix_fallocate, []

    def full(descriptor: int, offset: int, length: int) -> None:
        calls.append(length)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        start(config_of(folders, 2 * SIZE))
    assert not any(os.listdir(folder) for folder in folders)
    stack = make_stack(ssd=start(config_of(folders)))
    put(stack, chain(*range(10)))
    assert get(stack, chain(*range(10))) == 10
    close(stack)


def test_what_a_killed_start_left_is_room_for_the_next_one(folders, monkeypatch) -> None:
    new = folders[0] / f"{NAME}.new"
    new.write_bytes(b"x" * SIZE)
    with_free(monkeypatch, SIZE)
    close(make_stack(ssd=start(config_of(folders[:1]))))
    assert os.listdir(folders[0]) == [NAME]


def test_empty_files_that_an_earlier_start_left_are_made_anew(folders) -> None:
    for folder in folders:
        (folder / NAME).touch()
    stack = make_stack(ssd=start(config_of(folders)))
    assert [device.in_service for device in stack.snapshot().devices] == [True] * 3
    close(stack)


def test_an_empty_file_beside_a_blank_one_is_left_out(folders) -> None:
    """As a start that was killed left them, before device files were made under another name."""
    close(make_stack(ssd=start(config_of(folders[:1]))))
    shutil.copy(folders[0] / NAME, folders[1] / NAME)
    with open(folders[1] / NAME, "r+b") as file:
        file.write(bytes(SIZE))
    (folders[2] / NAME).touch()
    stack = make_stack(ssd=start(config_of(folders[1:])))
    one, other = stack.snapshot().devices
    assert one.in_service
    assert not other.in_service
    close(stack)


@pytest.mark.parametrize("left", [0, 5, 4096, SIZE // 2])
def test_a_device_file_cut_short_is_left_out_and_the_others_serve(folders, left) -> None:
    stack = make_stack(ssd=start(config_of(folders)))
    put(stack, chain(*range(10)))
    stack.wait_written(10)
    close(stack)
    os.truncate(folders[1] / NAME, left)
    stack = make_stack(ssd=start(config_of(folders)))
    assert [device.in_service for device in stack.snapshot().devices] == [True, False, True]
    reason = stack.snapshot().devices[1].reason
    assert ("is empty, nothing of it is left: remove it" in reason) is (left == 0), reason
    put(stack, chain("new", *range(10)))
    stack.wait_written(10)
    close(stack)
    assert os.path.getsize(folders[1] / NAME) == left, "nothing is written to it"


def test_fsck_looks_at_the_others_and_removes_an_empty_one(folders, capsys) -> None:
    close(make_stack(ssd=start(config_of(folders))))
    os.truncate(folders[1] / NAME, 0)
    (folders[2] / "swift-tiers-dp0-tp1.stripe.new").write_bytes(b"x" * 5000)
    names = [str(folder) for folder in folders]
    assert cli.main(["fsck", *names]) == 3
    text = capsys.readouterr().out
    assert f"warning: {folders[1] / NAME}: is empty: nothing of it is left" in text
    assert "swift-tiers-dp0-tp1.stripe.new: half-made, by a server that was killed; --repair removes it" in text
    assert "2 device(s), 1 missing" in text
    assert cli.main(["fsck", "--repair", *names]) == 3, "one of the set's devices is gone for good"
    text = capsys.readouterr().out
    assert f"repaired: {folders[1] / NAME}: removed" in text
    assert [os.listdir(folder) for folder in folders] == [[NAME], [], [NAME]]
    # The next start makes it anew, and it joins.
    stack = make_stack(ssd=start(config_of(folders)))
    assert [device.in_service for device in stack.snapshot().devices] == [True] * 3
    close(stack)


def test_fsck_of_what_a_killed_start_left_alone(folders, capsys) -> None:
    (folders[0] / NAME).touch()
    (folders[0] / f"{NAME}.new").write_bytes(b"x" * 5000)
    assert cli.main(["fsck", str(folders[0])]) == 3
    assert cli.main(["fsck", "--repair", str(folders[0])]) == 0
    assert os.listdir(folders[0]) == []
    capsys.readouterr()


def test_fsck_leaves_an_empty_file_that_a_server_holds(folders, capsys) -> None:
    tier = start(config_of(folders[:2]))
    os.truncate(folders[0] / NAME, 0)
    assert cli.main(["fsck", "--repair", str(folders[0])]) == 1
    assert "another server holds it" in capsys.readouterr().err
    assert (folders[0] / NAME).exists()
    tier.close([])


def test_the_look_before_a_start_waits_for_a_server_that_was_killed(folders) -> None:
    lay(folders[0], "dp0-tp0")
    held = open_device_file(folders[0] / NAME)
    ends = threading.Timer(0.2, held.close)
    ends.start()
    check_machine(TiersConfig(ssd=config_of(folders[:1])), 1, launch(1, 1))
    ends.join()


@pytest.mark.parametrize("kind", ["link", "stranger", "folder"])
def test_what_is_not_ours_is_refused_before_a_model_is_loaded(folders, kind, monkeypatch) -> None:
    path = folders[0] / NAME
    if kind == "link":
        (folders[1] / "victim").write_bytes(bytes(SIZE))
        path.symlink_to(folders[1] / "victim")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(SIZE))
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(SwiftTiersError, match="; ") as refusal:
        check(config_of(folders[:1]))
    assert "remove it" in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- what is not ours ----


def test_a_file_that_is_named_as_a_block_device_is_refused_and_left_as_it_is(tmp_path) -> None:
    """Somebody may have named /etc/passwd."""
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n" * 1000)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"ssd\.devices\[0\]: .*passwd: is not a block device"):
        check(SsdConfig(devices=(str(path),)))
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"not ours", "holds something that is not of a stripe set; remove it"), (None, "format version 2")],
)
def test_what_no_start_could_open_is_found_before_a_model_is_loaded(folders, content, found: str) -> None:
    close(make_stack(ssd=start(config_of(folders[:1]))))
    path = folders[0] / NAME
    with open(path, "r+b") as file:
        for offset in SUPERBLOCK_OFFSETS:
            file.seek(offset)
            block = bytearray(file.read(CHECKSUM_OFFSET))
            block[8:12] = (2).to_bytes(4, "little")
            file.seek(offset)
            file.write(content.ljust(4096, b"\0") if content else seal(bytes(block)))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=found) as error:
        check(config_of(folders[:1]))
    assert str(path) in str(error.value)
    assert path.stat().st_mode & 0o777 == (0o644 if content else 0o600), "nothing of what is not ours is changed"


@pytest.mark.parametrize(
    ("offset", "begins", "found"),
    [
        (0x10040, b"_BHRfS_M", "btrfs"),
        (0x8001, b"CD001", "ISO 9660"),
        (-0x2000, b"\xfc\x4e\x2b\xa9", "RAID"),
        (-512, b"EFI PART", "partition table"),
        ((128 << 10) + 5 * 1024, b"\x0c\xb1\xba\x00\x00\x00\x00\x00", "ZFS"),
    ],
)
def test_a_blank_beginning_is_not_all_that_is_looked_at(offset: int, begins: bytes, found: str) -> None:
    content = bytearray(2 * 2**20)

    def read(start: int, length: int) -> bytes:
        return bytes(content[start : start + length])

    assert signature(read, len(content)) == ""
    at = offset % len(content)
    content[at : at + len(begins)] = begins
    assert found in signature(read, len(content))


def test_a_profile_that_is_not_there_and_memory_without_an_object_end_a_start_at_once(tmp_path) -> None:
    for section, trouble in (
        ({"restore": {"profile": str(tmp_path / "none.json")}}, r"none\.json: cannot be read"),
        ({"remote": {"engine": "file", "memory": 0}}, r"remote\.memory: 0B is less than 1 object\(s\) of 4MiB"),
        ({"host": {"size": 64}}, r"host\.size: 64B holds no page; write its unit"),
    ):
        with pytest.raises(ConfigError, match=trouble):
            check_machine(parse_config(section), 1)


def test_settings_that_are_for_new_devices_alone_are_told_of(folders, caplog) -> None:
    close(make_stack(ssd=start(config_of(folders[:1]))))
    assert "is for new devices" not in caplog.text
    changed = msgspec.structs.replace(config_of(folders[:1], 2 * SIZE), stripe_unit=Size(8192))
    close(make_stack(ssd=start(changed)))
    told = [record.getMessage() for record in caplog.records if "is for new devices" in record.getMessage()]
    assert ["ssd.stripe_unit: 8KiB" in told[0], "stays 4KiB" in told[0]] == [True, True]
    assert ["ssd.size_per_device" in told[1], "32MiB" in told[1], "stays 16MiB" in told[1]] == [True] * 3


def test_a_device_file_that_is_made_beside_used_ones_is_told_of(folders, caplog) -> None:
    """As where a mount failed: its directory is there, and empty."""
    caplog.set_level("INFO")
    close(make_stack(ssd=start(config_of(folders[:2]))))
    made = [record for record in caplog.records if record.getMessage().startswith("swift-tiers: made ")]
    assert [(record.levelname, "16MiB" in record.getMessage()) for record in made] == [("INFO", True)] * 2
    (folders[1] / NAME).unlink()
    caplog.clear()
    close(make_stack(ssd=start(config_of(folders[:2]))))
    (told,) = [record for record in caplog.records if record.getMessage().startswith("swift-tiers: made ")]
    assert told.levelname == "WARNING"
    assert str(folders[1] / NAME) in told.getMessage()
    assert "mount it" in told.getMessage()


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ('{"host": {"size": "1GiB"}, "host": {}}', "^--swift-tiers-config: host is there twice; keep one$"),
        ("[" * 100_000, "nested too deeply"),
        ('{"host": {"size": "%sGiB"}}' % ("9" * 400), "more bytes than there are"),
        ('{"ssd": {"directories": ["/a\\u0000b"]}}', "is no path"),
    ],
)
def test_what_no_configuration_looks_like_is_told_in_one_line(source: str, trouble: str) -> None:
    with pytest.raises(ConfigError, match=trouble) as error:
        check_machine(parse_config(read_source(source)), 1)
    assert "\n" not in str(error.value)
