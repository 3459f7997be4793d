"""Copies into the device, without a scheduler."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.figures.counters import LinkCounters
from swift_tiers.radix_tiering.table.held_page import Places
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
from swift_tiers.sglang_ext.way.loads import Load, Loader

from support.engine import SetClock

LAYERS = 2


def make_loader(
    copy_in: Any,
    runner: Any = THREADS,
    digests: Any = None,
    verified: Any = None,
    accelerator: Any = None,
    ready: Any = list,
) -> Loader:
    pool: Any = SimpleNamespace(
        accelerator=accelerator,
        geometry=SimpleNamespace(page_bytes=4096, layers=LAYERS),
        model_layers=LAYERS,
        releases=[range(layer, layer + 1) for layer in range(LAYERS)],
        begin_with=range(0),
        states=None,
        copy_in=copy_in,
        adopt_thread=lambda: None,
        page_indices=lambda rows: rows.numpy(),
        has_digests=digests is not None,
        digests=digests,
    )
    stack: Any = SimpleNamespace(
        runner=runner,
        host=SimpleNamespace(slab=None, slots=8),
        links={"host-device": LinkCounters()},
        restorer=SimpleNamespace(
            count_load=lambda *_, **__: None,
            copied=lambda *_: None,
            verifier=SimpleNamespace(verified=verified or (lambda *_, **__: lambda digests: None), beside=True),
        ),
    )
    return Loader(pool, stack, ready=ready)


def load_two(loader: Loader) -> bool:
    """Load two pages, and end the loader; whether they have landed."""
    places, rows, restore = Places(np.array([0, 1])), OnTheWay(torch.tensor([4, 5])), SimpleNamespace()
    try:
        index = loader.start([Load(None, restore, 0, places, rows)])  # type: ignore[arg-type]
        return loader.counter.finish(index)
    finally:
        loader.close()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_copied_to_any_more_when_the_end_of_a_batch_is_told(fails: bool) -> None:
    """Whoever has waited for it may look at once what the device's pages are used for."""

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        seen.append([rows.numpy().tolist() for rows in loader.rows_under_way()])
        if fails:
            raise OSError("injected")
        for layer in range(LAYERS):
            layer_done(layer, None)

    def told(end: Any) -> Any:
        return lambda *said: (seen.append(loader.rows_under_way()), end(*said))

    rows = OnTheWay(torch.tensor([4, 5]))
    seen: list[Any] = []
    loader, restore = make_loader(copy_in), SimpleNamespace()
    loader.counter.end, loader.counter.fail = told(loader.counter.end), told(loader.counter.fail)  # type: ignore[method-assign]
    try:
        index = loader.start([Load(None, restore, 0, Places(np.array([0, 1])), rows)])  # type: ignore[arg-type]
        assert loader.counter.finish(index) is not fails
    finally:
        loader.close()
    assert seen == [[[4, 5]], []]


def test_the_forward_before_a_copy_is_no_part_of_what_it_takes() -> None:
    """By which is planned: what is behind a forward that takes long is not slow."""
    runner = SetClock()

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        runner.clock.now += 0.25
        for layer in range(LAYERS):
            layer_done(layer, None)

    class Forward:
        def synchronize(self) -> None:
            runner.clock.now += 100.0

    loader = make_loader(copy_in, runner, ready=lambda: [Forward()])
    assert load_two(loader)
    link = loader._stack.links["host-device"]
    assert (link.pages, link.seconds) == (2, 0.25)


