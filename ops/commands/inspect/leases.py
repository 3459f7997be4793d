"""Leases: who lends how much to whom, as both sides know it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import LeaseEntry, RankView, Snapshot
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, epoch, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.lease_pairs import Lease, Pair, leases_of, pairs_of, views_of
from swift_tiers.radix_tiering.bus.hear.rates import Rates
from swift_tiers.radix_tiering.bus.hear.reader import Part
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles

from .tables import Look, Row, how_old, make_look, place, ranks_of, table


def show_leases(limit: int, snapshot: Snapshot, rates: Rates) -> Look:
    """What each rank lends and borrows; then each donor with each of its borrowers; then at most `limit` leases."""
    troubles = Troubles(snapshot, Part.RANKS | Part.LEASES)
    states = list(ranks_of(snapshot))
    ranks = [state.rank for state in states if state.rank is not None and state.rank.lent_bytes is not None]
    views = views_of(states)
    shown: list[RenderableType] = [Text("no server here lends or borrows; see peer.donate and peer.borrow")]
    if ranks:
        columns = " rank|lent|lendable|at most|borrowed| lends to| borrows from|age"
        shown = [table(columns, map(_rank_row, ranks), troubles)]
    pairs = pairs_of(views)
    if pairs:
        columns = " donor| borrower|leases|bytes|being returned|pinned|borrower has|first ends in| epoch|age"
        shown += [Text(""), table(columns, map(_pair_row, pairs), troubles)]
        leases = [lease for pair in pairs for lease in leases_of(pair)]
        leases.sort(key=lambda lease: lease.plain)
        columns = " donor|#| borrower|bytes| at the donor| at the borrower|ends in| pinned"
        shown += [Text(""), table(columns, map(_lease_row, leases[:limit]), troubles)]
        total = sum(max(view.leases or 0 for view in pair.views) for pair in pairs)
        if total > limit:
            shown.append(Text(f"and {count(total - limit)} more; --limit shows more of them"))
    return make_look(snapshot, troubles, {"ranks": ranks, "leases": views}, shown)


def _rank_row(rank: RankView) -> Row:
    return Row(
        [rank],
        [
            place(rank), size(rank.lent_bytes), size(rank.lendable_bytes) if rank.lease_address else NONE,
            NONE if rank.lend_limit_bytes is None else size(rank.lend_limit_bytes), size(rank.borrowed_bytes),
            _names(rank.lends_to), _names(rank.borrows_from), how_old(rank),
        ],
    )  # fmt: skip


def _pair_row(pair: Pair) -> Row:
    view = pair.lent or pair.borrowed
    assert view is not None
    return Row(
        pair.views,
        [
            text(pair.donor), text(pair.borrower), count(view.leases),
            NONE if pair.lent is None else size(pair.lent.bytes), size(view.recalled_bytes),
            NONE if view.pinned_bytes is None else size(view.pinned_bytes),
            NONE if pair.borrowed is None else size(pair.borrowed.bytes), _left(view.shortest_seconds),
            epoch(view.epoch), how_old(view),
        ],
    )  # fmt: skip


def _lease_row(lease: Lease) -> Row:
    entry = lease.entry
    return Row(
        lease.pair.views,
        [
            text(lease.pair.donor), str(lease.number), text(lease.pair.borrower), size(entry.bytes),
            _state(lease.at_donor), _state(lease.at_borrower), _left(entry.seconds_left),
            "pinned" if entry.pinned else NONE,
        ],
    )  # fmt: skip


def _state(entry: LeaseEntry | None) -> str:
    return NONE if entry is None else text(entry.state) or UNKNOWN


def _left(value: float | None) -> str:
    if value is None:
        return NONE
    return seconds(value) if value >= 0 else f"over by {seconds(-value)}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(text, names)) or NONE
