"""A slot header and a page's digest, as docs/ssd-format.md says them: for tests, which have one unit at a time."""

from __future__ import annotations

from collections.abc import Sequence

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.tiers.ssd.layout import seal


def encode_header(identity: bytes, payload_digest: bytes) -> bytes:
    """A whole slot header block."""
    return seal(identity + payload_digest)


def combined_digest(unit_digests: Sequence[bytes]) -> bytes:
    """The digest of a page: that of its units' digests."""
    return page_digest(b"".join(unit_digests))
