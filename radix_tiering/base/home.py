"""Where this user's processes keep what can be made again: `$XDG_CACHE_HOME/swift-tiers`."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(part: str) -> Path | None:
    """Its directory for `part`, which may not be there yet. None for a user without a home, as containers have whom the
    list of users does not know."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "swift-tiers" / part
    except RuntimeError:
        return None
