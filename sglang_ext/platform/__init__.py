"""A portable CPU platform for SGLang: for machines that have no accelerator.

`registering:activate` is the entry point that SGLang asks in every process, so nothing is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .cpu_attention_backend import CpuAttentionBackend
    from .cpu_platform import PortableCpuPlatform
    from .registering import activate, has_accelerator
else:
    __getattr__ = lazily(__name__)

__all__ = ["CpuAttentionBackend", "PortableCpuPlatform", "activate", "has_accelerator"]
