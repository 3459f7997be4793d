"""What is wrong with what is seen: each trouble with its place and what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...base.units import Duration
from ...gpus.snapshots import LATE_GPU
from ..contract.gpu_views import GpuView
from ..contract.views import (
    DeviceView,
    LeasesView,
    RankState,
    RankView,
    RequestView,
    ServerState,
    ServerView,
    Snapshot,
    StripeSetView,
    TreeView,
    View,
)
from .figures import count, seconds, text
from .period import Period
from .rank_troubles import rank_troubles
from .reader import Part
from .tier_troubles import tier_troubles
from .trouble import Mark, Trouble

#: A heartbeat that is older than so many intervals, and than so many seconds, is late.
LATE_INTERVALS, LATE_SECONDS = 3, 2.0
#: Clocks that are further apart than this are worth a word, seconds.
SKEW_SECONDS = 1.0
#: A device is slow if its requests of the last minute took so many times longer than those of the others of its set:
#: their slowest hundredth where there were so many, else their median where there were so many.
SLOW_FACTOR, MANY_REQUESTS, SOME_REQUESTS = 4.0, 100, 8
#: A lease whose time has been over for so long, seconds, should not be there any more; states in which time counts.
LATE_LEASE = 1.0
USABLE_LEASES = ("lent", "recalled", "active", "closing")
#: A request that has not begun to be computed after so many seconds waits long.
LONG_WAIT = 10.0
#: A scheduler that was looked into last so long ago, or so many times `bus.requests_interval`, stands still, seconds.
STILL_SECONDS, STILL_INTERVALS = 15.0, 5


class Troubles:
    """Everything that is wrong in one snapshot, which has these parts."""

    def __init__(
        self, snapshot: Snapshot, parts: Part, lately: Callable[[RankView], Period | None] = lambda rank: None
    ) -> None:
        """`lately`: what a rank has counted during the last minutes, where that is known."""
        found = [trouble for state in snapshot.servers for trouble in _of_server(state, parts, lately)]
        alive = {state.server.server: state.server.alive for state in snapshot.servers}
        ranks = [rank for state in snapshot.servers for rank in state.ranks]
        leases = [view for rank in ranks for view in (*rank.lent, *rank.borrowed)]
        found += [trouble for view in leases for trouble in lease_troubles(view, alive)]
        self._by_view: dict[int, list[Trouble]] = {}
        for trouble in found:
            self._by_view.setdefault(id(trouble.view), []).append(trouble)
        self._snapshot = snapshot  # keeps the views alive, by whose identity the troubles are found

    def of(self, views: Iterable[View]) -> list[Trouble]:
        """Those of these views, the worst first."""
        found = [trouble for view in views for trouble in self._by_view.get(id(view), ())]
        return sorted(found, key=lambda trouble: -trouble.mark)

    def mark(self, *views: View) -> Mark:
        """The worst of them all."""
        return max((trouble.mark for trouble in self.of(views)), default=Mark.OK)


def _of_server(state: ServerState, parts: Part, lately: Callable[[RankView], Period | None]) -> Iterator[Trouble]:
    yield from server_troubles(state.server)
    if Part.RANKS in parts:
        yield from clock_troubles(state.server)
    for rank in state.ranks:
        if Part.RANKS in parts and rank.rank is None:
            yield Trouble(Mark.WRONG, state.server, f"its rank {text(rank.name)} says nothing", "see the server's log")
        if rank.rank is not None:
            yield from rank_troubles(rank.rank, lately(rank.rank))
        yield from _of_rank(rank, parts)
        if Part.TREES in parts and state.server.alive:
            yield from scheduler_troubles(state.server, rank)


def _of_rank(state: RankState, parts: Part) -> Iterator[Trouble]:
    """What its tiers, devices and the like say."""
    for tier in state.tiers:
        yield from tier_troubles(tier)
    if state.stripe_set is not None:
        yield from stripe_set_troubles(state.stripe_set)
    for device in state.devices:
        yield from device_troubles(device, state.devices)
    if state.gpu is not None:
        yield from gpu_troubles(state.gpu)
    if state.tree is not None:
        yield from tree_troubles(state.tree)
    for request in state.requests if Part.REQUESTS in parts else ():
        yield from request_troubles(request)


def server_troubles(server: ServerView) -> Iterator[Trouble]:
    if not server.alive:
        yield Trouble(
            Mark.WARNING,
            server,
            f"gone; last heard of {seconds(server.age_seconds)} ago",
            "if nobody stopped it, see its log and its last events",
        )
        return
    patience = max(LATE_SECONDS, LATE_INTERVALS * (server.interval_seconds or 0.0))
    if server.age_seconds is not None and server.age_seconds > patience:
        yield Trouble(
            Mark.WARNING,
            server,
            f"has said nothing for {seconds(server.age_seconds)}",
            "it hangs, or cannot reach Redis: see its log",
        )


def clock_troubles(server: ServerView) -> Iterator[Trouble]:
    offset = server.clock_offset_seconds
    if not server.alive:
        return
    if offset is None:
        yield Trouble(Mark.NOTE, server, "has not said how far its clock is off: ages are not known")
    elif abs(offset) > SKEW_SECONDS:
        way = "ahead of" if offset > 0 else "behind"
        yield Trouble(
            Mark.WARNING,
            server,
            f"its clock is {seconds(abs(offset))} {way} Redis'",
            "let both machines follow NTP; ages here are corrected for it",
        )


def stripe_set_troubles(stripe_set: StripeSetView) -> Iterator[Trouble]:
    if stripe_set.missing:
        yield Trouble(
            Mark.WRONG,
            stripe_set,
            f"{count(stripe_set.missing)} of its devices were not found at the start",
            "bring them back and restart, pages with a part there are misses; or, if they are gone for good, stop the "
            "server and run `swift-tiers fsck --repair --forget-missing`",
            "stripe set",
        )


def device_troubles(device: DeviceView, peers: Sequence[DeviceView]) -> Iterator[Trouble]:
    """`peers`: all devices of its set."""
    part = f"device {device.number} {text(device.path)}".rstrip()
    if device.service == "draining" and device.reason.startswith("write failed"):
        remedy = "what it has is served; make room on its file system, or mount it for writing: it is tried again"
        yield Trouble(Mark.WARNING, device, f"gets no new pages: {text(device.reason)}", remedy, part)
    elif device.service == "draining":
        yield Trouble(Mark.NOTE, device, "is draining: no new pages go there", part=part)
    elif device.service == "opening":
        yield Trouble(Mark.NOTE, device, "is being looked through for pages; they are misses until then", part=part)
    elif device.service not in ("in service", ""):
        yield Trouble(
            Mark.WRONG,
            device,
            f"is out of service: {text(device.reason) or 'no reason was given'}",
            "its pages are misses; it is asked again; mend and readmit, or replace it",
            part,
        )
    if device.corrupt_units:
        yield Trouble(
            Mark.WRONG,
            device,
            f"{count(device.corrupt_units)} stripe units were not what was written",
            "check the device and its cabling",
            part,
            counted=device.corrupt_units,
        )
    errors = (device.read_errors or 0) + (device.write_errors or 0)
    if errors:
        yield Trouble(
            Mark.WARNING,
            device,
            f"{count(device.read_errors)} reads and {count(device.write_errors)} writes failed",
            "see the kernel's log (dmesg)",
            part,
            counted=errors,
        )
    slow = slowness(device, peers)
    if slow is not None:
        yield Trouble(
            Mark.WARNING,
            device,
            f"is slow: in the last minute {slow.which} took {seconds(slow.took)}, the others' {seconds(slow.usual)}",
            "every page waits for its slowest device: drain it, or see what else uses it",
            part,
        )


class Slowness(NamedTuple):
    """By how much a device is slower than the others of its set."""

    which: str  # of its requests
    took: float  # seconds
    usual: float  # the median of the others


def slowness(device: DeviceView, peers: Sequence[DeviceView]) -> Slowness | None:
    """None: it is not, or too few requests ended lately to tell. `peers`: all devices of its set."""
    for least, field, which in (
        (MANY_REQUESTS, "recent_p99_seconds", "its slowest hundredth"),
        (SOME_REQUESTS, "recent_p50_seconds", "half of its requests"),
    ):
        known = [peer for peer in peers if (peer.recent_requests or 0) >= least and getattr(peer, field)]
        others = [getattr(peer, field) for peer in known if peer is not device]
        if others and any(peer is device for peer in known):
            took, usual = getattr(device, field), statistics.median(others)
            return Slowness(which, took, usual) if took >= SLOW_FACTOR * usual else None
    return None


def gpu_troubles(gpu: GpuView) -> Iterator[Trouble]:
    part = "GPU" if gpu.index is None else f"GPU {gpu.index}"
    if gpu.trouble:
        yield Trouble(
            Mark.WRONG,
            gpu,
            f"its driver has no figures of it: {text(gpu.trouble)}",
            "see the kernel's log (dmesg) for an Xid; reset it, or restart the machine",
            part,
        )
    elif gpu.age_seconds is not None and gpu.age_seconds > LATE_GPU:
        yield Trouble(
            Mark.WARNING,
            gpu,
            f"its driver has not answered for {seconds(gpu.age_seconds)}",
            "see the kernel's log (dmesg)",
            part,
        )


def lease_troubles(view: LeasesView, alive: Mapping[str, bool]) -> Iterator[Trouble]:
    """`alive`: whether servers that are known are there."""
    lends = view.lends
    other = view.borrower if lends else view.donor
    part = f"{'lent to' if lends else 'borrowed from'} {text(other)}"
    if alive.get(other.rpartition(".")[0]) is False:
        what = "its borrower is gone" if lends else "its donor is gone"
        after = "all of it comes back when its time is over" if lends else "nothing of it is read any more"
        yield Trouble(Mark.WARNING, view, f"{what}: {after}", f"see the events of {text(other)}", part)
    late = [-entry.seconds_left for entry in view.table if entry.state in USABLE_LEASES and entry.seconds_left < 0]
    if late and max(late) > LATE_LEASE:
        yield Trouble(
            Mark.WRONG,
            view,
            f"{count(len(late))} leases are past their time, the first for {seconds(max(late))}",
            "its thread swift-lease hangs: see the server's log",
            part,
        )


def scheduler_troubles(server: ServerView, rank: RankState) -> Iterator[Trouble]:
    """A rank speaks on a thread of its own, also where its scheduler stands still: what it says of requests is old."""
    tree, bus = rank.tree, server.configuration.get("bus", {})
    if tree is None or tree.age_seconds is None or rank.rank is None:
        return
    try:
        interval = Duration.parse(bus.get("requests_interval"))
    except (ValueError, AttributeError):
        interval = Duration(0.0)
    if tree.age_seconds > max(STILL_SECONDS, STILL_INTERVALS * interval):
        yield Trouble(
            Mark.WARNING,
            tree,
            f"its scheduler has not turned for {seconds(tree.age_seconds)}: what is told of its requests is as old",
            "a long forward, new weights, or it hangs: see the server's log, and `py-spy dump` of the scheduler",
            f"rank {text(rank.name)}",
        )


def tree_troubles(tree: TreeView) -> Iterator[Trouble]:
    if tree.complete is False:
        yield Trouble(Mark.NOTE, tree, "too large to be walked: nodes, leaves and depths are of a part", part="tree")


def waits_long(request: RequestView) -> bool:
    """Whether nothing of it has been computed long after it came."""
    waits = request.state in ("waiting", "restoring") and request.queue_seconds is None
    return waits and _age(request) > LONG_WAIT


def request_troubles(request: RequestView) -> Iterator[Trouble]:
    part = f"request {text(request.rid)}"
    if request.restore in ("expired", "cut short"):
        if request.restore == "expired":
            why, where = "its pages did not come up in time", "`inspect devices` shows slow ones"
        else:
            why = "some pages did not come up"
            where = "`inspect tiers` shows whether host memory had no room, `inspect devices` failing ones"
        recomputed = f"{why}: {count(request.recomputed_tokens)} tokens were recomputed"
        yield Trouble(Mark.WARNING, request, recomputed, where, part)
    if waits_long(request):
        yield Trouble(
            Mark.WARNING,
            request,
            f"has been {request.state} for {seconds(_age(request))}",
            "the device is full of other requests, or the server hangs: see `inspect tiers`",
            part,
        )
    if request.state == "aborted":
        yield Trouble(Mark.NOTE, request, "was aborted", part=part)


def _age(request: RequestView) -> float:
    """From its arrival to when it was looked at, both by the server's clock."""
    if request.time is None or request.arrived is None:
        return 0.0
    return max(0.0, request.time - request.arrived)
