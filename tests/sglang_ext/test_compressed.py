"""KV of which a row stands for four tokens, or for 128 (DeepSeek V4), in SGLang's real scheduler, over the tiers.

SGLang's pools, its tree and when it keeps which rows stay SGLang's. Its model of this kind has kernels for GPUs alone:
`support.compressed_models` has one in plain torch that reads all that SGLang keeps. Functions whose first parameter is
a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

import pytest

from support import speculating_on_cpu
from support.examples import exhaustive
from support.models import RATIOS, tiny_compressed
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, prompt, quiet
from support.speculating_on_cpu import draft_for
from support.tiers_of_a_model import (
    ALL,
    ANSWER,
    PLACES,
    QUESTIONS,
    answers_of,
    arguments_of,
    cached,
    check_after_a_restart,
    check_place,
    check_ranks_alike,
    forget,
    leave_in,
    loading_zeros,
    with_tiers,
)
from support.turns import check_conversations, conversations, loading_zero_states

#: SGLang gives these models no other.
PAGE = 256
PREPARE, ENVIRONMENT = "support.compressed_models.register", {"TRITON_INTERPRET": "1"}
TURNS = 12
#: Of what is loaded: rows of four tokens; in front of them index keys, and rows of 128; and behind a prefix its last
#: tokens, and of those what is not yet a row.
PARTS = {
    "rows of four": ("layers", ALL),
    "index": ("front", slice(2)),
    "rows of 128": ("front", slice(2, None)),
    "last tokens": ("behind", 0),
    "states of rows": ("behind", 1),
    "states of the index": ("behind", 2),
}


def arguments_with(model, *more):
    return arguments_of(model, "--attention-backend", "swift_cpu", "--swa-full-tokens-ratio", "0.6", *more, page=PAGE)


def parts_of_a_page(s):
    pool = s.linker.pool
    return pool.geometry, pool.states.parts, [group.layers for group in pool.states.groups]


def everything_of(s):
    """All that SGLang's linkers of its own would copy, by its own account: of each pool whose rows they are, the
    address of every buffer and the bytes of a page in it; and ours."""
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import _build_deepseek_v4_device_pool_group

    pool, kvcache = s.linker.pool, s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    drafts = (s.scheduler.draft_worker.draft_worker.draft_runner.token_to_kv_pool,) if pool.drafts else ()
    theirs = _build_deepseek_v4_device_pool_group(kvcache, PAGE, drafts).entries
    found = {True: set(), False: set()}  # by whether they lie in pages of the last tokens
    for entry in theirs:
        for component in entry.buffer_meta:
            found[entry.indices_from_pool.name == "SWA"] |= {(address, size) for address, _, size in component}
    layers = [(planes[0].ctypes.data, planes[0].shape[1]) for planes in pool._arrays]
    front = [(plane.data_ptr(), group.layer_bytes) for group in pool.front for plane in group.flat]
    behind = [(plane.data_ptr(), group.layer_bytes) for group in pool.states.groups for plane in group.flat]
    return (found[False], {*layers, *front}), (found[True], set(behind))


def check_everything(process):
    for theirs, ours in process(everything_of):
        assert ours == theirs


def answered_over_zeros(s, part):
    """Answers of prompts hardly longer than their prefix, where that part of what is loaded is zeroed, and where
    nothing is cached."""
    pool, (where, which) = s.linker.pool, PARTS[part]
    forget(s)
    asked = [prompt(820 + number, 2 * PAGE + 1 + number) for number in range(4)]
    right = [s.generate(one, ANSWER) for one in asked]
    leave_in(s, "host")
    zeroed = loading_zero_states(pool.states, which) if where == "behind" else loading_zeros(pool, where, which)
    with zeroed:
        reqs = [s.add(one, ANSWER) for one in asked]
        s.run()
    assert all(s.details(req)["host"] == 2 * PAGE for req in reqs)
    forget(s)
    return [list(req.output_ids) for req in reqs], right


def drafts_from(s, place):
    """Of each question whose prefix is in that tier alone, or nowhere: its answer, what was drafted for it, and where
    its prefix came from."""
    found = {}
    for name, question in QUESTIONS.items():
        forget(s)
        s.generate(question, 2)
        leave_in(s, place)
        found[name] = draft_for(s, question, ANSWER)
    quiet(s)
    return found


def drafts_over_zeros(s):
    """The same of a question that hardly goes beyond its prefix, where of what is loaded the rows of the draft are
    zeroed."""
    question, states = QUESTIONS["its next turn"], s.linker.pool.states
    forget(s)
    s.generate(question, 2)
    leave_in(s, "host")
    with loading_zero_states(states, len(states.groups) - 1):
        answer, drafts, _ = draft_for(s, question, ANSWER)
    forget(s)
    return answer, drafts


def that_stay(s):
    """Questions that have been computed, and are kept."""
    forget(s)
    for question in QUESTIONS.values():
        s.generate(question, 2)
    s.settle()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_compressed(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def without_tiers(model):
    with SchedulerProcess(arguments_with(model), ENVIRONMENT, PREPARE) as plain:
        yield plain


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(arguments):
    with SchedulerProcess(arguments, ENVIRONMENT, PREPARE) as process:
        process(costs_are_unknown)
        yield process


@pytest.fixture(scope="module")
def expected(request):
    """Of a server without tiers with `--all`; else of the one with tiers, where nothing is cached."""
    return request.getfixturevalue("without_tiers" if exhaustive() else "tiers")(answers_of)


def test_a_page_has_a_few_rows_and_a_window_is_one_of_sglang_s(tiers):
    geometry, parts, layers = tiers(parts_of_a_page)
    fours = RATIOS.count(4)
    assert (geometry.layers, geometry.tokens, geometry.rows) == (fours, PAGE, 1)
    assert parts == 1
    assert layers == [len(RATIOS), fours, fours]


def test_what_is_copied_is_what_sglang_s_own_linkers_copy(tiers):
    check_everything(tiers)


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(tiers, expected, place):
    check_place(tiers, place, expected, PAGE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", PARTS)
def test_answers_depend_on_what_is_loaded(tiers, part):
    found, right = tiers(answered_over_zeros, part)
    assert found != right, "the test above would prove nothing"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_conversations_go_on_as_ever_whatever_is_forgotten(model, without_tiers, tmp_path, seed):
    talked, _ = without_tiers(conversations, seed, TURNS, False, 3)
    arguments = arguments_with(model, *with_tiers(tmp_path, host={"size": "6MiB"}))
    with SchedulerProcess(arguments, ENVIRONMENT, PREPARE) as process:
        check_conversations(process, talked, seed, TURNS, 3)


@pytest.mark.exhaustive
def test_answers_are_the_same_from_ssd_after_a_restart(tiers, arguments, expected):
    tiers(that_stay)
    tiers.close()
    with SchedulerProcess(arguments, ENVIRONMENT, PREPARE) as restarted:
        check_after_a_restart(restarted, expected, PAGE)


@pytest.mark.exhaustive
def test_ranks_answer_as_one_does(model, tmp_path, expected):
    """Each has all rows."""
    arguments = arguments_with(model, *with_tiers(tmp_path))
    with SchedulerRanks(2, arguments, ENVIRONMENT, PREPARE) as ranks:
        check_ranks_alike(ranks, expected, PAGE)


@pytest.mark.exhaustive
def test_what_drafts_keeps_its_last_tokens_with_the_others(model, tmp_path, expected):
    arguments = arguments_with(model, *with_tiers(tmp_path), *speculating_on_cpu.ARGUMENTS)
    # So large a pool of windows that two may wait to be copied: a question has one soon after the other.
    arguments += ["--speculative-algorithm", "EAGLE", "--max-total-tokens", "16384"]
    with SchedulerProcess(arguments, ENVIRONMENT, f"support.compressed_models.draft {PREPARE}", fresh=True) as drafting:
        drafting(costs_are_unknown)
        _, _, layers = drafting(parts_of_a_page)
        assert layers[3:] == [1]
        check_everything(drafting)
        computed = drafting(drafts_from, "nowhere")
        answer, drafts = drafting(drafts_over_zeros)
        assert answer == expected["its next turn"][:ANSWER]
        assert drafts != computed["its next turn"][1], "what follows would prove nothing"
        for place in PLACES:
            for name, (answer, drafts, details) in drafting(drafts_from, place).items():
                assert answer == expected[name][:ANSWER], (place, name)
                assert drafts == computed[name][1], (place, name)
                assert details[place] == sum(details.values()) == cached(QUESTIONS[name], PAGE), (place, name)
