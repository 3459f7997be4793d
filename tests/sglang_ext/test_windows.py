"""A model whose layers with a sliding window have a pool of their own, in SGLang's real scheduler, over the tiers.

SGLang keeps their KV of the last tokens alone: a prefix can be used where it ends with a whole window. Functions whose
first parameter is a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

import threading
from array import array

import pytest

from support.examples import exhaustive
from support.models import WINDOW, tiny_gemma
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, prompt, quiet, tiers_that_do_not_answer
from support.tiers_of_a_model import (
    PAGE,
    PLACES,
    answers_of,
    arguments_of,
    cached,
    check_place,
    forget,
    leave_in,
    with_tiers,
)
from support.turns import (
    check_branches,
    check_conversations,
    check_lagging,
    check_ranks,
    check_restarted,
    check_turns,
    check_turns_at_once,
    conversations,
    turn_over_zeros,
    turns_from,
    turns_that_stay,
)

PREPARE = "support.windowed_models.register"
TURNS = 14


def pages_of_a_window(s):
    """In parts of SGLang's pool of windows, and in pages of the tiers."""
    states = s.linker.pool.states
    return states.windows, states.parts, states.pages


def one_that_is_shorter(s, place):
    """A prompt that is shorter than a window, whose prefix is in that tier alone."""
    forget(s)
    short = prompt(600, 5 * PAGE)
    s.generate(short, 2)
    leave_in(s, place)
    req = s.add([*short, *prompt(601, 20)], 4)
    s.run()
    quiet(s)
    found = list(req.output_ids), s.details(req)
    forget(s)
    req = s.add([*short, *prompt(601, 20)], 4)
    s.run()
    return found, list(req.output_ids)


def windows_that_the_device_lacks(s):
    """What a turn has from where whose prefix the device has, but for the windows."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    forget(s)
    first = prompt(610, 400)
    answer = s.generate(first, 4)
    s.settle()
    before = s.cache.full_evictable_size()
    s.cache.evict(EvictParams(swa_num_tokens=10**6))
    kept = s.cache.full_evictable_size() / before
    req = s.add([*first, *answer, *prompt(611, 40)], 4)
    s.run()
    return kept, s.details(req)


def windows_that_are_lost_while_it_waits(s):
    """A turn that waits for its pages behind a prefix that the device has when it comes, but for its window soon."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    forget(s)
    first = prompt(620, 400)
    longer = [*first, *prompt(621, 300)]
    answer = s.generate(longer)
    leave_in(s, "ssd")
    other = [*first, *prompt(622, 200)]
    s.generate(other)
    s.generate(first)
    s.settle()
    s.step()  # takes the results: nothing on the device is locked for being copied out
    with tiers_that_do_not_answer(s):
        held = s.add(longer)
        s.step()
        had = s.linker.requests[held.rid].device_pages
        assert s.linker.offloader.wait()  # its window was offered when it came
        s.step()
        node = s.cache._match_tree(MatchPrefixParams(key=RadixKey(array("q", other)))).last_device_node
        lock = s.cache.inc_lock_ref(node).to_dec_params()  # of the window at its end, and of all that leads there
        s.cache.evict(EvictParams(swa_num_tokens=10**6))
        found = s.cache._match_tree(MatchPrefixParams(key=s.linker.requests[held.rid].key))
        lost = had - found.device_prefix_len // PAGE, found.full_kv_hit_length // PAGE
        s.cache.dec_lock_ref(node, lock)
    s.run()
    quiet(s)
    return had, lost, list(held.output_ids) == answer, s.details(held)


def behind_an_image(s, image):
    """A turn whose prefix is in host memory, with the window at its end, and of whose tokens `image` sees those behind
    each: the answer, what it came from, and the answer where nothing is cached."""
    from swift_tiers.sglang_ext.way import cache

    forget(s)
    first = prompt(620, 400)
    turn = [*first, *prompt(621, 120)]
    expected = s.generate(turn, TURNS)
    forget(s)
    s.generate(first, 2)
    leave_in(s, "host")
    wrapper, images_of = s.cache.linker, cache.images_of
    wrapper.images_whole, cache.images_of = True, lambda req: [image]
    try:
        req = s.add(turn, TURNS)
        s.run()
        quiet(s)
    finally:
        wrapper.images_whole, cache.images_of = False, images_of
    return list(req.output_ids), s.details(req), expected


