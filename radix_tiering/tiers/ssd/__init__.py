"""The SSD tier: a stripe set of many devices.

`StripeSet` keeps pages on a `DeviceArray`; `layout` and docs/ssd-format.md say how; `fsck` checks and repairs.
"""

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, DeviceArray, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.device_state import DeviceStatus, Service
from swift_tiers.radix_tiering.tiers.ssd.layout import Geometry, Placement, StoredPage
from swift_tiers.radix_tiering.tiers.ssd.namespaces import NamespaceEntry
from swift_tiers.radix_tiering.tiers.ssd.stripe_set import ReadToken, StripeSet, StripeSetStatus, UnitPlace
from swift_tiers.radix_tiering.tiers.ssd.transfers import ReadOutcome, ReadRequest, WriteRequest

__all__ = [
    "Completion",
    "DeviceArray",
    "DeviceStatus",
    "Geometry",
    "NamespaceEntry",
    "Operation",
    "Placement",
    "ReadOutcome",
    "ReadRequest",
    "ReadToken",
    "Request",
    "Service",
    "StoredPage",
    "StripeSet",
    "StripeSetStatus",
    "UnitPlace",
    "WriteRequest",
]
