"""Copies out of the device, without a scheduler."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.sglang_ext import hooks
from swift_tiers.sglang_ext.way import linker, offloads
from swift_tiers.sglang_ext.way.linker import SwiftLinker
from swift_tiers.sglang_ext.way.offloads import Offload, Offloader

from support.engine import GEOMETRY, chain, check, content, make_stack, wait_until


class Device:
    """A pool, and an event, of a device that a thread has to have adopted."""

    def __init__(self) -> None:
        self.adopted: set[int] = set()
        self.strangers: list[str] = []
        self.answered = threading.Event()

    def adopt_thread(self) -> None:
        self.adopted.add(threading.get_ident())

    def synchronize(self) -> None:
        if threading.get_ident() not in self.adopted:
            self.strangers.append(threading.current_thread().name)
        self.answered.set()

    def page_indices(self, rows: torch.Tensor) -> Any:
        raise RuntimeError("that is all")


def test_a_thread_adopts_the_device_before_it_waits_for_an_event_of_it() -> None:
    device = Device()
    offloader = Offloader(device, SimpleNamespace(runner=THREADS, events=SimpleNamespace(emit=lambda *_, **__: None)))  # type: ignore[arg-type]
    try:
        offloader.submit(Offload(["00"], torch.zeros(1, dtype=torch.int64), [device], None, 1, b"n"))
        assert device.answered.wait(60)
        assert offloader.wait(60)
        assert not offloader.take_answer()
    finally:
        offloader.close()
    assert device.strangers == []


def test_nothing_is_copied_out_while_weights_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    linker = SimpleNamespace(
        resets=0,
        wait_offloads=lambda: order.append("copied"),
        weights_changed=lambda *, device_emptied: order.append("changed"),
    )
    monkeypatch.setattr(hooks, "swift_linker", lambda scheduler: linker)
    updater = SimpleNamespace(scheduler=None)
    assert hooks.around_weights_update(lambda *_: order.append("updated") or 7, updater, None) == 7
    assert order == ["copied", "updated", "changed"]


class StallingPool:
    """A device pool whose copies begin, and go on when the test says so."""

    device = torch.device("cpu")
    geometry = GEOMETRY

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys  # what its pages hold
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.stalls = "before a page is taken in"

    def adopt_thread(self) -> None:
        pass

    def stall(self, where: str) -> None:
        if where == self.stalls:
            self.begun.set()
            assert self.go_on.wait(60)

    def page_indices(self, rows: torch.Tensor) -> np.ndarray:
        self.stall("before a page is taken in")
        return rows.numpy()

    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
        for page, slot in zip(pages, slots, strict=True):
            slab[slot, : GEOMETRY.page_bytes] = content(self.keys[page])
        self.stall("while pages are copied")


def offered(stack: TierStack, pool: StallingPool, keys: list[bytes]) -> Offload:
    hashes = [key.hex() for key in keys]
    return Offload(hashes, torch.arange(len(keys)), [], None, 1, stack.digest)


def test_a_copy_that_was_given_up_publishes_nothing() -> None:
    """Its device pages may belong to others by the time it is made."""
    keys = chain("a", "b")
    stack, pool = make_stack(), StallingPool(keys)
    pool.stalls = "while pages are copied"
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    try:
        offloader.submit(offered(stack, pool, keys))
        assert pool.begun.wait(60)
        offloader.forget()
        pool.go_on.set()
        following = chain("c")
        pool.keys = following
        offloader.submit(offered(stack, pool, following))
        wait_until(lambda: offloader.answered == 1, "the job after it is never answered")
        assert offloader.take_answer()
    finally:
        offloader.close()
    assert (stack.probe(keys), stack.probe(following)) == (0, 1)
    assert stack.host.used_slots == 1
    check(stack)


@pytest.mark.parametrize("device_emptied", [False, True])
def test_a_copy_that_stalls_over_an_update_keeps_the_name_of_the_old_weights(
    monkeypatch: pytest.MonkeyPatch, device_emptied: bool
) -> None:
    monkeypatch.setattr(linker, "unnamed_weights", lambda: "new weights")
    keys = chain("a", "b")
    # Its clock goes on: the copy is given up after a hundredth of a second.
    stack, pool = make_stack(clock=time.monotonic), StallingPool(keys)
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]
    monkeypatch.setattr(swift, "wait_offloads", lambda: offloads.Offloader.wait(swift.offloader, 0.01))
    old = stack.digest
    try:
        swift.offloader.submit(offered(stack, pool, keys))
        assert pool.begun.wait(60)
        swift.weights_changed(device_emptied=device_emptied)
        assert stack.digest != old
        pool.go_on.set()
        wait_until(lambda: swift.num_completed_offloads() == 1, "the job is never answered")
        assert not swift.pop_completed_offload()
    finally:
        swift.close()
    assert stack.table.listed(stack.digest) == [], "KV of the old weights under the name of the new ones"
    assert stack.host.used_slots == 0


def test_nothing_is_taken_from_a_device_with_kv_of_weights_that_are_gone() -> None:
    keys = chain("a", "b")
    stack, pool = make_stack(), StallingPool(keys)
    pool.stalls = "never"
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]

    def offload() -> bool:
        transfer = linker.NodeTransfer(
            name=linker.PoolName.KV, keys=[key.hex() for key in keys], device_indices=torch.arange(len(keys))
        )
        swift.offload([transfer])
        wait_until(lambda: swift.num_completed_offloads() == 1, "the job is never answered")
        return swift.pop_completed_offload()

    swift.record_offload_ready = lambda: []
    try:
        swift.weights_changed(device_emptied=False)
        assert not offload()
        assert stack.table.listed() == []
        assert stack.snapshot().tiers["host"].refusals == {"the weights changed": 2}
        assert [event.kind for event in stack.events.since()].count("offload.paused") == 1
        swift.reset()
        assert offload()
        assert stack.probe(keys) == 2
        assert [event.kind for event in stack.events.since()].count("offload.resumed") == 1
    finally:
        swift.close()
