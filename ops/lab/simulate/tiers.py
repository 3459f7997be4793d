"""The tiers of one server in virtual time: the product's page tables, eviction and write-behind.

Only bytes are missing. What the threads of a real stack do is done here at the time at which they would.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from swift_tiers.radix_tiering.base.config import PolicyConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import KEY_BYTES, NAMESPACE_BYTES, ROOT_KEY, PageGeometry, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS, ThreadRunner
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import admission_policy, eviction_policy
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.way.down import Mover
from swift_tiers.radix_tiering.way.parts import AnswerBatch

from .devices.clock import Clock
from .devices.setup import SSD
from .peer_route import PEER
from .stripe_set import StripeSetModel

REMOTE = "remote"
_NAMESPACE = bytes(NAMESPACE_BYTES)


def page_key(number: int) -> bytes:
    """The key of a block of a trace."""
    return (number + 1).to_bytes(KEY_BYTES, "big")


class Claim(msgspec.Struct, frozen=True):
    """What one request found, pinned until `Tiers.finish`."""

    keys: tuple[bytes, ...]  # of the whole pages of its prompt
    on_device: int  # pages from the start
    sources: tuple[str, ...]  # of those behind them
    pages: list[Page]  # pinned
    filling: list[Page]  # of these, those that come up to host memory


class Tiers:
    """Used as SGLang's linker uses the stack: `claim` when a request arrives, `finish` when it is computed."""

    def __init__(
        self,
        clock: Clock,
        page: PageGeometry,
        *,
        device_pages: int,
        host_pages: int,
        ssd: StripeSetModel | None = None,
        policy: PolicyConfig | None = None,
        lent: bool = False,
    ) -> None:
        """`host_pages` 0: there is nothing below the device. `lent`: they are memory that neighbours lend."""
        self._clock = clock
        self._memory = PEER if lent else HERE
        self._page = page
        policy = policy or PolicyConfig()
        self._device = PageTable(_memory(page, device_pages), eviction_policy(policy), runner=THREADS)
        self.table: PageTable | None = None
        self._mover: Mover | None = None
        self.host = _memory(page, host_pages)
        if host_pages:
            self.table = PageTable(self.host, eviction_policy(policy), [] if ssd is None else [ssd], runner=THREADS)
            if ssd is not None:
                self._mover = Mover(
                    self.table,
                    self.host,
                    ssd,
                    runner=ThreadRunner(lambda: clock.now),
                    events=EventLog(lambda: clock.now),
                    admission=admission_policy(policy, page.tokens),
                    verify=False,
                )
                ssd.answer_within(AnswerBatch(self.table.lock, (self._mover.pump,)))

    # ---- requests ----

    def claim(self, numbers: Sequence[int], remote: int = 0) -> Claim:
        """What there is of a prompt of these blocks; the first `remote` of them are at least in a shared store."""
        keys = tuple(page_key(number) for number in numbers)
        on_device = self._on_device(keys)
        sources: list[str] = []
        pages: list[Page] = []
        filling: list[Page] = []
        if self.table is not None:
            with self.table.lock:
                now = self.table.tick()
                for at, key in enumerate(keys):
                    page = self.table.find(_NAMESPACE, key)
                    if at < on_device:
                        if page is not None:
                            self.table.use(page, now, len(keys))
                        continue
                    source = self._source(page) or (REMOTE if at < remote else None)
                    if source is None:
                        break
                    sources.append(source)
                    self._pin(page, keys, at, now, pages, filling)
        return Claim(keys, on_device, tuple(sources), pages, filling)

    def finish(self, claim: Claim, answer: Sequence[int] = ()) -> None:
        """The prompt is on the device, and so are these blocks that its answer made whole; they go down from there."""
        keys = (*claim.keys, *map(page_key, answer))
        self._put(self._device, keys)
        if self.table is None:
            return
        with self.table.lock:
            for page in claim.filling:
                self.table.end(page, HOST, whole=True)
            for page in claim.pages:
                self.table.unpin(page)
        entered = self._put(self.table, keys)
        if self._mover is not None:
            with self.table.lock:
                self._mover.offer(entered)

    def _on_device(self, keys: Sequence[bytes]) -> int:
        with self._device.lock:
            now = self._device.tick()
            for at, key in enumerate(keys):
                page = self._device.find(_NAMESPACE, key)
                if page is None:
                    return at
                self._device.use(page, now, len(keys))
        return len(keys)

    def limit(self, pages: int) -> None:
        """Host memory may hold only so many pages from now on; what is too much leaves as policy says."""
        assert self.table is not None
        with self.table.lock:
            self.host.limit_bytes = pages * self._page.stride_bytes
            self.table.shed(max(0, self.host.used_slots - pages))

    def _source(self, page: Page | None) -> str | None:
        if page is None:
            return None
        if page.in_host:
            return self._memory
        return SSD if page.saved else None

    def _pin(
        self, page: Page | None, keys: Sequence[bytes], at: int, now: int, pages: list[Page], filling: list[Page]
    ) -> None:
        """Keep it until it is on the device; what is not in host memory comes up there, if there is room."""
        assert self.table is not None
        if page is None:
            page = self.table.enter(self._record(keys, at), now)
            if page is None:
                return
        else:
            self.table.use(page, now, len(keys))
        self.table.pin(page)
        pages.append(page)
        if not page.in_host:
            slot = self.table.take_slot(None)
            if slot is not None:
                self.table.begin(page, HOST, slot)
                filling.append(page)
            elif not page.complete:
                pages.pop()
                self.table.drop(page)
                self.table.unpin(page)

    def _put(self, table: PageTable, keys: Sequence[bytes]) -> list[Page]:
        """Enter what is not there yet; those that are new."""
        entered = []
        with table.lock:
            now = table.tick()
            for at, key in enumerate(keys):
                page = table.find(_NAMESPACE, key)
                if page is not None:
                    table.refresh(page, now)
                    continue
                slot = table.take_slot(now)
                if slot is None:
                    break
                page = table.enter(self._record(keys, at), now)
                if page is None:
                    table.host.release([slot])
                    break
                table.begin(page, HOST, slot)
                table.end(page, HOST, whole=True)
                entered.append(page)
        return entered

    def _record(self, keys: Sequence[bytes], at: int) -> PageRecord:
        return PageRecord(keys[at], keys[at - 1] if at else ROOT_KEY, _NAMESPACE, at + 1, self._page.page_bytes)


def _memory(page: PageGeometry, pages: int) -> HostTier:
    """A slab that has no memory: every page is the same byte, over and over."""

    def nothing(nbytes: int) -> np.ndarray:
        return np.broadcast_to(np.zeros(1, dtype=np.uint8), (nbytes,))

    return HostTier(page, max(1, pages) * page.stride_bytes, allocate=nothing)
