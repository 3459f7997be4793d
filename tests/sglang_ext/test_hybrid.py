"""A model some of whose layers keep a state in place of KV (Falcon-H1) in SGLang's real scheduler, over the tiers.

SGLang has no kernels for states on a CPU: see `support.states_on_cpu` for what stands in their place. Functions whose
first parameter is a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

from array import array

import pytest

from support import states_on_cpu
from support.examples import exhaustive
from support.models import tiny_hybrid
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, prompt
from support.tiers_of_a_model import PAGE, PLACES, arguments_of, forget, leave_in, with_tiers
from support.turns import (
    check_branches,
    check_conversations,
    check_lagging,
    check_ranks,
    check_restarted,
    check_turns,
    check_turns_at_once,
    conversations,
    turn_after,
    turn_over_zeros,
    turns_from,
    turns_that_stay,
)

PREPARE, ENVIRONMENT = "support.states_on_cpu.with_states_of_pages", states_on_cpu.ENVIRONMENT
TURNS = 14
#: What a state is made of.
KINDS = ("recurrent", "convolution")


def uses_of_a_state(s):
    """How often the pages of a state have been used, before and after the device has had a hit on its prefix."""
    forget(s)
    turn = turn_after(s, "in one chunk")
    s.settle()
    s.step()
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    stack, states = s.linker.stack, s.linker.pool.states
    tree = s.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", turn))))
    (last,) = s.cache.tree_core.get_hash_values(tree.last_device_node)[-1:]
    keys = states.keys(bytes.fromhex(last))
    found = []
    for _ in range(2):
        stack.restorer.wait_idle()
        found.append([page.uses for page in stack.table.settled_chain(stack.digest, keys)])
        s.generate(turn, 2)
    return found


def misses_of_a_new_prompt(s):
    """Pages that host memory lacked, of a prompt of ten whole pages."""
    from swift_tiers.radix_tiering.table.tier_copies import HOST

    forget(s)
    counters = s.linker.stack.table.of[HOST].counters
    before = counters.misses
    s.generate(prompt(450, 10 * PAGE + 5), 2)
    s.linker.stack.restorer.wait_idle()
    return counters.misses - before


def one_prefix_again_and_again(s):
    """What each of eight prompts behind one prefix, which only host memory has at first, has from the device, and from
    there."""
    forget(s)
    shared = prompt(520, 12 * PAGE)
    for number in range(3):
        s.generate([*shared, *prompt(521 + number, 100)], 2)
    leave_in(s, "host")
    found = []
    for number in range(8):
        req = s.add([*shared, *prompt(530 + number, 100)], 2)
        s.run()
        found.append((s.details(req).get("device", 0), s.details(req).get("host", 0)))
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_hybrid(tmp_path_factory.mktemp("hybrid"))


def arguments_with(model, *more):
    return arguments_of(model, *states_on_cpu.ARGUMENTS, *more)


@pytest.fixture(scope="module")
def without_tiers(model):
    with SchedulerProcess(arguments_with(model), ENVIRONMENT, prepare=PREPARE) as plain:
        yield plain


@pytest.fixture(scope="module")
def expected(request):
    """The answers to turns where nothing is cached; with `--all`, of a server without tiers."""
    process = request.getfixturevalue("without_tiers" if exhaustive() else "tiers")
    return {name: answer for name, (answer, _) in process(turns_from, "nowhere").items()}


@pytest.fixture(scope="module")
def talked(without_tiers):
    """The answers of conversations, by their seed."""
    return {seed: without_tiers(conversations, seed, TURNS, False)[0] for seed in (1, 2)}


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(arguments):
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=PREPARE) as process:
        process(costs_are_unknown)
        yield process


@pytest.mark.parametrize("place", PLACES)
def test_turns_are_answered_as_ever_from_every_tier(tiers, expected, place):
    check_turns(tiers, place, expected)


@pytest.mark.parametrize("fails", [False, True], ids=["served", "one load fails"])
def test_turns_that_come_at_once_are_answered_as_ever_or_not_at_all(tiers, expected, fails):
    check_turns_at_once(tiers, expected, fails)


def test_a_server_whose_offloads_lag_goes_on(tiers):
    check_lagging(tiers)


def test_a_state_is_used_with_the_prefix_that_the_device_has(tiers):
    before, after = tiers(uses_of_a_state)
    assert before
    assert [more > less for more, less in zip(after, before, strict=True)] == [True] * len(before)


@pytest.mark.parametrize("place", PLACES)
def test_what_prompts_have_in_common_comes_back(tiers, place):
    """SGLang makes a state at a branch when the second prompt comes: of a node that has been stored without."""
    check_branches(tiers, place)


def test_a_prefix_that_comes_back_again_and_again_is_on_the_device_in_the_end(tiers):
    found = tiers(one_prefix_again_and_again)
    assert found[:2] == [(0, 12 * PAGE)] * 2, "it is loaded at first"
    assert found[-2:] == [(12 * PAGE, 0)] * 2, found


def test_a_prompt_that_nobody_has_is_missed(tiers):
    assert tiers(misses_of_a_new_prompt) == 10


@pytest.mark.parametrize("part", [*KINDS, "KV"])
def test_answers_depend_on_what_is_loaded(tiers, expected, part):
    assert tiers(turn_over_zeros, KINDS.index(part) if part in KINDS else part) != expected["in one chunk"], (
        "the test above would prove nothing"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("seed", "host"),
    [
        pytest.param(1, "448KiB", id="host memory for little"),
        pytest.param(2, "448KiB", id="others"),
        pytest.param(2, "32MiB", id="host memory for all"),
    ],
)
def test_conversations_go_on_as_ever_whatever_is_forgotten(model, tmp_path, talked, host, seed):
    """States are evicted before, after and with pages before them; of what is left the longest prefix with its state
    comes back."""
    arguments = arguments_with(model, *with_tiers(tmp_path, host={"size": host}))
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=PREPARE) as process:
        check_conversations(process, talked[seed], seed, TURNS)


@pytest.mark.exhaustive
def test_turns_are_answered_as_ever_from_ssd_after_a_restart(tiers, arguments, expected):
    turns = tiers(turns_that_stay)
    tiers.close()
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=PREPARE) as restarted:
        check_restarted(restarted, turns, expected)


@pytest.mark.exhaustive
def test_ranks_restore_what_each_of_them_has(model, tmp_path, expected):
    """Each keeps its heads' part of a state, and they agree on a length that each has a state behind."""
    arguments = arguments_with(model, *with_tiers(tmp_path))
    with SchedulerRanks(2, arguments, ENVIRONMENT, PREPARE) as ranks:
        check_ranks(ranks, expected)
