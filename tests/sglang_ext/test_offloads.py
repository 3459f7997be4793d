"""Copies out of the device, without a scheduler."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_tiers.sglang_ext import hooks
from swift_tiers.sglang_ext.offloads import Offload, Offloader


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
    offloader = Offloader(device, SimpleNamespace(events=SimpleNamespace(emit=lambda *_, **__: None)))  # type: ignore[arg-type]
    try:
        offloader.submit(Offload(["00"], torch.zeros(1, dtype=torch.int64), [device], None, 1))
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
