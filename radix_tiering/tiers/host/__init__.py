"""Memory of this server's own: the host tier, and landing memory of the device, where pages arrive beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .host_tier import HostTier
    from .landing import Landing, LandingSlots, landing_slots
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "HostTier",
    "Landing",
    "LandingSlots",
    "landing_slots",
]
