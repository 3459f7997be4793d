"""What servers, tiers, devices, links with GPUs, and trees look like just now."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    DirectoryView,
    LinkView,
    RankView,
    ServerState,
    Snapshot,
    StripeSetView,
    TierView,
    TreeView,
)
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, share, short, size, text
from swift_tiers.radix_tiering.bus.hear.rates import Rates
from swift_tiers.radix_tiering.bus.hear.reader import Part
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles

from .gpus import gpu_tables
from .tables import Look, Row, how_old, make_look, place, ranks_of, table


class Subject(NamedTuple):
    """What to read for it, and how to show that with the growth since the look before."""

    parts: Part
    show: Callable[[Snapshot, Rates], Look]


def show_servers(snapshot: Snapshot, rates: Rates) -> Look:
    troubles = Troubles(snapshot, Part.RANKS)
    ranks = [state.rank for state in ranks_of(snapshot) if state.rank is not None]
    servers = [state.server for state in snapshot.servers]
    columns = " server|state|heard of|up| model|ranks|clock|obeys| address| version|interval"
    shown: list[RenderableType] = [table(columns, map(_server_row, snapshot.servers), troubles)]
    if ranks:
        columns = (
            " rank|running|waiting|restores|short|expired|late|503|to write|events lost|publishing|whole|split|events"
            "| engine"
        )
        shown += [Text(""), table(columns, map(_rank_row, ranks), troubles)]
    return make_look(snapshot, troubles, {"servers": servers, "ranks": ranks}, shown)


def _server_row(state: ServerState) -> Row:
    server = state.server
    heard = f"{seconds(server.age_seconds)} ago"
    if not server.alive:
        return Row([server], [text(server.server), "GONE", heard, *[NONE] * 8])
    offset = server.clock_offset_seconds
    return Row(
        [server, *(rank.rank for rank in state.ranks if rank.rank is not None)],
        [
            text(server.server), "alive", heard, seconds(server.up_seconds), text(server.model), str(len(server.ranks)),
            UNKNOWN if offset is None else f"{'-' if offset < 0 else '+'}{seconds(abs(offset))}",
            UNKNOWN if server.control is None else "yes" if server.control else "no", text(server.address),
            f"{text(server.version)} (sglang {text(server.sglang_version)})", seconds(server.interval_seconds),
        ],
    )  # fmt: skip


def _rank_row(rank: RankView) -> Row:
    counts = (
        rank.running_requests, rank.waiting_requests, rank.restores_started, rank.restores_cut_short,
        rank.restores_expired, rank.restores_late, rank.failed_loads, rank.write_queue_pages, rank.events_lost,
    )  # fmt: skip
    cells = [place(rank), *map(count, counts), seconds(rank.publish_seconds)]
    whole = count(rank.restores_completed), count(rank.restores_split), count(rank.events)
    return Row([rank], [*cells, *whole, text(rank.io_engine) or NONE])


def show_tiers(snapshot: Snapshot, rates: Rates) -> Look:
    troubles = Troubles(snapshot, Part.TIERS)
    states = list(ranks_of(snapshot))
    tiers = [tier for state in states for tier in state.tiers]
    directories = [state.directory for state in states if state.directory is not None]
    columns = " rank| tier|full|used|of|hit rate|hits|misses|pages|pinned|evicted|in|out|p50, 60 s|p99, 60 s|age"
    shown: list[RenderableType] = [table(columns, map(_tier_row, tiers), troubles)]
    if directories:
        columns = (
            " rank|pages below the device|host only|ssd only|peer only|several|first pages|deepest|other namespaces|age"
        )
        shown += [Text(""), table(columns, map(_directory_row, directories), troubles)]
    return make_look(snapshot, troubles, {"tiers": tiers, "directories": directories}, shown)


def _tier_row(tier: TierView) -> Row:
    asked = None if tier.hits is None or tier.misses is None else tier.hits + tier.misses
    counts = tier.hits, tier.misses, tier.pages, tier.pinned_pages, tier.evictions
    return Row(
        [tier],
        [
            place(tier), tier.tier, share(tier.used_bytes, tier.capacity_bytes), size(tier.used_bytes),
            size(tier.capacity_bytes), share(tier.hits, asked), *map(count, counts), size(tier.bytes_written),
            size(tier.bytes_read), _latency(tier.recent_p50_seconds), _latency(tier.recent_p99_seconds),
            how_old(tier),
        ],
    )  # fmt: skip


def _directory_row(directory: DirectoryView) -> Row:
    counts = (
        directory.pages, directory.host_only_pages, directory.ssd_only_pages, directory.peer_only_pages,
        directory.both_pages, directory.first_pages, directory.deepest_pages, directory.foreign_pages,
    )  # fmt: skip
    return Row([directory], [place(directory), *map(count, counts), how_old(directory)])


def show_devices(snapshot: Snapshot, rates: Rates) -> Look:
    troubles = Troubles(snapshot, Part.DEVICES)
    states = list(ranks_of(snapshot))
    devices = [device for state in states for device in state.devices]
    sets = [state.stripe_set for state in states if state.stripe_set is not None]
    shown: list[RenderableType] = [Text("no server here has an ssd tier")]
    if sets:
        columns = " rank|#| device|service|failed|corrupt|p50, 60 s|p99, 60 s|full|used|in flight|reading|writing|read"
        columns += "|written|age"
        devices_table = table(columns, (_device_row(device, rates) for device in devices), troubles)
        columns = " rank| stripe set|unit|devices|missing|free units|of|queued| reads|age"
        shown = [devices_table, Text(""), table(columns, map(_stripe_set_row, sets), troubles)]
    return make_look(snapshot, troubles, {"devices": devices, "stripe_sets": sets}, shown)


def _device_row(device: DeviceView, rates: Rates) -> Row:
    failed = None
    if device.read_errors is not None and device.write_errors is not None:
        failed = device.read_errors + device.write_errors
    return Row(
        [device],
        [
            place(device), str(device.number), text(device.path), _service(device),
            count(failed), count(device.corrupt_units), _latency(device.recent_p50_seconds),
            _latency(device.recent_p99_seconds), share(device.used_bytes, device.capacity_bytes),
            size(device.used_bytes), count(device.in_flight), _rate(rates.of(device, "bytes_read")),
            _rate(rates.of(device, "bytes_written")), size(device.bytes_read), size(device.bytes_written),
            how_old(device),
        ],
    )  # fmt: skip


def _service(device: DeviceView) -> str:
    return "OUT" if device.service == "out" else text(device.service) or UNKNOWN


def _stripe_set_row(stripe_set: StripeSetView) -> Row:
    reads = ", ".join(
        f"{text(outcome)} {count(number)}" for outcome, number in sorted(stripe_set.reads.items()) if number
    )
    counts = stripe_set.devices, stripe_set.missing, stripe_set.free_units, stripe_set.capacity_units, stripe_set.queued
    cells = [place(stripe_set), short(stripe_set.set), size(stripe_set.unit_bytes), *map(count, counts)]
    return Row([stripe_set], [*cells, reads or NONE, how_old(stripe_set)])


def show_links(snapshot: Snapshot, rates: Rates) -> Look:
    troubles = Troubles(snapshot, Part.LINKS)
    states = list(ranks_of(snapshot))
    links = [link for state in states for link in state.links]
    gpus = [state.gpu for state in states if state.gpu is not None]
    reaches = [reach for state in states for reach in state.reaches]
    columns = " rank| link|transfers|pages|bytes|just now|p50, 60 s|p99, 60 s|speed of one|time, summed|age"
    shown: list[RenderableType] = [table(columns, (_link_row(link, rates) for link in links), troubles)]
    shown += gpu_tables(gpus, reaches, troubles)
    return make_look(snapshot, troubles, {"links": links, "gpus": gpus, "reaches": reaches}, shown)


def _link_row(link: LinkView, rates: Rates) -> Row:
    speed = link.bytes / link.seconds if link.bytes is not None and link.seconds else None
    now = rates.of(link, "bytes")
    if now is None:
        now = link.bytes_per_second
    return Row(
        [link],
        [
            place(link), _way(link.link), count(link.transfers), count(link.pages), size(link.bytes), _rate(now),
            _latency(link.recent_p50_seconds), _latency(link.recent_p99_seconds), _rate(speed), seconds(link.seconds),
            how_old(link),
        ],
    )  # fmt: skip


def _way(link: str) -> str:
    """`host to ssd`. Names of donors may have dashes in them; the other end of their links is `host`."""
    if link.startswith("host-"):
        return f"host to {text(link.removeprefix('host-'))}"
    start, _, end = link.rpartition("-")
    return f"{text(start)} to {text(end)}"


def show_tree(snapshot: Snapshot, rates: Rates) -> Look:
    troubles = Troubles(snapshot, Part.TREES)
    trees = [state.tree for state in ranks_of(snapshot) if state.tree is not None]
    columns = " rank|reuse|found in it|prompt tokens|cached|in use|evictable|evicted|nodes|leaves|depth|deepest|age"
    return make_look(snapshot, troubles, {"trees": trees}, [table(columns, map(_tree_row, trees), troubles)])


def _tree_row(tree: TreeView) -> Row:
    counts = (
        tree.reused_tokens, tree.prompt_tokens, tree.cached_tokens, tree.protected_tokens, tree.evictable_tokens,
        tree.evicted_tokens, tree.nodes, tree.leaves, tree.depth, tree.deepest_tokens,
    )  # fmt: skip
    reuse = share(tree.reused_tokens, tree.prompt_tokens)
    return Row([tree], [place(tree), reuse, *map(count, counts), how_old(tree)])


def _latency(value: float | None) -> str:
    """Empty on the bus where there was none yet."""
    return NONE if value is None else seconds(value)


def _rate(value: float | None) -> str:
    return NONE if value is None else f"{size(value)}/s"


SUBJECTS = {
    "servers": Subject(Part.RANKS, show_servers),
    "tiers": Subject(Part.TIERS | Part.DIRECTORIES, show_tiers),
    "devices": Subject(Part.DEVICES, show_devices),
    "links": Subject(Part.LINKS, show_links),
    "tree": Subject(Part.TREES, show_tree),
}
