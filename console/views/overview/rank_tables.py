"""What the ranks say of their engines, their tiers, and the pages that they have below the device."""

from __future__ import annotations

from swift_tiers.radix_tiering.bus.contract.views import TierView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, count, text
from swift_tiers.radix_tiering.bus.hear.rank_troubles import rank_troubles
from swift_tiers.radix_tiering.bus.hear.remote_troubles import remote_troubles
from swift_tiers.radix_tiering.bus.hear.tier_troubles import tier_troubles

from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Table
from ..parts.measures import NOW_SECONDS, fill, seconds_cell, share_cell
from ..parts.rank_table import RankColumn, count_cell, counted, rank_table, size_cell, sized
from ..parts.view import Scene

_SINCE = "since the start"

ENGINE = (
    counted("running", "running_requests", 8, "requests"),
    counted("waiting", "waiting_requests", 8, "requests"),
    counted("restores", "restores_started", 7, _SINCE),
    counted("whole", "restores_completed", 6, "restores " + _SINCE),
    counted("split", "restores_split", 5, "restores " + _SINCE),
    counted("short", "restores_cut_short", 6, "restores " + _SINCE),
    counted("expired", "restores_expired", 6, "restores " + _SINCE),
    counted("late", "restores_late", 6, "restores " + _SINCE),
    counted("503", "failed_loads", 7, "requests refused " + _SINCE),
    counted("to write", "write_queue_pages", 5, "pages"),
    counted("events", "events", 2, _SINCE),
    counted("lost", "events_lost", 4, "events " + _SINCE),
    RankColumn(Column("publishing", right=True, rank=3, unit="s"), lambda rank: seconds_cell(rank.publish_seconds)),
    RankColumn(Column("engine", rank=1), lambda rank: Cell(text(rank.io_engine) or NONE)),
)
DIRECTORY = (
    counted("below the device", "pages", 8, "pages"),
    counted("several tiers", "both_pages", 6, "pages"),
    counted("first pages", "first_pages", 4),
    counted("deepest", "deepest_pages", 5, "pages"),
    counted("other namespaces", "foreign_pages", 6, "pages"),
)
REMOTE = (
    RankColumn(Column("remote store", rank=9), lambda rank: Cell(text(rank.remote_engine))),
    counted("questions", "remote_questions", 5, _SINCE),
    counted("late", "remote_late", 7, "answers " + _SINCE),
    counted("errors", "remote_errors", 8, "answers " + _SINCE),
    counted("gone", "remote_lost", 6, "objects " + _SINCE),
    counted("damaged", "remote_bad", 7, "objects " + _SINCE),
)


def engine_table(scene: Scene) -> Table:
    """Requests and restores of each rank, and how it gets on with its writing and its publishing."""
    ranks = [state.rank for state in scene.moment.ranks(scene.server) if state.rank is not None]
    return rank_table(scene, ranks, ENGINE, lambda rank: rank_troubles(rank, scene.moment.history.lately(rank)))


def remote_table(scene: Scene) -> Table:
    """How each rank that has a remote tier gets on with its store."""
    ranks = [state.rank for state in scene.moment.ranks(scene.server) if state.rank is not None]
    remote = [rank for rank in ranks if rank.remote_engine]
    return rank_table(scene, remote, REMOTE, lambda rank: remote_troubles(rank, scene.moment.history.lately(rank)))


def directory_table(scene: Scene) -> Table:
    """Of each rank, how many pages are where below the device."""
    found = [state.directory for state in scene.moment.ranks(scene.server) if state.directory is not None]
    return rank_table(scene, found, DIRECTORY)


