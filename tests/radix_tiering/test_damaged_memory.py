"""A page that is damaged in host memory is not served, nor written and served after a crash; wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.testing.model_engine import ModelStore

from support.engine import chain, check, crash, get, make_stack, memory_ssd, put
from support.remote import remote_stack, run_of, wait_sent


def from_the_device() -> tuple[TierStack, Sequence[bytes]]:
    stack, keys = make_stack(host={"verify": True}), chain("a", "b", "c", "d")
    put(stack, keys)
    return stack, keys


def from_ssd() -> tuple[TierStack, Sequence[bytes]]:
    stack, keys = make_stack(ssd=memory_ssd(), host={"verify": True}), chain("a", "b", "c", "d")
    put(stack, keys)
    assert stack.wait_written(60)
    stack.flush("memory")
    return stack, keys


def from_a_store(*, ssd: bool = False) -> tuple[TierStack, Sequence[bytes]]:
    store, keys = ModelStore(), run_of("a", 2)
    other = remote_stack(store, host_pages=64)
    put(other, keys)
    wait_sent(other)
    return remote_stack(store, ssd=memory_ssd() if ssd else None, sections={"host": {"verify": True}}), keys


def from_a_store_beside_ssd() -> tuple[TierStack, Sequence[bytes]]:
    return from_a_store(ssd=True)


CAME_FROM = [from_the_device, from_ssd, from_a_store, from_a_store_beside_ssd]


def damage(stack: TierStack, key: bytes) -> None:
    page = stack.table.find(stack.digest, key)
    assert page is not None
    assert page.resident
    stack.host.page(page.slot)[100] ^= 4


def corrupt(stack: TierStack) -> list[str]:
    return [event.fields["key"] for event in stack.events.since() if event.kind == "page.corrupt"]


@pytest.mark.parametrize("came", CAME_FROM)
def test_what_is_damaged_in_memory_is_not_served(
    came: Callable[[], tuple[TierStack, Sequence[bytes]]],
) -> None:
    """Bytes change after a page has come, and has been verified on its way, and before anybody looks at it again."""
    stack, keys = came()
    assert get(stack, keys) == len(keys)
    damage(stack, keys[3])
    get(stack, keys)  # which compares what is promised
    assert corrupt(stack) == [keys[3].hex()]
    check(stack)


def test_what_is_damaged_after_it_came_from_a_store_is_not_written() -> None:
    stack, keys = from_a_store(ssd=True)
    assert get(stack, keys) == len(keys)
    damage(stack, keys[3])
    stack.restorer.used(keys)  # as a request does of which the device has all: what it uses is offered to ssd
    stack.restorer.wait_idle()
    assert stack.wait_written(60)
    stack.flush("memory")
    get(stack, keys)
    assert corrupt(stack) == [keys[3].hex()]
    check(stack)


@pytest.mark.parametrize("devices", [1, 2])
def test_what_is_damaged_in_memory_is_not_written(devices: int) -> None:
    array = MemoryArray([2**20] * devices, seed=1)
    stack = make_stack(ssd=memory_ssd(array=array), policy={"write": "back", "ssd_admission": "reuse"})
    keys = chain("a", "b")
    put(stack, keys)
    page = stack.table.find(stack.digest, keys[1])
    assert page is not None
    stack.host.page(page.slot)[3] ^= 1
    with stack.table.lock:
        stack.movers["ssd"].enqueue([page])
    assert stack.wait_written(10)
    assert page.dropped
    corrupt = [event.fields["key"] for event in stack.events.since() if event.kind == "page.corrupt"]
    assert corrupt == [keys[1].hex()]
    check(stack)
    crash(stack)

    again = make_stack(ssd=memory_ssd(array=MemoryArray.from_images(array.images)))
    assert get(again, keys) == 1
    check(again)
