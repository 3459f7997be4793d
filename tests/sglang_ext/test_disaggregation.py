"""Servers that compute prompts for others that decode (`--disaggregation-mode prefill`), in SGLang's real scheduler:
whatever tier a prefix comes from, what is sent is what is computed.

Functions whose first parameter is a `StepScheduler` run in its process.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

from swift_tiers.ops.base.model import tiny_model

from support import speculating_on_cpu, states_on_cpu
from support.landing_server import arguments as landing_arguments
from support.landing_server import landing_pool, lent_alone
from support.models import tiny_eagle, tiny_gemma, tiny_hybrid, tiny_latent_mtp
from support.prefill_server import ARGUMENTS, OVERLAPPED, Sent, sent_of, sent_of_last, under_way
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import Copies, Link, broken, costs_are_unknown, prompt, quiet
from support.tiers_of_a_model import (
    PAGE,
    PLACES,
    QUESTIONS,
    arguments_of,
    cached,
    forget,
    leave_in,
    loading_zeros,
    with_tiers,
)

PREPARE, SPECULATING = "support.prefill_server.install", "support.speculating_on_cpu.install"
#: Forward passes of other lengths round otherwise.
NEAR = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"), layers=3)


def arguments(model, directory, *more: str, loop: list[str] = ARGUMENTS) -> list[str]:
    return [*arguments_of(model, *loop, *more), *with_tiers(directory)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ARGUMENTS, id="in turn"),
        pytest.param(OVERLAPPED, id="overlapped", marks=pytest.mark.exhaustive),
    ],
)
def loop(request):
    return request.param


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, loop):
    asked = arguments(model, tmp_path_factory.mktemp("ssd"), loop=loop)
    with SchedulerProcess(asked, prepare=PREPARE) as process:
        process(costs_are_unknown)
        yield process


def computed(s, question: list[int]) -> tuple[list[int], np.ndarray]:
    """The first token of its answer, and what is sent, where nothing of it is cached anywhere."""
    forget(s)
    req = s.add(question)
    s.run()
    assert req.cached_tokens == 0
    return list(req.output_ids), sent_of(req).rows(len(question))


def is_right(req: Any, expected: tuple[list[int], np.ndarray]) -> bool:
    """Whether all of it was sent, and is what was computed."""
    token, rows = expected
    sent = sent_of(req)
    if not sent.whole or list(req.output_ids) != token:
        return False
    return bool(np.allclose(sent.rows(len(req.origin_input_ids)), rows, atol=NEAR))


def sent_from(s, place: str) -> dict[str, tuple[bool, dict[str, int]]]:
    found = {}
    for name, question in QUESTIONS.items():
        expected = computed(s, question)
        leave_in(s, place)
        req = s.add(question)
        s.run()
        found[name] = is_right(req, expected), s.details(req)
    quiet(s)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_what_is_sent_is_what_is_computed(server, place):
    for name, (right, details) in server(sent_from, place).items():
        assert right, name
        assert details == dict.fromkeys(("device", "host", "ssd"), 0) | {place: cached(QUESTIONS[name])}


def sent_over_zeros(s, part: str = "all") -> bool:
    question = QUESTIONS["a question"]
    expected = computed(s, question)
    leave_in(s, "host")
    with loading_zeros(s.linker.pool, part):
        req = s.add(question)
        s.run()
    right = is_right(req, expected)
    forget(s)
    return right


def test_what_is_loaded_is_what_is_sent(server):
    assert not server(sent_over_zeros)


def sent_while_pages_come_up(s, a_step: int) -> tuple[bool, Counter]:
    """A prompt in two chunks, of whose pages so many come up in each step."""
    question = QUESTIONS["in two chunks"]
    expected = computed(s, question)
    leave_in(s, "ssd")
    with Link(s) as link:
        req = s.add(question)
        while req in under_way(s):
            link.deliver(a_step)
            s.step()
    quiet(s)
    return is_right(req, expected), Counter(s.details(req))


@pytest.mark.parametrize("a_step", [1, 5, 43])
def test_a_prompt_whose_pages_come_up_meanwhile(server, a_step):
    right, details = server(sent_while_pages_come_up, a_step)
    assert right
    assert details["ssd"] > 0


def sent_where_a_load_fails(s) -> tuple[bool, bool, bool]:
    """Whether anything that a failed load has left was sent as whole; whether the next one, and one beside it, are
    right."""
    question, other = QUESTIONS["a question"], QUESTIONS["in two chunks"]
    expected, beside = computed(s, question), computed(s, other)
    forget(s)
    s.generate(question)
    leave_in(s, "host")
    with broken(s, "pool.copy_in", 1, 1):
        lost = s.add(question)
        s.run()
    after = s.add(question)
    stranger = s.add(other)
    s.run()
    quiet(s)
    return sent_of(lost).whole, is_right(after, expected), is_right(stranger, beside)


def test_what_could_not_be_loaded_is_not_sent(server):
    assert server(sent_where_a_load_fails) == (False, True, True)


def ended_before_it_met(s, how: str, place: str) -> bool:
    """A request whose server that decodes is not there yet, and that ends by then; whether the next one is right."""
    from sglang.srt.managers.io_struct import AbortReq

    question = QUESTIONS["in two chunks"]
    expected = computed(s, question)
    leave_in(s, "ssd")
    Sent.met_at_once = False
    with Link(s) as link:
        req = s.add(question)
        s.step()
        if place != "bootstrap":
            sent_of(req).met = True
            link.deliver(1 if place == "waiting" else 50)
            s.step()
        if how == "failed":
            sent_of(req).failed = True
        else:
            s.scheduler.abort_request(AbortReq(rid=req.rid))
        link.deliver(2)
        s.run()
    Sent.met_at_once = True
    quiet(s)
    again = s.add(question)
    s.run()
    return is_right(again, expected)


@pytest.mark.parametrize("place", ["bootstrap", "waiting", "computed"])
@pytest.mark.parametrize("how", ["failed", "aborted"])
def test_a_request_that_ends_early_leaves_nothing(server, how, place):
    assert server(ended_before_it_met, how, place)


def whatever_happens(s, seed: int, choice: str) -> Counter:
    """Some requests at once, while servers that decode come late, fail, and clients give up, and the device forgets.
    With a `choice` of how to restore, pages come up from ssd meanwhile, a few in each step."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    dice, happened = random.Random(f"{seed} {choice}"), Counter()
    shared = prompt(700 + seed, 300)
    questions = [
        [*(shared if dice.random() < 0.6 else []), *prompt(710 + 10 * seed + n, dice.randrange(40, 900))]
        for n in range(4)
    ]
    expected = [computed(s, question) for question in questions]
    forget(s)
    for question in questions:
        s.generate(question)
    leave_in(s, "ssd" if choice else dice.choice(PLACES))
    planner, before = s.linker.stack.planner, s.linker.stack.planner.choice
    planner.choice = choice or before
    reqs: list[tuple[Any, int]] = []
    Sent.met_at_once = False
    with Link(s) if choice else nullcontext() as link:
        steps = 0
        while steps < 60 or under_way(s):
            steps += 1
            live = under_way(s)
            if steps <= 40 and len(live) < 5 and dice.random() < 0.4:
                which = dice.randrange(len(questions))
                reqs.append((s.add(questions[which]), which))
                happened["asked"] += 1
            for req in live:
                happened["on course"] += s.cache.linker.on_course(req) is not None
                if dice.random() < (0.3 if steps < 40 else 1.0):
                    sent_of(req).met = True
                if steps < 40 and dice.random() < 0.02:
                    sent_of(req).failed = True
                    happened["failed"] += 1
                elif steps < 40 and dice.random() < 0.02:
                    s.scheduler.abort_request(AbortReq(rid=req.rid))
                    happened["aborted"] += 1
            if dice.random() < 0.1:
                s.cache.evict(EvictParams(num_tokens=dice.randrange(1000)))
            if link is not None:
                link.deliver(dice.randrange(6) if steps < 60 else 50)
            s.step()
            assert steps < 5000, "it does not end"
    Sent.met_at_once, planner.choice = True, before
    costs_are_unknown(s)
    for req, which in reqs:
        if sent_of(req).whole and not sent_of(req).failed:
            assert is_right(req, expected[which]), f"request {req.rid}"
            happened["right"] += 1
        happened.update({tier: 1 for tier, tokens in s.details(req).items() if tokens})
    quiet(s)
    return happened


