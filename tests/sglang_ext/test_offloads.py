"""Copies out of the device, without a scheduler."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.ops.lab.torture.stacks import device_digests
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import Places
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
from swift_tiers.radix_tiering.way.request_restore import Restore
from swift_tiers.sglang_ext import hook_functions
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
from swift_tiers.sglang_ext.way import linker, offloads
from swift_tiers.sglang_ext.way.linker import SwiftLinker
from swift_tiers.sglang_ext.way.offloads import Offload, Offloader
from swift_tiers.sglang_ext.way.request import TieredRequest

from support.engine import GEOMETRY, Clock, chain, check, content, make_stack, memory_ssd, put, settle, wait_until


class Device:
    """A pool, and numbers on the way, of a device that a thread has to have adopted."""

    pool_pages = 1

    def __init__(self) -> None:
        self.adopted: set[int] = set()
        self.strangers: list[str] = []
        self.answered = threading.Event()

    def adopt_thread(self) -> None:
        self.adopted.add(threading.get_ident())

    def wait(self) -> torch.Tensor:
        if threading.get_ident() not in self.adopted:
            self.strangers.append(threading.current_thread().name)
        self.answered.set()
        return torch.zeros(1, dtype=torch.int64)

    def page_indices(self, rows: torch.Tensor) -> Any:
        raise RuntimeError("that is all")


def test_a_thread_adopts_the_device_before_it_waits_for_an_event_of_it() -> None:
    device = Device()
    offloader = Offloader(device, SimpleNamespace(runner=THREADS, events=SimpleNamespace(emit=lambda *_, **__: None)))  # type: ignore[arg-type]
    try:
        offloader.submit(Offload(["00"], device, [], None, 1, b"n"))
        assert device.answered.wait(60)
        assert offloader.wait(60)
        assert not offloader.take_answer()
    finally:
        offloader.close()
    assert device.strangers == []


def test_what_the_device_has_yet_to_do_is_waited_for_by_the_device() -> None:
    """A thread that waits for an event of SGLang's spins for as long as a forward takes."""
    keys = chain("a", "b")
    stack, pool = make_stack(), StallingPool(keys)
    pool.stalls = "never"
    ready = [object()]  # nothing that could be waited for here
    job = offered(stack, pool, keys)
    job.ready = ready
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    try:
        offloader.submit(job)
        assert offloader.wait(60)
        assert offloader.take_answer()
    finally:
        offloader.close()
    assert pool.after == [ready]


@pytest.mark.parametrize("told", [[], [[1, 0], [3]], [[3, 2, 1, 0]]], ids=["none", "some", "all"])
def test_checksums_are_those_of_the_pages_whenever_they_came(
    told: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = chain(*"abcd")
    stack, pool = make_stack(), StallingPool(keys)
    pool.stalls = "never"
    fill, computed = pool.copy_out, []

    def copy_out(pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: list[Any], came: Any) -> None:
        for some in told:
            there = np.array(some)
            fill(pages[there], slab, slots[there], after, came)
            came(there)
        fill(pages, slab, slots, after, came)

    digests = stack.intake.digests
    monkeypatch.setattr(pool, "copy_out", copy_out)
    monkeypatch.setattr(stack.intake, "digests", lambda put: computed.append(len(put.slots)) or digests(put))
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    try:
        offloader.submit(offered(stack, pool, keys))
        assert offloader.wait(60)
        assert offloader.take_answer()
    finally:
        offloader.close()
    assert sum(computed) == 4, "each once"
    assert stack.links["device-host"].snapshot().pages == 4
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 4, "verified"
    stack.restorer.release(restore)
    check(stack)


def test_events_are_waited_for_by_the_first_copy_even_if_the_first_pages_are_held() -> None:
    keys = chain(*map(str, range(PAGES_PER_HOLD + 2)))
    stack, pool = make_stack(host_pages=128), StallingPool(keys)
    pool.stalls = "never"
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    try:
        offloader.submit(offered(stack, pool, keys[:PAGES_PER_HOLD]))
        again = offered(stack, pool, keys)
        again.ready = [object()]
        offloader.submit(again)
        assert offloader.wait(60)
    finally:
        offloader.close()
    assert pool.after == [[], again.ready]


def test_where_pages_go_is_read_on_the_loading_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the scheduler's it would wait for all that the device has to do before, the forward under way among it."""
    stack, pool = make_stack(), StallingPool([])
    readers: list[str] = []

    def page_indices(rows: torch.Tensor) -> np.ndarray:
        readers.append(threading.current_thread().name)
        raise RuntimeError("that is all")

    monkeypatch.setattr(pool, "page_indices", page_indices)
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]
    swift.record_offload_ready = list
    request: Any = SimpleNamespace(
        places=lambda keys: (0, Places(np.array([0, 1]))), copies=lambda *_: None, copied=lambda: None, restore=None
    )
    try:
        swift.requests["r"] = request
        rows = torch.arange(2)
        assert swift.load("r", [linker.PoolTransfer(name=linker.PoolName.KV, keys=["00", "01"], device_indices=rows)])
        (load,) = swift._queued.values()
        swift._queued["r"] = load._replace(restore=SimpleNamespace(), request=None)  # type: ignore[arg-type]
        monkeypatch.setattr(stack.restorer, "count_load", lambda *_, **__: None)
        assert readers == []
        rows.zero_()  # SGLang's own: it may change
        assert load.rows.wait().tolist() == [0, 1]
        assert not swift.finish_layer_wise_loading(swift.start_layer_wise_loading())
        assert readers == ["swift-load"]
        swift.requests.clear()
    finally:
        swift.close()


