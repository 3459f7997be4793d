"""Multi-head latent attention (DeepSeek, Kimi, GLM) in SGLang's real scheduler, without tiers and with them.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import pytest

from support.models import reference_answer, tiny_mla
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown, has_found_its_pages, prompt
from support.tiers_of_a_model import (
    PAGE,
    PLACES,
    QUESTIONS,
    again,
    answered_over_zeros,
    answers_of,
    arguments_of,
    cached,
    check_meeting,
    check_place,
    why_not_layer_by_layer,
    with_tiers,
)


def cold_and_behind_a_prefix(s, seed, tokens):
    """The answers to a prompt that is new, and to the same one again."""
    question = prompt(seed, tokens)
    cold = s.generate(question)
    req = s.add(question)
    s.run()
    assert req.cached_tokens == cached(question), "it has no prefix: this tests nothing"
    return cold, list(req.output_ids)


def shape_of_a_page(s):
    """And heads and dimensions of a row, by its namespace."""
    geometry, namespace = s.linker.pool.geometry, s.linker.stack.namespace
    return (geometry.layers, geometry.planes, geometry.tokens, geometry.row_bytes), (
        namespace.kv_heads,
        namespace.head_dim,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_mla(tmp_path_factory.mktemp("mla"))


@pytest.fixture(scope="module")
def plain(model):
    """A server without tiers."""
    with SchedulerProcess(arguments_of(model)) as process:
        yield process


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_of(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(arguments):
    with SchedulerProcess(arguments) as process:
        process(costs_are_unknown)
        yield process


@pytest.mark.parametrize("tokens", [40, 700, 1800])
def test_without_tiers_a_prompt_has_one_answer_with_a_prefix_and_without(plain, model, tokens):
    cold, again = plain(cold_and_behind_a_prefix, tokens, tokens)
    assert cold == again
    if tokens < 1000:  # it takes as long as it is long
        assert cold[:3] == reference_answer(model, prompt(tokens, tokens), 3)


@pytest.mark.parametrize("pages_a_step", [1, 8])
def test_it_is_computed_while_its_pages_come_up(tiers, pages_a_step):
    check_meeting(tiers, pages_a_step)


def test_it_is_never_computed_layer_by_layer(tiers):
    assert tiers(why_not_layer_by_layer) == "DeepseekV2ForCausalLM cannot compute single layers in SGLang"


def test_a_page_is_one_plane(tiers):
    assert tiers(shape_of_a_page) == ((4, 1, PAGE, 48 * 4), (1, 48))


@pytest.fixture(scope="module")
def expected(plain):
    return plain(answers_of)


def test_answers_depend_on_what_is_loaded(tiers, expected):
    assert tiers(answered_over_zeros) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(tiers, expected, place):
    check_place(tiers, place, expected)


def test_answers_are_the_same_from_ssd_after_a_restart(tiers, arguments, expected):
    tiers.close()
    with SchedulerProcess(arguments) as restarted:
        restarted(costs_are_unknown)
        restarted(has_found_its_pages)
        for name in ("a question", "in two chunks"):
            where = {"device": 0, "host": 0, "ssd": cached(QUESTIONS[name])}
            assert restarted(again, name) == (expected[name], where)
