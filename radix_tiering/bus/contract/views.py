"""What a reader of the bus sees: one type for each kind of key, whose figures are the fields of its hash.

None, or an empty text or collection, means that it was not said: the key's writer knows no such field, or has nothing
to say there. It never means zero. A field that is no figure follows from the key's name, or from when it was read.
"""

from __future__ import annotations

from typing import Any, Generic

from ...figures.counters import (
    DeviceCounts,
    DeviceFigures,
    DirectoryFigures,
    LinkCounts,
    PageFigures,
    RestoreFigures,
    StackFigures,
    StripeFigures,
    TierCounts,
    TierGauges,
)
from ...figures.declare import Figures, Gap, Series, counter, each, fact, gauge, several, text
from ...figures.forms import (
    CELLS,
    LEASES,
    NAMES,
    NODES,
    OBJECT,
    PARTS,
    PREFIX,
    TABLE,
    LeaseEntry,
    MapPart,
    NodeEntry,
    PrefixPage,
)
from ...figures.telemetry import EngineFigures, RequestFigures, TreeFigures
from .gpu_views import GpuView, ReachView
from .view import P50, P99, RankedView, View, lease_name

#: How many a rank names at most: others that it lends to, or borrows from; leases with each.
MOST_PARTNERS, MOST_LISTED_LEASES = 64, 128
#: How many pages of a sequence an answer lists at most.
MOST_LISTED_PAGES = 4096
#: Of a request: it has ended.
ENDED_STATES = frozenset({"finished", "aborted"})
#: Of a command: nothing more will become of it.
FINAL_STATES = frozenset({"done", "refused", "expired", "partly"})


class ServerFigures(Figures, Generic[Gap]):
    """What does not change while a server runs."""

    host: str = text("host name")
    address: str = text("host:port of its HTTP endpoint")
    started: float | Gap = fact("time")  # by its own clock as it is set now
    version: str = text("of swift-tiers")
    sglang_version: str = text("of SGLang")
    model: str = text("path or name of the model")
    ranks: tuple[str, ...] = several("names of the ranks on this Redis, joined by commas", NAMES)


class ServerView(View, ServerFigures[None]):
    """One server, alive or gone. Of a gone one, only its name and how long ago it was heard of are known."""

    alive: bool
    up_seconds: float | None = None  # since it started
    pid: int | None = fact("process of rank dp0-tp0")
    interval_seconds: float | None = fact("between two publishings")
    clock_offset_seconds: float | None = gauge("its clock minus Redis' clock")
    control: bool | None = fact("1 if it obeys commands, 0 if not")
    configuration: dict[str, Any] = several("JSON of the effective configuration, without secrets", OBJECT)


class PublisherCounts(Figures, Generic[Gap]):
    """What a publisher counts about itself."""

    events: int | Gap = counter("sequence number of the newest event of this rank")
    events_lost: int | Gap = counter("events that were dropped before they could be published")
    publishes: int | Gap = counter("times that state was published")
    publish_failures: int | Gap = counter("times that it could not be")
    publish_seconds: float | Gap = gauge("what the last publishing took, waiting for Redis included")
    publish_cpu_seconds: float | Gap = counter("what publishing took of the CPU, summed")
    questions: int | Gap = counter("answered")
    questions_ignored: int | Gap = counter("entries of `questions` that it did not understand")


class LendingFigures(Figures, Generic[Gap]):
    """What one rank lends to others and borrows from them. Not said of one that does neither."""

    lease_address: str = text("where borrowers find it; empty if it lends nothing")
    lease_scope: str = text(
        "from where the address can be reached: `BOOT/UID/DEVICE:INODE` of its directory; empty without one"
    )
    lent_bytes: int | Gap = gauge(
        "of its memory, to others; empty if it neither lends nor borrows", series=Series("lent_bytes")
    )
    lendable_bytes: int | Gap = gauge("at others' disposal, and not lent", series=Series("lendable_bytes"))
    lend_limit_bytes: int | Gap = gauge("the most that is lent, set by an operator; empty without such a limit")
    lend_window_seconds: float | Gap = fact("over which its own demand counts; empty if it does not lend")
    lend_peak_bytes: int | Gap = gauge("that its own requests needed at most at one time, within that window")
    lends_to: tuple[str, ...] = several(
        f"names of the keys `lent:BORROWER`, joined by commas; at most {MOST_PARTNERS}", NAMES
    )  # lease names: SERVER.RANK
    borrowed_bytes: int | Gap = gauge("of others' memory", series=Series("borrowed_bytes"))
    borrows_from: tuple[str, ...] = several("names of the keys `borrowed:DONOR`, likewise", NAMES)
    lend_ignored: int | Gap = counter(
        "letters and connections that were ignored: of other users, of processes that had ended, garbled, or too large",
        series=Series("lend_ignored"),
    )
    lend_other_releases: int | Gap = counter(
        "those of servers of another release of swift-tiers, which neither lend to this one nor borrow from it",
        series=Series("lend_other_releases"),
    )
    lend_faults: int | Gap = counter("errors of swift-tiers in lending or borrowing", series=Series("lend_faults"))


