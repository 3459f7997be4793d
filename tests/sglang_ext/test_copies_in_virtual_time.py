"""Copies from the device and to it, by the linker's own threads over a model of a device, in virtual time: whatever the
order, a page that comes back has the bytes that were offered under its key."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.ops.lab.torture.neighbours.device import Fabric
from swift_tiers.ops.lab.torture.neighbours.device import ModelDevice as ExportingDevice
from swift_tiers.ops.lab.torture.stacks import device_digests
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
from swift_tiers.sglang_ext.way.loads import Load, Loader
from swift_tiers.sglang_ext.way.offloads import Offload, Offloader
from swift_tiers.sglang_ext.way.request import TieredRequest

from support.engine import GEOMETRY, chain, check, close, content, end_all, make_stack
from support.examples import exhaustive

#: Histories of one run.
SEEDS = 2000 if exhaustive() else 200
#: Pages that the device has, and host memory.
DEVICE, HOST = 24, 12


class ModelDevice:
    """Pages of a device in an array; copies take their time, and fail or kill their thread where they are to."""

    device = torch.device("cpu")
    pool_pages = DEVICE
    geometry = GEOMETRY
    accelerator = None
    model_layers, begin_with, states = GEOMETRY.layers, range(0), None
    releases = tuple(range(layer, layer + 1) for layer in range(GEOMETRY.layers))

    def __init__(self, runner: VirtualRunner, draw: random.Random) -> None:
        self.pages = np.zeros((DEVICE, GEOMETRY.page_bytes), np.uint8)
        self.has_digests = draw.random() < 0.5
        self.failed = 0
        self._runner = runner
        self._draw = draw
        self.outgoing: OutgoingMemory | None = None
        if draw.random() < 0.6:  # else there are no donors, and no checksums where the device has digests
            memory, size = ExportingDevice("own", Fabric()), draw.choice((1, 3, 8)) * GEOMETRY.page_bytes
            self.outgoing = OutgoingMemory(memory, GEOMETRY.page_bytes, size, runner)
            self.outgoing.wanted = draw.random() < 0.8

    def adopt_thread(self) -> None:
        pass

    def page_indices(self, rows: Any) -> np.ndarray:
        return np.asarray(rows)

    def copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Any, came: Any = lambda some: None
    ) -> None:
        self._may_fail()
        for page, slot in zip(pages, slots, strict=True):
            self._runner.sleep(self._draw.random() * 1e-4)
            slab[slot, : GEOMETRY.page_bytes] = self.pages[page]

    def copy_aside(self, pages: np.ndarray, rows: list[int], after: Any) -> None:
        assert self.outgoing is not None
        for page, row in zip(pages, rows, strict=True):
            self._runner.sleep(self._draw.random() * 1e-4)
            self._may_fail()
            self.outgoing.memory[row] = torch.from_numpy(self.pages[page].copy())

    def look_aside(self, keys: list[bytes]) -> int:
        """What donors would be given of these pages is these pages; how many there are. None is anybody's any more."""
        found = 0
        if self.outgoing is None:
            return 0
        for key in keys:
            digest = page_digest(content(key))
            row = self.outgoing.hold(digest)
            if row is not None:
                found += 1
                assert np.array_equal(self.outgoing.memory[row].numpy(), content(key)), "another page goes to donors"
                self.outgoing.give_back([row])
        assert self.outgoing.used_rows == 0, "outgoing memory leaked"
        return found

    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: Callable[..., None], ready: Any
    ) -> None:
        for page, slot in zip(pages, slots, strict=True):
            self._runner.sleep(self._draw.random() * 1e-4)
            self._may_fail()
            self.pages[page] = slab[slot, : GEOMETRY.page_bytes]
        for layer in range(GEOMETRY.layers):
            layer_done(layer, None)

    def digests(self, pages: np.ndarray) -> np.ndarray:
        self._runner.sleep(self._draw.random() * 1e-4)
        return device_digests([self.pages[page] for page in pages])

    def _may_fail(self) -> None:
        fate = self._draw.random()
        if fate < 0.06:
            self.failed += 1
            raise OSError("injected") if fate < 0.04 else SystemExit  # which ends the thread


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


