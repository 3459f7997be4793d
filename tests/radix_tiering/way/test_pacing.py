"""What a device that computes beside its pages is told: to compute, or to wait for what comes sooner, but not long."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from swift_tiers.radix_tiering.base.errors import NotHeldError
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.restore.live import PAGES_TIMED, LiveCosts
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.way.pacing import SLACK_SECONDS
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore

from support.engine import Clock, chain, check, end_all, make_stack, memory_ssd, put
from support.restores import Link, on_ssd, take

PAGES = 20


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    end_all()


def restoring(
    *,
    fixed: float,
    load: float,
    chunk: int = 8,
    follows: bool = False,
    deadline: str = "1000s",
    strategy: str = "token-wise",
) -> tuple[TierStack, Clock, Restore, Link]:
    """Under way: a page takes 1 s to compute, every forward `fixed` s more, and a page `load` s to load. `follows`:
    what is believed of that follows what happens."""
    stack, clock, keys = on_ssd(PAGES, restore={"strategy": strategy}, policy={"restore_deadline": deadline})
    tokens, nbytes = stack.planner._page_tokens, stack.planner._page_bytes
    stack.planner.chunk = chunk
    model = CostModel(
        compute=ComputeCost(fixed_seconds=fixed, token_seconds=1 / tokens, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=nbytes / load)},
    )
    stack.planner.costs = model
    if follows:
        stack.planner.costs = stack.restorer._turns._costs = LiveCosts(model)
    link = Link(stack)
    restore = stack.restore(keys, can_compute=True)
    stack.restorer.wait_idle()
    assert link.kept, "pages are on their way"
    return stack, clock, restore, link


def arrive(link: Link, clock: Clock, pages: int, seconds: float) -> None:
    """So many pages more, `seconds` after each other."""
    for _ in range(pages):
        clock.now += seconds
        link.deliver(0)


def test_a_forward_is_not_begun_for_what_is_there_sooner() -> None:
    stack, clock, restore, link = restoring(fixed=30.0, load=1.0)
    with link:
        assert stack.restorer.poll(restore) is Readiness.WAIT
        arrive(link, clock, PAGES, 1.0)
        assert stack.restorer.poll(restore) is Readiness.READY
    assert restore.story.told().late == ""
    stack.restorer.release(restore)
    check(stack)


def test_a_forward_that_gains_more_than_it_costs_is() -> None:
    stack, _, restore, link = restoring(fixed=2.0, load=1.0)
    with link:
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        assert take(stack, restore, 0) == Step(0, 8)
    stack.restorer.release(restore)
    check(stack)


def test_what_does_not_come_is_not_waited_for_however_little_it_would_have_taken() -> None:
    stack, clock, restore, link = restoring(fixed=30.0, load=1.0)
    with link:
        assert stack.restorer.poll(restore) is Readiness.WAIT
        under_way = len(link.kept)
        arrive(link, clock, 2, 1.0)
        assert stack.restorer.poll(restore) is Readiness.WAIT
        # As long as something comes it is waited for, though that makes the whole wait longer than it should be.
        for _ in range(3):
            clock.now += stack.restorer.behind * under_way * 0.9
            assert stack.restorer.poll(restore) is Readiness.WAIT
            link.deliver(0)
            assert stack.restorer.poll(restore) is Readiness.WAIT
        clock.now += stack.restorer.behind * under_way + 0.1
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        assert restore.story.told().late == "a page that the device waited for did not come in time"
        assert restore.flight.absent == PAGES - 5
    stack.restorer.release(restore)
    check(stack)


def test_nothing_is_waited_for_beyond_the_deadline_however_well_it_comes() -> None:
    """Loading would be sooner, and is as fast as was thought: the operator's bound is a bound."""
    stack, clock, restore, link = restoring(fixed=30.0, load=1.0, deadline="5s")
    with link:
        assert stack.restorer.poll(restore) is Readiness.WAIT
        arrive(link, clock, 4, 1.0)
        assert stack.restorer.poll(restore) is Readiness.WAIT
        arrive(link, clock, 2, 1.0)
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        assert restore.story.told().late == "a page that the device waited for did not come in time"
    stack.restorer.release(restore)
    check(stack)


