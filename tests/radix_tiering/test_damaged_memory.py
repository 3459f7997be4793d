"""A page that is damaged in host memory before it is written does not come back after a crash."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import chain, check, crash, get, make_stack, memory_ssd, put


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
