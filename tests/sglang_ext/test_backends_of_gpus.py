"""Tiers under the attention backends of SGLang's that are made for GPUs: each reads the pool in its own way, and waits
there for what is loaded. Kernels are interpreted, or stood in for (`support.backends_of_gpus`).

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import pytest

from support.backends_of_gpus import OF_GPUS
from support.slow_link import costs_are_unknown, prompt
from support.swiftkv_models import Reference, tiny_swiftkv
from support.tiers_of_a_model import (
    PLACES,
    QUESTIONS,
    answered_over_zeros,
    answers_of,
    arguments_of,
    cached,
    check_meeting,
    check_place,
    with_tiers,
)

*_OTHERS, _ONE = [one for one in OF_GPUS if not one.slow]


@pytest.fixture(
    scope="module",
    params=[_ONE, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in _OTHERS)],
    ids=lambda value: value.backend,
)
def of_gpus(request):
    return request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_swiftkv(tmp_path_factory.mktemp("model"), "qwen3", base=True)


@pytest.fixture(scope="module")
def served(of_gpus, model, tmp_path_factory):
    with of_gpus.serving(arguments_of(model, *with_tiers(tmp_path_factory.mktemp("ssd")))) as process:
        process(costs_are_unknown)
        yield process


@pytest.fixture(scope="module")
def expected(served, model):
    """Answers where nothing is cached anywhere, which are the reference's."""
    found, reference = served(answers_of), Reference(model)
    for name, question in QUESTIONS.items():
        logits = reference.logits(question + found[name])
        assert found[name] == logits[len(question) - 1 : -1].argmax(-1).tolist()
    return found


def backend_of(s):
    return type(s.scheduler.tp_worker.model_runner.attn_backend).__name__


def test_it_is_the_backend(served, of_gpus):
    assert served(backend_of) == of_gpus.backend


def answered_from_below(s, question):
    """The answer where nothing is cached, and those from host memory and from SSD, with where it came from."""
    found = [(s.generate(question, 2), {})]
    for durable in (False, True):
        s.settle()
        s.empty_device()
        if durable:
            s.linker.stack.flush("memory")
        req = s.add(question, 2)
        s.run()
        found.append((list(req.output_ids), s.details(req)))
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("of_gpus", [one for one in OF_GPUS if one.slow], ids=lambda value: value.backend)
def test_one_short_question_from_below(of_gpus, model, tmp_path):
    """Of a backend for which those of `support.tiers_of_a_model` are too long."""
    question = prompt(70, 90)
    with of_gpus.serving(arguments_of(model, *with_tiers(tmp_path))) as process:
        process(costs_are_unknown)
        assert process(backend_of) == of_gpus.backend
        (answer, _), *below = process(answered_from_below, question)
    logits = Reference(model).logits(question + answer)
    assert answer == logits[len(question) - 1 : -1].argmax(-1).tolist()
    places = [{"device": 0, "host": 0, "ssd": 0, place: cached(question)} for place in ("host", "ssd")]
    assert below == [(answer, place) for place in places]


def test_answers_depend_on_what_is_loaded(served, expected):
    assert served(answered_over_zeros) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(served, expected, place):
    check_place(served, place, expected)


def test_it_is_computed_while_its_pages_come_up(served):
    check_meeting(served, 4)
