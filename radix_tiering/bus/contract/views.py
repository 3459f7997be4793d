"""What a reader of the bus sees: one type for each kind of key, with the names and units of `schema.KEYS`.

None, or an empty text or collection, means that it was not said: the key's writer knows no such field, or has nothing
to say there. It never means zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ...figures.story import RestoreStory
from .gpu_views import GpuView, ReachView
from .neighbours import lease_name
from .view import RankedView, View

#: Of a request: it has ended.
ENDED_STATES = frozenset({"finished", "aborted"})
#: Of a command: nothing more will become of it.
FINAL_STATES = frozenset({"done", "refused", "expired", "partly"})


class ServerView(View, frozen=True):
    """One server, alive or gone. Of a gone one, only its name and how long ago it was heard of are known."""

    alive: bool
    host: str = ""
    address: str = ""
    pid: int | None = None
    started: float | None = None  # by its own clock
    up_seconds: float | None = None  # since it started
    version: str = ""
    sglang_version: str = ""
    model: str = ""
    ranks: tuple[str, ...] = ()
    interval_seconds: float | None = None
    clock_offset_seconds: float | None = None  # its clock minus Redis' clock
    control: bool | None = None
    configuration: dict[str, Any] = msgspec.field(default_factory=dict)


class RankView(RankedView, frozen=True):
    """One scheduler process with its tier stack."""

    pid: int | None = None
    namespace: str = ""
    page_tokens: int | None = None
    page_bytes: int | None = None
    io_engine: str = ""
    write_queue_pages: int | None = None
    landing_pages: int | None = None
    landing_used_pages: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    restores_started: int | None = None
    restores_completed: int | None = None
    restores_split: int | None = None
    restores_cut_short: int | None = None
    restores_expired: int | None = None
    restores_cancelled: int | None = None
    restores_late: int | None = None
    lost_pages: int | None = None
    failed_loads: int | None = None
    events: int | None = None
    events_lost: int | None = None
    publishes: int | None = None
    publish_failures: int | None = None
    publish_seconds: float | None = None
    publish_cpu_seconds: float | None = None
    questions: int | None = None
    questions_ignored: int | None = None
    sample_seconds: float | None = None
    links: tuple[str, ...] = ()
    lease_address: str = ""
    lease_scope: str = ""
    lent_bytes: int | None = None
    lendable_bytes: int | None = None
    lend_limit_bytes: int | None = None
    lend_window_seconds: float | None = None
    lend_peak_bytes: int | None = None
    lends_to: tuple[str, ...] = ()  # lease names: SERVER.RANK
    borrowed_bytes: int | None = None
    borrows_from: tuple[str, ...] = ()


class TierView(RankedView, frozen=True):
    """One tier of one rank."""

    families = ("refused",)

    tier: str
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    pages: int | None = None
    pinned_pages: int | None = None
    limit_bytes: int | None = None
    hits: int | None = None
    misses: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    evictions: int | None = None
    checksum_failures: int | None = None
    refused: dict[str, int] = msgspec.field(default_factory=dict)  # pages, by reason
    restores: int | None = None
    restore_seconds: float | None = None
    recent_restores: int | None = None  # of the last minute, as what follows
    recent_p50_seconds: float | None = None
    recent_p99_seconds: float | None = None


class StripeSetView(RankedView, frozen=True):
    """The stripe set beneath the ssd tier of one rank."""

    families = ("reads",)

    set: str = ""
    unit_bytes: int | None = None
    devices: int | None = None
    missing: int | None = None
    capacity_units: int | None = None
    free_units: int | None = None
    queued: int | None = None
    reads: dict[str, int] = msgspec.field(default_factory=dict)  # by outcome


class DeviceView(RankedView, frozen=True):
    """One device of a stripe set."""

    number: int
    path: str = ""
    service: str = ""
    reason: str = ""
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    reads: int | None = None
    writes: int | None = None
    read_errors: int | None = None
    write_errors: int | None = None
    corrupt_units: int | None = None
    in_flight: int | None = None
    recent_requests: int | None = None  # of the last minute, as what follows
    recent_p50_seconds: float | None = None
    recent_p99_seconds: float | None = None


class LinkView(RankedView, frozen=True):
    """One way between two tiers."""

    link: str
    transfers: int | None = None
    pages: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    recent_transfers: int | None = None  # of the last minute, as what follows
    recent_p50_seconds: float | None = None
    recent_p99_seconds: float | None = None
    bytes_per_second: float | None = None


class LeaseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One lease, as one of its two sides knows it."""

    lease: int  # its number at its donor
    bytes: int
    state: str  # at the donor: of the run; at the borrower: of the lease
    seconds_left: float
    pinned: bool = False


class LeasesView(RankedView, frozen=True):
    """The leases that one donor has given to one borrower, as one of the two knows them."""

    donor: str  # lease names: SERVER.RANK
    borrower: str
    epoch: int | None = None  # of the donor
    leases: int | None = None
    bytes: int | None = None
    recalled_bytes: int | None = None
    pinned_bytes: int | None = None
    shortest_seconds: float | None = None
    listed: int | None = None
    table: tuple[LeaseEntry, ...] = ()

    @property
    def lends(self) -> bool:
        """Whether it is the donor that says this."""
        return self.donor == lease_name(self.server, self.rank)


