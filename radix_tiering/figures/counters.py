"""What the tiers count, and the one typed snapshot of it that everything else publishes.

Counters only grow. They are changed under the stack's lock or by the one thread that owns them; a snapshot may be
taken by any thread and is consistent to within one page.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Generic, NamedTuple, Never

import msgspec

from .declare import NO_SERIES, Figures, Gap, Series, counter, each, fact, gauge, histogram, several, text
from .forms import PLACEMENT

#: Ways between tiers. Those to and from the device are counted by whoever drives the stack.
DEVICE_LINKS = ("device-host", "host-device")
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


class LinkCounts(Figures, Generic[Gap]):
    """What is counted of one way between two tiers, since the start. Copies that failed do not count."""

    transfers: int | Gap = counter("copies, each of one or more pages")
    pages: int | Gap = counter("")
    bytes: int | Gap = counter("")
    # From handing a copy over to its end.
    seconds: float | Gap = counter("spent copying, summed; copies side by side count each")


class LinkSnapshot(LinkCounts[Never]):
    """One way between two tiers at one moment."""

    latency: LatencySnapshot = histogram("copies", Series("link_copy_seconds"))


class LinkCounters(LinkCounts[Never], counts=True):
    """The growing part of a link. Counted by one thread, or under the page table's lock."""

    latency: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)

    def count(self, pages: int, nbytes: int, seconds: float, *, exact: bool = True) -> None:
        """One copy has ended well. `seconds`: from handing it over to its end; not `exact`: about so many."""
        self.transfers += 1
        self.pages += pages
        self.bytes += nbytes
        self.seconds += seconds
        self.latency.observe(seconds)

    def snapshot(self) -> LinkSnapshot:
        counted = {name: getattr(self, name) for name in LinkSnapshot.__struct_fields__}
        return LinkSnapshot(**{**counted, "latency": self.latency.snapshot()})


class TierGauges(Figures, Generic[Gap]):
    """What one tier holds now. Pages and bytes are of this server's rank."""

    capacity_bytes: int | Gap = gauge("what the tier can hold")
    used_bytes: int | Gap = gauge("what it holds, padding included")
    pages: int | Gap = gauge("pages it holds")
    only_pages: int | Gap = gauge("of these, pages that no other tier below the device holds")
    pinned_pages: int | Gap = gauge("pages held for a request or by an operator: not evicted")
    limit_bytes: int | Gap = gauge("a cap set by an operator, or the capacity")
    unread_pages: int | Gap = gauge(
        "pages that it has kept over a restart, and that are misses until entered; 1 until it is known how many"
    )


class TierCounts(Figures, Generic[Gap]):
    """What is counted of one tier, since the start."""

    hits: int | Gap = counter("pages that requests got from it")
    misses: int | Gap = counter("pages that requests asked for and it did not have")
    bytes_read: int | Gap = counter("left it upwards")
    bytes_written: int | Gap = counter("entered it")
    evictions: int | Gap = counter("pages dropped or demoted to make room")
    checksum_failures: int | Gap = counter("pages found damaged: dropped, never served")


class TierSnapshot(TierGauges[Never], TierCounts[Never]):
    """One tier at one moment."""

    refusals: dict[str, int] = each("pages not taken in, by reason", series=Series("refusals", "reason"))
    read_latency: LatencySnapshot = histogram(
        "from host memory: copies of a request's pages to the device; from others: reads of a page",
        Series("restore_seconds"),
    )


class TierCounters(TierCounts[Never], counts=True):
    """The growing part of a `TierSnapshot`."""

    refusals: dict[str, int] = msgspec.field(default_factory=dict)
    read_latency: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)

    def refuse(self, reason: str, pages: int = 1) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + pages

    def snapshot(self, **gauges: int) -> TierSnapshot:
        """`gauges`: all of `TierGauges`."""
        counted = msgspec.structs.asdict(self)
        own = {"refusals": dict(self.refusals), "read_latency": self.read_latency.snapshot()}
        return TierSnapshot(**{**counted, **own, **gauges})


class DirectoryFigures(Figures, Generic[Gap]):
    """Summary of the pages known below the device. Those on their way in for the first time are in `pages` alone."""

    pages: int | Gap = gauge("known below the device, each once")
    both_pages: int | Gap = gauge("with copies in two tiers or more")
    deepest_pages: int | Gap = gauge("pages before and with the deepest one")
    first_pages: int | Gap = gauge("beginnings of sequences")
    foreign_pages: int | Gap = gauge("of other namespaces: other weights, other models")


