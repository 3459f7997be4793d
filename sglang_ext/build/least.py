"""What the ranks of a server agree on: the least of what each of them says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

AllReduce = Callable[[torch.Tensor, Any], None]


def least(values: Sequence[Sequence[int]] | np.ndarray, all_reduce: AllReduce) -> list[list[int]]:
    """The least that any rank says of each of these; every rank says as many. An array, int64, is written to."""
    said = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values, dtype=torch.int64)
    all_reduce(said, torch.distributed.ReduceOp.MIN)
    agreed: list[list[int]] = said.tolist()
    return agreed


def least_and_most(values: Sequence[int], all_reduce: AllReduce) -> list[tuple[int, int]]:
    """The least and the most that any rank says of each of these, in one go: the same where all say alike."""
    low, high = least([values, [-value for value in values]], all_reduce)
    return list(zip(low, (-value for value in high), strict=True))
