"""What the ranks of a server agree on: the least of what each of them says; and what they have to have alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import dump_config
from swift_tiers.radix_tiering.stack import TierStack

AllReduce = Callable[[torch.Tensor, Any], None]

#: Sections of a configuration that say what all ranks of a server do together, and in the same way.
_DONE_TOGETHER = ("policy", "restore", "peer", "identity")


def least(values: Sequence[Sequence[int]] | np.ndarray, all_reduce: AllReduce) -> list[list[int]]:
    """The least that any rank says of each of these; every rank says as many. An array, int64, is written to."""
    said = torch.from_numpy(np.asarray(values, np.int64))
    all_reduce(said, torch.distributed.ReduceOp.MIN)
    agreed: list[list[int]] = said.tolist()
    return agreed


def least_and_most(values: Sequence[int], all_reduce: AllReduce) -> list[tuple[int, int]]:
    """The least and the most that any rank says of each of these, in one go: the same where all say alike."""
    low, high = least([values, [-value for value in values]], all_reduce)
    return list(zip(low, (-value for value in high), strict=True))


def differing(facts: Mapping[str, str], all_reduce: AllReduce) -> list[str]:
    """The names of those facts of which not all ranks say the same; every rank names the same ones, in this order."""
    # As integers that torch has, whose negatives it has as well.
    said = least_and_most([xxhash.xxh3_64_intdigest(fact.encode()) >> 1 for fact in facts.values()], all_reduce)
    return [name for name, (low, high) in zip(facts, said, strict=True) if low != high]


def check_machines(machines: int, stack: TierStack, all_reduce: AllReduce) -> None:
    """Raise ConfigError where ranks on other machines are configured otherwise, or run other software: each machine
    reads its own configuration, and what ranks agree on is agreed in the same words."""
    if machines == 1:
        return
    space, config = stack.namespace, dump_config(stack.config)
    facts = {
        "versions of software": space.software,
        "the model's configuration": space.model,
        "how KV is kept": f"{space.dtype} {space.quantization} {space.geometry}",
        "host.codec": config["host"]["codec"],
        **{section: json.dumps(config[section], sort_keys=True) for section in _DONE_TOGETHER},
    }
    if different := differing(facts, all_reduce):
        raise ConfigError(
            f"--enable-swift-tiers: not alike on all {machines} machines of this server: {', '.join(different)}; "
            "give all of them the same --swift-tiers-config, and install the same versions"
        )
