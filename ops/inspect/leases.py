"""Leases: who lends how much to whom, as both sides know it."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.ops.inspect.tables import Look, Row, how_old, make_look, place, ranks_of, table
from swift_tiers.radix_tiering.bus.figures import NONE, UNKNOWN, count, seconds, size, text
from swift_tiers.radix_tiering.bus.rates import Rates
from swift_tiers.radix_tiering.bus.reader import Part
from swift_tiers.radix_tiering.bus.troubles import Troubles
from swift_tiers.radix_tiering.bus.views import LeaseEntry, LeasesView, RankView, Snapshot


class Pair(NamedTuple):
    """One donor and one borrower. None: that side is not on the bus, or knows of no lease."""

    donor: str
    borrower: str
    lent: LeasesView | None
    borrowed: LeasesView | None

    @property
    def views(self) -> list[LeasesView]:
        return [view for view in (self.lent, self.borrowed) if view is not None]


class Lease(NamedTuple):
    """One lease of a pair."""

    pair: Pair
    number: int
    at_donor: LeaseEntry | None
    at_borrower: LeaseEntry | None


def show_leases(limit: int, snapshot: Snapshot, rates: Rates) -> Look:
    """What each rank lends and borrows; then each donor with each of its borrowers; then at most `limit` leases."""
    troubles = Troubles(snapshot, Part.RANKS | Part.LEASES)
    states = list(ranks_of(snapshot))
    ranks = [state.rank for state in states if state.rank is not None and state.rank.lent_bytes is not None]
    views = [view for state in states for view in (*state.lent, *state.borrowed)]
    shown: list[RenderableType] = [Text("no server here lends or borrows; see peer.donate and peer.borrow")]
    if ranks:
        columns = " rank|lent|lendable|at most|borrowed| lends to| borrows from|age"
        shown = [table(columns, map(_rank_row, ranks), troubles)]
    pairs = pairs_of(views)
    if pairs:
        columns = " donor| borrower|leases|bytes|being returned|pinned|borrower has|first ends in|age"
        shown += [Text(""), table(columns, map(_pair_row, pairs), troubles)]
        leases = [lease for pair in pairs for lease in leases_of(pair)]
        leases.sort(key=_is_plain)
        columns = " donor|#| borrower|bytes| at the donor| at the borrower|ends in| pinned"
        shown += [Text(""), table(columns, map(_lease_row, leases[:limit]), troubles)]
        total = sum(max(view.leases or 0 for view in pair.views) for pair in pairs)
        if total > limit:
            shown.append(Text(f"and {count(total - limit)} more; --limit shows more of them"))
    return make_look(snapshot, troubles, {"ranks": ranks, "leases": views}, shown)


def pairs_of(views: list[LeasesView]) -> list[Pair]:
    """Both sides' views, put together."""
    lent: dict[tuple[str, str], LeasesView] = {}
    borrowed: dict[tuple[str, str], LeasesView] = {}
    for view in views:
        side = lent if view.lends else borrowed
        side[view.donor, view.borrower] = view
    return [Pair(*names, lent.get(names), borrowed.get(names)) for names in sorted(lent.keys() | borrowed.keys())]


def leases_of(pair: Pair) -> list[Lease]:
    """Those that are listed on the bus, by number."""
    at_donor, at_borrower = (
        {entry.lease: entry for entry in view.table} if view is not None else {} for view in (pair.lent, pair.borrowed)
    )
    numbers = sorted(at_donor.keys() | at_borrower.keys())
    return [Lease(pair, number, at_donor.get(number), at_borrower.get(number)) for number in numbers]


def _is_plain(lease: Lease) -> bool:
    """Lent, and nothing else: the last ones to be shown."""
    return lease.at_donor is not None and lease.at_donor.state == "lent" and not lease.at_donor.pinned


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
            NONE if pair.borrowed is None else size(pair.borrowed.bytes), _left(view.shortest_seconds), how_old(view),
        ],
    )  # fmt: skip


def _lease_row(lease: Lease) -> Row:
    entry = lease.at_donor or lease.at_borrower
    assert entry is not None
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