class TreeView(RankedView, frozen=True):
    """SGLang's radix tree on the device."""

    nodes: int | None = None
    leaves: int | None = None
    depth: int | None = None
    deepest_tokens: int | None = None
    cached_tokens: int | None = None
    evictable_tokens: int | None = None
    protected_tokens: int | None = None
    reused_tokens: int | None = None
    prompt_tokens: int | None = None
    evicted_tokens: int | None = None
    complete: bool | None = None


class DirectoryView(RankedView, frozen=True):
    """The pages below the device, in sum."""

    pages: int | None = None
    host_only_pages: int | None = None
    ssd_only_pages: int | None = None
    peer_only_pages: int | None = None
    both_pages: int | None = None
    deepest_pages: int | None = None
    first_pages: int | None = None
    foreign_pages: int | None = None


class RequestView(RankedView, frozen=True, gc=False):
    """One request as one rank saw it. There are thousands, and none leads back to itself: no collector need look."""

    rid: str
    state: str = ""
    arrived: float | None = None  # by the server's clock
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    device_tokens: int | None = None
    peer_tokens: int | None = None
    host_tokens: int | None = None
    ssd_tokens: int | None = None
    recomputed_tokens: int | None = None
    restore: str = ""
    restore_seconds: float | None = None
    restore_story: RestoreStory | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    ended: float | None = None  # by the server's clock
    pages: int | None = None
    tiers: tuple[tuple[str, int], ...] = ()  # runs of pages in order: (("device", 12), ("host", 30))
    last_page: str = ""  # key
    block_table: tuple[tuple[int, int], ...] = ()  # runs of device pages in order: first and last

    @property
    def live(self) -> bool:
        return self.state not in ENDED_STATES


class PageView(RankedView, frozen=True):
    """What one rank answered about one page."""

    key: str  # as it was asked for
    held: bool | None = None
    whole_key: str = ""
    namespace: str = ""
    depth: int | None = None
    parent: str = ""
    children: int | None = None
    bytes: int | None = None
    uses: int | None = None
    pins: int | None = None
    host_slot: int | None = None
    peer: str = ""
    ssd_placement: tuple[tuple[int, int], ...] = ()  # device and slot of each stripe unit
    generation: int | None = None
    device_slot: int | None = None
    checksum: str = ""
    last_used_seconds: float | None = None  # before `time`
    origin: str = ""


class MapPart(NamedTuple):
    """A stretch of a tier's slots: a device of the stripe set, or a lease."""

    name: str  # number of the device, or `DONOR/LEASE`
    slots: int


class MapView(RankedView, frozen=True):
    """What one rank answered about the slots of one tier. Where `slots` is None, `reason` says why."""

    tier: str
    reason: str = ""
    slots: int | None = None
    first_slot: int | None = None  # number of the first one, as block tables and page answers have it
    slot_bytes: int | None = None
    slots_per_cell: int | None = None  # the last cell of a part may stand for fewer
    parts: tuple[MapPart, ...] = ()  # in the order of their slots; empty where the tier is of one piece
    cells: tuple[tuple[str, int], ...] = ()  # runs in order: (("free", 120), ("cached", 30))


class PrefixPage(NamedTuple):
    """One page of a sequence, and the places of its copies. Without any, it is nowhere."""

    depth: int  # its position in its sequence, from 1
    key: str  # the first 16 hex digits
    device: int | None = None  # slot
    host: int | None = None  # slot
    peer: str = ""  # DONOR/LEASE/SLOT
    ssd: tuple[tuple[int, int], ...] = ()  # device and slot of each stripe unit


class PrefixView(RankedView, frozen=True):
    """What one rank answered about the sequence that a page ends."""

    key: str
    pages: int | None = None  # of the sequence; 0: the page is not known here
    listed: int | None = None  # the last so many of them are in `table`
    table: tuple[PrefixPage, ...] = ()


class NodeEntry(NamedTuple):
    """One node of SGLang's radix tree."""

    node: int
    parent: int | None  # None: it hangs at the root
    tokens: int
    subtree_tokens: int  # its own, and those of all nodes behind it
    hits: int | None
    locks: int | None
    idle_seconds: float | None
    key: str  # first 16 hex digits of the key of its last page; empty where it is not known


class NodesView(RankedView, frozen=True):
    """What one rank answered about the largest subtrees of SGLang's radix tree. Where `nodes` is None, `reason` says
    why."""

    reason: str = ""
    nodes: int | None = None  # of the tree
    listed: int | None = None
    complete: bool | None = None  # False: the tree was too large to be walked; sizes are of the part that is known
    table: tuple[NodeEntry, ...] = ()  # largest subtrees first


class CommandView(View, frozen=True):
    """What became of a command."""

    id: str
    state: str = ""
    author: str = ""
    type: str = ""
    reason: str = ""
    ranks: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


class RankState(msgspec.Struct, frozen=True, kw_only=True):
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


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """One server and its ranks."""

    server: ServerView
    ranks: tuple[RankState, ...] = ()  # of a gone server: none


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was on the bus. Each view has an age of its own."""

    time: float  # of reading, by Redis' clock
    servers: tuple[ServerState, ...] = ()  # by name
