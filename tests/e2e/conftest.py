"""What the tests of real servers share, since each start takes long (nearly all of it imports)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.servers import Plain, Site


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    with ExitStack() as running:
        yield Plain(Site(tmp_path_factory.mktemp("plain")), running)
