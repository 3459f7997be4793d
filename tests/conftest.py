"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# `tests` is not installed: its helpers are found beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from support.redis import only_the_bundled

# A machine that does something else for a moment fails no test: pytest-timeout sees to those that hang.
settings.register_profile("swift", deadline=None)
settings.load_profile("swift")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test file is read, since some of them look for Redis."""
    decoys = tempfile.TemporaryDirectory(prefix="swift-decoys-")
    only_the_bundled(Path(decoys.name))
    config.add_cleanup(decoys.cleanup)


@pytest.fixture
def anyio_backend() -> str:
    """Tests of coroutines run on asyncio, which Textual is made for."""
    return "asyncio"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where two processes share the tests, one begins with those that start servers, and has all of them; each file
    stays whole, since its tests share what they have started."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("servers" if file.startswith("tests/e2e/") else file))
    items.sort(key=lambda item: not item.nodeid.startswith("tests/e2e/"))
