"""Devices that are not here: links and SSDs as models in virtual time, and requests that are restored on them.

What decides is the product's own code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .clock import Clock
    from .lines import Done, Line, Stripes
    from .restoring import Method, Request, Restoration, Server
    from .setup import Setup
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Clock",
    "Done",
    "Line",
    "Method",
    "Request",
    "Restoration",
    "Server",
    "Setup",
    "Stripes",
]
