"""The page table: which pages there are, which tier has a copy of each, and which may leave.

Its three rules are the head of `page_table`; `check_rules` checks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .held_page import Page, Places
    from .page_table import PageTable
    from .policy import AdmissionPolicy, EvictionPolicy, admission_policy, eviction_policy
    from .rules import check_rules
    from .tier_copies import HOST, Copy, Part, TierCopies
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "HOST",
    "AdmissionPolicy",
    "Copy",
    "EvictionPolicy",
    "Page",
    "PageTable",
    "Part",
    "Places",
    "TierCopies",
    "admission_policy",
    "check_rules",
    "eviction_policy",
]
