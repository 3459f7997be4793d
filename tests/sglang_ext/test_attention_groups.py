"""Data-parallel attention: groups of ranks that have requests, a tree and tiers of their own, in SGLang's real
scheduler.

Functions whose first parameter is a `StepScheduler` run in the process of each rank, all at once.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from swift_tiers.ops.base.model import tiny_model

from support import attention_groups_on_cpu, speculating_on_cpu
from support.models import tiny_latent_mtp, tiny_mla
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown
from support.tiers_of_a_model import (
    PLACES,
    QUESTIONS,
    answered_from,
    answers_of,
    arguments_of,
    cached,
    why_not_layer_by_layer,
    with_tiers,
)

pytestmark = pytest.mark.exhaustive

PREPARE = "support.attention_groups_on_cpu.install"


def whose(s):
    """Which part of a model its pages are of."""
    return s.linker.stack.namespace.rank


def orders_that_come(s):
    """To each rank, of one that the first rank of each group has taken in."""
    from sglang.srt.runtime_context import get_parallel

    from swift_tiers.sglang_ext.tell import orders

    message = orders.OrderMessage({"group": str(get_parallel().attn_dp_rank)})
    before, orders._orders = orders._orders, SimpleNamespace(take=lambda: [message])
    try:
        received = s.scheduler.request_receiver.recv_requests()
    finally:
        orders._orders = before
    return [one.entry["group"] for one in received if isinstance(one, orders.OrderMessage)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_mla(tmp_path_factory.mktemp("mla"))


@pytest.fixture(scope="module")
def expected(model):
    """Of one rank without tiers."""
    with SchedulerProcess(arguments_of(model)) as plain:
        return plain(answers_of)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("ssd")


@pytest.fixture(scope="module")
def groups(model, directory):
    arguments = [*arguments_of(model, *with_tiers(directory)), "--attn-dp-size", "2"]
    with SchedulerRanks(2, arguments, attention_groups_on_cpu.ENVIRONMENT, PREPARE) as ranks:
        ranks(costs_are_unknown)
        yield ranks


def test_each_group_has_all_heads_and_a_file_of_its_own(groups, directory):
    assert groups(whose) == ["tp0/1", "tp0/1"]
    assert len(list(directory.glob("*.stripe"))) == 2


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(groups, expected, place):
    for found in groups(answered_from, place):
        for name, (answer, details) in found.items():
            assert answer == expected[name], (place, name)
            assert details == {"device": 0, "host": 0, "ssd": 0, place: cached(QUESTIONS[name])}, (place, name)


@pytest.mark.parametrize("spelling", ["--attn-dp-size 2", "--dp-size 2 --enable-dp-attention"])
def test_nothing_is_computed_layer_by_layer(tmp_path, spelling):
    """Of a model of which it would be: a group that ended a forward early would leave the other one in it."""
    dense = tiny_model(tmp_path / "dense")
    tiers = with_tiers(tmp_path, restore={"strategy": "layer-wise", "chunk": 64})
    with SchedulerProcess(arguments_of(dense)) as plain:
        expected = plain(answers_of)
    arguments = [*arguments_of(dense, *tiers), *spelling.split()]
    with SchedulerRanks(2, arguments, attention_groups_on_cpu.ENVIRONMENT, PREPARE) as ranks:
        ranks(costs_are_unknown)
        assert ranks(why_not_layer_by_layer) == ["attention is split over data"] * 2
        for found in ranks(answered_from, "ssd"):
            assert {name: answer for name, (answer, _) in found.items()} == expected


def test_an_order_reaches_its_group_alone(groups):
    assert groups(orders_that_come) == [["0"], ["1"]]


def test_groups_draft_by_a_model(tmp_path):
    """As DeepSeek's models are served: latent rows and MTP."""
    mtp = tiny_latent_mtp(tmp_path / "mtp")
    with SchedulerProcess(arguments_of(mtp)) as plain:
        expected = plain(answers_of)
    drafting = ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(mtp)]
    arguments = [*arguments_of(mtp, *with_tiers(tmp_path)), "--attn-dp-size", "2", *drafting]
    prepare = f"support.speculating_on_cpu.install {PREPARE}"
    with SchedulerRanks(
        2, [*arguments, *speculating_on_cpu.ARGUMENTS], speculating_on_cpu.ENVIRONMENT, prepare, fresh=True
    ) as ranks:
        ranks(costs_are_unknown)
        for place in PLACES:
            for found in ranks(answered_from, place):
                for name, (answer, details) in found.items():
                    assert answer == expected[name], (place, name)
                    assert details[place] == sum(details.values()) > 0, (place, name)
