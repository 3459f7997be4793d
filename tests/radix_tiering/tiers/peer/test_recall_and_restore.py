"""Memory that is taken back while somebody restores what lies there: all of it is saved all the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.lending.leases import Timing
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.peer import PeerTier

from support.engine import GEOMETRY, chain, check, close, get, make_stack, put, settle
from support.redis import wait_for

PAGE, PAGES = GEOMETRY.page_bytes, 120


class Fingerprints:
    """Checksums of pages, of which the next one waits when it is told so: a read is under way until then."""

    def __init__(self) -> None:
        self.held, self.reached, self.go_on = False, threading.Event(), threading.Event()

    def __call__(self, page: np.ndarray) -> bytes:
        if self.held:
            self.reached.set()
            assert self.go_on.wait(60)
        return page_digest(page)


@pytest.mark.parametrize("restoring", [False, True])
def test_what_is_being_restored_when_it_is_recalled_is_saved(room, restoring: bool) -> None:
    """More pages than are read at a time: some have come, some are being read, and some wait for their turn."""
    donor = room.donor(pages=128, page_bytes=PAGE, run_pages=128, timing=Timing(term=300.0, recall_bound=60.0))
    fingerprints = Fingerprints()
    peer = PeerTier("b", PAGE, PeerConfig(borrow=True, term=Duration(300.0)), fingerprint=fingerprints)
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
            fingerprints.held = True
            restore = stack.restore(keys)
            stack.restorer.poll(restore)
            assert fingerprints.reached.wait(60)
        donor.recall(128 * PAGE)
        if restoring:
            wait_for(lambda: [lease.state for lease in peer.service.leases()] == ["recalled"])
        fingerprints.held = False
        fingerprints.go_on.set()
        wait_for(lambda: donor.reclaimed)
        if restore is not None:
            assert settle(stack, restore).pages == PAGES
            stack.restorer.release(restore)
        assert get(stack, keys) == PAGES
        check(stack)
    finally:
        close(stack)  # before its donor
