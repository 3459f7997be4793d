"""What is in host memory is verified beside everything else, and is nobody's before that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from swift_tiers.kernels.page_digest import host_page_digest
from swift_tiers.radix_tiering.base.errors import DamagedPageError
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.tier import Write
from swift_tiers.radix_tiering.way.checking import Checkers, ChecksDone
from swift_tiers.radix_tiering.way.request_restore import Readiness

from support.engine import GEOMETRY, Clock, chain, check, content, make_stack, memory_ssd, put, wait_until


class Held:
    """Keeps what the checkers are asked, until the test lets them answer."""

    def __init__(self, stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Sequence[int], ChecksDone]] = []
        self._checkers = stack.restorer.verifier.checkers
        self._check = self._checkers.check
        monkeypatch.setattr(self._checkers, "check", lambda slots, done: self.asked.append((slots, done)))

    def answer(self, number: int = 0) -> None:
        self._check(*self.asked.pop(number))


@pytest.fixture
def stack() -> TierStack:
    found = make_stack(ssd=memory_ssd())
    put(found, chain(*"abcd"))
    put(found, chain(*"xyz"))
    assert found.wait_written(10)
    return found


def asked_of(stack: TierStack, held: Held, keys: list[bytes], count: int) -> Any:
    restore = stack.restore(keys)
    wait_until(lambda: len(held.asked) == count, "nobody asks for checks")
    return restore


def wait_ready(stack: TierStack, restore: Any) -> None:
    wait_until(lambda: stack.restorer.poll(restore) is Readiness.READY, "the restore never ends")


def test_nothing_is_ready_before_it_is_checked(stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 1)
    assert stack.restorer.poll(restore) is Readiness.WAIT
    assert restore.usable == 0
    held.answer()
    wait_ready(stack, restore)
    assert restore.pages == 4
    stack.restorer.release(restore)


def test_who_comes_next_does_not_wait_for_the_checks_of_others(
    stack: TierStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(stack, monkeypatch)
    first = asked_of(stack, held, chain(*"abcd"), 1)
    second = asked_of(stack, held, chain(*"xyz"), 2)
    held.answer(1)
    wait_ready(stack, second)
    assert stack.restorer.poll(first) is Readiness.WAIT
    held.answer()
    wait_ready(stack, first)
    assert (first.pages, second.pages) == (4, 3)
    for restore in (first, second):
        stack.restorer.release(restore)


def test_a_damaged_page_is_found_in_the_middle_of_a_batch(stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 1)
    stack.host.page(held.asked[0][0][2])[:] ^= 1
    held.answer()
    wait_ready(stack, restore)
    assert restore.pages == 2
    assert stack.table.of[HOST].counters.checksum_failures == 1
    stack.restorer.release(restore)


@pytest.mark.parametrize("first", ["the write", "the restore"])
def test_damage_that_a_write_finds_as_well_is_told_once(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    stack, keys = make_stack(ssd=memory_ssd(), host={"verify": True}), chain(*"abcd")
    tier, begun = stack.movers["ssd"].tier, list[Write]()
    write = tier.write
    monkeypatch.setattr(tier, "write", begun.extend)
    put(stack, keys)
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, keys, 1)
    stack.host.page(held.asked[0][0][2])[:] ^= 1
    assert len(begun) == 4

    def write_it() -> None:
        write(begun)
        assert stack.wait_written(10)

    def look() -> None:
        held.answer()
        wait_ready(stack, restore)

    for find in (write_it, look) if first == "the write" else (look, write_it):
        find()
    assert restore.pages == 2
    stack.restorer.release(restore)
    assert stack.table.of[HOST].counters.checksum_failures == 1
    assert [event.kind for event in stack.events.since()].count("page.corrupt") == 1
    check(stack)


def test_what_could_not_be_checked_is_not_served(
    stack: TierStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 1)
    monkeypatch.setattr(stack.host, "addresses", lambda slots: 1 / 0)
    held.answer()
    wait_ready(stack, restore)
    assert restore.pages == 0
    assert "could not be computed" in caplog.text
    monkeypatch.undo()
    stack.restorer.release(restore)
    again = stack.restore(chain(*"abcd"))
    wait_ready(stack, again)
    assert again.pages == 4, "the pages are as they were"
    stack.restorer.release(again)


def test_checks_that_come_after_the_end_touch_nothing(stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request was aborted: its pages may have left, and their slots be others'."""
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 1)
    stack.restorer.release(restore)
    stack.host.page(held.asked[0][0][2])[:] ^= 1
    _, done = held.asked.pop()
    done([bytes(16)] * 4)
    assert stack.table.of[HOST].counters.checksum_failures == 0
    wait_until(lambda: not stack.table.pinned_pages, "pages stay pinned")