def test_what_the_device_has_by_itself_is_not_waited_for() -> None:
    """Behind another restore, which has the source, nothing of this one comes; then the device has all of its pages,
    and loses them again before there is room for the request."""
    stack, _, restore, link = restoring(fixed=0.0, load=1.0)
    with link:
        assert stack.restorer.present(restore, PAGES) == PAGES
        assert stack.restorer.poll(restore) is Readiness.COMPUTE, "nothing is left to wait for"
        assert stack.restorer.present(restore, 0) == 0, "nothing has come up"
        assert stack.restorer.step(restore, 0) == Step(0, 8), "all of it is to be computed or loaded again"
        assert stack.restorer.places(restore, 0, 0).numbers.size == 0
        with pytest.raises(NotHeldError, match="not all of pages"):
            stack.restorer.places(restore, 0, 1)
    stack.restorer.release(restore)
    check(stack)


def test_a_trickle_is_not_waited_for_to_its_end() -> None:
    """Page by page in time, and three times too slow on the whole."""
    stack, clock, restore, link = restoring(fixed=30.0, load=1.0)
    with link:
        assert stack.restorer.poll(restore) is Readiness.WAIT
        waited = 0.0
        while stack.restorer.poll(restore) is Readiness.WAIT:
            clock.now += 5.5
            waited += 5.5
            link.deliver(0)
        assert stack.restorer.behind * PAGES <= waited <= stack.restorer.behind * PAGES + 6.0
        assert restore.story.told().late
    stack.restorer.release(restore)
    check(stack)


def test_a_source_that_turns_slow_is_known_for_it_after_a_page_or_two() -> None:
    """Ten times slower in mid-restore: what it still owes is computed, though a page comes now and then."""
    stack, clock, restore, link = restoring(fixed=0.3, load=0.02, follows=True)
    with link:
        assert stack.restorer.poll(restore) is Readiness.WAIT, "all of it takes less than half a second"
        arrive(link, clock, 4, 0.02)
        assert stack.restorer.poll(restore) is Readiness.WAIT
        pages = 0
        while stack.restorer.poll(restore) is Readiness.WAIT:
            arrive(link, clock, 1, 0.2)
            pages += 1
        assert 1 <= pages <= 3
    stack.restorer.release(restore)
    check(stack)


@pytest.mark.parametrize("launch_blocks", [True, False])
def test_a_step_that_is_asked_for_early_counts_from_when_the_device_is_done(launch_blocks: bool) -> None:
    """The first chunk takes ten seconds, and half of the pages are left when it is launched."""
    stack, clock, restore, link = restoring(fixed=2.0, load=1.0)
    stack.planner.launch_blocks = launch_blocks
    with link:
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        assert take(stack, restore, 0) == Step(0, 8)
        arrive(link, clock, 2, 0.001)
        after = stack.restorer.step(restore, 8)
        assert after.jump == 8
        if launch_blocks:
            assert after.end > 8, "the device is done already, and may as well go on"
        else:
            assert after.end == 8, "what is left comes while the device is busy, or little later"
            while stack.restorer.step(restore, 8) != Step(PAGES, PAGES):
                assert link.kept, "it holds, and nothing is on its way"
                arrive(link, clock, 1, 1.0)
    stack.restorer.release(restore)
    check(stack)


@pytest.mark.parametrize("asked_again", [True, False])
def test_what_was_left_to_a_device_that_did_not_take_it_comes_up(asked_again: bool) -> None:
    """The device was to compute the first pages, and had no room for them. What had been asked of the source has come
    meanwhile, so nothing is on its way that would make it look for more when it comes. `asked_again`: when the device
    has room, loading them is sooner."""
    stack, clock, restore, link = restoring(fixed=0.0, load=1.0, strategy="auto")
    with link:
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        step = stack.restorer.step(restore, 0)
        while link.kept:
            arrive(link, clock, 1, 1.0)
        assert restore.flight.absent == step.end > 0, "they are left to the device"
        if asked_again:
            stack.planner.costs = msgspec.structs.replace(
                stack.planner.costs, compute=ComputeCost(fixed_seconds=30.0, token_seconds=0.0, pair_seconds=0.0)
            )
            assert stack.restorer.poll(restore) is Readiness.WAIT
        else:
            stack.restorer.not_taken(restore)
        assert link.kept, "nobody brings them, and the device does not compute them"
        while link.kept:
            arrive(link, clock, 1, 1.0)
        assert restore.flight.absent <= 1, "what would be computed sooner than loaded, at most"
    stack.restorer.release(restore)
    check(stack)