def test_the_device_is_made_ready_before_anything_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []
    stack, pool = make_stack(), StallingPool([])
    pool.prepare = lambda slab: order.append(("prepared", slab is stack.host.slab))  # type: ignore[attr-defined]
    monkeypatch.setattr(linker, "open_pool", lambda params, codec, stream: order.append(("clear of", stream)) or pool)
    monkeypatch.setattr(linker, "build_tiers", lambda *_: order.append("tiers") or (stack, None))
    swift = SwiftLinker(None, None, components=None, forward_stream="forward")
    swift.close()
    assert order == [("clear of", "forward"), "tiers", ("prepared", True)]


def test_a_start_that_fails_closes_what_it_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the devices of the ssd tier would be scanned by the next start."""
    stack, pool = make_stack(), StallingPool([])
    pool.accelerator = None  # type: ignore[attr-defined]

    def no_room(slab: object) -> None:
        raise ConfigError("--mem-fraction-static: leaves the device no room")

    pool.prepare = no_room  # type: ignore[attr-defined]
    monkeypatch.setattr(linker, "open_pool", lambda *_: pool)
    monkeypatch.setattr(linker, "build_tiers", lambda *_: (stack, None))
    with pytest.raises(ConfigError, match="no room"):
        SwiftLinker(None, None, components=None)
    assert stack.closed
    assert not stack.restorer._thread.is_alive()


def test_nothing_is_copied_out_while_weights_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    linker = SimpleNamespace(
        wait_copies=lambda: order.append("copied"),
        weights_changed=lambda *, device_emptied: order.append("changed"),
    )
    monkeypatch.setattr(hook_functions, "swift_linker", lambda scheduler: linker)
    allocator = SimpleNamespace(available_size=lambda: 0)
    updater = SimpleNamespace(scheduler=SimpleNamespace(token_to_kv_pool_allocator=allocator, max_total_num_tokens=16))
    assert hook_functions.around_weights_update(lambda *_: order.append("updated") or 7, updater, None) == 7
    assert order == ["copied", "updated", "changed"]


@pytest.mark.parametrize("captures", [False, True])
def test_all_is_still_while_graphs_are_captured_anew(monkeypatch: pytest.MonkeyPatch, captures: bool) -> None:
    order: list[str] = []

    @contextmanager
    def still(who: str) -> Iterator[None]:
        order.append(f"{who} is still")
        yield
        order.append(f"{who} goes on")

    linker = SwiftLinker.__new__(SwiftLinker)
    linker.stack = SimpleNamespace(tiers={"peer": SimpleNamespace(still=lambda: still("tier"))})  # type: ignore[assignment]
    linker.peer_side = SimpleNamespace(still=lambda: still("donor"))  # type: ignore[assignment]
    monkeypatch.setattr(linker, "wait_copies", lambda: None)
    monkeypatch.setattr(linker, "weights_changed", lambda **_: None)
    monkeypatch.setattr(hook_functions, "swift_linker", lambda scheduler: linker)
    allocator = SimpleNamespace(available_size=lambda: 0)
    updater = SimpleNamespace(scheduler=SimpleNamespace(token_to_kv_pool_allocator=allocator, max_total_num_tokens=16))
    asked = SimpleNamespace(recapture_cuda_graph=captures)
    hook_functions.around_weights_update(lambda *_: order.append("updated"), updater, asked)
    within = ["tier is still", "donor is still", "updated", "donor goes on", "tier goes on"]
    assert order == (within if captures else ["updated"])
    del order[:]
    runner = SimpleNamespace(swift_layer_wise=SimpleNamespace(linker=linker))
    hook_functions.around_recapture(lambda _: order.append("updated"), runner)  # for ranks that have joined
    assert order == within
    hook_functions.around_recapture(lambda _: order.append("once"), SimpleNamespace())  # before there are tiers
    assert order[-1] == "once"


@pytest.mark.parametrize("fails", ["change_namespace", "unnamed_weights", "release", "clear"])
def test_whatever_fails_no_page_of_other_weights_is_found(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """... nor promised to who waits for it; and the next flush of the device mends all."""
    keys = chain("a", "b")
    stack, pool = make_stack(ssd=memory_ssd(), clock=time.monotonic), StallingPool(keys)
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]
    put(stack, keys)
    request = TieredRequest("r", stack, swift.requests, RequestFacts())
    request.begin([key.hex() for key in keys])
    stack.restorer.wait_idle()
    transfer = linker.PoolTransfer(name=linker.PoolName.KV, keys=[key.hex() for key in keys])
    assert list(swift.lookup("r", [transfer])) == [1, 2]

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an error of ours")

    owners = {"change_namespace": stack, "unnamed_weights": linker, "release": stack.restorer}
    owner: Any = owners.get(fails, stack.movers["ssd"])
    try:
        with monkeypatch.context() as broken:
            broken.setattr(owner, fails, failing)
            swift.weights_changed(device_emptied=True)
        assert list(swift.lookup("r", [transfer])) == []
        assert stack.probe(keys) == 0
        swift.reset()
        assert stack.probe(keys) == 0
        assert not swift.stale_device
        put(stack, keys)
        assert stack.probe(keys) == 2
    finally:
        swift.close()


class StallingPool:
    """A device pool whose copies begin, and go on when the test says so."""

    device = torch.device("cpu")
    geometry = GEOMETRY
    model_layers, begin_with, states = GEOMETRY.layers, range(0), None
    releases = tuple(range(layer, layer + 1) for layer in range(GEOMETRY.layers))
    page_size = 1
    pool_pages = 1024
    outgoing: Any = None
    has_digests = False

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys  # what its pages hold
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.after: list[list[Any]] = []
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

    def copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: list[Any], came: Any = None
    ) -> None:
        self.after.append(after)
        for page, slot in zip(pages, slots, strict=True):
            slab[slot, : GEOMETRY.page_bytes] = content(self.keys[page])
        self.stall("while pages are copied")


def offered(stack: TierStack, pool: StallingPool, keys: list[bytes]) -> Offload:
    hashes = [key.hex() for key in keys]
    return Offload(hashes, OnTheWay(torch.arange(len(keys))), [], None, 1, stack.digest)


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


def test_a_job_is_answered_though_no_thread_could_be_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has died, and the system has no other: SGLang goes on, and each rank has one answer for each job."""
    keys = chain("a", "b")
    stack, pool = make_stack(), StallingPool(keys)
    pool.stalls = "never"
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]

    def dies(*_: Any) -> None:
        raise SystemExit

    def none_left() -> Any:
        raise RuntimeError("can't start new thread")

    def offer() -> None:
        node = linker.NodeTransfer(
            name=linker.PoolName.KV, keys=[key.hex() for key in keys], device_indices=torch.arange(len(keys))
        )
        assert swift.offload([node])

    monkeypatch.setattr(swift, "record_offload_ready", list)
    try:
        with monkeypatch.context() as broken:
            broken.setattr(pool, "copy_out", dies)
            offer()
            swift.offloader._thread.join(60)
        with monkeypatch.context() as broken:
            broken.setattr(swift.offloader, "_spawn", none_left)
            offer()
            assert swift.num_completed_offloads() == 0
        wait_until(lambda: swift.num_completed_offloads() == 2, "a job is never answered")
        assert [swift.pop_completed_offload() for _ in range(2)] == [False, True]
        assert stack.probe(keys) == 2
        check(stack)
    finally:
        swift.close()


