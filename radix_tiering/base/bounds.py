"""How much of its pool a donor may lend, as its operator writes it."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import ConfigError

_RANGE = re.compile(r"\s*(\d{1,3})\s*%?\s*\.\.\s*(\d{1,3})\s*%\s*")


class DonationBounds(NamedTuple):
    """Shares of the device pool, 0 to 1."""

    least: float  # lent unless the donor's own requests need it
    most: float


def donation_bounds(donate: bool | str) -> DonationBounds | None:
    """The bounds that `peer.donate` sets; None: nothing is lent. Raises ConfigError."""
    if donate is False:
        return None
    if donate is True:
        return DonationBounds(0.0, 1.0)
    match = _RANGE.fullmatch(donate)
    least, most = (int(match[1]), int(match[2])) if match else (1, 0)
    if not least <= most <= 100:
        raise ConfigError(
            f'peer.donate: {donate!r} is not true, false or a range of the pool; use for example "0..60%"'
        )
    if not most:
        raise ConfigError(f'peer.donate: {donate!r} lends nothing; use for example "0..60%", or false')
    return DonationBounds(least / 100, most / 100)
