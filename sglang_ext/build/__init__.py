"""What a scheduler is given at its start: the identity of its model, its tiers, its bus and its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .assembly import build_tiers, check_machine
    from .content_names import ContentNames
    from .identity import begin_loading
    from .kept_prefixes import KeptPrefixes
    from .peer_side import PeerSide
    from .reporting import Reporting
else:
    __getattr__ = lazily(__name__)

__all__ = ["ContentNames", "KeptPrefixes", "PeerSide", "Reporting", "begin_loading", "build_tiers", "check_machine"]
