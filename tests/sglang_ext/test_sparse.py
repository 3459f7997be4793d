"""Sparse attention with an index (DeepSeek V3.2, GLM-5) in SGLang's real scheduler, over the tiers.

SGLang has no kernels for it on a CPU: see `support.sparse_on_cpu` for what stands in their place. Functions whose first
parameter is a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

import pytest

from support.models import tiny_sparse
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown
from support.tiers_of_a_model import (
    PLACES,
    answered_over_zeros,
    answers_of,
    arguments_of,
    check_after_a_restart,
    check_meeting,
    check_place,
    check_ranks_alike,
    why_not_layer_by_layer,
    with_tiers,
)

#: SGLang gives these models no other.
PAGE = 64
PREPARE = "support.sparse_on_cpu.install"


def parts_of_a_page(s):
    """Layers, bytes of a token's row, and bytes in front of the layers; and the kind of SGLang's pool."""
    geometry = s.linker.pool.geometry
    pool = s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    return type(pool).__name__, (geometry.layers, geometry.planes, geometry.row_bytes, geometry.front_bytes)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sparse(tmp_path_factory.mktemp("sparse"))


def arguments_with(model, *more):
    # Unless it is told, SGLang chooses 2 bytes a value, over which answers of random weights prove less.
    return arguments_of(model, "--attention-backend", "swift_cpu", *more, page=PAGE)


@pytest.fixture(scope="module")
def expected(model):
    """Of a server without tiers."""
    with SchedulerProcess(arguments_with(model), prepare=PREPARE) as plain:
        return plain(answers_of)


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(arguments):
    with SchedulerProcess(arguments, prepare=PREPARE) as process:
        process(costs_are_unknown)
        yield process


def test_a_page_has_the_index_in_front_of_its_layers(tiers):
    """Of all layers: where there is a linker, SGLang has memory for that of a layer, too, which takes what the one
    before it has picked."""
    assert tiers(parts_of_a_page) == ("DSATokenToKVPool", (4, 1, 48 * 4, 4 * PAGE * (128 + 4)))


@pytest.mark.parametrize("part", ["front", "layers"])
def test_answers_depend_on_what_is_loaded(tiers, expected, part):
    assert tiers(answered_over_zeros, part) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("pages_a_step", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_it_is_computed_while_its_pages_come_up(tiers, pages_a_step):
    check_meeting(tiers, pages_a_step, PAGE)


def test_it_is_never_computed_layer_by_layer(tiers):
    assert tiers(why_not_layer_by_layer) == "DeepseekV32ForCausalLM cannot compute single layers in SGLang"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(tiers, expected, place):
    check_place(tiers, place, expected, PAGE)


@pytest.mark.exhaustive
def test_answers_are_the_same_from_ssd_after_a_restart(tiers, arguments, expected):
    tiers.close()
    with SchedulerProcess(arguments, prepare=PREPARE) as restarted:
        check_after_a_restart(restarted, expected, PAGE)


@pytest.mark.exhaustive
def test_ranks_answer_as_one_does(model, tmp_path, expected):
    """Each has all of the latent rows and of the index, and its heads of what is computed from them."""
    with SchedulerRanks(2, arguments_with(model, *with_tiers(tmp_path)), prepare=PREPARE) as ranks:
        check_ranks_alike(ranks, expected, PAGE)
