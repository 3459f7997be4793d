"""Models some of whose layers are gated delta nets in SGLang's real scheduler, over the tiers: Qwen3.5, and
Kimi-Linear, whose other layers have latent attention.

What `test_hybrid.py` asks of a model with Mamba 2, of the layers that most deployed models with states have. SGLang has
no kernels for them on a CPU: see `support.delta_on_cpu` for what stands in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from support import states_on_cpu
from support.models import reference_answer, tiny_delta, tiny_kimi
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, prompt
from support.tiers_of_a_model import PLACES, arguments_of, with_tiers
from support.turns import (
    check_branches,
    check_conversations,
    check_ranks,
    check_restarted,
    check_turns,
    check_turns_at_once,
    conversations,
    turn_in_a_graph,
    turn_over_zeros,
    turns_from,
    turns_that_stay,
)

ENVIRONMENT = states_on_cpu.ENVIRONMENT
TURNS = 14
#: What a state is made of.
KINDS = ("recurrent", "convolution")


class Kind(NamedTuple):
    model: Callable[[Path], Path]
    prepare: str


MODELS = {
    "Qwen3.5": Kind(tiny_delta, "support.delta_on_cpu.with_states_of_pages"),
    "Kimi-Linear": Kind(tiny_kimi, "support.delta_on_cpu.of_kimi"),
}


def an_answer(s):
    """To a prompt that nobody has had."""
    asked = prompt(730, 150)
    return asked, s.generate(asked, 8)


@pytest.fixture(
    scope="module",
    params=[name if name == "Qwen3.5" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MODELS],
)
def kind(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory):
    return kind.model(tmp_path_factory.mktemp("model"))


def arguments_with(model, *more):
    return arguments_of(model, *states_on_cpu.ARGUMENTS, *more)


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(kind, arguments):
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=kind.prepare) as process:
        process(costs_are_unknown)
        yield process


@pytest.fixture(scope="module")
def expected(tiers):
    """The answers to turns where nothing is cached."""
    return {name: answer for name, (answer, _) in tiers(turns_from, "nowhere").items()}


def test_it_is_the_model_that_transformers_has(tiers, model):
    asked, answer = tiers(an_answer)
    assert answer == reference_answer(model, asked, 8)


@pytest.mark.parametrize(
    "place", [place if place == "ssd" else pytest.param(place, marks=pytest.mark.exhaustive) for place in PLACES]
)
def test_turns_are_answered_as_ever_from_every_tier(tiers, expected, place):
    check_turns(tiers, place, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", [*KINDS, "KV"])
def test_answers_depend_on_what_is_loaded(tiers, expected, part):
    assert tiers(turn_over_zeros, KINDS.index(part) if part in KINDS else part) != expected["in one chunk"], (
        "the test above would prove nothing"
    )


def test_a_graph_that_asks_for_no_layer_has_the_state(tiers, expected):
    assert tiers(turn_in_a_graph) == expected["in one chunk"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fails", [False, True], ids=["served", "one load fails"])
def test_turns_that_come_at_once_are_answered_as_ever_or_not_at_all(tiers, expected, fails):
    check_turns_at_once(tiers, expected, fails)


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES)
def test_what_prompts_have_in_common_comes_back(tiers, place):
    check_branches(tiers, place)


@pytest.mark.exhaustive
def test_conversations_go_on_as_ever_whatever_is_forgotten(kind, model, tmp_path):
    with SchedulerProcess(arguments_with(model), ENVIRONMENT, prepare=kind.prepare) as plain:
        talked = plain(conversations, 2, TURNS, False)[0]
    arguments = arguments_with(model, *with_tiers(tmp_path, host={"size": "448KiB"}))
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=kind.prepare) as process:
        check_conversations(process, talked, 2, TURNS)


@pytest.mark.exhaustive
def test_turns_are_answered_as_ever_from_ssd_after_a_restart(kind, tiers, arguments, expected):
    turns = tiers(turns_that_stay)
    tiers.close()
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=kind.prepare) as restarted:
        check_restarted(restarted, turns, expected)


@pytest.mark.exhaustive
def test_ranks_restore_what_each_of_them_has(kind, model, tmp_path, expected):
    """Each keeps its heads' part of a state, and they agree on a length that each has a state behind."""
    arguments = arguments_with(model, *with_tiers(tmp_path))
    with SchedulerRanks(2, arguments, ENVIRONMENT, kind.prepare) as ranks:
        check_ranks(ranks, expected)