@pytest.mark.parametrize("choice", ["", "token-wise", "layer-wise"])
def test_any_order_of_things(server, pytestconfig, choice):
    seeds = range(20 if pytestconfig.getoption("all") else 4)
    happened = sum((server(whatever_happens, seed, choice) for seed in seeds), Counter())
    wanted = ("right", "failed", "aborted", *(("on course", "ssd") if choice else ("host", "device")))
    assert min(happened[what] for what in wanted) > 0, happened


def drained(s, fails: bool) -> tuple[list[int], bool, list[bool]]:
    """A prefix that is longer than landing memory. While a part of it is being copied to the device, how many pages
    are sent, and enter the tree, in five rounds; whether the request was right, or was not sent whole where that copy
    fails; and whether those are right that come after it."""
    question = prompt(1)
    landing_pool(s)
    expected = computed(s, question)
    lent_alone(s, question)
    req = s.add(question)
    s.run(until=lambda: s.cache.linker.on_course(req) is not None)
    course = s.cache.linker.on_course(req)
    Copies.held = True
    s.run(until=lambda: course.loads_ahead)

    def seen() -> list[int]:
        return [len(sent_of(req).pages), req.kv.cache_protected_len]

    before = seen()
    for _ in range(5):
        s.step()
    assert course.loads_ahead, "it is held"
    more = [now - then for now, then in zip(seen(), before, strict=True)]
    Copies.fails, Copies.held = int(fails), False
    s.run()
    right = not sent_of(req).whole if fails else is_right(req, expected)
    later = []
    for _ in range(2):
        again = s.add(question)
        s.run()
        later.append(is_right(again, expected))
        s.empty_device()
    Copies.clear()
    return more, right, later


