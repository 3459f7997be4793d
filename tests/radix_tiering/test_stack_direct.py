"""Pages that are read from SSD straight to the device: verified there, and through host memory where that fails."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from swift_tiers.ops.lab.torture.direct_files import PlainLanding, direct_reads
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageGeometry
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.ssd import direct_reads as reads_module
from swift_tiers.radix_tiering.tiers.ssd.direct import KvikioFiles, find_kvikio
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.engine import (
    GEOMETRY,
    chain,
    check,
    close,
    content,
    crash,
    get,
    make_stack,
    memory_ssd,
    namespace,
    page_at,
    placement_of,
    put,
    settle,
    wait_until,
)

PAGE = GEOMETRY.page_bytes


class Direct:
    """A stack whose ssd pages can come straight to the device. `host_pages` hold one sequence and no more."""

    def __init__(self, host_pages: int = 3, landing: int = 8, array: MemoryArray | None = None) -> None:
        self.array = array or MemoryArray([2**20] * 2, seed=1)
        self.ssd = memory_ssd(array=self.array)
        self.landing = PlainLanding(PAGE, landing)
        self.reads = direct_reads(self.ssd, self.array, self.landing)
        self.stack = make_stack(host_pages=host_pages, ssd=self.ssd, landing=self.landing, direct=self.reads)

    @property
    def files(self):
        return self.reads.files

    def left_on_ssd(self, *names: object) -> list[bytes]:
        """A sequence that is on ssd alone, while host memory is full of another."""
        keys = chain(*names)
        put(self.stack, keys)
        assert self.stack.wait_written(20)
        self.reads.settle()
        others = chain("others", *range(self.stack.host.slots - 1))
        put(self.stack, others)
        assert self.stack.wait_written(20)
        self.reads.settle()
        assert self.stack.host.free_slots == 0
        assert not [key for key in keys if self.stack.table.find(self.stack.digest, key).in_host]
        return keys

    def restore(self, keys: list[bytes]):
        return settle(self.stack, self.stack.restore(keys))

    def on_its_way(self, keys: list[bytes]):
        """A restore of pages of which one at least is being read."""
        self.files.held.clear()
        restore = self.stack.restore(keys)
        self.stack.restorer.poll(restore)  # somebody waits: it is not put off
        wait_until(lambda: self.files.reads > 0, "nothing is read")
        return restore

    def end(self, restore) -> None:
        self.stack.restorer.release(restore)
        self.reads.settle()  # what is read for nobody any more holds its page until it has been
        check(self.stack)


def test_pages_land_without_pushing_others_out_of_host_memory() -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    restore = made.restore(keys)
    assert restore.found() == ["ssd"] * 3
    assert (restore.slots >= made.stack.host.slots).all()
    for key, place in zip(keys, restore.slots.tolist(), strict=True):
        assert (page_at(made.stack, place) == content(key)).all()
    assert made.stack.table.named("host").counters.evictions == 3, "those before, for the others; none for these"
    link = made.stack.tiers["ssd"].links["ssd-device"]
    assert (link.pages, link.bytes) == (3, 3 * PAGE)
    assert made.stack.tiers["ssd"].links["ssd-host"].pages == 0
    made.end(restore)
    assert made.landing.used_slots == 0


def test_what_has_landed_from_ssd_is_told_as_from_there_to_the_next_one() -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    first, second = made.restore(keys), made.restore(keys)
    assert second.found() == ["ssd"] * 3
    assert list(first.slots) == list(second.slots)
    assert made.stack.tiers["ssd"].links["ssd-device"].pages == 3
    made.stack.restorer.release(first)
    made.end(second)


def test_where_host_memory_has_room_they_come_up_there_and_stay() -> None:
    made = Direct(host_pages=8)
    keys = chain(*"abc")
    put(made.stack, keys)
    assert made.stack.wait_written(20)
    made.reads.settle()
    with made.stack.table.lock:
        for page in reversed(made.stack.table.listed()):
            made.stack.table.lose(page, HOST)
    restore = made.restore(keys)
    assert (restore.slots < made.stack.host.slots).all()
    assert made.files.reads == 0
    made.end(restore)


def test_a_page_of_several_units_is_put_together() -> None:
    geometry = PageGeometry(layers=3, planes=2, tokens=4, row_bytes=500)  # 12,000 bytes: three units, the last cut
    array = MemoryArray([2**20] * 3, seed=1)
    ssd = memory_ssd(array=array)
    landing = PlainLanding(geometry.page_bytes, 4)
    reads = direct_reads(ssd, array, landing)
    stack = make_stack(host_pages=2, ssd=ssd, landing=landing, direct=reads, space=namespace(geometry=geometry))
    keys = chain("a", "b")
    pages = [np.random.default_rng(number).integers(0, 256, 12_000, np.uint8) for number in range(2)]
    for sequence in (keys, chain("x", "y")):
        offered = stack.intake.begin(sequence, ROOT_KEY, 1)
        assert len(offered.slots) == 2
        for page, slot in zip(pages, offered.slots, strict=True):
            stack.host.page(slot)[:] = page if sequence is keys else 0
        stack.intake.commit(offered)
        assert stack.wait_written(20)
        reads.settle()
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 2
    assert (restore.slots >= stack.host.slots).all()
    for page, place in zip(pages, restore.slots.tolist(), strict=True):
        assert (page_at(stack, place) == page).all()
    stack.restorer.release(restore)
    check(stack)


def test_landing_memory_that_is_full_sends_them_through_host_memory() -> None:
    made = Direct(landing=1)
    restore = made.restore(made.left_on_ssd(*"abc"))
    assert restore.pages == 3
    assert sorted(place >= made.stack.host.slots for place in restore.slots.tolist()) == [False, False, True]
    made.end(restore)


@pytest.mark.parametrize("fault", ["error", "refused", "short"])
def test_what_fails_comes_through_host_memory(fault: str) -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    if fault == "short":
        made.files.most = 100
    else:
        setattr(made.files, fault, OSError("cuFile: input/output error"))
    restore = made.restore(keys)
    assert restore.pages == 3
    assert restore.found() == ["ssd"] * 3
    assert (restore.slots < made.stack.host.slots).all()
    assert made.reads.counters[ReadOutcome.IO_ERROR.value] == 3
    made.end(restore)
    assert get(made.stack, keys) == 3


def test_flipped_bits_on_the_device_are_noticed_twice() -> None:
    """By the GPU, and by host memory, which says so; nothing wrong is ever promised."""
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    ((device, _),) = placement_of(made.stack, made.stack.table.find(made.stack.digest, keys[1]))
    image = made.array.images[device]
    where = image.tobytes().find(content(keys[1]).tobytes())
    assert where > 0
    image[where + 77] ^= 4
    restore = made.restore(keys)
    assert restore.pages == 1
    assert made.stack.snapshot().tiers["ssd"].checksum_failures == 1
    made.end(restore)
    assert get(made.stack, keys) == 1


def test_after_a_restart_pages_come_through_host_memory_once() -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    crash(made.stack)
    again = Direct(array=MemoryArray.from_images([image.copy() for image in made.array.images], seed=3))
    assert get(again.stack, keys) == 3
    assert again.files.reads == 0
    again.reads.settle()
    put(again.stack, chain("z", 1, 2))
    assert again.stack.wait_written(20)
    again.reads.settle()
    restore = again.restore(keys)
    assert (restore.slots >= again.stack.host.slots).all()
    again.end(restore)


def test_a_slot_is_not_written_to_while_it_is_read() -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    restore = made.on_its_way(keys)
    before = made.stack.tiers["ssd"].stripes.free_units
    made.stack.flush("all")
    assert made.stack.tiers["ssd"].stripes.free_units < before + 6, "a slot that is being read is free"
    made.files.held.set()
    assert settle(made.stack, restore).pages == 0
    made.end(restore)


def test_a_device_that_leaves_takes_what_is_read_from_it_along() -> None:
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    restore = made.on_its_way(keys)
    present = made.array.present
    made.array.present = lambda index: index != 0 and present(index)  # type: ignore[method-assign]
    wait_until(lambda: "device.out" in [event.kind for event in made.stack.events.since()], "the device does not leave")
    assert made.stack.probe(keys) == 0
    made.files.held.set()
    assert settle(made.stack, restore).pages == 0
    made.end(restore)


def test_reads_that_keep_failing_are_left_off_for_a_while(caplog) -> None:
    made = Direct(host_pages=reads_module.FAILURES, landing=reads_module.FAILURES)
    made.files.error = OSError("cuFile driver is not initialised")
    keys = made.left_on_ssd(*range(reads_module.FAILURES))
    assert get(made.stack, keys) == len(keys)
    assert "in a row have failed" in caplog.text
    tried = made.files.reads
    made.reads.settle()
    put(made.stack, chain("w", *range(reads_module.FAILURES - 1)))
    assert made.stack.wait_written(20)
    made.reads.settle()
    assert get(made.stack, keys) == len(keys)
    assert made.files.reads == tried
    check(made.stack)


def test_what_is_damaged_in_host_memory_is_not_learnt() -> None:
    made = Direct()
    page = content(chain("a")[0]).copy()
    told: list[bytes | None] = []
    assert made.reads.learn(page, made.ssd.fingerprint(page), told.append)
    page_damaged = page.copy()
    page_damaged[5] ^= 1
    assert made.reads.learn(page_damaged, made.ssd.fingerprint(page), told.append)
    made.reads.settle()
    assert told == [made.landing.digest(page), None]


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(reads_module, "CLOSE_SECONDS", 0.05)
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    restore = made.on_its_way(keys)
    made.stack.restorer.release(restore)
    close(made.stack)
    assert "does not answer" in caplog.text
    assert not made.files.closed
    made.files.held.set()


def test_the_device_is_left_alone_within_a_pause() -> None:
    """What is being read is waited for; what comes meanwhile waits."""
    made = Direct()
    keys = made.left_on_ssd(*"abc")
    restore = made.on_its_way(keys)
    threading.Timer(0.01, made.files.held.set).start()
    with made.stack.tiers["ssd"].still():
        asked = made.files.reads
        assert made.files.gets == asked, "something is being read"
        told: list[bytes | None] = []
        page = content(chain("a")[0]).copy()
        assert made.reads.learn(page, made.ssd.fingerprint(page), told.append)
        time.sleep(0.01)
        assert not told
        assert made.files.reads == asked
    assert settle(made.stack, restore).pages == 3
    made.end(restore)
    assert told == [made.landing.digest(page)]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_pause_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, caplog, hangs: bool) -> None:
    monkeypatch.setattr(reads_module, "CLOSE_SECONDS", 0.05)
    made = Direct()
    restore = made.on_its_way(made.left_on_ssd(*"abc"))
    if not hangs:
        made.files.held.set()
        settle(made.stack, restore)
        close(made.stack)
    with made.stack.tiers["ssd"].still():
        assert ("does not answer" in caplog.text) == hangs
    made.files.held.set()
    if hangs:
        settle(made.stack, restore)
        made.end(restore)


# ---- kvikio ----


class FakeKvikio(ModuleType):
    """As much of it as is used, over ordinary files."""

    def __init__(self) -> None:
        super().__init__("kvikio")
        self.registered: list[int] = []
        self.open: list[str] = []

    def memory_register(self, memory: torch.Tensor) -> None:
        self.registered.append(memory.data_ptr())

    def memory_deregister(self, memory: torch.Tensor) -> None:
        self.registered.remove(memory.data_ptr())

    def CuFile(self, path: str, flags: str):
        assert flags == "r"
        self.open.append(path)

        def pread(memory, size, offset):
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
            memory[: len(data)] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            return SimpleNamespace(get=lambda: len(data))

        return SimpleNamespace(pread=pread, close=lambda: self.open.remove(path))


def test_files_are_opened_once_and_closed_with_their_memory(tmp_path) -> None:
    kvikio, memory = FakeKvikio(), torch.zeros(8192, dtype=torch.uint8)
    path = tmp_path / "device"
    path.write_bytes(bytes(range(256)) * 64)
    files = KvikioFiles(kvikio, memory)
    assert kvikio.registered
    assert files.read(str(path), memory[:4096], 4096).get() == 4096
    assert files.read(str(path), memory[4096:], 0).get() == 4096
    assert bytes(memory.numpy()) == bytes(range(256)) * 32
    assert kvikio.open == [str(path)]
    files.close()
    files.close()
    assert not kvikio.open
    assert not kvikio.registered


@pytest.mark.parametrize(
    ("wanted", "available", "found"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("on", True, True), ("off", True, False)],
)
def test_kvikio_is_used_where_it_is_wanted_and_works(monkeypatch, wanted, available, found) -> None:
    driver = ModuleType("kvikio.cufile_driver")
    driver.get = lambda name: {"is_gds_available": available}[name]  # type: ignore[attr-defined]
    module = FakeKvikio()
    monkeypatch.setitem(sys.modules, "kvikio", module)
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", driver)
    assert (find_kvikio(wanted) is module) == found


def test_kvikio_that_is_missing_is_a_mistake_only_where_it_is_asked_for(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    assert find_kvikio("auto") is None
    with pytest.raises(ConfigError, match=r"ssd\.gpu_direct.*pip install"):
        find_kvikio("on")
