"""A request's way: the tree finds its prefix, the linker looks below the device, and its pages come up or go down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .cache import SwiftRadixCache
    from .layer_wise import LayerWise
    from .linker import SwiftLinker
    from .restoring import RestoringAdder
else:
    __getattr__ = lazily(__name__)

__all__ = ["LayerWise", "RestoringAdder", "SwiftLinker", "SwiftRadixCache"]