def tier_table(scene: Scene) -> Table:
    """Every tier of every rank; each leads to its blocks."""
    history = scene.moment.history

    def rate(name: str, counter: str, unit: str, rank: int) -> RankColumn:
        make = size_cell if unit == "B" else _rounded
        column = Column(name, right=True, rank=rank, unit=f"{unit}/s, last 2 s")
        return RankColumn(column, lambda tier: make(history.rate(tier, counter, seconds=NOW_SECONDS)))

    told = [state.rank for state in scene.moment.ranks(scene.server) if state.rank is not None]
    codecs = {(rank.server, rank.rank): rank.page_codec for rank in told}
    fields = (
        RankColumn(Column("tier", rank=9), lambda tier: Cell(text(tier.tier), style=tier.tier)),
        RankColumn(
            Column("fill", rank=3, unit="share, 0 to 1"),
            lambda tier: Cell(scene.glyphs.bar(fill(tier), 12), fill(tier), tier.tier),
        ),
        RankColumn(Column("full", right=True, rank=8, unit="share, 0 to 1"), lambda tier: share_cell(fill(tier))),
        sized("used", "used_bytes", 6),
        RankColumn(
            Column("limit", right=True, rank=6, unit="B"),
            lambda tier: size_cell(tier.limit_bytes or tier.capacity_bytes),
        ),
        sized("of", "capacity_bytes"),
        RankColumn(Column("hit", right=True, rank=7, unit=f"share, 0 to 1, {_SINCE}"), _hit_share),
        counted("hits", "hits", 6, "pages " + _SINCE),
        counted("misses", "misses", 5, "pages " + _SINCE),
        counted("pages", "pages", 5),
        counted("only here", "only_pages", 5, "pages"),
        counted("pinned", "pinned_pages", 4, "pages"),
        counted("unread", "unread_pages", 2, "pages"),
        rate("read/s", "bytes_read", "B", 6),
        rate("written/s", "bytes_written", "B", 6),
        rate("evicted/s", "evictions", "pages", 5),
        RankColumn(
            Column("p50", right=True, rank=3, unit="s of a restore, last 60 s"),
            lambda tier: seconds_cell(tier.recent_p50_seconds),
        ),
        RankColumn(
            Column("p99", right=True, rank=4, unit="s of a restore, last 60 s"),
            lambda tier: seconds_cell(tier.recent_p99_seconds),
        ),
        RankColumn(Column("damaged", right=True, rank=4, unit="pages " + _SINCE), _damaged),
        counted("evicted", "evictions", 2, "pages " + _SINCE),
        sized("written", "bytes_written", 2, "B " + _SINCE),
        sized("read", "bytes_read", 2, "B " + _SINCE),
        RankColumn(Column("refused", widest=30, rank=1), _refused),
        RankColumn(Column("kept as", rank=1), lambda tier: _kept_as(tier, codecs.get((tier.server, tier.rank)))),
    )
    tiers = [tier for rank in scene.moment.ranks(scene.server) for tier in rank.tiers]
    return rank_table(scene, tiers, fields, tier_troubles, _blocks, "it says nothing of its tiers")


def _blocks(tier: TierView) -> Place:
    return Place(
        "blocks", (PlaceStep("server", tier.server), PlaceStep("rank", tier.rank), PlaceStep("tier", tier.tier))
    )


def _hit_share(tier: TierView) -> Cell:
    asked = None if tier.hits is None or tier.misses is None else tier.hits + tier.misses
    return share_cell(tier.hits / asked if asked and tier.hits is not None else None)


def _rounded(rate: float | None) -> Cell:
    return count_cell(None if rate is None else round(rate, 1))


def _kept_as(tier: TierView, codec: str | None) -> Cell:
    """Whether a tier has every byte of what was computed."""
    if codec is None:
        return Cell(NONE)
    lossy = bool(codec) and tier.tier != "device"
    return Cell(text(codec) if lossy else "computed", style="warning" if lossy else "")


def _damaged(tier: TierView) -> Cell:
    return count_cell(tier.checksum_failures)._replace(style="wrong" if tier.checksum_failures else "")


def _refused(tier: TierView) -> Cell:
    reasons = ", ".join(f"{text(reason)} {count(pages)}" for reason, pages in sorted(tier.refused.items()) if pages)
    return Cell(reasons or NONE)
