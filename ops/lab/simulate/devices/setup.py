"""What requests are restored on: a device, and one model as it is planned for."""

from __future__ import annotations

from typing import Protocol

import msgspec

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.restore.cost import CostModel
from swift_tiers.radix_tiering.restore.plan import CHUNK_TOKENS

from ....base.devices.curve import FORWARD_TOKENS

#: The name of the source that SSDs are.
SSD = "ssd"


class Computes(Protocol):
    """A device."""

    def seconds(self, start: int, end: int) -> float:
        """One forward over tokens `[start, end)`, all before them being there."""
        ...


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one device, as it is planned for."""

    costs: CostModel
    token_bytes: int
    layers: int
    page_tokens: int = 16
    chunk_tokens: int = CHUNK_TOKENS
    #: The largest forward: over new tokens, where nothing is loaded, or where shorter ones cost much.
    forward_tokens: int = FORWARD_TOKENS

    @property
    def page_bytes(self) -> int:
        return self.token_bytes * self.page_tokens


def geometry(page_tokens: int, token_bytes: int) -> PageGeometry:
    """Of pages that are as large as they should be; how they are made up does not matter here."""
    return PageGeometry(layers=1, planes=1, tokens=page_tokens, row_bytes=token_bytes)