def after_new_weights(s):
    """Whether pages are stored after an update of the weights that has emptied the device, and come back."""
    from swift_tiers.sglang_ext.hook_functions import around_weights_update

    forget(s)
    s.settle()
    s.step()
    around_weights_update(lambda updater, asked: s.scheduler.flush_cache(), s.scheduler.weight_updater, None)
    stale, question = s.linker.stale_device, prompt(700, 20 * PAGE)
    s.generate(question, 4)
    leave_in(s, "host")
    req = s.add(question, 4)
    s.run()
    return stale, s.details(req)["host"]


def counted_both_ways(s):
    """Of one prompt and the turn that follows: pages that host memory took in; pages of the links, down and up; and
    loads whose time was counted."""
    forget(s)
    stack = s.linker.stack

    def links():
        return [stack.links[name].snapshot().pages for name in ("device-host", "host-device")]

    used, before = stack.host.used_slots, links()
    loads = sum(stack.table.of[0].counters.read_latency.snapshot().counts)
    first = prompt(630, 400)
    s.generate(first, 2)
    s.settle()
    used = stack.host.used_slots - used
    leave_in(s, "host")
    s.generate([*first, *prompt(631, 3)], 1)
    moved = [now - then for now, then in zip(links(), before, strict=True)]
    return used, moved, sum(stack.table.of[0].counters.read_latency.snapshot().counts) - loads


