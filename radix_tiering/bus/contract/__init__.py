"""The bus's contract: its keys, the views that readers get of them, and the commands that servers take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .commands import COMMANDS, AnyCommand, Command, CommandRefusedError, Order
    from .neighbours import lease_name, lease_scope
    from .records import PublisherNumbers, ServerInfo
    from .schema import SCHEMA_VERSION, TIER_NAME, Keys
    from .view import View
    from .view_reading import AnyView, read_server, read_view
    from .views import CommandView, RankState, ServerState, Snapshot
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "COMMANDS",
    "SCHEMA_VERSION",
    "TIER_NAME",
    "AnyCommand",
    "AnyView",
    "Command",
    "CommandRefusedError",
    "CommandView",
    "Keys",
    "Order",
    "PublisherNumbers",
    "RankState",
    "ServerInfo",
    "ServerState",
    "Snapshot",
    "View",
    "lease_name",
    "lease_scope",
    "read_server",
    "read_view",
]
