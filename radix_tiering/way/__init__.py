"""The way of pages: down (`down`), up (`up`), and what both need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .down import Intake, Mover
    from .parts import Parts
    from .request_restore import Readiness, Restore, RestoreState
    from .up import Restorer
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Intake",
    "Mover",
    "Parts",
    "Readiness",
    "Restore",
    "RestoreState",
    "Restorer",
]
