"""Real processes that lend pages to each other: started, asked, stopped and killed."""

from __future__ import annotations

from typing import Any

from support.lease_children import Child, ChildProcesses
from support.peer_donor import PAGE


class PeerChildren(ChildProcesses):
    """With arenas, and whole peer tiers."""

    def __init__(self) -> None:
        super().__init__("swift-peer-", "peer_child.py")

    def donor(self, name: str = "d", *, timing: dict[str, float] | None = None, **options: Any) -> Child:
        """See `LocalDonor` for the options."""
        return self._start("donor", {"directory": str(self.directory), "name": name, "timing": timing or {}, **options})

    def borrower(self, name: str = "b", donors: tuple[str, ...] = ("d",), page_bytes: int = PAGE) -> Child:
        donors_at = {donor: self.address(donor) for donor in donors}
        return self._start("borrower", {"name": name, "donors": donors_at, "page_bytes": page_bytes})
