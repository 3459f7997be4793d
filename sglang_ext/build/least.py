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
