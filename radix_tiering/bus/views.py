"""What a reader of the bus sees: one type for each kind of key, with the names and units of `schema.KEYS`.

None, or an empty text or collection, means that it was not said: the key's writer knows no such field, or has nothing
to say there. It never means zero.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

#: Of a request: it has ended.
ENDED_STATES = frozenset({"finished", "aborted"})
#: Of a command: nothing more will become of it.
FINAL_STATES = frozenset({"done", "refused", "expired", "partly"})


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one key said when it was read."""

    #: Fields that gather those of the key that begin with their name and a colon: `refused:full` is in `refused`.
    families: ClassVar[tuple[str, ...]] = ()

    server: str
    time: float | None = None  # seconds since 1970 by the writer's clock
    age_seconds: float | None = None  # how old it is, by Redis' clock; None where that cannot be told


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
    configuration: dict[str, Any] = {}


class RankedView(View, frozen=True):
    """What one rank of a server said."""

    rank: str


class RankView(RankedView, frozen=True):
    """One scheduler process with its tier stack."""

    pid: int | None = None
    namespace: str = ""
    page_tokens: int | None = None
    page_bytes: int | None = None
    io_engine: str = ""
    write_queue_pages: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    restores_started: int | None = None
    restores_completed: int | None = None
    restores_cut_short: int | None = None
    restores_expired: int | None = None
    restores_cancelled: int | None = None
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
    refused: dict[str, int] = {}  # pages, by reason
    restores: int | None = None
    restore_seconds: float | None = None
    restore_p50_seconds: float | None = None
    restore_p99_seconds: float | None = None


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
    reads: dict[str, int] = {}  # by outcome


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
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None


class LinkView(RankedView, frozen=True):
    """One way between two tiers."""

    link: str
    transfers: int | None = None
    pages: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
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
    leases: int | None = None
    bytes: int | None = None
    recalled_bytes: int | None = None
    pinned_bytes: int | None = None
    shortest_seconds: float | None = None
    listed: int | None = None
    table: tuple[LeaseEntry, ...] = ()


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


class RequestView(RankedView, frozen=True):
    """One request as one rank saw it."""

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

    key: str
    held: bool | None = None
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


class CommandView(View, frozen=True):
    """What became of a command."""

    id: str
    state: str = ""
    author: str = ""
    type: str = ""
    reason: str = ""
    ranks: dict[str, str] = {}

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


AnyView = TypeVar("AnyView", bound=View)


def read_view(kind: type[AnyView], said: Mapping[str, str], **known: Any) -> AnyView:
    """The view of a hash. What cannot be read counts as not said. `known`, what its key says, goes first."""
    fields: dict[str, Any] = {name: value for name, value in said.items() if value != ""}
    for family in kind.families:
        fields[family] = family_of(said, family)
    for name, read in _READERS.get(kind, {}).items():
        fields[name] = read(fields.get(name, ""))
    fields.update(known)
    readable = {}
    for field in msgspec.structs.fields(kind):
        if field.name in fields:
            try:
                value = msgspec.convert(fields[field.name], field.type, strict=False)
            except msgspec.ValidationError:
                continue
            if not isinstance(value, float) or math.isfinite(value):
                readable[field.name] = value
    return kind(**readable)


def aged(view: AnyView, offset: float | None, now: float) -> AnyView:
    """`view` with its age. `offset`: its writer's clock minus Redis' clock, if known; `now`: by Redis' clock."""
    if view.time is None or offset is None:
        return view
    # Offsets are measured: what has only just been written may seem to come from the future.
    return msgspec.structs.replace(view, age_seconds=max(0.0, now - (view.time - offset)))


def family_of(said: Mapping[str, str], name: str) -> dict[str, str]:
    """The fields that begin with `name` and a colon, by what follows it."""
    return {field.partition(":")[2]: value for field, value in said.items() if field.startswith(f"{name}:")}


def read_names(text: str) -> tuple[str, ...]:
    """`dp0-tp0,dp0-tp1` as names."""
    return tuple(name for name in text.split(",") if name)


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; empty where the text is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _read_tiers(text: str) -> tuple[tuple[str, int], ...]:
    """`device 12, host 30` as runs."""
    words = [run.split() for run in text.split(",")]
    if not all(len(run) == 2 and run[1].isdecimal() for run in words):
        return ()
    return tuple((tier, int(pages)) for tier, pages in words)


def _read_runs(text: str) -> tuple[tuple[int, int], ...]:
    """`17-40 3` as first and last pages: (17, 40), (3, 3)."""
    runs = [run.partition("-") for run in text.split()]
    if not all(first.isdecimal() and (last or first).isdecimal() for first, _, last in runs):
        return ()
    return tuple((int(first), int(last or first)) for first, _, last in runs)


def _read_placement(text: str) -> tuple[tuple[int, int], ...]:
    """`0:17 1:4` as devices and slots."""
    units = [unit.partition(":") for unit in text.split()]
    if not all(device.isdecimal() and slot.isdecimal() for device, _, slot in units):
        return ()
    return tuple((int(device), int(slot)) for device, _, slot in units)


def _read_leases(text: str) -> tuple[LeaseEntry, ...]:
    """`12:67108864:lent:1.9 13:67108864:recalled:0.0:pinned` as leases."""
    found = []
    for entry in text.split():
        lease, size, state, seconds, *pinned = (*entry.split(":"), "", "", "", "")[:5]
        if not (lease.isdecimal() and size.isdecimal() and _SECONDS.fullmatch(seconds)):
            return ()
        left = float(seconds)
        found.append(LeaseEntry(lease=int(lease), bytes=int(size), state=state, seconds_left=left, pinned=any(pinned)))
    return tuple(found)


_SECONDS = re.compile(r"-?\d+(\.\d+)?")

#: Fields whose text has a form of its own.
_READERS: dict[type[View], dict[str, Any]] = {
    ServerView: {"ranks": read_names, "configuration": read_object},
    RankView: {"links": read_names, "lends_to": read_names, "borrows_from": read_names},
    LeasesView: {"table": _read_leases},
    RequestView: {"tiers": _read_tiers, "block_table": _read_runs},
    PageView: {"ssd_placement": _read_placement},
}
