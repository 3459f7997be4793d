"""What requests are restored on: a device, and one model as it is planned for."""

from __future__ import annotations

import msgspec

from swift_tiers.radix_tiering.restore.cost import CostModel
from swift_tiers.radix_tiering.restore.plan import CHUNK_TOKENS

from ....base.devices.curve import FORWARD_TOKENS


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
