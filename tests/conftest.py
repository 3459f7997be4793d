"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `tests` is not installed: its helpers are found beside this file.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def anyio_backend() -> str:
    """Tests of coroutines run on asyncio, which Textual is made for."""
    return "asyncio"
