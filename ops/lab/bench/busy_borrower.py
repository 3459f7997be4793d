"""A process that borrows memory from whoever lends on a bus, and moves pages as fast as it may, when told to."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NamedTuple

from ...base.errors import CommandError

#: Bytes of a page of the borrower: of another model than the donor's.
PAGE_BYTES = 384 * 2**10
#: Copies under way.
TOGETHER = 8
PATIENCE_SECONDS = 60.0


class Moved(NamedTuple):
    """What a borrower has done while it worked."""

    bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all its threads
    lent_bytes: int = 0  # that it holds


class BusyBorrower:
    """The process, from here. A context manager: entering waits until something is lent, leaving ends it."""

    def __init__(self, bus_directory: str) -> None:
        self.moved = Moved()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_borrow, args=(theirs, bus_directory), daemon=True)

    def __enter__(self) -> BusyBorrower:
        self._process.start()
        if not self._pipe.poll(PATIENCE_SECONDS) or not self._pipe.recv():
            self._process.kill()
            raise CommandError(f"the donor lent nothing within {PATIENCE_SECONDS:g} s")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()

    def work(self) -> None:
        """Begin to move pages."""
        self._pipe.send(True)

    def rest(self) -> None:
        """Stop it, and count."""
        self._pipe.send(False)
        moved: Moved = self._pipe.recv()
        before = self.moved
        self.moved = Moved(
            before.bytes + moved.bytes,
            before.seconds + moved.seconds,
            before.cpu_seconds + moved.cpu_seconds,
            moved.lent_bytes,
        )


def _borrow(pipe: Connection, bus_directory: str) -> None:
    """In the process."""
    from swift_tiers.radix_tiering.base.config import PeerConfig
    from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
    from swift_tiers.radix_tiering.tiers.peer.tier import PeerTier

    tier = PeerTier("busy", PAGE_BYTES, PeerConfig(borrow=True))
    try:
        addresses = find_donors(bus_directory)
        if addresses:
            tier.neighbours(addresses)
            tier.want(2**40)
            wait_for(lambda: tier.capacity_bytes or None, PATIENCE_SECONDS)
        pipe.send(tier.capacity_bytes > 0)
        while pipe.recv():
            pipe.send(_move(tier, pipe))
    except (EOFError, OSError):
        pass  # whoever asked has ended
    finally:
        tier.close()


def find_donors(bus_directory: str) -> dict[str, str]:
    """Who lends, by lease name with the address; empty if nobody does for long."""
    from swift_tiers.radix_tiering.base.config import BusConfig
    from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
    from swift_tiers.radix_tiering.bus.hear.reader import BusReader
    from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

    def look() -> dict[str, str] | None:
        with BusReader.open(BusConfig(directory=bus_directory), "busy-borrower") as reader:
            lenders = [rank for rank in reader.ranks() if rank.lease_address]
        return {lease_name(rank.server, rank.rank): rank.lease_address for rank in lenders}

    return wait_for(lambda: look() or None, PATIENCE_SECONDS) or {}


def _move(tier: object, pipe: Connection) -> Moved:
    """Read a page and store a page, by turns, `TOGETHER` copies at a time, until there is word from the pipe."""
    import numpy as np

    from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord, page_digest
    from swift_tiers.radix_tiering.table.tier_copies import Copy
    from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
    from swift_tiers.radix_tiering.tiers.peer.tier import PeerTier
    from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Write, Written

    assert isinstance(tier, PeerTier)
    generator = random.Random(0)
    page = np.random.default_rng(0).integers(0, 256, PAGE_BYTES, dtype=np.uint8)
    digest, buffers = page_digest(page), [np.empty(PAGE_BYTES, np.uint8) for _ in range(TOGETHER)]
    free = threading.Semaphore(TOGETHER)
    record = PageRecord(bytes(32), ROOT_KEY, bytes(32), 1, PAGE_BYTES)
    stored: list[PeerPlace] = []
    counted = 0
    started, cpu_before = time.perf_counter(), time.process_time()

    def wrote(written: Written | None, reason: str) -> None:
        nonlocal counted
        if written is not None:
            stored.append(written.place)
            counted += PAGE_BYTES
        free.release()

    def fetched(buffer: np.ndarray, outcome: ReadOutcome) -> None:
        nonlocal counted
        counted += PAGE_BYTES if outcome is ReadOutcome.OK else 0
        buffers.append(buffer)
        free.release()

    while not pipe.poll():
        if not free.acquire(timeout=0.1):
            continue
        places = tier.reserve([PAGE_BYTES]) if len(stored) < 4 or generator.random() < 0.5 else []
        if places:
            tier.write([Write(record, places[0], page, digest, wrote)])
        elif stored and generator.random() < 0.5:
            tier.release([stored.pop(generator.randrange(len(stored)))])
            free.release()
        elif stored:
            buffer = buffers.pop()
            copy = Copy(generator.choice(stored), digest, 0, whole=True)
            tier.read([Read(record, copy, buffer, partial(fetched, buffer))])
        else:
            free.release()
            time.sleep(0.01)  # nothing is lent just now
    pipe.recv()
    for _ in range(TOGETHER):
        free.acquire()
    tier.release(stored)
    spent = time.perf_counter() - started
    return Moved(counted, spent, time.process_time() - cpu_before, tier.capacity_bytes)