@pytest.mark.parametrize(
    ("ends", "late", "seconds", "exact"),
    [(10.0, 0.0, 1.25, True), (10.5, 0.0, 1.25, False), (12.0, 0.0, 0.25, True), (12.0, 0.2, 0.25, False)],
)
def test_a_device_is_asked_for_copies_while_a_forward_is_under_way(
    ends: float, late: float, seconds: float, exact: bool
) -> None:
    """Whoever launches the next forward waits for marks behind its layers, and no longer. What copying takes, 0.25 s
    where asking for it takes 1 s, is not known where the forward `ends` in between, or where whoever waits for its end
    is so `late` that layers have come."""
    runner = SetClock()
    runner.clock.now = 10.0

    class Forward:
        def query(self) -> bool:
            return runner.clock.now >= ends

        def synchronize(self) -> None:
            assert all(one.done() for one in loader.counter.futures[0]), "the next forward waits for the end of this"
            runner.clock.now = max(ends, runner.clock.now) + late

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        runner.clock.now += 1.0
        for layer in range(LAYERS):
            there = ends + 0.1 * (layer + 1)
            mark = SimpleNamespace(wait=lambda: None, query=lambda there=there: runner.clock.now >= there)
            layer_done(layer, mark)
        runner.clock.now += 0.25

    loader = make_loader(copy_in, runner, accelerator="some", ready=lambda: [Forward()])
    told: list[tuple[int, float, bool]] = []
    link: Any = SimpleNamespace(count=lambda pages, nbytes, took, *, exact: told.append((pages, took, exact)))
    loader._stack.links["host-device"] = link
    assert load_two(loader)
    assert told == [(2, seconds, exact)]


def test_each_request_is_verified_by_the_digests_of_its_own_pages() -> None:
    """Computed once for all, when they have been copied."""
    order: list[Any] = []

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        order.append("copied")
        for layer in range(LAYERS):
            layer_done(layer, None)

    def verified(restore: Any, first: int, places: list[int], *, by_device: bool) -> Any:
        assert by_device
        return lambda digests: order.append((restore, first, places, digests.tolist()))

    loader = make_loader(copy_in, digests=lambda pages: np.stack([pages, -pages], axis=1), verified=verified)
    try:
        loads = [
            Load(None, "a", 3, Places(np.array([0, 1])), OnTheWay(torch.tensor([4, 5]))),  # type: ignore[arg-type]
            Load(None, "b", 0, Places(np.array([7])), OnTheWay(torch.tensor([9]))),  # type: ignore[arg-type]
        ]
        assert loader.counter.finish(loader.start(loads))
    finally:
        loader.close()
    assert order == ["copied", ("a", 3, [0, 1], [[4, -4], [5, -5]]), ("b", 0, [7], [[9, -9]])]


def load(*pages: int) -> list[Load]:
    """A batch of one load, of these pages."""
    restore: Any = SimpleNamespace()
    return [Load(None, restore, 0, Places(np.arange(len(pages))), OnTheWay(torch.tensor(pages)))]


def test_a_batch_that_was_given_up_is_not_copied_by_the_next_thread() -> None:
    """Two wait when the thread dies. Both are answered as failed, and their slots become others'; the thread that the
    next load starts finds the second one in its queue."""
    rows, dies = list[list[int]](), threading.Event()

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        rows.append(pages.tolist())
        if len(rows) == 1:
            assert dies.wait(10)
            raise SystemExit  # which threads end by without a word
        for layer in range(LAYERS):
            layer_done(layer, None)

    loader = make_loader(copy_in)
    loader._stack.events = SimpleNamespace(emit=lambda *_, **__: None)  # type: ignore[assignment]
    first, second = loader.start(load(4, 5)), loader.start(load(6, 7))
    dies.set()
    assert not loader.counter.finish(first)
    assert not loader.counter.finish(second)
    assert loader.counter.finish(loader.start(load(20, 21)))
    assert rows == [[4, 5], [20, 21]]
    assert not loader.rows_under_way()
    assert loader.close()


def test_a_batch_that_the_thread_died_of_is_over_when_there_is_another_thread() -> None:
    """Nobody has asked for it in between, as for what is loaded ahead, so nobody has seen that the thread was dead."""

    def copy_in(pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        if pages.tolist() == [4, 5]:
            raise SystemExit  # which threads end by without a word
        for layer in range(LAYERS):
            layer_done(layer, None)

    loader = make_loader(copy_in)
    loader._stack.events = SimpleNamespace(emit=lambda *_, **__: None)  # type: ignore[assignment]
    try:
        first = loader.start(load(4, 5))
        loader._thread.join(10)
        assert not loader.alive
        second = loader.start(load(20, 21))
        assert loader.alive
        assert loader.counter.is_over(first)
        assert not loader.counter.finish(first)
        assert loader.counter.finish(second)
    finally:
        assert loader.close()
