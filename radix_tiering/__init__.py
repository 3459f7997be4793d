"""The engine: memory tiers beneath a prefix tree. It runs, and is tested, without SGLang and without a GPU.

`TierStack` is made of a `TiersConfig`, keys pages within a `Namespace`, and asks a `Planner` how a prefix comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base.door import lazily

if TYPE_CHECKING:
    from .base.config import (
        BusConfig,
        DeviceConfig,
        HostConfig,
        PeerConfig,
        PolicyConfig,
        RestoreConfig,
        SsdConfig,
        TiersConfig,
    )
    from .base.errors import BusError, ConfigError, FormatError, NotHeldError, StripeSetBusyError, SwiftTiersError
    from .base.events import Event, EventLog
    from .base.page import Namespace, PageGeometry, PageRecord, page_digest
    from .base.read_config import load_config, parse_config
    from .base.runner import THREADS, Runner
    from .restore.cost import ComputeCost, CostModel, SourceCost
    from .restore.flight import Flight
    from .restore.plan import Prefix, RestorePlan, Strategy, plan_restore
    from .restore.planner import Decision, Planner
    from .stack import TierStack
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "THREADS",
    "BusConfig",
    "BusError",
    "ComputeCost",
    "ConfigError",
    "CostModel",
    "Decision",
    "DeviceConfig",
    "Event",
    "EventLog",
    "Flight",
    "FormatError",
    "HostConfig",
    "Namespace",
    "NotHeldError",
    "PageGeometry",
    "PageRecord",
    "PeerConfig",
    "Planner",
    "PolicyConfig",
    "Prefix",
    "RestoreConfig",
    "RestorePlan",
    "Runner",
    "SourceCost",
    "SsdConfig",
    "Strategy",
    "StripeSetBusyError",
    "SwiftTiersError",
    "TierStack",
    "TiersConfig",
    "load_config",
    "page_digest",
    "parse_config",
    "plan_restore",
]