@pytest.mark.parametrize(("turn", "slower"), [(0.0, 1.0), (0.0, 1.4), (60.0, 1.4)])
def test_who_waited_for_its_turn_tells_nothing_of_what_both_take(turn: float, slower: float) -> None:
    """It took longer, since the device had others to compute."""
    stack, clock, restore, link = restoring(fixed=0.0, load=1.0, strategy="auto", follows=True)
    costs = stack.restorer._turns._costs
    with link:
        assert stack.restorer.poll(restore) is Readiness.COMPUTE
        clock.now += turn
        front = 0
        while front < PAGES:
            step = take(stack, restore, front)
            for _ in range(max(1, step.end - step.jump)):
                clock.now += slower
                if link.kept:
                    link.deliver(0)
            front = step.end
        stack.restorer.split(restore)
    stack.restorer.release(restore)
    assert restore.estimate is not None
    assert (costs.together > 1.05) == (slower > 1.0 and not turn)
    check(stack)


def drive(stack: TierStack, clock: Clock, keys: list[bytes], *, load: float, compute: float) -> Restore:
    """A restore from its beginning to its end: a page comes every `load` s, and one takes `compute` s to compute."""
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=True)
        stack.restorer.wait_idle()
        next_page = clock.now + load

        def passes(until: float) -> None:
            nonlocal next_page
            while next_page <= until:
                clock.now = next_page
                if link.kept:
                    link.deliver(0)
                next_page += load
            clock.now = until

        while stack.restorer.poll(restore) is Readiness.WAIT:
            passes(next_page)
        front = 0
        while restore.outcome != "completed" and front < len(keys):
            step = take(stack, restore, front)
            if step.end == front:
                passes(next_page)
            passes(clock.now + (step.end - step.jump) * compute)
            front = step.end
        if restore.outcome != "completed":
            stack.restorer.split(restore)
    stack.restorer.release(restore)
    check(stack)
    stack.flush("memory")
    return restore


def test_computing_that_slows_loading_down_is_given_up_until_it_is_tried_again() -> None:
    """By what each takes alone, both at once take 0.8 of loading. They disturb each other, and take longer."""
    stack, clock, keys = on_ssd(PAGES)
    tokens, nbytes = stack.planner._page_tokens, stack.planner._page_bytes
    model = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=4 / tokens, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=nbytes)},
    )
    costs = LiveCosts(model)
    stack.planner.costs = stack.restorer._turns._costs = costs
    strategies = []
    for _ in range(40):
        # As if costs alone were measured in between: only what both take together is learned.
        costs._sources = LiveCosts(model)._sources
        costs._known = None
        both = stack.planner.decide(0, ["ssd"] * PAGES, 1).compute
        restore = drive(stack, clock, keys, load=1.3 if both else 1.0, compute=5.2)
        strategies.append(restore.story.told().strategy)
    assert strategies[0] == "token-wise"
    assert "load" in strategies[1:4]
    again = strategies.index("load")
    assert "token-wise" in strategies[again:], "it is never tried again"
    assert strategies.count("load") > 4 * strategies.count("token-wise")


@pytest.mark.parametrize(("load", "computed"), [(0.5, False), (3.0, True)])
def test_a_prefix_that_is_needed_whole_is_computed_where_that_is_sooner(load: float, computed: bool) -> None:
    """With pictures, say: it cannot be computed in part."""
    stack, clock, keys = on_ssd(PAGES, restore={"strategy": "auto"}, policy={"restore_deadline": "1000s"})
    tokens, nbytes = stack.planner._page_tokens, stack.planner._page_bytes
    stack.planner.costs = LiveCosts(
        CostModel(
            compute=ComputeCost(fixed_seconds=0.0, token_seconds=1 / tokens, pair_seconds=0.0),
            sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=nbytes / load)},
        )
    )
    with Link(stack) as link:
        restore = stack.restore(keys, can_compute=False)
        stack.restorer.wait_idle()
        arrive(link, clock, 2, load)
        assert stack.restorer.poll(restore) is (Readiness.READY if computed else Readiness.WAIT)
        if not computed:
            arrive(link, clock, PAGES - 2, load)
            assert stack.restorer.poll(restore) is Readiness.READY
        assert restore.pages == (2 if computed else PAGES), "what has come is used"
    assert ("recomputing takes" in restore.story.told().why) is computed
    counted = stack.snapshot().restores
    assert (counted.restores_split, counted.restores_cut_short, counted.restores_expired) == (int(computed), 0, 0)
    stack.restorer.release(restore)
    check(stack)


#: What a source that brings a page in 10 ms has under way: so many pages, a pick each.
SHORT, LONG, LOAD = 4, 160, 0.01


