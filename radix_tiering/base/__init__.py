"""What everything stands on: pages and namespaces, configuration, errors, events, units, threads and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .door import lazily

if TYPE_CHECKING:
    from .bounds import DonationBounds, donation_bounds
    from .config import (
        BusConfig,
        DeviceConfig,
        HostConfig,
        PeerConfig,
        PolicyConfig,
        RestoreConfig,
        SsdConfig,
        TiersConfig,
    )
    from .errand_thread import ErrandThread
    from .errors import BusError, ConfigError, FormatError, NotHeldError, StripeSetBusyError, SwiftTiersError
    from .events import Event, EventLog
    from .home import user_cache
    from .memory import huge_array
    from .page import (
        BLOCK_BYTES,
        KEY_BYTES,
        NAMESPACE_BYTES,
        ROOT_KEY,
        Namespace,
        PageGeometry,
        PageRecord,
        page_digest,
        round_up,
    )
    from .poller import BROKEN, READABLE, WRITABLE, Waker
    from .private_directory import open_private_directory
    from .read_config import dump_config, explain, load_config, parse_config, read_source
    from .redis_address import Address, parse_url
    from .runner import THREADS, Condition, Flag, Lock, Poller, Queue, Runner, Thread, ThreadRunner
    from .slot_map import MapPiece, SlotState, TierMap
    from .units import Duration, Size, format_size
    from .usable_memory import available_memory, container_room, total_memory
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "BLOCK_BYTES",
    "BROKEN",
    "KEY_BYTES",
    "NAMESPACE_BYTES",
    "READABLE",
    "ROOT_KEY",
    "THREADS",
    "WRITABLE",
    "Address",
    "BusConfig",
    "BusError",
    "Condition",
    "ConfigError",
    "DeviceConfig",
    "DonationBounds",
    "Duration",
    "ErrandThread",
    "Event",
    "EventLog",
    "Flag",
    "FormatError",
    "HostConfig",
    "Lock",
    "MapPiece",
    "Namespace",
    "NotHeldError",
    "PageGeometry",
    "PageRecord",
    "PeerConfig",
    "PolicyConfig",
    "Poller",
    "Queue",
    "RestoreConfig",
    "Runner",
    "Size",
    "SlotState",
    "SsdConfig",
    "StripeSetBusyError",
    "SwiftTiersError",
    "Thread",
    "ThreadRunner",
    "TierMap",
    "TiersConfig",
    "Waker",
    "available_memory",
    "container_room",
    "donation_bounds",
    "dump_config",
    "explain",
    "format_size",
    "huge_array",
    "load_config",
    "open_private_directory",
    "page_digest",
    "parse_config",
    "parse_url",
    "read_source",
    "round_up",
    "total_memory",
    "user_cache",
]
