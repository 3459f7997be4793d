"""Queues on streams of torch's, of which there are 32 for everybody."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_tiers.kernels import copy_queue
from swift_tiers.kernels.copy_queue import CudaAccelerator


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> CudaAccelerator:
    turns = itertools.cycle(range(100, 132))
    monkeypatch.setattr(copy_queue, "cuda_runtime", lambda: SimpleNamespace(copies_lists=True))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(turns)))
    return CudaAccelerator(torch.device("cuda", 0))


def streams(accelerator: CudaAccelerator, count: int) -> list[int]:
    queues: list[Any] = [accelerator.queue() for _ in range(count)]
    return [queue._stream.cuda_stream for queue in queues]


def test_no_queue_is_the_forwards_stream_or_anothers(accelerator: CudaAccelerator) -> None:
    for taken in (101, 103):
        accelerator.keep_clear_of(SimpleNamespace(cuda_stream=taken))
    assert streams(accelerator, 4) == [100, 102, 104, 105]
    for _ in range(28):  # others draw as well, until the turn comes to those that are taken
        torch.cuda.Stream(accelerator.device)
    assert streams(accelerator, 3) == [106, 107, 108]


def test_with_all_streams_taken_there_are_queues_all_the_same(accelerator: CudaAccelerator) -> None:
    assert len(set(streams(accelerator, 32))) == 32
    assert len(streams(accelerator, 3)) == 3
