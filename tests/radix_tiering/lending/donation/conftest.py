"""Tests that need a GPU are skipped where there is none, and say so."""

from __future__ import annotations

import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here: its driver is not asked (one that is none is, in the tests beside)")
