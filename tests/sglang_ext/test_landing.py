"""The whole way of a page that a neighbour's device keeps: stored there, landed, loaded to where SGLang reads it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory
from swift_tiers.sglang_ext.build import peer_side as peer_side_module
from swift_tiers.sglang_ext.build.peer_side import PeerSide
from swift_tiers.sglang_ext.pools import landing as landing_module
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
from swift_tiers.sglang_ext.pools.landing import open_direct, open_landing, wanted_kvikio
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
from swift_tiers.sglang_ext.way.loads import Load, Loader
from swift_tiers.sglang_ext.way.offloads import Offload, Offloader

from support.deferred_accelerator import DeferredAccelerator
from support.engine import chain, check, make_stack, memory_ssd, namespace, put, settle
from support.fake_device import FakeDeviceMemory
from support.peer_donor import LocalDonor
from support.redis import wait_for

PAGES = 6


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="swift-landing-") as name:
        yield Path(name)


def device_pool(accelerator: DeferredAccelerator) -> AcceleratorPool:
    """Of the geometry that the engine's tests have: 2 layers, 4 tokens a page, rows of 256 bytes."""
    rows = 4 * 4 * PAGES
    layers = [[torch.zeros(rows, 2, 64, dtype=torch.float16) for _ in "kv"] for _ in range(2)]
    return AcceleratorPool(layers, 4, accelerator)