def behind_one_that_stalls(
    room: int = 0,
) -> tuple[TierStack, StallingPool, Offloader, Callable[..., Offload]]:
    """A job is in hand, and its copy does not go on, on a device with so many pages of room; `submit(pages, after)`
    offers a sequence that follows the node of job `after`, if there is one, and is offered along with all before it."""
    keys = chain("stalls")
    stack, pool = make_stack(1024), StallingPool(keys)
    pool.stalls = "while pages are copied"
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    offloader.room = lambda: room
    offloader.submit(offered(stack, pool, keys))
    assert pool.begun.wait(60)

    def submit(pages: int, after: Offload | None = None) -> Offload:
        path = [bytes.fromhex(page_hash) for page_hash in after.hashes] if after else []
        own = chain(f"job {len(pool.keys)}", *range(pages - 1))
        job = offered(stack, pool, [*path, *own])
        first = len(pool.keys)
        pool.keys = [*pool.keys, *path, *own]
        job.rows, job.path = OnTheWay(torch.arange(first, len(pool.keys))), len(path)
        offloader.submit(job)
        return job

    return stack, pool, offloader, submit


def answers_of(offloader: Offloader, pool: StallingPool) -> list[bool]:
    pool.go_on.set()
    try:
        assert offloader.wait(60)
        return [offloader.take_answer() for _ in range(offloader.answered)]
    finally:
        offloader.close()


