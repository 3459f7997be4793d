"""However many pages there are, nobody holds the page table's lock for more than a few: the scheduler waits for it.

What is counted is how many pages enter, change, leave or are listed in one hold, not how long that takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD, PageTable
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.down import PREFIX_STEP, WRITE_BACK_STEP

from support.engine import (
    GEOMETRY,
    busy_errands,
    chain,
    check,
    close,
    copy_of,
    get,
    make_stack,
    memory_ssd,
    namespace,
    put,
    settle,
    wait_until,
)

#: Far more than are handled in one hold.
PAGES = 1000
#: Changes of pages in one hold, at most: a page that leaves changes a few times.
MOST = 6 * PAGES_PER_HOLD


class WatchedLock:
    """Counts the changes of pages while it is held, and the pages that its holder lists."""

    def __init__(self, changes: Callable[[], int]) -> None:
        """`changes()`: how many there were ever."""
        self._lock = threading.Lock()
        self._changes = changes
        self._before = 0
        self._holder: int | None = None
        self._listed = 0
        self.most = 0

    def acquire(self, *arguments: float) -> bool:
        taken = self._lock.acquire(*arguments)
        if taken:
            self._before, self._listed, self._holder = self._changes(), 0, threading.get_ident()
        return taken

    def release(self) -> None:
        self.most = max(self.most, self._changes() - self._before, self._listed)
        self._holder = None
        self._lock.release()

    def counting(self, list_some: Callable[..., Sized]) -> Callable[..., Sized]:
        """What counts what this lists."""

        def listing(*arguments: object, **options: object) -> Sized:
            found = list_some(*arguments, **options)
            if self._holder == threading.get_ident():
                self._listed += len(found)
            return found

        return listing

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.most = 0
        yield
        assert 0 < self.most <= MOST


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table has a lock that counts."""
    make = PageTable.__init__

    def watched_table(table, *arguments, **options) -> None:
        make(table, *arguments, **options)
        table.lock = WatchedLock(lambda: table.changes)
        for name in ("used", "make_handles"):
            setattr(table._rows, name, table.lock.counting(getattr(table._rows, name)))

    monkeypatch.setattr(PageTable, "__init__", watched_table)


def array(devices: int = 2) -> MemoryArray:
    return MemoryArray([262_144 + (2 * PAGES) * 8192] * devices, seed=3)


def filled(in_host: bool, *, devices: int = 2, shape: str = "long", lent: ModelPeer | None = None):
    """A stack with PAGES pages on ssd: one sequence, or many behind one page. Their keys."""
    stack = make_stack(host_pages=PAGES + 10, ssd=memory_ssd(array=array(devices)), lent=lent)
    if shape == "long":
        keys = chain(*range(PAGES))
        for start in range(0, PAGES, 50):
            put(stack, keys[start : start + 50], parent=keys[start - 1] if start else b"\0" * 32, depth=start + 1)
    else:
        (root,) = chain("root")
        put(stack, [root])
        keys = [root, *(key for number in range(PAGES - 1) for key in chain(number))]
        for key in keys[1:]:
            put(stack, [key], parent=root, depth=2)
    assert stack.wait_written(60)
    if not in_host:
        stack.flush("memory")
    return stack, keys


def known(stack, keys) -> int:
    return sum(stack.table.find(stack.digest, key) is not None for key in keys)


@pytest.mark.parametrize("shape", ["long", "wide"])
@pytest.mark.parametrize("in_host", [False, True])
def test_a_damaged_page_hides_what_is_behind_it_at_once(shape: str, in_host: bool) -> None:
    stack, keys = filled(in_host, shape=shape)
    with stack.table.lock.watching():
        with busy_errands(stack):
            with stack.table.lock:
                stack.table.drop(stack.table.find(stack.digest, keys[0]))
            assert known(stack, keys) == 0
            assert stack.probe(keys[1:]) == 0
            assert put(stack, keys[:1]) == 1, "it may come back meanwhile"
            assert put(stack, keys[1:2], parent=keys[0], depth=2) == 1
            assert get(stack, keys[:2]) == 2
            assert known(stack, keys) == 2
        assert known(stack, keys) == 2
    assert stack.wait_written(60)
    assert (stack.table.named("ssd").pages, stack.host.used_slots) == (2, 2)
    check(stack)


def test_a_page_that_is_damaged_on_ssd_alone_takes_nobody_along_that_can_still_be_read() -> None:
    stack, keys = filled(in_host=True)
    page = stack.table.find(stack.digest, keys[0])
    with stack.table.lock.watching(), stack.table.lock:
        stack.table.lose(page, stack.table.named("ssd").number)
    assert (stack.table.named("ssd").pages, known(stack, keys)) == (PAGES - 1, PAGES)
    assert get(stack, keys[:1]) == 1  # which has it written again
    assert stack.wait_written(60)
    assert stack.table.named("ssd").pages == PAGES
    check(stack)


@pytest.mark.parametrize("in_host", [False, True])
def test_a_device_that_goes_out_hides_its_pages_at_once(in_host: bool) -> None:
    stack, keys = filled(in_host, devices=2)
    before = {key: copy_of(stack, stack.table.find(stack.digest, key), "ssd") for key in keys}
    lost = [key for key in keys if stack.tiers["ssd"].uses(before[key].place, 0)]
    assert 0 < len(lost) < PAGES
    present = stack.tiers["ssd"]._array.present
    with stack.table.lock.watching():
        with busy_errands(stack):
            stack.tiers["ssd"]._array.present = lambda device: device != 0 and present(device)
            wait_until(lambda: "device.out" in [event.kind for event in stack.events.since()], "it does not leave")
            alone = next(at for at, key in enumerate(keys) if stack.tiers["ssd"].uses(before[key].place, 0))
            assert stack.probe(keys[alone:]) == (PAGES - alone if in_host else 0)
            restore = settle(stack, stack.restore(keys))
            assert restore.pages == (PAGES if in_host else alone)
            stack.restorer.release(restore)
            stack.restorer.wait_idle()
        assert stack.wait_written(60)
    (told,) = [event.fields["pages"] for event in stack.events.since() if event.kind == "device.pages_lost"]
    assert told == len(lost)
    assert not any(
        stack.tiers["ssd"].uses(copy.place, 0)
        for page in stack.table.all_pages()
        if (copy := copy_of(stack, page, "ssd"))
    )
    assert known(stack, keys) == (PAGES if in_host else alone)
    check(stack)


