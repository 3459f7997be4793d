"""The remote tier: pages that other machines find, and that outlive this one, in an engine that is not ours.

`RemoteTier` is the tier; docs/remote.md says what it promises, and what it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .child_engine import ChildEngine
    from .objects import ObjectNames, ObjectShape
    from .remote_tier import RemoteSnapshot, RemoteTier
else:
    __getattr__ = lazily(__name__)

__all__ = ["ChildEngine", "ObjectNames", "ObjectShape", "RemoteSnapshot", "RemoteTier"]
