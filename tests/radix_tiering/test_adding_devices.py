"""An operator adds a device to a running stack: files made, opened, joined, used, found again; and what is refused."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import msgspec
import pytest

from swift_tiers.radix_tiering.base.config import SsdConfig
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.bus.contract.commands import AddDevice, DrainDevice
from swift_tiers.radix_tiering.tiers.ssd.device_files import DeviceFiles
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array, open_device_file
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier

from support.engine import chain, check, close, get, make_stack, memory_ssd, obey, put, refusal

SIZE = 16 * 2**20
NAME = "swift-tiers-dp0-tp0.stripe"


def open_tier(directories: list[Path], size: int | None = SIZE) -> SsdTier:
    """As a server does at its start."""
    config = SsdConfig(
        directories=tuple(map(str, directories)), size_per_device=None if size is None else Size(size), engine="threads"
    )
    files = DeviceFiles("dp0-tp0", 1, config)
    paths = files.paths()
    for path in paths:
        if not path.exists():
            create_device_file(path, SIZE)
    return SsdTier(open_array(paths, engine="threads"), [str(path) for path in paths], 4096, make_device=files.make)


@pytest.fixture
def places(tmp_path) -> list[Path]:
    directories = [tmp_path / f"ssd{number}" for number in range(4)]
    for directory in directories:
        directory.mkdir()
    return directories


def test_a_device_that_is_added_holds_pages_and_is_found_again(places) -> None:
    stack = make_stack(host_pages=64, ssd=open_tier(places[:1]))
    put(stack, chain("old", *range(5)))
    stack.wait_written(10)
    before = stack.snapshot()
    outcome = obey(stack, AddDevice(directory=str(places[1])))
    path = places[1] / NAME
    assert outcome == (f"device 1: {path}; name {places[1]} under ssd.directories when the server is started again")
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (SIZE, 0o600)
    assert path.stat().st_blocks * 512 >= SIZE, "no later write may fail for want of room"
    after = stack.snapshot()
    assert after.tiers["ssd"].capacity_bytes == 2 * before.tiers["ssd"].capacity_bytes
    assert [device.path for device in after.devices] == [str(places[0] / NAME), str(path)]
    assert (after.stripe.devices, after.stripe.missing) == (2, 0)
    added = [event for event in stack.events.since() if event.kind == "device.added"]
    assert [event.fields for event in added] == [{"device": str(path), "number": 1}]
    put(stack, chain("new", *range(20)))
    stack.wait_written(10)
    assert stack.snapshot().devices[1].writes > 0
    stack.flush("memory")
    assert get(stack, chain("new", *range(20))) == 21
    assert get(stack, chain("old", *range(5))) == 6
    check(stack)
    close(stack)
    again = make_stack(host_pages=64, ssd=open_tier(places[:2]))
    assert again.snapshot().stripe.missing == 0
    assert get(again, chain("new", *range(20))) == 21
    assert get(again, chain("old", *range(5))) == 6
    check(again)


def test_a_restart_that_does_not_name_it_misses_one_member(places) -> None:
    stack = make_stack(host_pages=64, ssd=open_tier(places[:1]))
    obey(stack, AddDevice(directory=str(places[1])))
    put(stack, chain(*range(20)))
    stack.wait_written(10)
    close(stack)
    again = make_stack(host_pages=64, ssd=open_tier(places[:1]))
    assert again.snapshot().stripe.missing == 1
    assert get(again, chain(*range(20))) < 20
    check(again)


def test_a_stack_to_which_a_device_was_added_may_be_killed(places) -> None:
    stack = make_stack(host_pages=64, ssd=open_tier(places[:1]))
    obey(stack, AddDevice(directory=str(places[1])))
    put(stack, chain(*range(20)))
    stack.wait_written(10)
    stack.tiers["ssd"].stripes.close(None)
    stack.tiers["ssd"]._array.close()
    again = make_stack(host_pages=64, ssd=open_tier(places[:2]))
    assert get(again, chain(*range(20))) == 20
    check(again)


def test_a_blank_file_that_is_there_is_taken_as_it_is(places) -> None:
    create_device_file(places[1] / NAME, 2 * SIZE)
    stack = make_stack(ssd=open_tier(places[:1]))
    assert isinstance(obey(stack, AddDevice(directory=str(places[1]))), str)
    assert stack.snapshot().devices[1].capacity_bytes > stack.snapshot().devices[0].capacity_bytes


def test_without_a_configured_size_it_is_half_of_what_is_free(places) -> None:
    files = DeviceFiles("dp0-tp0", 2, SsdConfig())
    free = os.statvfs(places[1])
    expected = min(256 * 2**30, free.f_bavail * free.f_frsize // 2 // 2)
    assert abs(files.size_in(places[1]) - expected) < 2**30


def test_directories_that_cannot_be_used_are_refused_and_nothing_is_left(places, tmp_path) -> None:
    stack = make_stack(ssd=open_tier(places[:1]))
    file = tmp_path / "file"
    file.touch()
    for directory, why in [
        (str(tmp_path / "nowhere"), "is not the absolute path of a directory"),
        (str(file), "is not the absolute path of a directory"),
        ("relative", "is not the absolute path of a directory"),
        (str(places[0]), "holds a device of this server already"),
    ]:
        assert why in refusal(stack, AddDevice(directory=directory))
    # The same device by another name.
    other = tmp_path / "link"
    other.symlink_to(places[0])
    assert "holds a device of this server already" in refusal(stack, AddDevice(directory=str(other)))
    assert len(stack.snapshot().devices) == 1
    assert not [event for event in stack.events.since() if event.kind == "device.added"]


def test_a_file_that_holds_something_is_refused_and_left_alone(places) -> None:
    stack = make_stack(ssd=open_tier(places[:1]))
    path = places[1] / NAME
    path.write_bytes(b"precious" + bytes(SIZE))
    assert "is not blank" in refusal(stack, AddDevice(directory=str(places[1])))
    assert path.read_bytes()[:8] == b"precious"
    member = make_stack(ssd=open_tier(places[2:3]))
    close(member)
    assert "is not blank" in refusal(stack, AddDevice(directory=str(places[2])))
    open_device_file(path).close()  # nobody holds its lock


def test_a_device_that_another_server_holds_is_refused(places) -> None:
    stack = make_stack(ssd=open_tier(places[:1]))
    create_device_file(places[1] / NAME, SIZE)
    held = open_device_file(places[1] / NAME)
    try:
        assert "another server holds it" in refusal(stack, AddDevice(directory=str(places[1])))
    finally:
        held.close()
    assert (places[1] / NAME).exists()


@pytest.mark.parametrize(("size", "why"), [(2**60, "does not fit"), (2**20, "is too small")])
def test_a_size_that_does_not_work_is_refused(places, size, why) -> None:
    stack = make_stack(ssd=open_tier(places[:1], size))
    assert why in refusal(stack, AddDevice(directory=str(places[1])))
    assert not (places[1] / NAME).exists()


def test_a_file_that_was_made_in_vain_is_removed(places) -> None:
    stack = make_stack(ssd=open_tier(places[:1]))

    def closed(*_):
        raise RuntimeError("the stripe set is closed")

    stack.tiers["ssd"].stripes.add = closed
    assert "the stripe set is closed" in refusal(stack, AddDevice(directory=str(places[1])))
    assert not (places[1] / NAME).exists()
    del stack.tiers["ssd"].stripes.add
    assert isinstance(obey(stack, AddDevice(directory=str(places[1]))), str)
    gc.collect()  # what other tests have left must not go meanwhile
    number_of_files = len(os.listdir("/proc/self/fd"))
    assert "already" in refusal(stack, AddDevice(directory=str(places[1])))
    assert len(os.listdir("/proc/self/fd")) == number_of_files


@pytest.mark.parametrize("url", ["redis://shared", None])
def test_whoever_writes_to_a_shared_bus_fills_only_what_was_named(places, tmp_path, url) -> None:
    """Their user may write to folders that no SSD tier is meant for."""
    bus = {"url": url, "control": True}
    outside = tmp_path / "outside"
    outside.mkdir()
    (places[2] / "way-out").symlink_to(outside)
    named = make_stack(ssd=open_tier(places[:1]), bus=bus)
    named.config = msgspec.structs.replace(named.config, ssd=SsdConfig(add_beneath=(str(places[2]),)))
    for directory in (places[1], outside, places[2] / "way-out", places[2] / ".." / "outside"):
        text = refusal(named, AddDevice(directory=str(directory)))
        assert "is not beneath ssd.add_beneath of this server" in text
        assert "add it there and start the server again" in text
        assert not (directory / NAME).exists()
    assert isinstance(obey(named, AddDevice(directory=str(places[2]))), str)
    close(named)


def test_a_shared_bus_may_have_no_device_added_unless_directories_are_named(places) -> None:
    stack = make_stack(ssd=open_tier(places[:1]), bus={"url": "redis://shared", "control": True})
    assert "ssd.add_beneath of this server (nothing)" in refusal(stack, AddDevice(directory=str(places[1])))
    assert os.listdir(places[1]) == []


def test_a_tier_without_files_takes_no_device(places) -> None:
    assert "no ssd tier" in refusal(make_stack(), AddDevice(directory=str(places[1])))
    assert "restart it with more" in refusal(make_stack(ssd=memory_ssd()), AddDevice(directory=str(places[1])))


def test_a_device_that_is_replaced_serves_what_it_has_until_it_is_gone(places) -> None:
    """Another one is added, and the old one drained, which has the coldest pages: that these leave makes no room."""
    stack = make_stack(host_pages=64, ssd=open_tier(places[:1]))
    slots = stack.snapshot().stripe.capacity_units

    def write(name: str, pages: int) -> None:
        """Pages that follow nothing."""
        for start in range(0, pages, 32):
            for number in range(start, min(start + 32, pages)):
                put(stack, chain((name, number)))
            assert stack.wait_written(20)

    write("old", slots)
    obey(stack, AddDevice(directory=str(places[1])))
    write("new", slots)
    obey(stack, DrainDevice(device=0))
    before = stack.snapshot()
    write("newest", 128)
    after = stack.snapshot()
    assert [device.used_bytes for device in after.devices] == [device.used_bytes for device in before.devices]
    assert after.devices[0].used_bytes == after.devices[0].capacity_bytes
    tier = after.tiers["ssd"]
    written = sum(stack.probe(chain(("newest", number))) for number in range(128))
    assert written == tier.evictions - before.tiers["ssd"].evictions, "one page left for each that was written"
    assert written + sum(tier.refusals.values()) >= 128
    assert written > 64, "those that would have left in vain are looked at once"
    stack.flush("memory")
    assert get(stack, chain(("old", 0))) == 1
    check(stack)