def content_of(pool: AcceleratorPool, page: int) -> np.ndarray:
    """A pool page as a block-major one."""
    out = np.zeros((1, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(np.array([page]), out, np.array([0]))
    return out[0, : pool.geometry.page_bytes]


@pytest.mark.parametrize("landing_pages", [PAGES, 2], ids=["all land", "some come through host memory"])
def test_what_a_neighbours_device_kept_is_what_the_model_reads(directory: Path, landing_pages: int) -> None:
    accelerator = DeferredAccelerator(7, locked=True)
    pool = device_pool(accelerator)
    nbytes = pool.geometry.page_bytes
    landing = Landing(accelerator, nbytes, (landing_pages + 1) * nbytes)
    donor = LocalDonor(directory, pages=16, page_bytes=nbytes, planes=2, device=FakeDeviceMemory("GPU-a"))
    tier = PeerTier("b", nbytes, PeerConfig(borrow=True), device=FakeDeviceMemory("GPU-b"), landing=landing)
    stack = make_stack(host_pages=2 * PAGES, lent=tier, landing=landing, space=namespace(geometry=pool.geometry))
    pool.landing = landing.memory
    tier.neighbours({"d": donor.address})
    keys = chain(*range(PAGES))
    put(stack, keys)
    wait_for(lambda: stack.snapshot().tiers["peer"].pages == PAGES, "all pages to be kept by the donor")
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            assert stack.table.lose(page, HOST)
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == PAGES
    assert (restore.slots >= stack.host.slots).sum() == landing_pages
    loader = Loader(pool, stack, ready=list)
    targets = np.arange(PAGES)[::-1].copy() * 2
    rows = (targets[:, None] * pool.page_size + np.arange(pool.page_size)).ravel()
    index = loader.start([Load(None, restore, 0, restore.places(0, restore.pages), OnTheWay(torch.from_numpy(rows)))])
    assert loader.counter.finish(index)
    want = [np.frombuffer((key * (nbytes // len(key) + 1))[:nbytes], np.uint8) for key in keys]
    for page, bytes_there in zip(targets.tolist(), want, strict=True):
        assert (content_of(pool, page) == bytes_there).all()
    link = stack.links["host-device"]
    assert link.pages == PAGES - landing_pages
    assert tier.links["peer-device"].pages == landing_pages
    assert stack.snapshot().tiers["peer"].hits == PAGES
    loader.close()
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    wait_for(lambda: landing.used_slots == 0, "landing memory to be given back")
    check(stack)
    stack.close()
    donor.close()


@pytest.mark.parametrize("rows", [PAGES, 2], ids=["all go straight", "some go through host memory"])
def test_what_is_computed_here_goes_to_a_neighbours_device_and_comes_back(directory: Path, rows: int) -> None:
    """The whole way down and up: pool, outgoing memory, a donor's device, landing memory, pool."""
    accelerator = DeferredAccelerator(7, locked=True)
    pool = device_pool(accelerator)
    nbytes, ours = pool.geometry.page_bytes, FakeDeviceMemory("GPU-b")
    landing = Landing(accelerator, nbytes, (PAGES + 1) * 4096)
    pool.landing = landing.memory
    pool.outgoing = OutgoingMemory(ours, nbytes, rows * 4096)
    donor = LocalDonor(directory, pages=16, page_bytes=nbytes, planes=2, device=FakeDeviceMemory("GPU-a"))
    tier = PeerTier("b", nbytes, PeerConfig(borrow=True), device=ours, landing=landing, outgoing=pool.outgoing)
    stack = make_stack(host_pages=2 * PAGES, lent=tier, landing=landing, space=namespace(geometry=pool.geometry))
    pool.prepare(stack.host.slab)
    tier.neighbours({"d": donor.address})
    wait_for(lambda: pool.outgoing.wanted, "the donor to map it")
    generator = torch.Generator().manual_seed(3)
    for plane in pool._pool.flat:
        values = torch.randint(0, 256, (plane.nbytes,), generator=generator, dtype=torch.uint8)
        plane.view(-1).view(torch.uint8).copy_(values)
    sources, keys = np.arange(PAGES) * 3, chain(*range(PAGES))
    rows_of = (sources[:, None] * pool.page_size + np.arange(pool.page_size)).ravel()
    want = [content_of(pool, page) for page in sources.tolist()]
    offloader = Offloader(pool, stack)
    hashes = [key.hex() for key in keys]
    offloader.submit(
        Offload(hashes, OnTheWay(torch.from_numpy(rows_of)), [accelerator.mark_here()], None, 1, stack.digest)
    )
    assert offloader.wait(60)
    assert offloader.take_answer()
    wait_for(lambda: stack.snapshot().tiers["peer"].pages == PAGES, "all pages to be kept by the donor")
    assert (tier.links["device-peer"].pages, tier.links["host-peer"].pages) == (rows, PAGES - rows)
    assert pool.outgoing.used_rows == 0
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            assert stack.table.lose(page, HOST)
    restore = settle(stack, stack.restore(keys))
    assert (restore.slots >= stack.host.slots).sum() == PAGES
    loader, targets = Loader(pool, stack, ready=list), sources[::-1] + 1
    loads = (targets[:, None] * pool.page_size + np.arange(pool.page_size)).ravel()
    index = loader.start([Load(None, restore, 0, restore.places(0, restore.pages), OnTheWay(torch.from_numpy(loads)))])
    assert loader.counter.finish(index)
    for page, bytes_there in zip(targets.tolist(), want, strict=True):
        assert (content_of(pool, page) == bytes_there).all()
    loader.close()
    offloader.close()
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    wait_for(lambda: landing.used_slots == 0, "landing memory to be given back")
    check(stack)
    stack.close()
    assert ours.mapped == 0
    donor.close()


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What maps the memory of donors' GPUs."""
    monkeypatch.setattr(peer_side_module, "gpu_memory", lambda device: FakeDeviceMemory())


def small_pool(accelerator) -> SimpleNamespace:
    geometry = SimpleNamespace(page_bytes=4096)
    return SimpleNamespace(geometry=geometry, accelerator=accelerator, landing=None, outgoing=None)


@pytest.mark.parametrize(
    ("on_device", "size", "slots"), [(True, 64 * 4096, 63), (True, 0, None), (True, 4096, None), (False, 2**20, None)]
)
def test_there_is_landing_memory_where_there_is_a_device_and_room(on_device, size, slots, caplog) -> None:
    pool = small_pool(DeferredAccelerator(0, locked=True) if on_device else None)
    landing = open_landing(parse_config({"device": {"landing": size}}), pool)
    assert (landing.slots if landing is not None else None) == slots
    assert (pool.landing is not None) == (slots is not None)
    assert ("device.landing" in caplog.text) == (size == 4096)


def test_a_device_without_room_for_it_is_told_and_does_without(caplog) -> None:
    class Full(DeferredAccelerator):
        def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    assert open_landing(parse_config({}), small_pool(Full(0, locked=True))) is None
    assert "--mem-fraction-static" in caplog.text


def wanted(config: dict, *, gpu: bool = True):
    accelerator = DeferredAccelerator(0, locked=True) if gpu else None
    return wanted_kvikio(parse_config({"ssd": config}), small_pool(accelerator))


def test_kvikio_is_looked_for_where_there_are_ssds_and_a_gpu(monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(landing_module, "find_kvikio", lambda words: asked.append(words) or "kvikio")
    ssds = {"directories": ["/a"]}
    assert wanted({}) is None
    assert wanted(ssds, gpu=False) is None
    assert wanted({**ssds, "throttle": "1GiB"}) is None
    assert not asked
    assert wanted(ssds) == "kvikio"
    assert asked == ["auto"]
    with pytest.raises(ConfigError, match="no GPU"):
        wanted({**ssds, "gpu_direct": "on"}, gpu=False)
    with pytest.raises(ConfigError, match=r"goes past ssd\.throttle"):
        wanted({**ssds, "gpu_direct": "on", "throttle": "1GiB"})


@pytest.mark.parametrize("error", [AttributeError("no module-level get"), TypeError("odd"), KeyError("setting")])
def test_another_kvikio_ends_no_start_that_did_not_ask_for_it(monkeypatch, caplog, error: Exception) -> None:
    def find(words: str) -> None:
        raise error

    monkeypatch.setattr(landing_module, "find_kvikio", find)
    ssds = {"directories": ["/a"]}
    assert wanted(ssds) is None
    assert repr(error) in caplog.text
    with pytest.raises(ConfigError, match=r"ssd\.gpu_direct: this kvikio cannot be used"):
        wanted({**ssds, "gpu_direct": "on"})


def test_ssds_are_read_straight_where_everything_for_it_is_there(caplog) -> None:
    pool = small_pool(DeferredAccelerator(0, locked=True))
    landing = open_landing(parse_config({"device": {"landing": Size(64 * 4096)}}), pool)
    ssd = memory_ssd()
    registered: list[torch.Tensor] = []
    kvikio = SimpleNamespace(memory_register=registered.append, memory_deregister=registered.remove)
    assert open_direct(None, ssd, landing) is None
    assert open_direct(kvikio, None, landing) is None
    assert open_direct(kvikio, ssd, None) is None
    reads = open_direct(kvikio, ssd, landing)
    assert len(registered) == 1
    reads.close()
    assert not registered

    def refuse(memory: torch.Tensor) -> None:
        raise RuntimeError("cuFile: the driver is not loaded")

    assert open_direct(SimpleNamespace(memory_register=refuse), ssd, landing) is None
    assert "the driver is not loaded" in caplog.text
    assert open_direct(SimpleNamespace(), ssd, landing) is None, "it has no such function"
    assert "has no attribute 'memory_register'" in caplog.text
    ssd.close([])


def borrower(landing: Landing) -> PeerSide:
    config = parse_config({"peer": {"borrow": True}, "bus": {"server": "s"}})
    return PeerSide(config, "tp0", small_pool(DeferredAccelerator(0, locked=True)), None, landing)


@pytest.mark.parametrize(("size", "rows"), [("64MiB", 2**14), ("8KiB", 2), ("0", None), ("4095", None)])
def test_there_is_outgoing_memory_where_there_is_room(size: str, rows: int | None, caplog) -> None:
    caplog.set_level("INFO")
    config = parse_config({"peer": {"borrow": True}, "bus": {"server": "s"}, "device": {"outgoing": size}})
    pool = small_pool(DeferredAccelerator(0, locked=True))
    side = PeerSide(config, "tp0", pool, None)
    try:
        side.borrow(page_digest, EventLog(time.time))
        assert (pool.outgoing.rows if pool.outgoing is not None else None) == rows
        assert ("device.outgoing: " in caplog.text) == (size == "4095")
        assert (f"{rows} pages of outgoing memory" in caplog.text) == (rows is not None)
    finally:
        side.close()


def test_a_device_without_room_for_outgoing_memory_does_without(monkeypatch, caplog) -> None:
    device = FakeDeviceMemory("GPU-b")
    device.faults["export"] = "cuMemCreate: out of memory"
    monkeypatch.setattr(peer_side_module, "gpu_memory", lambda _: device)
    side = borrower(Landing(DeferredAccelerator(0, locked=True), 4096, 2**20))
    try:
        assert side.borrow(page_digest, EventLog(time.time)).snapshot().outgoing_bytes == 0
        assert "device.outgoing: cuMemCreate: out of memory" in caplog.text
    finally:
        side.close()


def test_pages_land_for_a_borrower_on_a_gpu(monkeypatch) -> None:
    landing = Landing(DeferredAccelerator(0, locked=True), 4096, 2**20)
    monkeypatch.setattr(peer_side_module, "gpu_memory", lambda device: FakeDeviceMemory("GPU-a"))
    side = borrower(landing)
    try:
        assert side.borrow(page_digest, EventLog(time.time)).landing is landing
    finally:
        side.close()


def test_a_gpu_that_maps_no_others_memory_is_told_and_takes_none_of_its_own(monkeypatch, caplog) -> None:
    def refuse(device: torch.device) -> None:
        raise ArenaError("cuda-bindings is missing; install it")

    monkeypatch.setattr(peer_side_module, "gpu_memory", refuse)
    side = borrower(Landing(DeferredAccelerator(0, locked=True), 4096, 2**20))
    try:
        assert side.borrow(page_digest, EventLog(time.time)).landing is None
        assert (
            "peer.borrow: from servers that lend memory of GPUs nothing comes: cuda-bindings is missing" in caplog.text
        )
    finally:
        side.close()
