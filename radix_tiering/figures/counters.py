"""What the tiers count, and the one typed snapshot of it that everything else publishes.

Counters only grow. They are changed under the stack's lock or by the one thread that owns them; a snapshot may be
taken by any thread and is consistent to within one page.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import msgspec

#: Ways between tiers. Those to and from the device are counted by whoever drives the stack.
DEVICE_LINKS = ("device-host", "host-device")
SSD_LINKS = ("host-ssd", "ssd-host")
#: Upper bounds of the latency buckets, seconds: powers of two from 16 us to 8 s; the last bucket has no bound.
LATENCY_BOUNDS = tuple(16e-6 * 2**power for power in range(20))


class LatencyHistogram:
    """Counts of durations in fixed buckets, in the manner of a Prometheus histogram."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.sum_seconds += seconds

    def snapshot(self) -> LatencySnapshot:
        return LatencySnapshot(counts=tuple(self.counts), sum_seconds=self.sum_seconds)


class LatencySnapshot(msgspec.Struct, frozen=True):
    """`counts[i]` durations were at most `LATENCY_BOUNDS[i]` seconds; the last count is of those above all bounds."""

    counts: tuple[int, ...]
    sum_seconds: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The seconds that this share (0 to 1) of the durations did not exceed, as Prometheus' `histogram_quantile`
        finds them: durations are taken to lie evenly within their bucket, whose bounds are a factor of two apart.

        The last bound where it lies above all of them; None if nothing was counted.
        """
        wanted = share * self.count
        lower = so_far = 0.0
        for counted, upper in zip(self.counts, LATENCY_BOUNDS, strict=False):
            if counted and so_far + counted >= wanted:
                return lower + (upper - lower) * max(0.0, wanted - so_far) / counted
            lower, so_far = upper, so_far + counted
        return LATENCY_BOUNDS[-1] if self.count else None

    def contains(self, earlier: LatencySnapshot) -> bool:
        """Whether this may be the same histogram, later: counts only grow."""
        return all(now >= before for now, before in zip(self.counts, earlier.counts, strict=True))

    def since(self, earlier: LatencySnapshot) -> LatencySnapshot:
        """What was counted after `earlier`."""
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return LatencySnapshot(counts=counts, sum_seconds=self.sum_seconds - earlier.sum_seconds)


#: Nothing was counted.
NO_LATENCY = LatencySnapshot(counts=(0,) * (len(LATENCY_BOUNDS) + 1), sum_seconds=0.0)


class LinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One way between two tiers, since the start. Copies that failed do not count."""

    transfers: int  # copies, each of one or more pages
    pages: int
    bytes: int
    seconds: float  # from handing a copy over to its end, summed; copies side by side count each
    latency: LatencySnapshot  # of one copy, likewise


class LinkCounters:
    """The growing part of a link. Counted by one thread, or under the page table's lock."""

    __slots__ = ("bytes", "latency", "pages", "seconds", "transfers")

    def __init__(self) -> None:
        self.transfers = 0
        self.pages = 0
        self.bytes = 0
        self.seconds = 0.0
        self.latency = LatencyHistogram()

    def count(self, pages: int, nbytes: int, seconds: float) -> None:
        """One copy has ended well. `seconds`: from handing it over to its end."""
        self.transfers += 1
        self.pages += pages
        self.bytes += nbytes
        self.seconds += seconds
        self.latency.observe(seconds)

    def snapshot(self) -> LinkSnapshot:
        return LinkSnapshot(
            transfers=self.transfers,
            pages=self.pages,
            bytes=self.bytes,
            seconds=self.seconds,
            latency=self.latency.snapshot(),
        )


class DirectorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the pages known below the device. Those on their way in for the first time are in `pages` alone."""

    pages: int  # each once, wherever its copies are
    host_only_pages: int
    ssd_only_pages: int
    peer_only_pages: int
    both_pages: int  # with copies in two tiers or more
    deepest_pages: int  # pages before and with the deepest one
    first_pages: int  # beginnings of sequences
    foreign_pages: int  # of other namespaces


class TierSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One tier at one moment. Pages and bytes are of this server's rank."""

    capacity_bytes: int
    limit_bytes: int  # what it may hold: a cap that an operator set, or the capacity
    used_bytes: int  # what it holds, padding included
    pages: int  # held now
    pinned_pages: int  # held for a request or by an operator: not evicted
    hits: int  # pages that requests got from this tier
    misses: int  # pages that requests asked for and this tier did not have
    bytes_read: int  # left the tier upwards
    bytes_written: int  # entered the tier
    evictions: int  # pages dropped or demoted to make room
    refusals: dict[str, int]  # pages not taken in, by reason
    checksum_failures: int  # pages found damaged, dropped, never served
    read_latency: LatencySnapshot  # of one restore, all its pages, from this tier


class StripeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The stripe set beneath the ssd tier at one moment."""

    set_id: str  # hex
    unit_bytes: int
    devices: int  # in the set and found, those out of service included
    missing: int  # members that were not found on opening
    capacity_units: int  # of the devices that take new pages
    free_units: int  # that can be written now
    queued: int  # transfers accepted and not yet answered
    reads: dict[str, int]  # answered, by outcome: "ok", "corrupt: checksum", ...


class DeviceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One device of the stripe set at one moment, counted since it was opened."""

    path: str
    service: str  # "in service", "draining", "out"
    in_service: bool  # it serves the pages that it has: in service or draining
    reason: str  # why it is not in service, or empty
    capacity_bytes: int
    used_bytes: int  # reserved or holding pages
    bytes_read: int
    bytes_written: int
    reads: int  # requests
    writes: int
    read_errors: int
    write_errors: int
    corrupt_units: int  # stripe units that were not what was written
    in_flight: int  # requests under way
    latency: LatencySnapshot  # of one request, reads and writes together

    @property
    def requests(self) -> int:
        return self.reads + self.writes

    @property
    def errors(self) -> int:
        return self.read_errors + self.write_errors


class RestoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that waited for pages from below the device."""

    started: int
    completed: int  # every page that was found came up in time
    cut_short: int  # some pages did not come up: damaged, lost, or no room
    split: int  # the device computed a part of the pages while the others came up
    expired: int  # the deadline passed; the rest was recomputed
    cancelled: int  # the request ended first
    failed_loads: int  # a copy to the device failed: SGLang answered 503 for its requests
    late: int  # fell behind their estimates: what had not come by then was computed
    lost_pages: int  # were found and did not come: damaged, unreadable, no room; computed


class StackSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tier stack of one rank at one moment."""

    namespace: str  # hex digest
    rank: str
    page_bytes: int
    tokens_per_page: int
    tiers: dict[str, TierSnapshot]
    links: dict[str, LinkSnapshot]  # "device-host", ...
    directory: DirectorySnapshot
    stripe: StripeSnapshot | None  # None without an ssd tier
    devices: tuple[DeviceSnapshot, ...]
    restores: RestoreSnapshot
    io_engine: str  # how the ssd tier reads and writes, or empty
    write_queue_pages: int  # admitted to ssd, not yet written
    landing_pages: int  # that landing memory holds at most; 0: there is none
    landing_used_pages: int  # of these, in use or reserved
    events_emitted: int


class PageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One page at one moment."""

    namespace: str  # hex digest
    depth: int  # its position in its sequence, from 1
    parent: str  # hex key of the page before it, or empty
    children: int  # pages that follow it
    bytes: int
    uses: int  # requests that used it
    pins: int  # requests and operators that hold it
    host_slot: int | None
    peer: str  # "DONOR lease N slot N" of the copy in lent memory, or empty
    ssd_placement: tuple[tuple[int, int], ...]  # device number and slot of each stripe unit
    generation: int | None  # of the copy on ssd
    checksum: str  # hex; empty where it is not known yet
    last_used_seconds: float | None  # ago, about; None: not since the start of the stack, or too long ago
    origin: str  # "computed here", or "recovered" from the devices at the start


class PagePlaces(NamedTuple):
    """Where one page of a sequence is, at one moment."""

    depth: int  # its position in the sequence, from 1
    key: str  # hex
    device_slot: int | None = None
    host_slot: int | None = None
    peer: tuple[str, int, int] | None = None  # donor, lease, slot
    ssd_placement: tuple[tuple[int, int], ...] = ()


class TierCounters:
    """The growing part of a `TierSnapshot`."""

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "checksum_failures",
        "evictions",
        "hits",
        "misses",
        "read_latency",
        "refusals",
    )

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.evictions = 0
        self.checksum_failures = 0
        self.refusals: dict[str, int] = {}
        self.read_latency = LatencyHistogram()

    def refuse(self, reason: str, pages: int = 1) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + pages

    def snapshot(
        self, *, capacity_bytes: int, limit_bytes: int, used_bytes: int, pages: int, pinned_pages: int
    ) -> TierSnapshot:
        return TierSnapshot(
            capacity_bytes=capacity_bytes,
            limit_bytes=limit_bytes,
            used_bytes=used_bytes,
            pages=pages,
            pinned_pages=pinned_pages,
            hits=self.hits,
            misses=self.misses,
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            evictions=self.evictions,
            refusals=dict(self.refusals),
            checksum_failures=self.checksum_failures,
            read_latency=self.read_latency.snapshot(),
        )