def told_of_a_split(s):
    """A node waits to be copied, and before it its window; what is to be told of it before it is cut in two, and
    after that."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    forget(s)
    offloader, first = s.linker.offloader, prompt(640, 400)
    copy_out, gate = offloader._copy_out, threading.Event()
    offloader._copy_out = lambda job: False  # so that the device alone has it
    s.generate(first, 2)
    s.settle()
    s.step()
    offloader._copy_out = lambda job: gate.wait(60) and False
    try:
        req = s.add([*first, *prompt(641, 40)], 2)  # its match offers the window, its insert the node
        s.run(until=req.finished)
        wait = s.cache.linker.pending_offloads
        before = [(one.lock_node_id, list(one.publish_node_ids)) for one in wait]
        s.cache._match_tree(MatchPrefixParams(key=RadixKey(array("q", [*first[:320], *prompt(642, 80)]))))
        after = [list(one.publish_node_ids) for one in wait]
    finally:
        gate.set()
        s.settle()
        offloader._copy_out = copy_out
    s.run()
    quiet(s)
    return before, after


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_gemma(tmp_path_factory.mktemp("model"), own_pool=True)


def arguments_with(model, *more, page=PAGE):
    return arguments_of(model, "--chunked-prefill-size", "256", *more, page=page)


@pytest.fixture(scope="module")
def without_tiers(model):
    with SchedulerProcess(arguments_with(model), prepare=PREPARE) as plain:
        yield plain


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(arguments):
    with SchedulerProcess(arguments, prepare=PREPARE) as process:
        process(costs_are_unknown)
        yield process


@pytest.fixture(scope="module")
def reference(request):
    """A server without tiers with `--all`; else the one with tiers, where nothing is cached."""
    return request.getfixturevalue("without_tiers" if exhaustive() else "tiers")


@pytest.fixture(scope="module")
def expected(reference):
    """The answers to turns."""
    return {name: answer for name, (answer, _) in reference(turns_from, "nowhere").items()}


@pytest.fixture(scope="module")
def answers(reference):
    """The answers to questions."""
    return reference(answers_of)


def test_a_window_is_as_many_pages_as_its_layers_have_bytes(tiers):
    """Of four layers two have a window, and rows of one size: a page of both has the bytes of one window's part."""
    assert tiers(pages_of_a_window) == (True, WINDOW // PAGE, WINDOW // PAGE)


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(tiers, answers, place):
    check_place(tiers, place, answers)


@pytest.mark.parametrize("place", PLACES)
def test_turns_are_answered_as_ever_from_every_tier(tiers, expected, place):
    check_turns(tiers, place, expected)


@pytest.mark.parametrize("part", ["windows", "KV"])
def test_answers_depend_on_what_is_loaded(tiers, expected, part):
    zeroed = tiers(turn_over_zeros, part if part == "KV" else 0)
    assert zeroed != expected["in one chunk"], "the tests above would prove nothing"


@pytest.mark.parametrize("place", ["host", "ssd"])
def test_a_prefix_that_is_shorter_than_a_window_comes_back(tiers, place):
    (answer, details), right = tiers(one_that_is_shorter, place)
    assert answer == right
    assert details[place] == sum(details.values()) == 5 * PAGE


@pytest.mark.parametrize("place", PLACES)
def test_what_prompts_have_in_common_comes_back(tiers, place):
    """Its window is offered when the second prompt comes: of a node that has been stored without."""
    check_branches(tiers, place)


def test_where_the_device_has_lost_the_windows_alone_a_prefix_comes_from_the_tiers(tiers):
    kept, details = tiers(windows_that_the_device_lacks)
    assert kept > 0.5, "the device has lost more than windows: this tests nothing"
    assert details["host"] == sum(details.values()) == cached([0] * 404)


def test_where_the_device_loses_a_window_while_one_waits_behind_it_all_comes_from_the_tiers(tiers):
    had, (lost, still_there), right, details = tiers(windows_that_are_lost_while_it_waits)
    assert had == still_there == 400 // PAGE
    assert lost == had, "the device still has its window: this tests nothing"
    assert right
    assert details["device"] == 0
    assert sum(details.values()) == cached([0] * 700)


@pytest.mark.parametrize(
    ("image", "tokens"), [((100, 390), 400), ((390, 420), 256), ((100, 405), 0), ((0, 401), 0)], ids=str
)
def test_a_window_comes_back_behind_its_own_prefix_alone(tiers, image, tokens):
    """There are windows behind the first chunk and behind the last page. Where one ends within an image, it is of no
    use, nor is it behind a shorter prefix."""
    answer, details, expected = tiers(behind_an_image, image)
    assert answer == expected
    assert details.get("host", 0) == tokens


def test_an_update_of_the_weights_that_empties_the_device_ends_nothing(tiers):
    stale, found = tiers(after_new_weights)
    assert not stale
    assert found > 0, "as far as a chunk ends, where SGLang keeps a window"


def test_windows_are_counted_as_pages_are(tiers):
    used, (down, up), loads = tiers(counted_both_ways)
    assert down == used
    assert up == cached([0] * 401) // PAGE + tiers(pages_of_a_window)[2]
    assert loads == 1, "its window comes with it"


def test_who_copies_a_node_is_told_that_it_was_cut(tiers):
    before, after = tiers(told_of_a_split)
    twice = [node for node, told in before if not told and (node, [node]) in before]
    assert twice, "the window of a node waits, and the node"
    for (node, told), now in zip(before, after, strict=True):
        assert len(now) == (2 if node in twice and told else len(told))


@pytest.mark.parametrize("fails", [False, True], ids=["served", "one load fails"])
def test_turns_that_come_at_once_are_answered_as_ever_or_not_at_all(tiers, expected, fails):
    check_turns_at_once(tiers, expected, fails)


def test_a_server_whose_offloads_lag_goes_on(tiers):
    check_lagging(tiers)


@pytest.mark.parametrize(
    ("seed", "host"),
    [
        pytest.param(1, "448KiB", id="host memory for little"),
        pytest.param(2, "448KiB", id="others", marks=pytest.mark.exhaustive),
        pytest.param(2, "32MiB", id="host memory for all", marks=pytest.mark.exhaustive),
    ],
)
def test_conversations_go_on_as_ever_whatever_is_forgotten(model, without_tiers, tmp_path, host, seed):
    """Windows are evicted before, after and with pages before them; of what is left the longest prefix with its window
    comes back."""
    talked, _ = without_tiers(conversations, seed, TURNS, False)
    arguments = arguments_with(model, *with_tiers(tmp_path, host={"size": host}))
    with SchedulerProcess(arguments, prepare=PREPARE) as process:
        check_conversations(process, talked, seed, TURNS)


@pytest.mark.exhaustive
def test_pages_may_be_of_one_token(model, tmp_path, expected):
    arguments = arguments_with(model, *with_tiers(tmp_path), page=1)
    with SchedulerProcess(arguments, prepare=PREPARE) as process:
        process(costs_are_unknown)
        for place in PLACES:
            check_turns(process, place, expected)


@pytest.mark.exhaustive
def test_turns_are_answered_as_ever_from_ssd_after_a_restart(model, tmp_path, expected):
    arguments = arguments_with(model, *with_tiers(tmp_path))  # files that no weights but its own have written to
    with SchedulerProcess(arguments, prepare=PREPARE) as first:
        turns = first(turns_that_stay)
    with SchedulerProcess(arguments, prepare=PREPARE) as restarted:
        check_restarted(restarted, turns, expected)


@pytest.mark.exhaustive
def test_ranks_restore_what_each_of_them_has(model, tmp_path, expected):
    """Each keeps its heads' part of a window, and they agree on a length that each has a window behind."""
    with SchedulerRanks(2, arguments_with(model, *with_tiers(tmp_path)), prepare=PREPARE) as ranks:
        check_ranks(ranks, expected)