class RankView(
    RankedView,
    StackFigures[None],
    EngineFigures[None],
    PublisherCounts[None],
    RestoreFigures[None],
    LendingFigures[None],
):
    """One scheduler process with its tier stack."""

    pid: int | None = fact("process")
    life: str = text("which process of the rank it is, as in its events")
    namespace: str = text("hex digest that scopes page keys: model, weights, dtype, layout, rank")
    page_tokens: int | None = fact("tokens of a page")
    tiers: tuple[str, ...] = several("names of the keys `tier:TIER` that there are, joined by commas", NAMES)
    links: tuple[str, ...] = several("names of the keys `link:FROM-TO` that there are, joined by commas", NAMES)


class TierView(RankedView, TierGauges[None], TierCounts[None]):
    """One tier of one rank."""

    tier: str
    refused: dict[str, int] = each("pages not taken in, by reason")
    restores: int | None = counter("restores that read from it")
    restore_seconds: float | None = counter("their durations, summed")
    recent_restores: int | None = gauge("restores that read from it, that ended within the last 60 s")
    recent_p50_seconds: float | None = P50
    recent_p99_seconds: float | None = P99


class StripeSetView(RankedView, StripeFigures[None]):
    """The stripe set beneath the ssd tier of one rank."""

    set: str = text("hex id of the stripe set")


class DeviceView(RankedView, DeviceFigures[None], DeviceCounts[None]):
    """One device of a stripe set."""

    number: int
    recent_requests: int | None = gauge("requests, reads and writes together, that ended within the last 60 s")
    recent_p50_seconds: float | None = P50
    recent_p99_seconds: float | None = P99


class LinkView(RankedView, LinkCounts[None]):
    """One way between two tiers."""

    link: str
    recent_transfers: int | None = gauge("copies, that ended within the last 60 s")
    recent_p50_seconds: float | None = P50
    recent_p99_seconds: float | None = P99
    bytes_per_second: float | None = gauge("copied since the publishing before this one; empty in the first")


class LeasesView(RankedView):
    """The leases that one donor has given to one borrower, as one of the two knows them."""

    donor: str  # lease names: SERVER.RANK
    borrower: str
    epoch: int | None = fact("of the donor: a number that it drew at random when it began; no lease outlives it")
    leases: int | None = gauge("that have not ended")
    bytes: int | None = gauge("of all of them")
    recalled_bytes: int | None = gauge("of those that are to be returned, or are being returned")
    pinned_bytes: int | None = gauge("of those that the donor recalls last; empty at the borrower, which does not know")
    shortest_seconds: float | None = gauge(
        "until the first one that can be used ends unless it is renewed; empty if none can"
    )
    listed: int | None = fact(f"how many of them are in `table`: at most {MOST_LISTED_LEASES}, the first by number")
    table: tuple[LeaseEntry, ...] = several(
        "`NUMBER:BYTES:STATE:SECONDS ...`, with `:pinned` at its end where it is; see docs/leases.md", LEASES
    )

    @property
    def lends(self) -> bool:
        """Whether it is the donor that says this."""
        return self.donor == lease_name(self.server, self.rank)


class TreeView(RankedView, TreeFigures[None]):
    """SGLang's radix tree on the device."""


class DirectoryView(RankedView, DirectoryFigures[None]):
    """The pages below the device, in sum."""


class RequestView(RankedView, RequestFigures[None], gc=False):
    """One request as one rank saw it. There are thousands, and none leads back to itself: no collector need look."""

    rid: str
    state: str = text("`waiting`, `restoring`, `running`, `finished` or `aborted`")
    pages: int | None = gauge("of its block table")
    block_table: tuple[tuple[int, int], ...] = several(
        "device pages in order, as runs: `17-40 3 90-95`; empty unless it is running", TABLE
    )  # first and last of each run

    @property
    def live(self) -> bool:
        return self.state not in ENDED_STATES


