"""A tier stack that borrows memory, whose pages land on a device as far as there is room."""

from __future__ import annotations

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.table.tier_copies import HOST

from support.engine import GEOMETRY, make_stack, put


def landing(slots: int = 8, host_pages: int = 4, ssd=None, **options):
    """A stack, what it borrows, and the lease."""
    words = {"fingerprint": ssd.fingerprint} if ssd is not None else {}
    peer = ModelPeer(GEOMETRY.page_bytes, landing_slots=slots, **words)
    stack = make_stack(host_pages=host_pages, lent=peer, ssd=ssd, **options)
    key = peer.lend(16)
    peer.settle()
    return stack, peer, key


def leave_with_peers(stack, peer, keys: list[bytes]) -> list[bytes]:
    """Put pages in, and take them out of host memory again once peers have them."""
    put(stack, keys)
    stack.wait_written(10)
    stack.restorer.wait_idle()
    while stack.movers["peer"].backlog:
        peer.settle()
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            stack.table.lose(page, HOST)
    return keys
