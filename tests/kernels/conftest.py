"""Tests of kernels run on each device: interpreted over host memory everywhere, compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here: the compiled kernel is not run (the interpreted one is, and it compiles)")
