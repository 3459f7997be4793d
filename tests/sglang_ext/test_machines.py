"""A server over several machines, each of which reads a configuration of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.sglang_ext.build.least import check_machines, least

from support.engine import make_stack


def check(mine: TierStack, other: TierStack, machines: int = 2) -> None:
    """As on a rank that has `mine`, beside one that has `other`."""
    said: list[torch.Tensor] = []

    def say(tensor: torch.Tensor, op: Any) -> None:
        said.append(tensor.clone())

    def hear(tensor: torch.Tensor, op: Any) -> None:
        assert op == torch.distributed.ReduceOp.MIN
        torch.minimum(tensor, said.pop(), out=tensor)

    check_machines(2, other, say)  # alone it is like itself
    check_machines(machines, mine, hear)


def test_ranks_agree_on_numbers_whoever_has_made_them() -> None:
    said = [[True, np.bool_(True), np.int64(7), 3]]
    assert least(said, lambda tensor, op: None) == [[1, 1, 7, 3]]
    array = np.array([[1, 2], [3, 4]])
    assert least(array, lambda tensor, op: tensor.sub_(1)) == [[0, 1], [2, 3]]


def test_machines_that_are_alike_but_for_what_each_of_them_has() -> None:
    check(make_stack(8), make_stack(16, ssd=None))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"host": {"codec": "fp8"}}, "host.codec;"),
        ({"restore": {"strategy": "load"}}, "restore;"),
        ({"policy": {"write": "back"}, "restore": {"chunk": 64}}, "policy, restore;"),
    ],
)
def test_what_is_configured_otherwise_on_another_machine_is_named(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"not alike on all 2 machines of this server: {named} give all of them"):
        check(make_stack(**sections), make_stack())


def test_other_software_on_another_machine_is_named() -> None:
    mine, other = make_stack(), make_stack()
    other.namespace = structs.replace(other.namespace, software="sglang 0.0", rank="tp1/2")
    with pytest.raises(ConfigError, match=r"server: versions of software; .* install the same versions"):
        check(mine, other)


def test_one_machine_asks_nobody() -> None:
    check_machines(1, make_stack(), lambda tensor, op: pytest.fail("it was asked"))