class DirectorySnapshot(DirectoryFigures[Never]):
    """The directory at one moment."""


class StripeFigures(Figures, Generic[Gap]):
    """The stripe set beneath the ssd tier."""

    unit_bytes: int | Gap = fact("of a stripe unit")
    devices: int | Gap = gauge("in the set and found, out of service or not", series=NO_SERIES)
    missing: int | Gap = gauge("members that were not found on opening", series=Series("stripe_missing_devices"))
    capacity_units: int | Gap = gauge("of the devices that take new pages", series=NO_SERIES)
    free_units: int | Gap = gauge("that can be written now", series=NO_SERIES)
    queued: int | Gap = gauge("transfers accepted and not yet answered", series=NO_SERIES)
    coded: int | Gap = counter(
        "pages written in fewer units than they have, by `ssd.codec`", series=Series("stripe_coded_pages")
    )
    saved_bytes: int | Gap = gauge(
        "that the pages there, coded, do not take of their units", series=Series("stripe_saved_bytes")
    )
    reads: dict[str, int] = each(
        "reads by outcome: `ok`, `corrupt: checksum`, ...", series=Series("stripe_reads", "outcome")
    )


class StripeSnapshot(StripeFigures[Never]):
    """The stripe set at one moment."""

    set_id: str  # hex


class DeviceFigures(Figures, Generic[Gap]):
    """One device of the stripe set."""

    path: str = text("device file or block device")
    service: str = text("`in service`, `draining` or `out`")
    reason: str = text("why it is not in service; empty if it is")
    capacity_bytes: int | Gap = gauge("of its slots")
    used_bytes: int | Gap = gauge("reserved or holding pages")
    in_flight: int | Gap = gauge("requests under way")


class DeviceCounts(Figures, Generic[Gap]):
    """What is counted of one device, since it was opened."""

    bytes_read: int | Gap = counter("")
    bytes_written: int | Gap = counter("")
    reads: int | Gap = counter("requests")
    writes: int | Gap = counter("requests")
    read_errors: int | Gap = counter("")
    write_errors: int | Gap = counter("")
    corrupt_units: int | Gap = counter("stripe units that were not what was written")


class DeviceCounters(DeviceCounts[Never], counts=True):
    """The growing part of a `DeviceSnapshot`."""

    latency: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)

    def snapshot(self, **others: Any) -> DeviceSnapshot:
        """`others`: all of `DeviceFigures`, and whether it serves."""
        return DeviceSnapshot(**{**msgspec.structs.asdict(self), "latency": self.latency.snapshot(), **others})


class DeviceSnapshot(DeviceFigures[Never], DeviceCounts[Never]):
    """One device at one moment."""

    in_service: bool = gauge("1 while it serves the pages that it has: in service or draining")
    takes_pages: bool = gauge("1 while new pages go there: in service, and neither drained nor full")
    latency: LatencySnapshot = histogram("requests, reads and writes", Series("device_request_seconds"))

    @property
    def requests(self) -> int:
        return self.reads + self.writes

    @property
    def errors(self) -> int:
        return self.read_errors + self.write_errors


_ENDED = Series("restores", "outcome", "restores that have ended, by outcome")


def _ended(help: str, outcome: str) -> Any:
    return counter(help, series=_ENDED._replace(value=outcome))


class RestoreFigures(Figures, Generic[Gap]):
    """Requests that waited for pages from below the device."""

    restores_started: int | Gap = counter("requests of which pages were found below the device")
    restores_completed: int | Gap = _ended("every page that was found came up in time", "completed")
    restores_cut_short: int | Gap = _ended("some pages did not come up: damaged, lost, or no room", "cut short")
    restores_split: int | Gap = _ended("a part was computed while the rest came up", "split")
    restores_expired: int | Gap = _ended("the deadline passed; the rest was recomputed", "expired")
    restores_cancelled: int | Gap = _ended("the request ended first", "cancelled")
    failed_loads: int | Gap = counter("copies to the device that failed: SGLang answered 503")
    restores_late: int | Gap = counter(
        "fell behind their estimates: what had not come was computed; see `restore.behind`"
    )
    restores_copied_first: int | Gap = counter(
        "were copied to the device while others decoded, before the forward that needed them"
    )
    lost_pages: int | Gap = counter(
        "pages that were found and did not come, by all restores; see `restore.pages_lost`",
        series=Series("restore_lost_pages"),
    )


