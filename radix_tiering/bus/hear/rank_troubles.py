"""What is wrong with a rank: its restores, its loads, its remote store, and what it says on the bus."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract.views import RankView
from .figures import count, size, text
from .period import Period
from .remote_troubles import remote_troubles
from .trouble import Mark, Trouble

#: Restores that gave less than was found: beyond this share of all, something does not keep up.
SHORT_RESTORES = 0.05


def rank_troubles(rank: RankView, period: Period | None = None) -> Iterator[Trouble]:
    """`period`: of which shares are told; unless given, all since the start."""
    period = period or Period.since_start(rank)
    yield from remote_troubles(rank, period)
    yield from _restore_troubles(rank, period)
    if rank.page_codec:
        yield Trouble(
            Mark.NOTE,
            rank,
            f"pages below the device are kept as {text(rank.page_codec)}, which is near what was computed",
            "`swift-tiers bench codec` says by how much; host.codec none keeps every byte",
        )
    if rank.hung_threads:
        yield Trouble(
            Mark.WRONG,
            rank,
            f"{count(rank.hung_threads)} of its threads hang",
            "see the events of kind thread.hangs: they say where, and the server's log says how it came there",
        )
    if rank.failed_loads:
        yield Trouble(
            Mark.WRONG,
            rank,
            f"{count(rank.failed_loads)} copies to the device failed; their requests got a 503",
            "see the events of kind load.failed",
            counted=rank.failed_loads,
        )
    if rank.lost_pages:
        yield Trouble(
            Mark.NOTE,
            rank,
            f"{count(rank.lost_pages)} pages that were found did not come up, and were computed",
            "see the events of kind restore.pages_lost",
            counted=rank.lost_pages,
        )
    if rank.events_lost:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"dropped {count(rank.events_lost)} events before they could be published",
            "Redis was away, or too slow",
            counted=rank.events_lost,
        )
    yield from _lending_troubles(rank)
    if rank.lend_limit_bytes is not None:
        yield Trouble(Mark.NOTE, rank, f"lends at most {size(rank.lend_limit_bytes)}, by an operator")
    if rank.publish_failures:
        yield Trouble(
            Mark.NOTE, rank, f"could not publish {count(rank.publish_failures)} times", counted=rank.publish_failures
        )


def _lending_troubles(rank: RankView) -> Iterator[Trouble]:
    if rank.lend_other_releases:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"{count(rank.lend_other_releases)} letters came from servers of another release, which neither lend to it "
            "nor borrow from it",
            "run one release of swift-tiers on a machine",
            counted=rank.lend_other_releases,
        )
    if rank.lend_faults:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"{count(rank.lend_faults)} errors of swift-tiers in lending or borrowing",
            "please report them: they are in the server's log",
            counted=rank.lend_faults,
        )


def _restore_troubles(rank: RankView, period: Period) -> Iterator[Trouble]:
    """Those that end may have begun before the period."""
    counts = period.counts
    short, late = counts["restores_cut_short"] + counts["restores_expired"], counts["restores_late"]
    started = counts["restores_started"]
    if short > SHORT_RESTORES * started:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"{count(short)} of {count(max(started, short))} restores{period.words} gave less than was found "
            f"({count(counts['restores_expired'])} ran out of time)",
            "the devices are too slow, or host memory is too small; see `inspect devices` and `inspect tiers`",
            counted=period.counted("restores_cut_short", "restores_expired"),
        )
    if late > SHORT_RESTORES * started:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"{count(late)} of {count(max(started, late))} restores{period.words} fell behind their estimates",
            "a source has become slow, see `inspect devices`; or its profile is off: `swift-tiers profile`",
            counted=period.counted("restores_late"),
        )
