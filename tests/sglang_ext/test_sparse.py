"""Sparse attention with an index in SGLang's real scheduler, over the tiers: of tokens over latent rows (DeepSeek V3.2,
GLM-5), and of blocks over keys and values (MiniMax M3).

SGLang has no kernels for it on a CPU: see `support.sparse_on_cpu` and `minimax_on_cpu` for what stands in their place.
Functions whose first parameter is a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from support.models import tiny_minimax, tiny_sparse
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown
from support.tiers_of_a_model import (
    PLACES,
    answered_from,
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


class Kind(NamedTuple):
    model: Callable[[Path], Path]
    prepare: str
    page: int
    parts: tuple[str, tuple[int, int, int, int]]  # see `parts_of_a_page`
    architecture: str


MODELS = {
    # SGLang gives it no other pages. It has memory for the index of a layer, too, that takes what another has picked.
    "of tokens": Kind(
        tiny_sparse,
        "support.sparse_on_cpu.install",
        64,
        ("DSATokenToKVPool", (4, 1, 48 * 4, 4 * 64 * (128 + 4))),
        "DeepseekV32ForCausalLM",
    ),
    # In one layer the index has keys, in another one values, too.
    "of blocks": Kind(
        tiny_minimax,
        "support.minimax_on_cpu.install",
        16,
        ("MiniMaxSparseKVPool", (4, 2, 2 * 16 * 4, 3 * 16 * 16 * 4)),
        "MiniMaxM3SparseForCausalLM",
    ),
}


def parts_of_a_page(s):
    """Layers, bytes of a token's row, and bytes in front of the layers; and the kind of SGLang's pool."""
    geometry = s.linker.pool.geometry
    pool = s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    return type(pool).__name__, (geometry.layers, geometry.planes, geometry.row_bytes, geometry.front_bytes)


@pytest.fixture(
    scope="module",
    params=[name if name == "of tokens" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MODELS],
)
def kind(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory):
    return kind.model(tmp_path_factory.mktemp("sparse"))


def arguments_with(kind, model, *more):
    # Unless it is told, SGLang chooses 2 bytes a value, over which answers of random weights prove less.
    return arguments_of(model, "--attention-backend", "swift_cpu", *more, page=kind.page)


@pytest.fixture(scope="module")
def expected(kind, model):
    """Of a server without tiers."""
    with SchedulerProcess(arguments_with(kind, model), prepare=kind.prepare) as plain:
        return plain(answers_of)


@pytest.fixture(scope="module")
def arguments(kind, model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it."""
    return arguments_with(kind, model, *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def tiers(kind, arguments):
    with SchedulerProcess(arguments, prepare=kind.prepare) as process:
        process(costs_are_unknown)
        yield process


def test_a_page_has_the_index_in_front_of_its_layers(kind, tiers):
    assert tiers(parts_of_a_page) == kind.parts


@pytest.mark.parametrize("part", ["front", "layers"])
def test_answers_depend_on_what_is_loaded(tiers, expected, part):
    assert tiers(answered_over_zeros, part) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("pages_a_step", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_it_is_computed_while_its_pages_come_up(kind, tiers, pages_a_step):
    check_meeting(tiers, pages_a_step, kind.page)


def test_it_is_never_computed_layer_by_layer(kind, tiers):
    assert tiers(why_not_layer_by_layer) == f"{kind.architecture} cannot compute single layers in SGLang"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(kind, tiers, expected, place):
    check_place(tiers, place, expected, kind.page)


@pytest.mark.exhaustive
def test_answers_are_the_same_from_ssd_after_a_restart(kind, tiers, arguments, expected):
    tiers(answered_from, "device")  # whatever ran before
    tiers.close()
    with SchedulerProcess(arguments, prepare=kind.prepare) as restarted:
        check_after_a_restart(restarted, expected, kind.page)


@pytest.mark.exhaustive
def test_ranks_answer_as_one_does(kind, model, tmp_path, expected):
    """Each has all of the index, and all latent rows or its heads' part of keys and values."""
    with SchedulerRanks(2, arguments_with(kind, model, *with_tiers(tmp_path)), prepare=kind.prepare) as ranks:
        check_ranks_alike(ranks, expected, kind.page)
