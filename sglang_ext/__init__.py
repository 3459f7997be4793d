"""Everything that knows SGLang. `plugin:load` is the entry point that SGLang calls in each of its processes.

Its door stays light: nothing of SGLang, and nothing of the engine but this, is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .arguments import SwiftServerArgs
    from .hooks import Hook, HookMismatchError, apply_hooks, check_hook, scheduler_hooks
    from .plugin import load
    from .way import SwiftLinker, SwiftRadixCache
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Hook",
    "HookMismatchError",
    "SwiftLinker",
    "SwiftRadixCache",
    "SwiftServerArgs",
    "apply_hooks",
    "check_hook",
    "load",
    "scheduler_hooks",
]
