"""Donors and borrowers of one test: closed after it, with nothing left behind."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.peer_donor import LocalDonor
from support.peer_tier import Borrowing
from support.redis import wait_for

OURS = ("swift-lease", "swift-arena", "swift-peer")


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_former_tests() -> None:
    """What they have left to be collected must not be closed in the middle of one that counts."""
    gc.collect()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="swift-peer-") as name:
        yield Path(name)


def _descriptors() -> list[str]:
    """What this process has open, memory apart: its mapping goes with the last reference to an array."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0])
        except FileNotFoundError:
            pass  # that of the listing itself
    return sorted(name for name in found if not name.startswith("/memfd"))


class Room:
    """Makes donors and borrowers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[Any] = []

    def donor(self, name: str = "d", **options: Any) -> LocalDonor:
        donor = LocalDonor(self.directory, name, **options)
        self.opened.append(donor)
        return donor

    def borrower(self, name: str = "b", **options: Any) -> Borrowing:
        borrower = Borrowing(name, **options)
        self.opened.append(borrower)
        return borrower


@pytest.fixture
def room(directory: Path) -> Iterator[Room]:
    before = _descriptors()
    made = Room(directory)
    yield made
    for thing in reversed(made.opened):
        thing.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name in OURS]
    wait_for(lambda: _descriptors() == before, "all descriptors to be closed")
