"""NGRAM speculative decoding over the tiers, in SGLang's real scheduler: it drafts from tokens and keeps no KV.

SGLang has no kernels for it on a CPU: see `support.speculating_on_cpu` for what runs in their place.
"""

from __future__ import annotations

import pytest

from swift_tiers.ops.base.model import tiny_model

from support import ngram_on_cpu, speculating_on_cpu
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown
from support.tiers_of_a_model import (
    PLACES,
    answered_over_zeros,
    answers_of,
    arguments_of,
    check_meeting,
    check_place,
    with_tiers,
)


def drafts_accepted(s):
    return tuple(ngram_on_cpu.accepted)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model):
    """By a server that does not speculate."""
    with SchedulerProcess(arguments_of(model)) as plain:
        return plain(answers_of)


@pytest.fixture(scope="module")
def speculating(model, tmp_path_factory):
    with SchedulerProcess(
        [*arguments_of(model, *with_tiers(tmp_path_factory.mktemp("ssd"))), *ngram_on_cpu.ARGUMENTS],
        environment=speculating_on_cpu.ENVIRONMENT,
        prepare="support.ngram_on_cpu.install",
        fresh=True,
    ) as process:
        process(costs_are_unknown)
        yield process


def test_answers_depend_on_what_is_loaded(speculating, expected):
    assert speculating(answered_over_zeros) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_those_without_speculation_from_every_tier(speculating, expected, place):
    before, _ = speculating(drafts_accepted)
    check_place(speculating, place, expected)
    accepted, forwards = speculating(drafts_accepted)
    assert before < accepted, "no draft was right: this tests nothing"
    assert forwards > 0


def test_it_is_computed_while_its_pages_come_up(speculating):
    check_meeting(speculating, 4)