class RestoreSnapshot(RestoreFigures[Never]):
    """What was counted of restores until one moment."""


class StackFigures(Figures, Generic[Gap]):
    """The tier stack of one rank, beside its tiers."""

    page_bytes: int | Gap = fact("bytes of a page below the device")
    page_codec: str = text(
        "in which pages are kept below the device: `fp8`, `int8`, `int4`, which lose something; empty: as they are"
    )
    io_engine: str = text("how the ssd tier reads and writes; empty without one")
    write_queue_pages: int | Gap = gauge("admitted to ssd and not yet written; of their prefixes a part")
    landing_pages: int | Gap = gauge("that landing memory on the GPU holds at most; 0 without any")
    landing_used_pages: int | Gap = gauge("of these, in use or reserved")
    outgoing_pages: int | Gap = gauge("that outgoing memory on the GPU holds at most; 0 without any")
    outgoing_used_pages: int | Gap = gauge("of these, in use")
    hung_threads: int | Gap = gauge(
        "threads of swift-tiers, and SGLang's scheduler where it is in its code, that have not got on for ten seconds: "
        "see events `thread.hangs`"
    )
    remote_engine: str = text(
        "of the remote tier: `starting`, `asked`, `not asked` for a while, since it missed its deadlines or failed, or "
        "`cannot be opened`, and is tried again; empty without one"
    )
    remote_engine_asked: int | None = gauge(
        "1 while the remote engine is asked, 0 while it is not; not said without one"
    )
    remote_questions: int | Gap = counter("asked of the remote engine: what is there of a prompt?")
    remote_late: int | Gap = counter("questions, reads and writes that the remote engine did not answer in time")
    remote_errors: int | Gap = counter("questions, reads and writes that the remote engine answered with an error")
    remote_lost: int | Gap = counter("objects that the remote engine should have, and had not")
    remote_bad: int | Gap = counter("objects that were not what they should be: never served")


class StackSnapshot(StackFigures[Never]):
    """The whole tier stack of one rank at one moment."""

    namespace: str  # hex digest
    tokens_per_page: int
    tiers: dict[str, TierSnapshot]
    links: dict[str, LinkSnapshot]  # "device-host", ...
    directory: DirectorySnapshot
    stripe: StripeSnapshot | None  # None without an ssd tier
    devices: tuple[DeviceSnapshot, ...]
    restores: RestoreSnapshot
    events_emitted: int = counter("of this rank", series=Series("events"))


class PageFigures(Figures, Generic[Gap]):
    """One page."""

    namespace: str = text("hex digest")
    depth: int | Gap = fact("its position in its sequence, from 1")
    parent: str = text("hex key of the page before it; empty for a first page")
    children: int | Gap = gauge("pages that follow it")
    bytes: int | Gap = fact("")
    uses: int | Gap = counter("requests that used it")
    pins: int | Gap = gauge("requests and operators that hold it")
    host_slot: int | None = fact("empty if host memory does not have it")
    peer: str = text("`DONOR lease NUMBER slot NUMBER` of the copy in another server's memory; empty without one")
    ssd_placement: tuple[tuple[int, int], ...] = several(
        "`DEVICE:SLOT ...`, one for each stripe unit; empty if ssd does not have it", PLACEMENT
    )
    generation: int | None = fact("of the copy on ssd; empty without one")
    checksum: str = text("hex, of its bytes; empty where it is not known yet")
    last_used_seconds: float | None = fact(
        "before `time`, to within an interval; empty if not since this server's start"
    )
    origin: str = text("`computed here`, or `recovered` from the devices at the start")


class PageFacts(PageFigures[Never]):
    """One page at one moment."""


class PagePlaces(NamedTuple):
    """Where one page of a sequence is, at one moment."""

    depth: int  # its position in the sequence, from 1
    key: str  # hex
    device_slot: int | None = None
    host_slot: int | None = None
    peer: tuple[str, int, int] | None = None  # donor, lease, slot
    ssd_placement: tuple[tuple[int, int], ...] = ()
