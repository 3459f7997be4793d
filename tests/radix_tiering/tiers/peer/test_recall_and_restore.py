"""Memory that is taken back while somebody restores what lies there: all of it is saved all the same."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.lending.leases import Timing
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.peer import PeerTier

from support.engine import GEOMETRY, chain, check, close, get, make_stack, put, settle
from support.peer_tier import Gate
from support.redis import wait_for

PAGE, PAGES = GEOMETRY.page_bytes, 120


@pytest.mark.parametrize("restoring", [False, True])
def test_what_is_being_restored_when_it_is_recalled_is_saved(room, restoring: bool) -> None:
    """More pages than are read at a time: some have come, some are being read, and some wait for their turn."""
    donor = room.donor(pages=128, page_bytes=PAGE, run_pages=128, timing=Timing(term=300.0, recall_bound=60.0))
    gate = Gate()
    peer = PeerTier("b", PAGE, PeerConfig(borrow=True, term=Duration(300.0)), fingerprint=gate)
    stack = make_stack(host_pages=300, lent=peer)
    try:
        peer.neighbours({"d": donor.address})
        keys = chain(*range(PAGES))
        put(stack, keys)
        wait_for(lambda: stack.snapshot().tiers["peer"].pages == PAGES)
        with stack.table.lock:
            for page in reversed(stack.table.listed()):
                stack.table.lose(page, HOST)
        restore = None
        if restoring:
            gate.shut = True
            restore = stack.restore(keys)
            stack.restorer.poll(restore)
            assert gate.reached.acquire(timeout=60)
        donor.recall(128 * PAGE)
        if restoring:
            wait_for(lambda: [lease.state for lease in peer.service.leases()] == ["recalled"])
        gate.shut = False
        gate.go_on.release()
        wait_for(lambda: donor.reclaimed)
        if restore is not None:
            assert settle(stack, restore).pages == PAGES
            stack.restorer.release(restore)
        assert get(stack, keys) == PAGES
        check(stack)
    finally:
        close(stack)  # before its donor