class PageView(RankedView, PageFigures[None]):
    """What one rank answered about one page."""

    key: str  # as it was asked for
    held: bool | None = fact(
        "1, or 0 if it is not known below the device: no other field but `whole_key` and `device_slot` then"
    )
    whole_key: str = text("all digits; left out where KEY is shorter and begins none below the device, or more")
    device_slot: int | None = fact("in SGLang's pool; empty if the device does not have it, or that is not known")


class MapView(RankedView):
    """What one rank answered about the slots of one tier. Where `slots` is None, `reason` says why."""

    tier: str
    reason: str = text("why there is none: no other field then; empty if there is one")
    slots: int | None = fact("of the tier, each of one page; on ssd of one stripe unit")
    # As block tables and page answers number them.
    first_slot: int | None = fact("number of the first one: SGLang's pool begins with 1, all others with 0")
    slot_bytes: int | None = fact("of one slot")
    # The last cell of a part may stand for fewer.
    slots_per_cell: int | None = fact("1, or more where the text would get too long: the cell is what most of them are")
    parts: tuple[MapPart, ...] = several(
        "`NAME:SLOTS ...`: devices by number, or leases as `DONOR/LEASE`, in order; each begins with a cell of "
        "its own; empty where the tier is of one piece",
        PARTS,
    )
    cells: tuple[tuple[str, int], ...] = several(
        "runs of cells in order, `free 120 cached 30 pinned 2`; see below for the words", CELLS
    )


class PrefixView(RankedView):
    """What one rank answered about the sequence that a page ends."""

    key: str
    pages: int | None = fact("of the sequence, from its first page to this one; 0 if the page is not known here")
    listed: int | None = fact(f"the last so many of them are in `table`: at most {MOST_LISTED_PAGES}")
    table: tuple[PrefixPage, ...] = several(
        "`DEPTH:KEY:PLACES ...`, one for each page: its position, from 1; 16 digits of its key; "
        "`device=SLOT,host=SLOT,peer=DONOR/LEASE/SLOT,ssd=DEVICE/SLOT+DEVICE/SLOT`, or `-`",
        PREFIX,
    )


class NodesView(RankedView):
    """What one rank answered about the largest subtrees of SGLang's radix tree. Where `nodes` is None, `reason` says
    why."""

    reason: str = text("why there are none: no other field then; empty if there are")
    nodes: int | None = gauge("of SGLang's radix tree")
    complete: bool | None = fact("0 if the tree was too large to walk: nodes and tokens are of a part")
    listed: int | None = fact("those with the largest subtrees, as many as were asked for")
    table: tuple[NodeEntry, ...] = several(
        "`NODE:PARENT:TOKENS:SUBTREE_TOKENS:HITS:LOCKS:IDLE_SECONDS:KEY ...`, the largest subtree first; see below",
        NODES,
    )


class CommandView(View):
    """What became of a command."""

    id: str
    state: str = text("`accepted`, then `done`, `refused`, `expired`, or `partly`: ranks differ, or are silent")
    author: str = text("")
    type: str = text("of the command; empty if it could not be read")
    reason: str = text("why it was not carried out, or not everywhere; empty if it was")
    ranks: dict[str, str] = each(
        "what became of it at each rank: `done`, `done: RESULT`, `refused: REASON` or `expired`", family="rank"
    )

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


class RankState(Figures):
    """Everything about one rank that a snapshot was asked for; None and empty: it is not on the bus."""

    name: str
    rank: RankView | None = None
    tiers: tuple[TierView, ...] = ()
    stripe_set: StripeSetView | None = None
    devices: tuple[DeviceView, ...] = ()
    links: tuple[LinkView, ...] = ()
    gpu: GpuView | None = None
    reaches: tuple[ReachView, ...] = ()  # other GPUs, from this rank's
    tree: TreeView | None = None
    directory: DirectoryView | None = None
    requests: tuple[RequestView, ...] = ()  # in the order of their arrival
    lent: tuple[LeasesView, ...] = ()  # as the donor, one for each borrower
    borrowed: tuple[LeasesView, ...] = ()  # as the borrower, one for each donor


class ServerState(Figures):
    """One server and its ranks."""

    server: ServerView
    ranks: tuple[RankState, ...] = ()  # of a gone server: none


class Snapshot(Figures):
    """What was on the bus. Each view has an age of its own."""

    time: float  # of reading, by Redis' clock
    servers: tuple[ServerState, ...] = ()  # by name