@pytest.fixture(scope="module")
def landing(tmp_path_factory, loop):
    with SchedulerProcess(
        [*landing_arguments(tmp_path_factory), *loop], prepare=f"support.landing_server.prepare {PREPARE}"
    ) as process:
        yield process


@pytest.mark.parametrize("fails", [False, True], ids=["copied", "failed"])
def test_pages_are_sent_once_they_are_on_the_device(landing, fails):
    assert landing(drained, fails) == ([0, 0], True, [True, True])


@pytest.mark.exhaustive
def test_two_ranks_send_what_is_theirs(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ssd")
    with SchedulerRanks(2, [*arguments(model, directory), "--tp-size", "2"], {}, PREPARE) as ranks:
        ranks(costs_are_unknown)
        for place in PLACES:
            for mine in ranks(sent_from, place):
                check_sent(place, mine)


def turns_sent_from(s, place: str) -> list[tuple[bool, int]]:
    """Of turns whose prefix is in that tier alone: whether the KV and the state, or the window, are sent that are
    computed, and how many tokens came from there."""
    found = []
    for tokens in (152, 408):  # whole pages with what follows: behind the last token a page has what it had before
        question = prompt(800 + tokens, tokens)
        turn = [*question, *prompt(810, 40)]
        expected = computed(s, turn)
        state = sent_of_last().state
        forget(s)
        s.generate(question)
        leave_in(s, place)
        req = s.add(turn)
        s.run()
        alike = state.size > 0 and bool(np.allclose(sent_of(req).state, state, atol=NEAR))
        found.append((is_right(req, expected) and alike, s.details(req)[place]))
    quiet(s)
    return found


#: How a model is made, and what its server needs: variables, what is called first, arguments.
KINDS = {
    "windows": (partial(tiny_gemma, own_pool=True), {}, "support.windowed_models.register", []),
    "states": (
        tiny_hybrid,
        states_on_cpu.ENVIRONMENT,
        "support.states_on_cpu.with_states_of_pages",
        states_on_cpu.ARGUMENTS,
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_a_prefix_is_sent_with_it(tmp_path_factory, kind):
    make, environment, first, more = KINDS[kind]
    asked = arguments(
        make(tmp_path_factory.mktemp(kind)), tmp_path_factory.mktemp("ssd"), *more, "--chunked-prefill-size", "256"
    )
    with SchedulerProcess(asked, environment, f"{first} {PREPARE}") as process:
        process(costs_are_unknown)
        for place in PLACES:
            for right, tokens in process(turns_sent_from, place):
                assert right
                assert tokens >= 128


DRAFTS = {
    "EAGLE": lambda folder, model: (model, tiny_eagle(folder / "draft", model)),
    "NEXTN": lambda folder, _: (tiny_latent_mtp(folder / "mtp"),) * 2,
}


def drafting(algorithm, model, directory, *more):
    served, draft = DRAFTS[algorithm](directory, model)
    speculation = ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(draft)]
    return arguments(served, directory, *speculating_on_cpu.ARGUMENTS, *speculation, *more)


@pytest.mark.exhaustive
@pytest.mark.parametrize("algorithm", DRAFTS)
def test_what_a_draft_keeps_is_sent_with_it(model, tmp_path, algorithm):
    asked = drafting(algorithm, model, tmp_path)
    with SchedulerProcess(asked, speculating_on_cpu.ENVIRONMENT, f"{SPECULATING} {PREPARE}", fresh=True) as process:
        process(costs_are_unknown)
        assert not process(sent_over_zeros, "front"), "the draft's rows are not sent: this tests nothing"
        for place in PLACES:
            check_sent(place, process(sent_from, place))


@pytest.mark.exhaustive
def test_groups_that_draft_send_what_is_theirs(model, tmp_path):
    """As DeepSeek's models are served: latent rows, data-parallel attention and MTP."""
    asked = drafting("NEXTN", model, tmp_path, "--attn-dp-size", "2")
    prepare = f"{SPECULATING} support.attention_groups_on_cpu.install support.prefill_server.install_for_groups"
    with SchedulerRanks(2, asked, speculating_on_cpu.ENVIRONMENT, prepare, fresh=True) as ranks:
        ranks(costs_are_unknown)
        for place in PLACES:
            for mine in ranks(sent_from, place):
                check_sent(place, mine)


def check_sent(place, found):
    for name, (right, details) in found.items():
        assert right, (place, name)
        assert details[place] == sum(details.values()) > 0, (place, name)


@pytest.fixture(scope="module")
def hasty(model, tmp_path_factory):
    """A server that computes prompts before it has met those that decode, and each of them once more after that."""
    environment = {"SGLANG_TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB": "1"}
    asked = arguments(model, tmp_path_factory.mktemp("ssd"), "--optimistic-prefill-attempts", "2")
    with SchedulerProcess(asked, environment, PREPARE) as process:
        process(costs_are_unknown)
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES)
def test_a_prompt_that_is_computed_before_anybody_waits_for_it(hasty, place):
    assert all(right for right, _ in hasty(sent_from, place).values())


def begun_anew(s) -> tuple[bool, int]:
    """A prompt whose prefix leaves the device after it has been computed for nobody, and before it is computed again;
    pages that come up for it then."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    question = QUESTIONS["a question"]
    expected = computed(s, question)
    leave_in(s, "host")
    req = s.add(question)
    attempts = req.prefill_attempt_count
    s.run(lambda: req.prefill_attempt_count > attempts)
    assert s.linker.wait_offloads(60)
    s.cache.check_hicache_events()  # nothing is locked for being copied out, or it would not leave
    link = s.linker.stack.links["host-device"]
    before = link.pages
    s.cache.evict(EvictParams(num_tokens=1 << 20))
    s.run()
    return is_right(req, expected), link.pages - before


@pytest.mark.exhaustive
def test_an_attempt_that_is_begun_anew_asks_the_tiers(hasty):
    question = QUESTIONS["a question"]
    assert hasty(begun_anew) == (True, cached(question) // PAGE)
