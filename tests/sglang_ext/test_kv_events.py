"""What routers that go by KV events know of pages beneath the device, told by SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests call them there. There
`support.router` listens, as it does in every test of a scheduler, and takes nothing that makes no sense.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored

from support.prompts import prompt
from support.router import BENEATH, GPU, assert_known, blocks_of
from support.scheduler_process import SchedulerProcess

PAGE = 16
DEVICE_TOKENS = 2048
#: 256 pages of the tiny model.
HOST = "4MiB"


# ---- in the scheduler's process ----


def fill_device(s, seed: int) -> None:
    for number in range(4):
        s.generate(prompt(1000 * seed + number))
        s.settle()


def known(s) -> dict[str, set[int]]:
    s.scheduler.kv_events_publisher.publish_kv_events()
    return {medium: set(blocks) for medium, blocks in s.router.blocks.items()}


def a_prefix_goes_down_and_comes_up(s) -> None:
    question = prompt(1, 330)
    s.generate(question)
    s.settle()
    blocks = set(blocks_of(question, PAGE))
    assert len(blocks) == 20
    assert blocks <= known(s)[GPU]
    assert not blocks & known(s)[BENEATH], "it is not told twice of what the device has"
    fill_device(s, 1)
    assert not blocks & known(s)[GPU]
    assert blocks <= known(s)[BENEATH]
    req = s.add(question)
    s.run()
    assert s.details(req)["host"] == 20 * PAGE, "what routers are told of does not come up"
    s.linker.stack.flush("memory")
    s.settle()
    assert blocks <= known(s)[GPU]
    assert not known(s)[BENEATH]


def it_is_told_in_order_and_once(s) -> None:
    """Sequences that share beginnings, in a host tier too small for them."""
    draw = random.Random(5)
    for _ in range(40):
        begin = prompt(draw.randrange(3), draw.choice((64, 160, 400)))
        s.generate([*begin, *prompt(100 + draw.randrange(6), draw.choice((40, 200)))])
        assert_known(s.router, s.scheduler)
    events = [event for batch in s.router.batches for event in batch if getattr(event, "medium", None) == BENEATH]
    here: set[int] = set()
    for event in events:
        told = set(event.block_hashes)
        assert len(told) == len(event.block_hashes)
        if isinstance(event, BlockStored):
            assert not told & here, "told twice"
            here |= told
        else:
            assert isinstance(event, BlockRemoved)
            assert told <= here
            here -= told
    assert {type(event) for event in events} == {BlockStored, BlockRemoved}


def what_is_told_is_there(s) -> None:
    """Of each block that a router knows to be beneath, the tiers have the page that begins so."""
    s.settle()
    table, digest = s.linker.stack.table, s.linker.stack.digest
    for block in known(s)[BENEATH]:
        assert table.keys_beginning(digest, block.to_bytes(8, "big", signed=True)), block


def flushed(s) -> None:
    assert known(s)[BENEATH]
    s.run()
    assert s.scheduler.flush_cache()
    assert known(s) == {GPU: set(), BENEATH: set()}
    question = prompt(1, 330)
    s.generate(question)
    fill_device(s, 2)
    assert set(blocks_of(question, PAGE)) <= known(s)[BENEATH]


def new_weights(s) -> None:
    """Those that no file describes: what was computed with the old ones is not beneath any more."""
    fill_device(s, 3)
    assert known(s)[BENEATH]
    s.run()
    s.linker.weights_changed(device_emptied=False)
    before = known(s)[BENEATH]
    fill_device(s, 4)
    assert known(s)[BENEATH] <= before, "told of what is kept nowhere"
    assert s.scheduler.flush_cache()
    fill_device(s, 5)
    assert known(s)[BENEATH]
    what_is_told_is_there(s)


def keys_of_their_own(s) -> None:
    """Two users' same tokens: SGLang gives both one hash, each is told of, and each as gone."""
    question = prompt(7, 160)
    for salt in ("a", "b", None):
        s.generate(question, extra_key=salt)
    fill_device(s, 6)
    s.scheduler.kv_events_publisher.publish_kv_events()
    assert {s.router.blocks[BENEATH][block] for block in blocks_of(question, PAGE)} == {3}
    s.linker.stack.flush("all")
    s.settle()
    assert not known(s)[BENEATH]


def it_goes_on_without_if_that_fails(s) -> None:
    from swift_tiers.sglang_ext.tell.kv_events import KvEvents

    announce = KvEvents._announce

    def broken(self, keys, hashes):
        raise RuntimeError("injected")

    fill_device(s, 8)
    there = known(s)[BENEATH]
    assert there
    KvEvents._announce = broken
    try:
        fill_device(s, 9)
        assert known(s)[BENEATH] <= there
    finally:
        KvEvents._announce = announce
    fill_device(s, 10)
    assert known(s)[BENEATH] <= there
    assert known(s)[GPU]
    s.linker.stack.flush("all")
    s.settle()
    assert not known(s)[BENEATH], "it is told of as gone all the same"
    s.step()  # SGLang sees that it has nothing to do
    assert s.scheduler.flush_cache()
    fill_device(s, 11)
    fill_device(s, 12)
    assert known(s)[BENEATH], "once nothing is known any more, it goes on as before"


# ---- tests ----


@pytest.fixture(scope="module", params=["rust", "python"])
def scheduler(request, tmp_path_factory) -> Iterator[SchedulerProcess]:
    from swift_tiers.ops.base.model import tiny_model

    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--page-size", str(PAGE),
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps({"host": {"size": HOST}}),
    ]  # fmt: skip
    with SchedulerProcess(arguments, {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": request.param}) as process:
        yield process


def test_a_prefix_that_leaves_the_device_is_told_to_be_beneath(scheduler) -> None:
    scheduler(a_prefix_goes_down_and_comes_up)


def test_every_page_is_told_of_once_and_as_gone_once(scheduler) -> None:
    scheduler(it_is_told_in_order_and_once)
    scheduler(what_is_told_is_there)


def test_after_a_flush_nothing_is_known(scheduler) -> None:
    scheduler(flushed)


def test_nothing_is_told_of_kv_of_weights_that_are_gone(scheduler) -> None:
    scheduler(new_weights)


def test_keys_of_users_are_told_apart_by_count(scheduler) -> None:
    scheduler(keys_of_their_own)


def test_it_goes_on_where_telling_fails_and_as_before_after_a_flush(scheduler) -> None:
    scheduler(it_goes_on_without_if_that_fails)
