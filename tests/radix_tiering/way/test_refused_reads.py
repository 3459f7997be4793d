"""Tiers that do not take what they are asked to read: nobody waits for it, and nothing stays pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier

from support.engine import GEOMETRY, chain, check, copy_of, get, make_stack, put, settle
from support.landing_stack import landing, leave_with_peers

PAGE = GEOMETRY.page_bytes

#: What a tier may raise: it is closed, or too many wait; what it is asked cannot be meant.
REFUSALS = pytest.mark.parametrize("error", [RuntimeError, ValueError])


def refuse(monkeypatch: pytest.MonkeyPatch, tier: Any, method: str, error: type[Exception]) -> Callable[[], None]:
    """Until what this returns is called, it takes nothing of the kind."""

    def refused(*_: object) -> None:
        raise error("it takes none now")

    monkeypatch.setattr(tier, method, refused, raising=False)
    return lambda: monkeypatch.delattr(tier, method)


def beneath(*tiers: str, lent: ModelPeer | None = None):
    """A stack with these tiers beneath host memory, which alone have the pages of a chain."""
    stack = make_stack(8, others=[ModelTier(name, PAGE, 32) for name in tiers], lent=lent)
    if lent is not None:
        lent.lend(16)
        lent.settle()
    keys = chain("a", 1, 2)
    put(stack, keys)
    stack.restorer.wait_idle()
    with stack.table.lock:
        assert all(mover.wait_idle(20) for mover in stack.movers.values())
        for page in reversed(stack.table.listed()):
            stack.table.lose(page, HOST)
    return stack, keys


def nothing_is_kept(stack) -> None:
    """Of any read, when all restores are over."""
    stack.restorer.wait_idle()
    with stack.table.lock:
        assert [page for page in stack.table.listed() if page.pins] == []
        reads = stack.restorer.reads
        assert (reads._waiting, reads._on_its_way, reads._saving) == ({}, {}, {})


def nothing_is_kept_and_all_comes_when_it_is_taken_again(stack, keys, takes_again: Callable[[], None]) -> None:
    nothing_is_kept(stack)
    takes_again()
    assert get(stack, keys) == 3
    check(stack)


@REFUSALS
def test_pages_that_the_only_tier_does_not_take_are_a_miss(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    stack, keys = beneath("attic")
    takes_again = refuse(monkeypatch, stack.tiers["attic"], "read", error)
    assert get(stack, keys) == 0
    nothing_is_kept_and_all_comes_when_it_is_taken_again(stack, keys, takes_again)


@REFUSALS
def test_pages_that_one_tier_does_not_take_are_read_from_the_next(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    stack, keys = beneath("attic", "cellar")
    refuse(monkeypatch, stack.tiers["attic"], "read", error)
    assert get(stack, keys) == 3
    nothing_is_kept(stack)
    check(stack)


@REFUSALS
def test_a_damaged_page_that_the_next_tier_does_not_take_is_lost(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    stack, keys = beneath("attic", "cellar")
    with stack.table.lock:
        stack.tiers["attic"].damage(copy_of(stack, stack.table.find(stack.digest, keys[-1]), "attic").place)
    takes_again = refuse(monkeypatch, stack.tiers["cellar"], "read", error)
    assert get(stack, keys) == 2
    nothing_is_kept_and_all_comes_when_it_is_taken_again(stack, keys, takes_again)


@REFUSALS
def test_pages_that_cannot_be_asked_for_to_be_saved_go_with_their_lease(
    monkeypatch: pytest.MonkeyPatch, error: type
) -> None:
    peer = ModelPeer(PAGE)
    stack, keys = beneath(lent=peer)
    (key,) = {copy_of(stack, stack.table.find(stack.digest, one), "peer").place.key for one in keys}
    refuse(monkeypatch, peer, "read", error)
    peer.recall(key)
    peer.settle()
    assert stack.errands.wait_idle(20)
    assert (peer.returned, stack.probe(keys)) == ([key], 0)
    nothing_is_kept(stack)
    check(stack)


@REFUSALS
def test_pages_that_are_not_taken_to_land_come_to_host_memory(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    refuse(monkeypatch, peer, "land", error)
    restore = settle(stack, stack.restore(keys))
    assert (restore.pages, stack.host.used_slots) == (3, 3)
    stack.restorer.release(restore)
    nothing_is_kept(stack)
    check(stack)


def test_a_page_whose_landing_raises_what_nobody_expects_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    lands_again = refuse(monkeypatch, peer, "land", KeyError)
    with stack.table.lock, pytest.raises(KeyError):
        stack.restorer.reads._land(stack.table.find(stack.digest, keys[0]), HOST + 1)
    nothing_is_kept_and_all_comes_when_it_is_taken_again(stack, keys, lands_again)


def test_a_page_whose_learning_raises_what_nobody_expects_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, keys = beneath("attic")
    assert get(stack, keys) == 3
    monkeypatch.setattr(stack.tiers["attic"], "lands_by_digest", True, raising=False)
    refuse(monkeypatch, stack.tiers["attic"], "learn", KeyError)
    with stack.table.lock, pytest.raises(KeyError):
        stack.restorer.reads.learn([page for page in stack.table.listed() if page.resident])
    nothing_is_kept(stack)
    check(stack)