@pytest.mark.parametrize("ssd", [False, True])
def test_a_flush_is_complete_when_it_returns_and_ends_in_steps(ssd: bool) -> None:
    peer = ModelPeer(GEOMETRY.page_bytes)
    stack, keys = filled(in_host=True)
    alone = chain(*(f"in host memory alone {number}" for number in range(5)))
    stack.movers["ssd"].enabled = False
    put(stack, alone)
    stack.movers["ssd"].enabled = True
    with stack.table.lock.watching():
        with busy_errands(stack):
            stack.flush_soon("all" if ssd else "memory")
            assert stack.probe(alone) == 0
            assert stack.probe(keys) == (0 if ssd else PAGES)
            for wanted, pages in ((alone, 0), (keys[:40], 0 if ssd else 40)):
                restore = settle(stack, stack.restore(wanted))
                assert restore.pages == pages
                assert restore.found() == ["ssd"] * pages, "host memory is empty"
                stack.restorer.release(restore)
            stack.restorer.wait_idle()
            assert put(stack, alone) == 5, "what comes in now stays"
        assert get(stack, alone) == 5
    assert stack.wait_written(60)
    assert stack.host.used_slots == 5 + (0 if ssd else 40)
    assert stack.table.named("ssd").pages == 5 + (0 if ssd else PAGES)
    peer.close()
    check(stack)


def test_a_long_sequence_that_nothing_has_saved_is_queued_in_steps() -> None:
    """Its end leaves host memory first, and has to be written last."""
    stack = make_stack(host_pages=PAGES + 10, ssd=memory_ssd(array=array()), policy={"write": "back"})
    mover, keys = stack.movers["ssd"], chain(*range(PAGES))
    for start in range(0, PAGES, 50):
        before = mover.backlog
        put(stack, keys[start : start + 50], parent=keys[start - 1] if start else b"\0" * 32, depth=start + 1)
        assert mover.backlog - before <= PREFIX_STEP + WRITE_BACK_STEP
    assert stack.wait_written(60)
    assert stack.table.named("ssd").pages == PAGES
    check(stack)


@pytest.mark.parametrize("write", ["through", "back"])
def test_a_prefix_that_has_lost_its_copies_is_written_again_in_steps(write: str) -> None:
    """As after a device has come back with nothing on it: by the page behind it that comes in next."""
    stack, keys = filled(in_host=True)
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            stack.table.lose(page, stack.table.named("ssd").number)
    mover, (new,) = stack.movers["ssd"], chain("new")
    before = mover.backlog
    if write == "through":
        put(stack, [new], parent=keys[-1], depth=PAGES + 1)
    else:
        with stack.table.lock:
            mover.offer([stack.table.find(stack.digest, keys[-1])])
    assert mover.backlog - before <= PREFIX_STEP + 1
    assert stack.wait_written(60)
    assert stack.table.named("ssd").pages == PAGES + (write == "through")
    check(stack)


def test_a_flush_forgets_copies_at_peers_at_once() -> None:
    peer = ModelPeer(GEOMETRY.page_bytes)
    stack = make_stack(host_pages=8, lent=peer)
    peer.lend(8)
    peer.settle()
    keys = chain(*range(4))
    put(stack, keys)
    while stack.movers["peer"].backlog:
        peer.settle()
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            stack.table.lose(page, HOST)
    assert stack.probe(keys) == 4
    with busy_errands(stack):
        stack.flush_soon("memory")
        assert stack.probe(keys) == 0
        assert settle(stack, stack.restore(keys)).pages == 0
    assert stack.table.named("peer").pages == 0
    check(stack)


def test_new_weights_leave_memory_in_steps() -> None:
    stack, keys = filled(in_host=True)
    with stack.table.lock.watching(), busy_errands(stack):
        stack.change_namespace(namespace(weights="new"))
        assert stack.probe(keys) == 0
        assert put(stack, chain("new")) == 1
    assert get(stack, chain("new")) == 1
    assert stack.host.used_slots == 1
    assert stack.wait_written(60)
    check(stack)


def test_a_start_and_an_end_take_the_lock_in_steps() -> None:
    stack, keys = filled(in_host=True)
    devices = stack.tiers["ssd"]._array
    stack.movers["ssd"].waits_for.add("the test")  # what is new is to be written by the end
    new = chain(*(f"new {number}" for number in range(5 * PAGES_PER_HOLD)))
    with stack.table.lock:
        stack.table.lose(stack.table.find(stack.digest, keys[-1]), HOST)
    stack.flush("memory")
    for start in range(0, len(new), 50):
        put(stack, new[start : start + 50], parent=new[start - 1] if start else b"\0" * 32, depth=start + 1)
    stack.movers["ssd"].waits_for.clear()
    with stack.table.lock.watching():
        close(stack)
    images = [image.copy() for image in devices.images]
    again = make_stack(host_pages=64, ssd=memory_ssd(array=MemoryArray.from_images(images, seed=5)))
    assert 0 < again.table.lock.most <= MOST
    assert (again.probe(keys), again.probe(new)) == (PAGES, len(new))
    check(again)
