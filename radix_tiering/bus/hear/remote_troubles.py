"""What is wrong between a rank and the store of its remote tier."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract.views import RankView
from .figures import count
from .period import Period
from .trouble import Mark, Trouble

#: Of the questions to a store: beyond this share that came late, it is hardly worth asking.
LATE_QUESTIONS = 0.1
#: States of `remote_engine` in which nothing is got from the store, and what to do. A start takes twenty seconds.
_AWAY = {
    "cannot be opened": "see the events of kind remote.cannot_be_opened: they say why; it is tried again every minute",
    "not asked": "see the events of kind remote.does_not_answer and remote.fails; it is asked again within a minute",
}


def remote_troubles(rank: RankView, period: Period | None = None) -> Iterator[Trouble]:
    """Nothing for a rank without a remote tier. `period`: as for `rank_troubles`."""
    period = period or Period.since_start(rank)
    if rank.remote_engine in _AWAY:
        what = f"its remote store {'is not asked' if rank.remote_engine == 'not asked' else rank.remote_engine}"
        yield Trouble(Mark.WARNING, rank, what, _AWAY[rank.remote_engine], "remote")
    yield from _counted(rank)
    late, questions = period.counts["remote_late"], period.counts["remote_questions"]
    if late > LATE_QUESTIONS * questions:
        yield Trouble(
            Mark.WARNING,
            rank,
            f"its remote store answered {count(late)} times too late, of {count(questions)} questions{period.words}",
            "see what else uses the link and the store; or set remote.lookup_deadline higher",
            "remote",
            counted=period.counted("remote_late"),
        )


def _counted(rank: RankView) -> Iterator[Trouble]:
    for mark, happened, what, remedy in (
        (Mark.WARNING, rank.remote_errors, "its remote store answered {} times with an error", "see the store's log"),
        (
            Mark.WARNING,
            rank.remote_bad,
            "{} objects of its remote store were not what they should be: never served",
            "check the store's memory and disks, and who else writes to it",
        ),
        (
            Mark.NOTE,
            rank.remote_lost,
            "{} objects of its remote store had gone, though others of their prefixes were there",
            "its nodes have died, or it is too small for what is written",
        ),
    ):
        if happened:
            yield Trouble(mark, rank, what.format(count(happened)), remedy, "remote", counted=happened)