def test_a_deadline_does_not_wait_for_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    stack = make_stack(clock=clock)
    put(stack, chain(*"abcd"))
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 1)
    assert stack.restorer.poll(restore) is Readiness.WAIT
    clock.now += 3600.0
    assert stack.restorer.poll(restore) is Readiness.READY
    assert restore.pages == 0
    held.answer()
    stack.restorer.release(restore)
    wait_until(lambda: not stack.table.pinned_pages, "pages stay pinned")


def beside(monkeypatch: pytest.MonkeyPatch) -> tuple[TierStack, Held, Any]:
    """A restore of four pages where they are verified beside their copy: as a GPU has it, where nothing is said."""
    stack = make_stack(copies_beside=True)
    put(stack, chain(*"abcd"))
    held = Held(stack, monkeypatch)
    restore = asked_of(stack, held, chain(*"abcd"), 0)
    wait_ready(stack, restore)
    assert (restore.pages, held.asked) == (4, []), "somebody waits for a check"
    return stack, held, restore


def test_beside_a_copy_only_what_is_copied_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, held, restore = beside(monkeypatch)
    verified = stack.restorer.verifier.verified(restore, 1, restore.places(1, 3).numbers.tolist())
    ((slots, _),) = held.asked
    assert list(slots) == stack.restorer.places(restore, 1, 3).numbers.tolist()
    held.answer()
    verified(None)
    stack.restorer.release(restore)


def test_beside_a_copy_damage_is_an_error_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, held, restore = beside(monkeypatch)
    stack.host.page(restore.claimed[2].slot)[7] ^= 1
    verified = stack.restorer.verifier.verified(restore, 0, restore.places(0, 4).numbers.tolist())
    held.answer()
    with pytest.raises(DamagedPageError, match="a page in host memory: corrupt: checksum"):
        verified(None)
    stack.restorer.release(restore)
    assert stack.table.of[HOST].counters.checksum_failures == 1
    assert stack.probe(chain(*"abcd")) == 2, "it is served again, or what follows it"


def test_beside_a_copy_what_could_not_be_looked_at_is_an_error_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack, held, restore = beside(monkeypatch)
    verified = stack.restorer.verifier.verified(restore, 0, restore.places(0, 4).numbers.tolist())
    monkeypatch.setattr(stack.host, "addresses", lambda slots: 1 / 0)
    held.answer()
    with pytest.raises(DamagedPageError, match="could not be verified"):
        verified(None)
    stack.restorer.release(restore)


def test_pages_that_are_flushed_while_they_are_copied_are_still_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, held, restore = beside(monkeypatch)
    verified = stack.restorer.verifier.verified(restore, 0, restore.places(0, 4).numbers.tolist())
    stack.flush("all")
    held.answer()
    verified(None)
    stack.restorer.release(restore)


