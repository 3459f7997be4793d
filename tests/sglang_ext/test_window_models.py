"""Models and modes that look as if a prefix were more than plain KV, and are not, in SGLang's real scheduler.

SGLang keeps all KV of Gemma 3's window layers, and of any model's with `--disable-hybrid-swa-memory`; KV of 8 bits has
no scales beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.models import tiny_gemma, tiny_mla
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown
from support.tiers_of_a_model import (
    PLACES,
    answered_over_zeros,
    answers_of,
    arguments_of,
    check_place,
    with_tiers,
)


class Kind(NamedTuple):
    """A model, and how it is served."""

    make: Callable[[Path], Path]
    arguments: tuple[str, ...]
    row_bytes: int  # of K, in one layer: of two heads of 16 dimensions; or of the latent
    prepare: str = ""  # called in its process before anything else
    pool: str = "MHATokenToKVPool"
    #: Of `--all` alone: formats of which another is here.
    slow: bool = False


KINDS = {
    "Gemma 3": Kind(tiny_gemma, (), 2 * 16 * 4),
    "windows with a pool of their own, disabled": Kind(
        partial(tiny_gemma, own_pool=True),
        ("--disable-hybrid-swa-memory",),
        2 * 16 * 4,
        "support.windowed_models.register",
    ),
    "fp8_e4m3": Kind(tiny_model, ("--kv-cache-dtype", "fp8_e4m3"), 2 * 16),
    "fp8_e5m2": Kind(tiny_model, ("--kv-cache-dtype", "fp8_e5m2"), 2 * 16, slow=True),
    "fp8_e4m3 of latent attention": Kind(
        tiny_mla, ("--kv-cache-dtype", "fp8_e4m3"), 32 + 16, pool="MLATokenToKVPool", slow=True
    ),
}


def pool_of(s):
    kvcache = s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    return type(kvcache).__name__, s.linker.pool.geometry.row_bytes


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.exhaustive) if kind.slow else name for name, kind in KINDS.items()],
)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def tiers(kind, tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    arguments = arguments_of(kind.make(root / "model"), *kind.arguments, *with_tiers(root))
    with SchedulerProcess(arguments, prepare=kind.prepare) as process:
        process(costs_are_unknown)
        yield process


@pytest.fixture(scope="module")
def expected(tiers):
    return tiers(answers_of)


def test_its_pool_is_a_plain_one(tiers, kind):
    assert tiers(pool_of) == (kind.pool, kind.row_bytes)


def test_answers_depend_on_what_is_loaded(tiers, expected):
    assert tiers(answered_over_zeros) != expected["a question"], "the test below would prove nothing"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(tiers, expected, place):
    check_place(tiers, place, expected)
