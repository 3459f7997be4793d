"""Real processes that lend pages to each other: started, asked, stopped and killed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from swift_tiers.radix_tiering.leases import ipc_address

from support.lease_children import Child
from support.peer_donor import PAGE


class PeerChildren:
    """A directory with sockets, and the processes there. A context manager."""

    def __init__(self) -> None:
        # Shorter than pytest's own directories: a socket's path is at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="swift-peer-")
        self.directory = Path(self._directory.name)
        self._children: list[Child] = []

    def __enter__(self) -> PeerChildren:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for child in self._children:
            if child.process.returncode is None:
                child.kill()
        self._directory.cleanup()

    def address(self, donor: str) -> str:
        return ipc_address(self.directory, donor)

    def donor(self, name: str = "d", *, timing: dict[str, float] | None = None, **options: Any) -> Child:
        """See `LocalDonor` for the options."""
        return self._start("donor", {"directory": str(self.directory), "name": name, "timing": timing or {}, **options})

    def borrower(self, name: str = "b", donors: tuple[str, ...] = ("d",), page_bytes: int = PAGE) -> Child:
        donors_at = {donor: self.address(donor) for donor in donors}
        return self._start("borrower", {"name": name, "donors": donors_at, "page_bytes": page_bytes})

    def _start(self, role: str, options: dict[str, Any]) -> Child:
        child = Child(role, options, script="peer_child.py")
        self._children.append(child)
        return child
