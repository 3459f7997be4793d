"""SwiftKV models for SGLang: prompt tokens stop at a middle layer, whose output all later keys and values come from.

`served` is the package that SGLang's registry of models is given; what all of them share lies beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .later_layers import ARCHITECTURES, LaterLayers, exits_early, is_swiftkv
    from .supported import check_backends, check_swiftkv
else:
    __getattr__ = lazily(__name__)

__all__ = ["ARCHITECTURES", "LaterLayers", "check_backends", "check_swiftkv", "exits_early", "is_swiftkv"]