@pytest.mark.parametrize("damaged", [False, True])
def test_layers_are_not_copied_before_their_pages_are_verified(monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    stack, held, restore = beside(monkeypatch)
    if damaged:
        stack.host.page(restore.claimed[3].slot)[7] ^= 1
    stack.restorer.take_layers(restore, 0, 4)
    assert stack.restorer.layers_arrived(restore, 0, 4) is False
    held.answer()
    stack.restorer.wait_idle()
    assert stack.restorer.layers_arrived(restore, 0, 4) is (None if damaged else True)
    stack.restorer.release(restore)


def said_of(keys: Sequence[bytes]) -> np.ndarray:
    """What a device says of the pages of these keys: int64 [keys, 2]."""
    return np.frombuffer(b"".join(host_page_digest(content(key)) for key in keys), np.int64).reshape(-1, 2)


def told_by_the_device(stack: TierStack, restore: Any, keys: Sequence[bytes]) -> None:
    stack.host.digests.learn([page.slot for page in restore.claimed], said_of(keys))


def test_pages_that_the_device_has_had_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, held, restore = beside(monkeypatch)
    keys = chain(*"abcd")
    told_by_the_device(stack, restore, keys)
    verified = stack.restorer.verifier.verified(restore, 1, restore.places(1, 4).numbers.tolist(), by_device=True)
    assert held.asked == []
    verified(said_of(keys[1:]))
    assert held.asked == []
    stack.restorer.release(restore)


def test_what_the_device_says_is_known_once_a_checksum_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of pages that have come from an SSD: the second copy costs no thread anything."""
    stack, held, restore = beside(monkeypatch)
    keys, places = chain(*"abcd"), restore.places(0, 4).numbers.tolist()
    verified = stack.restorer.verifier.verified(restore, 0, places, by_device=True)
    assert len(held.asked) == 1
    held.answer()
    verified(said_of(keys))
    stack.restorer.verifier.verified(restore, 0, places, by_device=True)(said_of(keys))
    assert held.asked == []
    stack.restorer.release(restore)


@pytest.mark.parametrize("where", ["host memory", "the way"])
def test_what_the_device_says_is_another_page_fails_the_load(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A page that is damaged in host memory is dropped; one that came otherwise than it lies there is kept."""
    stack, _, restore = beside(monkeypatch)
    keys = chain(*"abcd")
    told_by_the_device(stack, restore, keys)
    if where == "host memory":
        stack.host.page(restore.claimed[2].slot)[7] ^= 1
    verified = stack.restorer.verifier.verified(restore, 0, restore.places(0, 4).numbers.tolist(), by_device=True)
    said = said_of(keys).copy()
    said[2, 1] ^= 1
    monkeypatch.undo()  # the checkers answer
    damaged = where == "host memory"
    with pytest.raises(DamagedPageError, match="not what it was when the device had it"):
        verified(said)
    stack.restorer.release(restore)
    assert stack.table.of[HOST].counters.checksum_failures == damaged
    assert stack.probe(keys) == (2 if damaged else 4)


def test_what_has_ended_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots may be others' by now."""
    stack, held, restore = beside(monkeypatch)
    slots = [page.slot for page in restore.claimed]
    verified = stack.restorer.verifier.verified(restore, 0, restore.places(0, 4).numbers.tolist(), by_device=True)
    held.answer()
    stack.restorer.release(restore)
    verified(said_of(chain(*"abcd")))
    assert not stack.host.digests.known(slots).any()


def test_a_slot_that_another_page_gets_is_not_known() -> None:
    host = make_stack(1).host
    [slot] = [host.allocate()]
    assert slot is not None
    host.digests.learn([slot], np.ones((1, 2), np.int64))
    host.free(slot)
    assert host.digests.known([slot]).all(), "nothing is there that could be asked for"
    assert host.allocate() == slot
    assert not host.digests.known([slot]).any()


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("pages", [0, 1, 2, 7])
def test_checksums_are_shared_out_and_come_in_their_order(threads: int, pages: int) -> None:
    host = HostTier(GEOMETRY, 8 * GEOMETRY.stride_bytes)
    host.slab[:] = np.random.default_rng(0).integers(0, 256, host.slab.shape, dtype=np.uint8)
    checkers = Checkers(host, None, threads, THREADS)
    slots = np.random.default_rng(1).permutation(8)[:pages].tolist()
    assert checkers.checksums(slots) == [page_digest(host.page(slot)) for slot in slots]
    checkers.close()


@pytest.mark.parametrize("by", ["the caller", "a thread"])
def test_nobody_computes_any_more_when_checksums_have_failed(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked gives the slots to others then."""
    host = HostTier(GEOMETRY, 8 * GEOMETRY.stride_bytes)
    checkers = Checkers(host, None, 1, THREADS)
    caller, at_work, addresses = threading.current_thread(), threading.Event(), host.addresses
    still: list[int] = []

    def fails(slots: Sequence[int]) -> np.ndarray:
        mine = threading.current_thread() is caller
        if mine == (by == "the caller"):
            raise OSError("injected")
        at_work.wait(0.05)
        still.append(len(slots))
        return addresses(slots)

    monkeypatch.setattr(host, "addresses", fails)
    with pytest.raises((OSError, RuntimeError)):
        checkers.checksums([0, 1, 2, 3])
    assert still == [2], "a part is computed behind the caller's back"
    checkers.close()


def test_an_end_does_not_wait_for_a_check_that_hangs(stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, addresses = threading.Event(), stack.host.addresses

    def hangs(slots: Sequence[int]) -> np.ndarray:
        assert goes_on.wait(60)
        return addresses(slots)

    monkeypatch.setattr(stack.host, "addresses", hangs)
    restore = stack.restore(chain(*"abcd"))
    wait_until(lambda: restore.complete, "nobody asks for checks")
    end = threading.Thread(target=lambda: stack.restorer.close(0.0))
    end.start()
    end.join(20)
    ended = not end.is_alive()
    goes_on.set()
    end.join(20)
    assert ended