def history(seed: int) -> tuple[int, int, int]:
    """Sequences are offered and asked for again, in some order; loads that came, copies that failed, and pages that
    were set aside for donors."""
    draw = random.Random(seed)
    runner = VirtualRunner(seed, switch=draw.choice((0.1, 0.3, 0.7)), most_seconds=300.0)
    device, came, aside = ModelDevice(runner, draw), 0, 0
    beside = draw.random() < 0.5

    def main() -> None:
        nonlocal came, aside
        stack: Any = make_stack(HOST, runner=runner, host={"verify": "beside" if beside else True})
        offloader, loader = Offloader(device, stack), Loader(device, stack, ready=list)  # type: ignore[arg-type]
        for _ in range(draw.randint(4, 10)):
            keys = chain(*[draw.choice("ab") for _ in range(draw.randint(1, 6))])
            hashes = [key.hex() for key in keys]
            if draw.random() < 0.5:
                for page, key in enumerate(keys):
                    device.pages[page] = content(key)
                offloader.submit(Offload(hashes, OnTheWay(torch.arange(len(keys))), [], None, 1, stack.digest))
                assert offloader.wait(30.0), "a copy is never answered"
                assert offloader.answered == 1
                offloader.take_answer()
                aside += device.look_aside(keys)
            else:
                came += ask(stack, loader, hashes, keys)
        loader.close()
        offloader.close()
        check(stack)
        close(stack)

    def ask(stack: Any, loader: Loader, hashes: list[str], keys: list[bytes]) -> bool:
        request = TieredRequest("r", stack, {}, RequestFacts())
        request.facts.whole = "it is loaded whole here"
        request.begin(hashes)
        while not request.readiness():
            runner.sleep(0.01)
        pages = request.promised(hashes)
        landed = False
        if pages:
            first, places = request.places(hashes[:pages])
            request.copies(first, pages)
            targets = np.arange(DEVICE - pages, DEVICE)
            device.pages[targets] = 0xEE
            damaged, at = beside and draw.random() < 0.2, draw.randrange(pages)
            if damaged:
                stack.host.page(int(places.numbers[at]))[draw.randrange(GEOMETRY.page_bytes)] ^= 1
            right = all(
                np.array_equal(stack.host.page(int(place)), content(key))
                for place, key in zip(places.numbers, keys[first:], strict=False)
            )
            failed_before = device.failed
            index = loader.start([Load(request, request.restore, first, places, OnTheWay(torch.from_numpy(targets)))])
            loader.counter.set_consumer(index)
            for layer in range(GEOMETRY.layers):
                loader.counter.wait_until(layer)
            landed = loader.counter.finish(index)
            request.copied()
            assert not (landed and damaged), "a damaged page was served"
            assert landed or not right or device.failed > failed_before, "it failed for nothing"
            for page, key in zip(targets, keys, strict=False):
                assert not landed or np.array_equal(device.pages[page], content(key)), "wrong bytes"
            if damaged and device.failed == failed_before:
                assert stack.probe(keys) <= first + at, "a damaged page is kept, and fails whoever asks for it"
        request.end()
        stack.restorer.wait_idle()
        return landed

    runner.run(main)
    return came, device.failed, aside


def test_what_comes_back_is_what_was_offered_whatever_fails() -> None:
    came = failed = aside = 0
    for seed in range(SEEDS):
        try:
            loads, failures, pages = history(seed)
        except BaseException as error:
            error.add_note(f"history({seed}) does it again")
            raise
        came, failed, aside = came + loads, failed + failures, aside + pages
    assert came > SEEDS / 2, "little was loaded: this tests little"
    assert failed > SEEDS / 8
    assert aside > SEEDS / 2


def test_a_seed_is_one_history() -> None:
    assert [history(seed) for seed in range(5)] == [history(seed) for seed in range(5)]
