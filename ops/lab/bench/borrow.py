"""What a page of lent memory takes of a processor core: in the borrower's thread, and in its donor's.

A donor and a borrower in one process, over the leases, sockets and shared memory that serve; nobody computes meanwhile.
Pages are stored and read, many at once. Small pages show what a page costs above the bytes that are copied and
verified; for large ones that is beside it. Both threads have the interpreter of a server's scheduler.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

import numpy as np

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord, page_digest
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.lending.donation.arena import SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.leases import Donor, Extent, LeaseService, Timing, ipc_address
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.peer.tier import PeerTier
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Write

from ...base.errors import CommandError
from ...commands.bench.report import Figure, finish, parser, spread, thread_seconds

#: Bytes of a page, and how many are moved at once.
SIZES = ((4096, 1024), (2304 * 1024, 64))
RUN_PAGES = 64
BOUND_MICROSECONDS = 50.0
PATIENCE_SECONDS = 60.0


class Times(NamedTuple):
    """Microseconds of a core for a page."""

    stored: float
    stored_by_donor: float
    read: float


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("borrow", __doc__, rounds=5).parse_args(argv)
    figures, details = [], {}
    for page_bytes, pages in SIZES:
        with _borrowed(page_bytes, pages) as tier:
            rounds = [_move(tier, page_bytes, pages) for _ in range(options.rounds + 1)][1:]
        name = f"{page_bytes // 1024} KiB"
        details[name] = [one._asdict() for one in rounds]
        print(f"pages of {name}, {pages} at once, {options.rounds} rounds")
        for what in Times._fields:
            values = [getattr(one, what) for one in rounds]
            print(spread(what.replace("_", " "), values, "us"))
            bound = BOUND_MICROSECONDS if page_bytes == SIZES[0][0] else None
            figures.append(Figure(f"{what}_{page_bytes // 1024}k", float(np.median(values)), "us", at_most=bound))
    return finish("borrow", figures, details, options.json)


@contextmanager
def _borrowed(page_bytes: int, pages: int) -> Iterator[PeerTier]:
    """A tier that has so many pages of a donor's memory."""
    with tempfile.TemporaryDirectory(prefix="swift-borrow-") as directory:
        os.chmod(directory, 0o700)
        address = ipc_address(Path(directory), "donor")
        arena = SharedArena(pages * page_bytes)
        # Nothing ends by time meanwhile.
        timing = Timing(term=PATIENCE_SECONDS)
        donor = Donor("donor", page_bytes, SystemRandom(), timing=timing)
        service = LeaseService(donor=donor, listen=address, on_donor=lambda effect: None)
        server = ArenaServer(address, donor.party, arena, service.lent_to)
        tier = PeerTier("borrower", page_bytes, PeerConfig(borrow=True), timing=timing)
        try:
            for run in range(pages // RUN_PAGES):
                service.stock(run + 1, [Extent(0, run * RUN_PAGES * page_bytes, RUN_PAGES * page_bytes)])
                service.fenced(run + 1)
            tier.neighbours({"donor": address})
            tier.want(pages * page_bytes)
            if not wait_for(lambda: tier.capacity_bytes >= pages * page_bytes or None, PATIENCE_SECONDS):
                raise CommandError(f"nothing was lent within {PATIENCE_SECONDS:g} s")
            yield tier
        finally:
            tier.close()
            service.close()
            server.close()
            arena.close()


def _move(tier: PeerTier, page_bytes: int, pages: int) -> Times:
    """Store so many pages and read them."""
    data = np.random.default_rng(pages).integers(0, 256, (pages, page_bytes), np.uint8)
    digests = [page_digest(page) for page in data]
    into = np.zeros_like(data)
    places = tier.reserve([page_bytes] * pages)
    record = PageRecord(b"k" * 32, ROOT_KEY, b"n" * 32, 1, page_bytes)

    def store(done: Callable[..., None]) -> None:
        tier.write([Write(record, *one, done) for one in zip(places, data, digests, strict=True)])

    def read(done: Callable[..., None]) -> None:
        copies = [Copy(place, digest, 0, whole=True) for place, digest in zip(places, digests, strict=True)]
        tier.read([Read(record, *one, done, False) for one in zip(copies, into, strict=True)])

    stored, stored_by_donor = _timed(store, pages, lambda written, why: written is not None)
    fetched, _ = _timed(read, pages, lambda outcome: outcome is ReadOutcome.OK)
    if not (into == data).all():
        raise CommandError("what was read is not what was stored")
    tier.release(places)
    return Times(stored, stored_by_donor, fetched)


def _timed(work: Callable[[Callable[..., None]], None], pages: int, well: Callable[..., bool]) -> tuple[float, float]:
    """What each page takes of the borrower's thread, and of the donor's."""
    answers: list[bool] = []
    over = threading.Event()

    def done(*what: Any) -> None:
        answers.append(well(*what))
        if len(answers) == pages:
            over.set()

    before = thread_seconds("swift-peer"), thread_seconds("swift-arena")
    work(done)
    if not over.wait(PATIENCE_SECONDS) or not all(answers):
        raise CommandError(f"{answers.count(True)} of {pages} pages were moved")
    after = thread_seconds("swift-peer"), thread_seconds("swift-arena")
    return 1e6 * (after[0] - before[0]) / pages, 1e6 * (after[1] - before[1]) / pages


if __name__ == "__main__":
    raise SystemExit(main())