def side_by_side(
    *, compute: float, short: int = SHORT, fixed: float = 0.0, loads: str = "by-need"
) -> tuple[TierStack, Clock, list[bytes], list[bytes]]:
    """A stack with a short chain and a long one on ssd; a page takes `compute` s to compute, every forward `fixed` s
    more."""
    clock = Clock()
    stack = make_stack(
        host_pages=4 * LONG, ssd=memory_ssd(), clock=clock, restore={"strategy": "auto", "loads": loads},
        policy={"restore_deadline": "1000s"},
    )  # fmt: skip
    chains = chain("short", *range(short - 1)), chain("long", *range(LONG - 1))
    for keys in chains:
        put(stack, keys)
    assert stack.wait_written(10)
    stack.flush("memory")
    planner = stack.planner
    planner.costs = CostModel(
        compute=ComputeCost(fixed_seconds=fixed, token_seconds=compute / planner._page_tokens, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=planner._page_bytes / LOAD)},
    )
    return stack, clock, *chains


def begin(stack: TierStack, keys: list[bytes], *, can_compute: bool = True) -> Restore:
    restore = stack.restore(keys, can_compute=can_compute)
    stack.restorer.wait_idle()
    return restore


def waits(stack: TierStack, restore: Restore, link: Link, clock: Clock) -> float:
    """How long it does, while a page comes every 10 ms."""
    since = clock.now
    while stack.restorer.poll(restore) is Readiness.WAIT:
        assert clock.now < since + 100, "it waits for ever"
        clock.now += LOAD
        if link.kept:
            link.deliver(0)
    return clock.now - since


@pytest.mark.parametrize("loads", ["by-need", "by-age"])
@pytest.mark.parametrize("first", ["short", "long"])
def test_who_waits_behind_a_longer_load_waits_for_its_turn(first: str, loads: str) -> None:
    """By need a source that has both serves the longer one sixteen times for each time it serves the other: of 12 pages
    of that the last ones come after a second or two, and not in an eighth of one. By age likewise, if the longer one
    came first. Computing them would take six."""
    stack, clock, short, long = side_by_side(compute=0.5, short=12, loads=loads)
    with Link(stack) as link:
        restores = [begin(stack, keys) for keys in ([short, long] if first == "short" else [long, short])]
        restore = restores[first != "short"]
        waited = waits(stack, restore, link, clock)
        assert restore.story.told().late == ""
        assert restore.pages == 12, "all of it has come"
        if loads == "by-age" and first == "short":
            assert waited < 12 * LOAD + 0.1
        else:
            assert 1.0 < waited < 17 * 12 * LOAD + 0.1
    for restore in restores:
        stack.restorer.release(restore)
    check(stack)


def test_who_would_wait_longer_behind_a_longer_load_than_computing_takes_does_not_begin_to() -> None:
    """Its own pages come in 40 ms, behind those of the other in 700; to compute them takes 300."""
    stack, clock, short, long = side_by_side(compute=0.075)
    with Link(stack) as link:
        alone = begin(stack, short)
        assert stack.restorer.poll(alone) is Readiness.WAIT, "nobody is before it"
        assert waits(stack, alone, link, clock) < 0.1
        stack.restorer.release(alone)
        stack.restorer.wait_idle()
        stack.flush("memory")
        restores = [begin(stack, long), begin(stack, short)]
        assert stack.restorer.poll(restores[1]) is Readiness.COMPUTE
    for restore in restores:
        stack.restorer.release(restore)
    check(stack)


@pytest.mark.parametrize("can_compute", [True, False])
def test_nobody_waits_longer_than_computing_takes_for_what_does_not_come(can_compute: bool) -> None:
    """Sixteen pages are to come in 160 ms. To compute them takes 400: three times the estimate would be more."""
    stack, clock, short, _ = side_by_side(compute=0.015, short=16, fixed=0.16)
    with Link(stack) as link:
        restore, since = begin(stack, short, can_compute=can_compute), clock.now
        while stack.restorer.poll(restore) is Readiness.WAIT:
            clock.now += LOAD
        assert 0.4 <= clock.now - since <= 0.4 + SLACK_SECONDS + 2 * LOAD
        assert link.kept, "nothing has come"
    stack.restorer.release(restore)
    check(stack)


def here(copy: float, *, compute: float, can_compute: bool = True, strategy: str = "auto") -> tuple[TierStack, Restore]:
    """All of a chain is in host memory, from where a page has taken `copy` s to be copied; one takes `compute` s to
    compute."""
    stack = make_stack(host_pages=64, restore={"strategy": strategy})
    put(stack, chain(*range(PAGES)))
    tokens = stack.planner._page_tokens
    stack.planner.costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=compute / tokens, pair_seconds=0.0), sources={}
    )
    stack.links["host-device"].count(PAGES_TIMED, 1, copy * PAGES_TIMED)
    return stack, begin(stack, chain(*range(PAGES)), can_compute=can_compute)