def test_no_more_than_a_part_of_the_pool_is_locked_for_pages_that_wait_to_be_copied() -> None:
    """SGLang evicts nothing of a node before its answer: it would have no room where pages come faster than that."""
    stack, pool, offloader, submit = behind_one_that_stalls()
    jobs = [submit(20) for _ in range(pool.pool_pages // 20)]
    kept = pool.pool_pages // 10 // 20
    assert sum(job.brings for job in offloader._waiting) <= pool.pool_pages // 10
    stored = answers_of(offloader, pool)
    assert stored == [True] + [False] * (len(jobs) - kept) + [True] * kept, "in order; the newest are kept"
    assert stack.snapshot().tiers["host"].refusals == {"too many wait to be copied": 20 * (len(jobs) - kept)}
    assert stack.host.used_slots == 1 + 20 * kept
    check(stack)


def test_all_of_it_may_wait_where_the_device_has_room() -> None:
    stack, pool, offloader, submit = behind_one_that_stalls(room=StallingPool.pool_pages // 10)
    jobs = [submit(20) for _ in range(pool.pool_pages // 20)]
    assert answers_of(offloader, pool) == [True] * (1 + len(jobs))
    assert stack.snapshot().tiers["host"].refusals == {}


def test_pages_that_are_offered_along_once_more_wait_once() -> None:
    """A prompt is computed in chunks, and each is offered with all before it while these are not held."""
    stack, pool, offloader, submit = behind_one_that_stalls()
    job = None
    for _ in range(6):
        job = submit(16, job)
    assert offloader._waiting_pages == 6 * 16
    submit(1, job)
    submit(1, job)
    assert offloader._waiting_pages == 6 * 16 + 2, "both of them follow the same"
    assert answers_of(offloader, pool) == [True] * 9
    assert offloader._ends == {}
    assert stack.snapshot().tiers["host"].refusals == {}
    check(stack)


def test_one_that_is_longer_than_all_that_may_wait_waits() -> None:
    _stack, pool, offloader, submit = behind_one_that_stalls()
    submit(pool.pool_pages // 2)
    assert answers_of(offloader, pool) == [True, True]


def test_those_that_are_given_up_wait_no_longer() -> None:
    stack, pool, offloader, submit = behind_one_that_stalls()
    for _ in range(20):
        submit(20)
    offloader.forget()
    assert (offloader._waiting_pages, offloader._ends) == (0, {})
    submit(20)
    assert answers_of(offloader, pool) == [True]
    assert stack.snapshot().tiers["host"].refusals == {}
    check(stack)


def with_digests(keys: list[bytes]) -> StallingPool:
    """A pool that stalls nowhere, and says of its pages what they are."""
    pool = StallingPool(keys)
    pool.stalls, pool.has_digests = "", True
    pool.digests = lambda pages: device_digests([content(keys[page]) for page in pages])  # type: ignore[attr-defined]
    return pool


def stored(offloader: Offloader, stack: TierStack, pool: StallingPool, keys: list[bytes]) -> Restore:
    """A restore of these pages, which the offloader has stored before its end."""
    try:
        offloader.submit(offered(stack, pool, keys))
        wait_until(lambda: offloader.answered == 1, "the job is never answered")
    finally:
        offloader.close()
    return settle(stack, stack.restore(keys))


@pytest.mark.parametrize("beside", [True, False])
def test_what_the_device_says_of_pages_is_kept_where_they_are_verified_by_it(beside: bool) -> None:
    keys = chain("a", "b")
    stack = make_stack(host={"verify": "beside" if beside else True})
    pool = with_digests(keys)
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    restore = stored(offloader, stack, pool, keys)
    slots = restore.slots.tolist()
    assert stack.host.digests.known(slots).tolist() == [beside] * 2
    if beside:
        said = device_digests([content(key) for key in keys])
        assert (stack.host.digests.of(slots) != said).any(axis=1).tolist() == [False, False]
        assert (stack.host.digests.of(slots) != said[::-1]).any(axis=1).tolist() == [True, True]
    stack.restorer.release(restore)


@pytest.mark.parametrize(("digests", "verify", "tiers", "outgoing"), itertools.product((True, False), repeat=4))
def test_checksums_are_computed_where_somebody_is_told_them(
    digests: bool, verify: bool, tiers: bool, outgoing: bool
) -> None:
    keys = chain("a", "b")
    stack = make_stack(ssd=memory_ssd() if tiers else None, host={"verify": "beside" if verify else True})
    pool = with_digests(keys)
    pool.has_digests = digests
    pool.outgoing = Aside(2, stack, keys) if outgoing else None
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    alone = digests and verify and not tiers and not outgoing
    assert offloader.device_alone is alone
    restore = stored(offloader, stack, pool, keys)
    assert [page.digest is None for page in restore.claimed] == [alone] * 2
    stack.restorer.release(restore)


class Aside:
    """Outgoing memory with so many rows."""

    def __init__(self, rows: int, stack: TierStack, keys: list[bytes]) -> None:
        self.free = list(range(rows))
        self.found: dict[bytes, int] = {}
        self.copied: list[tuple[list[int], list[int], list[Any]]] = []
        self.fails = False
        self.closed = 0
        self._stack, self._keys = stack, keys

    def take(self, most: int) -> list[int]:
        taken, self.free = self.free[:most], self.free[most:]
        return taken

    def enter(self, rows: list[int], digests: list[bytes]) -> None:
        assert self._stack.probe(self._keys) == 0, "by now they are being stored from elsewhere"
        self.found.update(zip(digests, rows, strict=True))

    def give_back(self, rows: list[int]) -> None:
        self.free += rows

    def close(self) -> None:
        self.closed += 1

    def copy_aside(self, pages: np.ndarray, rows: list[int], after: list[Any]) -> None:
        self.copied.append((pages.tolist(), rows, after))
        if self.fails:
            raise RuntimeError("CUDA error: out of memory")


def with_outgoing(
    keys: list[bytes], rows: int, clock: Callable[[], float] | None = None
) -> tuple[TierStack, StallingPool, Aside, Offloader]:
    stack, pool = make_stack(clock=clock), StallingPool(keys)
    pool.stalls = "never"
    pool.outgoing = aside = Aside(rows, stack, keys)
    pool.copy_aside = aside.copy_aside  # type: ignore[attr-defined]
    return stack, pool, aside, Offloader(pool, stack)  # type: ignore[arg-type]


def test_pages_are_set_aside_for_donors_before_they_are_offered_to_them() -> None:
    keys = chain(*"abc")
    stack, pool, aside, offloader = with_outgoing(keys, 2)
    job = offered(stack, pool, keys)
    job.ready = ready = [object()]
    try:
        offloader.submit(job)
        assert offloader.wait(60)
        assert offloader.take_answer()
    finally:
        offloader.close()
    assert aside.copied == [([0, 1], [0, 1], ready)], "as many as there is room for"
    digests = [page.digest for page in stack.table.settled_chain(stack.digest, keys)]
    assert aside.found == {digests[0]: 0, digests[1]: 1}
    check(stack)


@pytest.mark.parametrize("what", ["given up", "not copied"])
def test_rows_of_pages_that_do_not_come_are_given_back(what: str) -> None:
    keys = chain(*"abc")
    stack, pool, aside, offloader = with_outgoing(keys, 2)
    if what == "given up":
        pool.stalls = "while pages are copied"
    if what == "not copied":
        pool.copy_out = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    try:
        offloader.submit(offered(stack, pool, keys))
        if what == "given up":
            assert pool.begun.wait(60)
            offloader.forget()
            pool.go_on.set()
        else:
            assert offloader.wait(60)
            assert not offloader.take_answer()
    finally:
        offloader.close()
    assert (sorted(aside.free), aside.found) == ([0, 1], {})
    assert stack.host.used_slots == 0
    check(stack)


def test_outgoing_memory_that_cannot_be_written_to_costs_nothing_else_and_is_tried_again() -> None:
    """After a while that gets longer as long as that goes wrong."""
    keys, clock = chain(*"abc"), Clock()
    stack, pool, aside, offloader = with_outgoing(keys, 2, clock)
    began, tried = clock.now, []
    try:
        for second in range(0, 600, 10):
            clock.now = began + second
            aside.fails = second < 300
            stack.flush("all")
            before = len(aside.copied)
            offloader.submit(offered(stack, pool, keys))
            assert offloader.wait(60)
            assert offloader.take_answer()
            assert stack.probe(keys) == 3
            tried += [second] if len(aside.copied) > before else []
            if aside.found:
                break
    finally:
        offloader.close()
    assert tried == [0, 30, 90, 210, 450]  # twice as long each time
    assert len(aside.found) == 2
    rests = [event.fields["seconds"] for event in stack.events.since() if event.kind == "offload.not_aside"]
    assert rests == [30.0, 60.0, 120.0, 240.0]
    assert aside.closed == 0
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
    monkeypatch.setattr(swift, "wait_offloads", lambda timeout=0.0: offloads.Offloader.wait(swift.offloader, 0.01))
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


@pytest.mark.parametrize("hangs", [False, True])
def test_a_part_that_cannot_end_keeps_no_other_from_ending(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    """`hangs`: a copy does, so that the device may still read host memory."""
    stack, pool, ended = make_stack(), StallingPool(chain("a", "b")), []
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]

    def fails() -> None:
        raise RuntimeError("no thread to be had")

    swift.reporting = SimpleNamespace(stop_orders=fails, close=lambda: ended.append("reporting"))  # type: ignore[assignment]
    swift.peer_side = SimpleNamespace(close=fails)  # type: ignore[assignment]
    monkeypatch.setattr(linker, "unlock_pages", lambda slab: ended.append("host memory"))
    if hangs:
        swift._running[7] = []
        monkeypatch.setattr(swift.layer_done_counter, "is_over", lambda index: False)
        monkeypatch.setattr(swift.layer_done_counter, "finish", lambda index: threading.Event().wait())
        close = swift.loader.close
        monkeypatch.setattr(swift.loader, "close", lambda timeout: close(timeout) and False)
    swift.close()
    assert stack.closed
    assert ended == ["reporting"] + ["host memory"] * (not hangs)


# ---- batches that run without looking after their loads ----


class LoadingPool(StallingPool):
    """One that takes what is copied in."""

    accelerator = None

    def copy_in(self, pages: Any, slab: Any, slots: Any, layer_done: Any, ready: Any) -> None:
        for layer in range(GEOMETRY.layers):
            layer_done(layer, None)


@pytest.fixture
def loading() -> Iterator[SwiftLinker]:
    """A linker with the load of a request queued, whose two pages were promised."""
    keys = chain("a", "b")
    stack, pool = make_stack(), LoadingPool(keys)
    pool.stalls = "never"
    swift = SwiftLinker.over(pool, stack)  # type: ignore[arg-type]
    try:
        put(stack, keys)
        request = TieredRequest("r", stack, swift.requests, RequestFacts())
        request.begin([key.hex() for key in keys])
        stack.restorer.wait_idle()
        transfer = linker.PoolTransfer(
            name=linker.PoolName.KV, keys=[key.hex() for key in keys], device_indices=torch.arange(len(keys))
        )
        assert list(swift.lookup("r", [transfer])) == [1, 2]
        assert swift.load("r", [transfer])
        request.end()
        yield swift
        check(stack)
    finally:
        swift.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_batch_whose_forward_waited_for_nothing_fails(loading: SwiftLinker, waits: bool) -> None:
    """It has read slots that nothing may have been copied to."""
    index = loading.start_layer_wise_loading()
    if waits:
        loading.layer_done_counter.set_consumer(index)
    for layer in range(GEOMETRY.layers):
        loading.layer_done_counter.wait_until(layer)
    assert loading.finish_layer_wise_loading(index) is waits
    told = [event.fields["error"] for event in loading.stack.events.since() if event.kind == "linker.error"]
    assert told == ([] if waits else ["a forward ran that did not wait for what was loaded for it"])


def test_a_batch_whose_loads_were_never_begun_fails(loading: SwiftLinker) -> None:
    """And nothing is kept for them."""
    table, restorer = loading.stack.table, loading.stack.restorer
    assert table.pinned_pages == 2
    assert not loading.finish_layer_wise_loading(-1)
    restorer.wait_idle()
    assert table.pinned_pages == 0
    assert loading.start_layer_wise_loading() == -1, "it is begun for another batch"


# ---- memory that is released ----


@pytest.mark.parametrize(
    ("tags", "saver", "backup", "lost"),
    [
        (None, True, False, True),
        (["weights"], True, False, True),
        (["kv_cache"], True, False, False),
        (["weights"], True, True, False),
        (["weights"], False, False, False),
    ],
)
def test_weights_that_are_released_without_a_copy_are_not_those_that_were_named(
    monkeypatch: pytest.MonkeyPatch, tags: list[str] | None, saver: bool, backup: bool, lost: bool
) -> None:
    """Whoever asks before they are updated is answered by nobody's weights."""
    import sglang.srt.runtime_context

    order: list[Any] = []
    swift = SimpleNamespace(
        wait_copies=lambda: order.append("copied"),
        stop_offloads=lambda: order.append("stopped"),
        weights_changed=lambda *, device_emptied: order.append(device_emptied),
    )
    features = SimpleNamespace(enable_memory_saver=saver, enable_weights_cpu_backup=backup)
    monkeypatch.setattr(sglang.srt.runtime_context, "get_exec", lambda: SimpleNamespace(features=features))
    monkeypatch.setattr(hook_functions, "swift_linker", lambda scheduler: swift)
    allocator = SimpleNamespace(available_size=lambda: 16)
    scheduler = SimpleNamespace(token_to_kv_pool_allocator=allocator, max_total_num_tokens=16)
    updater, request = SimpleNamespace(scheduler=scheduler), SimpleNamespace(tags=tags)
    hook_functions.around_release_memory(lambda *_: order.append("released"), updater, request)
    stopped = ["stopped"] if saver and (tags is None or "kv_cache" in tags) else []
    assert order == [*stopped, "copied", "released", *([True] if lost else [])]


def test_nothing_is_copied_out_of_a_pool_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the queue is: the copy in hand is waited for, the others do not begin."""
    monkeypatch.setattr(Offloader.wait, "__defaults__", (0.0,))
    keys = chain("a", "b")
    stack, pool = make_stack(clock=time.monotonic), StallingPool(keys)
    pool.stalls = "while pages are copied"
    offloader = Offloader(pool, stack)  # type: ignore[arg-type]
    stopped = threading.Thread(target=lambda: (offloader.stop(), gone.set()))
    gone = threading.Event()
    try:
        offloader.submit(offered(stack, pool, keys))
        offloader.submit(offered(stack, pool, keys))
        assert pool.begun.wait(60)
        stopped.start()
        wait_until(lambda: not offloader._unanswered, "it gives nothing up")
        assert not gone.is_set()
        pool.go_on.set()
        assert gone.wait(60)
        copies = len(pool.after)
        offloader.submit(offered(stack, pool, keys))
        assert offloader.wait(60)
        assert (copies, len(pool.after)) == (1, 2), "a copy of a pool that has gone"
    finally:
        pool.go_on.set()
        stopped.join()
        offloader.close()
    check(stack)
