"""What a device is asked about is asked of that device, whichever thread does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from swift_tiers.sglang_ext.tell.on_the_way import Passing


class Gpus:
    """Each thread has a device, at first GPU 0; a call without one takes memory there."""

    def __init__(self) -> None:
        self._current = threading.local()
        self.asked: list[int] = []

    def current_device(self) -> int:
        return int(getattr(self._current, "index", 0))

    def set_device(self, index: int) -> None:
        self._current.index = index

    def record(self) -> None:
        """On the stream of whoever queues."""

    def query(self) -> bool:
        self.asked.append(self.current_device())
        return True

    def synchronize(self) -> None:
        self.asked.append(self.current_device())


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: made)
    monkeypatch.setattr(torch.cuda, "current_device", made.current_device)
    monkeypatch.setattr(torch.cuda, "set_device", made.set_device)
    return made


@pytest.mark.parametrize("ask", ["passed", "wait"])
def test_a_thread_that_asks_takes_nothing_of_another_gpu(gpus: Gpus, ask: str) -> None:
    def asks() -> None:
        passing: Any = Passing(torch.device("cuda", 3), sleeps=True)
        getattr(passing, ask)()

    thread = threading.Thread(target=asks)
    thread.start()
    thread.join()
    assert gpus.asked == [3]
    assert gpus.current_device() == 0, "another thread's is its own"