@pytest.mark.parametrize("can_compute", [True, False])
def test_what_is_in_host_memory_is_computed_where_that_is_sooner_than_copying_it(can_compute: bool) -> None:
    stack, restore = here(0.02, compute=0.01, can_compute=can_compute)
    assert stack.restorer.poll(restore) is Readiness.READY
    assert restore.pages == 0
    assert stack.restorer.present(restore, 0) == 0, "nothing of it is promised"
    assert restore.story.told().why == "recomputing takes 200 ms, copying from host memory 400 ms"
    stack.restorer.wait_idle()
    assert stack.table.pinned_pages == 0, "nothing is kept for it"
    stack.restorer.release(restore)
    check(stack)
    # One in sixteen is copied, which alone tells whether that is still so.
    copied = 0
    for _ in range(32):
        restore = begin(stack, restore.keys, can_compute=can_compute)
        copied += restore.pages == PAGES
        stack.restorer.release(restore)
    assert copied == 2
    check(stack)


@pytest.mark.parametrize(
    ("copy", "strategy"), [(0.0101, "load"), (0.0101, "token-wise"), (0.0099, "auto"), (0.00001, "auto")]
)
def test_what_is_in_host_memory_is_copied_otherwise(copy: float, strategy: str) -> None:
    stack, restore = here(copy, compute=0.01, strategy=strategy)
    assert stack.restorer.poll(restore) is Readiness.READY
    assert restore.pages == PAGES
    stack.restorer.release(restore)
    check(stack)


def test_a_copy_that_takes_no_longer_than_what_is_computed_beside_it_costs_nothing() -> None:
    """Ten pages are copied in 0.2 s, beside the computing of the tokens behind them."""
    planner = here(0.02, compute=0.01)[0].planner
    tokens = planner._page_tokens
    assert planner.recomputes_what_is_here(0, 10, 9 * tokens) is not None
    assert planner.recomputes_what_is_here(0, 10, 10 * tokens) is None


@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize("pages", [16, PAGES_TIMED])
def test_a_copy_in_which_everything_stood_still_is_soon_forgotten(pages: int, before: int) -> None:
    """A page is copied in a tenth of what computing it takes. One copy took a minute."""
    stack, _ = here(0.0001 if before else 60.0 / PAGES_TIMED, compute=0.001)
    link, decides = stack.links["host-device"], stack.planner.recomputes_what_is_here
    for _ in range(before):
        link.count(pages, 1, 0.0001 * pages)
    if before:
        link.count(pages, 1, 60.0)
    copies = 0
    while decides(0, PAGES) is not None:
        link.count(PAGES_TIMED, 1, 0.0001 * PAGES_TIMED)
        copies += 1
        assert copies <= 16, "it is computed for too long"
    assert link.snapshot().seconds > 60.0, "what is displayed is all that was"


@pytest.mark.parametrize("pages", [16, PAGES_TIMED])
def test_a_link_that_turns_slow_is_known_for_it_after_a_few_copies(pages: int) -> None:
    """However long it was fast; and one that turns fast again as well."""
    stack, _ = here(0.0001, compute=0.001)
    link, decides = stack.links["host-device"], stack.planner.recomputes_what_is_here
    for _ in range(1_000_000 // PAGES_TIMED):
        link.count(PAGES_TIMED, 1, 0.0001 * PAGES_TIMED)
    for each, slow in ((0.005, True), (0.0001, False)):
        copied = 0
        while (decides(0, PAGES) is not None) is not slow:
            link.count(pages, 1, each * pages)
            copied += pages
            assert copied <= 8 * PAGES_TIMED, "it takes too long to notice"
        for _ in range(400):
            link.count(pages, 1, each * pages)
        assert stack.planner.here_seconds() == pytest.approx(each, rel=0.1)


def test_copies_of_single_pages_do_not_say_what_many_take() -> None:
    """What is the same for each copy is most of what theirs take."""
    stack, _ = here(0.0001, compute=0.001)
    for _ in range(1000):
        stack.links["host-device"].count(PAGES_TIMED, 1, 0.0001 * PAGES_TIMED)
        for _ in range(4):
            stack.links["host-device"].count(1, 1, 0.002)
    assert stack.planner.here_seconds() == pytest.approx(0.0001, rel=0.1)
