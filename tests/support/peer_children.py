"""Real processes that lend pages to each other: started, asked, stopped and killed."""

from __future__ import annotations

from typing import Any

from support.lease_children import Child, ChildProcesses
from support.peer_donor import PAGE


class PeerChildren(ChildProcesses):
    """With arenas, and whole peer tiers. `on_gpus`: donors lend memory of a GPU, borrowers map it for another one; both
    are fakes."""

    def __init__(self, *, on_gpus: bool = False) -> None:
        super().__init__("swift-peer-", "peer_child.py")
        self.on_gpus = on_gpus

    def donor(self, name: str = "d", *, timing: dict[str, float] | None = None, **options: Any) -> Child:
        """See `LocalDonor` for the options."""
        if self.on_gpus:
            options["gpu"] = f"GPU-{name}"
        return self._start("donor", {"directory": str(self.directory), "name": name, "timing": timing or {}, **options})

    def borrower(self, name: str = "b", donors: tuple[str, ...] = ("d",), page_bytes: int = PAGE) -> Child:
        donors_at = {donor: self.address(donor) for donor in donors}
        gpu = f"GPU-{name}" if self.on_gpus else None
        return self._start("borrower", {"name": name, "donors": donors_at, "page_bytes": page_bytes, "gpu": gpu})
