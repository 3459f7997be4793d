"""The story of a restore against what the engine really did: pages that come, fail, or are late, in any order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.figures.story import COMPUTED
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore

from support.engine import Clock, chain, check, close, end_all, make_stack, memory_ssd, put, settle
from support.examples import examples
from support.restores import Link, on_ssd, take

#: Steps of a device after which a restore that is not done hangs.
MOST_STEPS = 2000


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    end_all()


@settings(max_examples=examples(40), deadline=None)
@given(
    pages=st.integers(1, 24),
    chunk=st.integers(1, 6),
    happenings=st.lists(
        st.tuples(st.sampled_from(["arrives", "fails", "step", "time passes"]), st.integers(0, 30)), max_size=60
    ),
)
def test_every_page_comes_once_whatever_happens(pages: int, chunk: int, happenings: list[tuple[str, int]]) -> None:
    stack, clock, keys = on_ssd(pages, restore={"strategy": "token-wise"})
    stack.planner.chunk = chunk
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        assert restore.story.told().found_pages == {"ssd": pages}
        front, computed, admitted = 0, 0, False
        for what, number in [*happenings, *[("step", 0), ("arrives", 0)] * MOST_STEPS]:
            if what == "step":
                admitted = admitted or stack.restorer.poll(restore) is not Readiness.WAIT
                step = take(stack, restore, front) if admitted else Step(0, 0)
                front, computed = step.end, computed + step.end - step.jump
            elif what == "arrives" and link.kept:
                link.deliver(number)
            elif what == "fails" and link.kept:
                link.fail(number)
            elif what == "time passes":
                clock.now += number / 10
            story = restore.story.told()
            assert story.covered == front
            assert story.pages(COMPUTED) == computed
            assert story.loaded == front - computed
            if front == pages:
                break
        assert front == pages, "it hangs"
        stack.restorer.split(restore)
        story = restore.story.told()
        assert story.covered == story.found == pages
        assert story.lost_pages.get("ssd: io error", 0) <= link.failed, "nobody waited for the others any more"
        assert bool(story.late) == (stack.snapshot().restores.restores_late > 0)
        assert stack.snapshot().restores.lost_pages == sum(story.lost_pages.values())
        told = [event.fields for event in stack.events.since() if event.kind == "restore.pages_lost"]
        assert {f"{one['source']}: {one['reason']}": one["pages"] for one in told} == story.lost_pages
    stack.restorer.release(restore)
    check(stack)
    close(stack)


def test_a_source_that_goes_in_the_middle_is_an_event_with_its_reason() -> None:
    stack, _, keys = on_ssd(8, restore={"strategy": "load"})
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        link.deliver(0)
        for _ in range(3):
            link.fail(-1)
    (event,) = [event for event in stack.events.since() if event.kind == "restore.pages_lost"]
    assert event.fields == {"source": "ssd", "pages": 3, "seconds": 0.0, "reason": "io error"}
    assert restore.story.told().lost_pages == {"ssd: io error": 3}
    stack.restorer.release(restore)
    check(stack)


def progress(restore: Restore) -> tuple[int | None, int | None, int | None]:
    story = restore.story.told()
    return story.computed_pages, story.arrived_pages, story.loading_pages


def test_how_far_it_has_come_is_told_while_it_runs() -> None:
    """From the front and from the back, until both have met."""
    stack, _, keys = on_ssd(8, restore={"strategy": "token-wise"})
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        loading = len(link.kept)
        for came in range(3):
            assert progress(restore) == (0, came, loading - came)
            link.deliver(-1)
        for depth in (1, 2):
            link.fail(next(number for number, read in enumerate(link.kept) if read.stored.record.depth == depth))
        stack.restorer.take(restore, stack.restorer.step(restore, 0))
        assert progress(restore) == (2, 3, len(link.kept)) == (2, 3, loading - 5)
    stack.restorer.release(restore)
    assert progress(restore) == (None, None, None)
    assert progress(stack.restore(chain("unknown"))) == (None, None, None)
    check(stack)


def test_one_that_falls_behind_is_an_event_with_its_reason() -> None:
    stack, clock, keys = on_ssd(8, restore={"strategy": "load"}, policy={"restore_deadline": "1s"})
    with Link(stack):
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        assert stack.restorer.poll(restore) is Readiness.WAIT
        clock.now += 1.5
        stack.restorer.poll(restore)
    (event,) = [event for event in stack.events.since() if event.kind == "restore.behind"]
    story = restore.story.told()
    assert (event.fields["reason"], event.fields["pages"]) == (story.late, story.late_pages)
    assert story.late == "its deadline passed"
    assert stack.snapshot().restores.restores_late == 1
    stack.restorer.release(restore)
    check(stack)


def test_holding_for_a_page_is_told() -> None:
    stack, clock, keys = on_ssd(2, restore={"strategy": "token-wise"})
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        assert len(link.kept) == 2, "all that there is to compute is on its way"
        assert stack.restorer.poll(restore) is Readiness.WAIT
        clock.now += 0.25
    take(stack, restore, 0)
    story = restore.story.told()
    assert (story.held_seconds, story.load_seconds) == (0.25, {"ssd": 0.25})
    stack.restorer.release(restore)
    check(stack)


def test_what_host_memory_has_is_there_at_once() -> None:
    stack = make_stack(ssd=memory_ssd(), clock=Clock())
    keys = chain(*"abc")
    put(stack, keys)
    restore = settle(stack, stack.restore([*keys, *chain(*"xy")]))
    story = restore.story.told()
    assert (story.wanted_pages, story.found_pages, story.there_seconds) == (5, {"host": 3}, 0.0)
    stack.restorer.count_load(restore, 0, 3, 0.25, failed=False)
    assert restore.story.told().copy_seconds == 0.25
    stack.restorer.release(restore)
    check(stack)


def test_where_there_is_no_room_in_host_memory_the_reason_is_told() -> None:
    stack, _, keys = on_ssd(8, restore={"strategy": "load"})
    stack.host.limit_bytes = 2 * stack.host.geometry.stride_bytes
    restore = settle(stack, stack.restore(keys))
    assert restore.story.told().lost_pages == {"ssd: no room in host memory": 6}
    stack.restorer.release(restore)
    check(stack)
