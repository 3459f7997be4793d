"""The SSD tier: a stripe set of many devices.

`StripeSet` keeps pages on a `DeviceArray`; `layout` and docs/ssd-format.md say how; `fsck` checks and repairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .arrays.devices import Completion, DeviceArray, Operation, Request
    from .device_state import DeviceStatus, Service
    from .layout import Geometry, Placement, StoredPage
    from .namespaces import NamespaceEntry
    from .stripe_set import StripeSet, StripeSetStatus, UnitPlace
    from .transfers import ReadRequest, WriteRequest
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Completion",
    "DeviceArray",
    "DeviceStatus",
    "Geometry",
    "NamespaceEntry",
    "Operation",
    "Placement",
    "ReadRequest",
    "Request",
    "Service",
    "StoredPage",
    "StripeSet",
    "StripeSetStatus",
    "UnitPlace",
    "WriteRequest",
]
